"""Patches: merge (RFC 7386), JSON (RFC 6902), and server-side apply as far as single managers need it."""

import copy
from typing import Any

from hamipy.testing._refusal import Refused

_MISSING = object()


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902.

    Raises:
        Refused: 422 when a test fails or a path does not exist, 400 when it is no patch.
    """
    if not isinstance(operations, list):
        raise Refused(400, "a JSON patch is a list of operations")
    result = copy.deepcopy(target)
    for operation in operations:
        try:
            result = _operate(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise Refused(422, f"the server rejected our request due to an error in our request: {error!r}") from error
    return result


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "add":
            return _set(document, path, operation["value"], insert=True)
        case "replace":
            _get(document, path)
            return _set(document, path, operation["value"], insert=False)
        case "remove":
            return _remove(document, path)
        case "test":
            if _get(document, path) != operation["value"]:
                raise ValueError(f"testing value {operation['path']} failed")
            return document
        case "copy" | "move":
            source = _pointer(operation["from"])
            value = copy.deepcopy(_get(document, source))
            if operation["op"] == "move":
                document = _remove(document, source)
            return _set(document, path, value, insert=True)
        case unknown:
            raise ValueError(f"unknown operation {unknown}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _get(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _set(document: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else int(path[-1])
        if not 0 <= at <= len(parent):
            raise IndexError(at)
        parent[at : at if insert else at + 1] = [value]
    else:
        parent[path[-1]] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    parent = _get(document, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return document


class Managers:
    """Who applied what to one object: enough of field management for fields that one manager writes."""

    def __init__(self) -> None:
        self._applied: dict[str, dict[str, Any]] = {}

    def apply(self, current: dict[str, Any], body: dict[str, Any], manager: str, *, force: bool) -> dict[str, Any]:
        """The object after `manager` applied `body`: its fields are set, those it no longer mentions go.

        Lists are replaced as a whole.

        Raises:
            Refused: 409 when another manager applied another value to a field and `force` is off.
        """
        others = {m: applied for m, applied in self._applied.items() if m != manager}
        for other, applied in others.items():
            path = _conflict(applied, body, "")
            if path and not force:
                raise Refused(409, f'Apply failed with 1 conflict: conflict with "{other}": {path}')
        before = self._applied.get(manager, {})
        kept: dict[str, Any] = {}
        for applied in others.values():
            kept = merge(kept, applied)
        result = _prune(current, before, body, kept)
        self._applied[manager] = copy.deepcopy(body)
        return dict(merge(result, body))


def _conflict(theirs: Any, ours: Any, path: str) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() & ours.keys() - {"apiVersion", "kind", "name"}:
            found = _conflict(theirs[key], ours[key], f"{path}.{key}")
            if found:
                return found
        return ""
    return "" if theirs == ours else path


def _prune(current: Any, before: Any, body: Any, others: Any) -> Any:
    """Remove from `current` what this manager applied before, applies no longer, and nobody else applied."""
    if not (isinstance(current, dict) and isinstance(before, dict)):
        return current
    result = dict(current)
    for key, was in before.items():
        now = body.get(key, _MISSING) if isinstance(body, dict) else _MISSING
        theirs = others.get(key, _MISSING) if isinstance(others, dict) else _MISSING
        if key not in result:
            continue
        if now is _MISSING and theirs is _MISSING:
            del result[key]
        elif isinstance(was, dict):
            result[key] = _prune(result[key], was, now, theirs)
    return result
