"""Field and label selectors, as far as our components use them."""

from collections.abc import Callable, Mapping
from typing import Any

from hamipy.testing._refusal import Refused

FIELDS: dict[str, tuple[str, ...]] = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "status.phase": ("status", "phase"),
    "spec.unschedulable": ("spec", "unschedulable"),
    "involvedObject.name": ("involvedObject", "name"),
    "involvedObject.uid": ("involvedObject", "uid"),
    "reason": ("reason",),
}
"""Fields that can be selected by."""

Test = Callable[[Mapping[str, str], Mapping[str, str]], bool]
"""Of an object's fields and its labels."""


def fields_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """The object's values of the fields that can be selected by; absent ones are empty."""
    values = {}
    for name, path in FIELDS.items():
        value: Any = obj
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            values[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return values


def parse_selectors(fields: str, labels: str) -> Test | None:
    """One test out of both selectors; None when everything passes.

    Raises:
        Refused: 400, for what the real server or this one does not know.
    """
    tests = [_field_test(term) for term in fields.split(",") if term]
    tests += [_label_test(term) for term in _label_terms(labels)]
    if not tests:
        return None
    return lambda f, lab: all(test(f, lab) for test in tests)


def _field_test(term: str) -> Test:
    key, equal, value = _split(term)
    if key not in FIELDS:
        raise Refused(400, f"field label not supported: {key}")
    return lambda fields, _: (fields.get(key, "") == value) is equal


def _label_terms(labels: str) -> list[str]:
    """Split at commas outside parentheses."""
    terms, depth, current = [], 0, ""
    for char in labels:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            terms.append(current)
            current = ""
        else:
            current += char
    return [t.strip() for t in [*terms, current] if t.strip()]


def _label_test(term: str) -> Test:
    words = term.split(maxsplit=2)
    if len(words) == 3 and words[1] in {"in", "notin"} and words[2].startswith("("):
        key, wanted = words[0], {v.strip() for v in words[2].strip("()").split(",")}
        if words[1] == "in":
            return lambda _, labels: labels.get(key) in wanted
        return lambda _, labels: labels.get(key) not in wanted
    if "=" not in term:
        key = term.lstrip("!")
        return lambda _, labels: (key in labels) is not term.startswith("!")
    key, equal, value = _split(term)
    return lambda _, labels: (labels.get(key) == value) is equal


def _split(term: str) -> tuple[str, bool, str]:
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        key, found, value = term.partition(sign)
        if found:
            return key.strip(), equal, value.strip()
    raise Refused(400, f"invalid selector: {term!r}")
