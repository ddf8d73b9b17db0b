"""Argument values that a model writes as plain text, such as between XML tags: the types that a schema gives them."""

from __future__ import annotations

import ast
import json
from typing import Any

from heddle.wire.jsontypes import Json

_NAMES = {"object": dict, "array": list, "string": str, "integer": int, "number": float, "boolean": bool}
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_MAX_DEPTH = 8


def property_schema(parameters: Json | None, name: str) -> Any:
    """The schema of one argument; None where the parameters do not name it."""
    properties = (parameters or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def find_types(schema: Any, root: Json | None = None, depth: int = 0) -> frozenset[str]:
    """The types that a schema allows, as far as they can be told; empty when it does not tell."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return frozenset()
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset((stated,))
    if isinstance(stated, list):
        return frozenset(item for item in stated if isinstance(item, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    if "const" in schema:
        return frozenset((_type_of(schema["const"]),))
    target = find_target(root, schema.get("$ref"))
    if target is not None:
        return find_types(target, root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            found = [find_types(branch, root, depth + 1) for branch in branches]
            return frozenset().union(*found) if all(found) or keyword == "allOf" else frozenset()
    return frozenset()


def find_target(root: Json | None, reference: Any) -> Any:
    """What a reference within the schema leads to; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return next(name for name, kind in _NAMES.items() if type(value) is kind)


def read_value(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for: the text itself where the types allow nothing else or the text fits no type.

    Words and literals of Python are read as well as JSON, since models and their templates write both.
    """
    if types == {"string"}:
        return text
    value = read_literal(text)
    if value is NO_VALUE:
        return text
    found = _type_of(value)
    if found == "string":
        return text
    if found == "number" and "integer" in types and "number" not in types and value.is_integer():
        return int(value)
    fits = not types or found in types or (found == "integer" and "number" in types)
    return value if fits or "string" not in types else text


NO_VALUE = object()


def parse_json(text: str) -> Any:
    """The value of a JSON text; NO_VALUE when it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NO_VALUE


def read_literal(text: str) -> Any:
    """The value of a JSON text or a Python literal; NO_VALUE when it is neither."""
    plain = text.strip()
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if (value := parse_json(plain)) is not NO_VALUE:
        return value
    try:
        return json.loads(json.dumps(ast.literal_eval(plain), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_VALUE


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
