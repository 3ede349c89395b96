"""Structural schemas of CustomResourceDefinitions: the part of OpenAPI that ours use."""

import re
from typing import Any

from hamipy.testing._refusal import Refused

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def check_object(kind: str, obj: dict[str, Any], schema: dict[str, Any], *, strict: bool) -> None:
    """Hold an object to its schema; `strict` refuses undeclared fields, as server-side apply does.

    Raises:
        Refused: 422 for a value, 500 for an undeclared field (the real server's own code for it).
    """
    name = obj.get("metadata", {}).get("name", "")
    for problem, undeclared in _problems(obj, schema, "", top=True):
        if not undeclared:
            raise Refused(422, f'{kind}.hamipy.io "{name}" is invalid: {problem}')
        if strict:
            raise Refused(500, f"failed to create typed patch object: {problem}")


def _problems(value: Any, schema: dict[str, Any], path: str, *, top: bool = False) -> list[tuple[str, bool]]:
    kind = schema.get("type")
    expected = _TYPES.get(str(kind))
    wrong = expected is not None and not isinstance(value, expected)
    if wrong or (isinstance(value, bool) and kind in {"integer", "number"}):
        return [(f"{path.lstrip('.')}: Invalid value: {value!r}: must be of type {kind}", False)]
    found: list[tuple[str, bool]] = []
    if isinstance(value, dict):
        found += _object_problems(value, schema, path, top=top)
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            found.append((f"{path.lstrip('.')}: Too many: must have at most {schema['maxItems']} items", False))
        for position, item in enumerate(value):
            found += _problems(item, schema.get("items", {}), f"{path}[{position}]")
    else:
        found += [(f"{path.lstrip('.')}: Invalid value: {value!r}: {why}", False) for why in _scalar(value, schema)]
    return found


def _object_problems(value: dict[str, Any], schema: dict[str, Any], path: str, *, top: bool) -> list[tuple[str, bool]]:
    found = [
        (f"{path}.{key}".lstrip(".") + ": Required value", False)
        for key in schema.get("required", ())
        if key not in value
    ]
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    if len(value) > schema.get("maxProperties", len(value)):
        found.append((f"{path.lstrip('.')}: Too many: must have at most {schema['maxProperties']} items", False))
    for key, item in value.items():
        if top and key in {"apiVersion", "kind", "metadata"}:
            continue
        inner = properties.get(key, others)
        if isinstance(inner, dict):
            found += _problems(item, inner, f"{path}.{key}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.append((f"{path}.{key}: field not declared in schema", True))
    return found


def _scalar(value: Any, schema: dict[str, Any]) -> list[str]:
    found = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            found.append(f"should be greater than or equal to {schema['minimum']}")
        if value > schema.get("maximum", value):
            found.append(f"should be less than or equal to {schema['maximum']}")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            found.append(f"should be at least {schema['minLength']} chars long")
        if len(value) > schema.get("maxLength", len(value)):
            found.append(f"may not be more than {schema['maxLength']} bytes")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"should match '{schema['pattern']}'")
    return found
