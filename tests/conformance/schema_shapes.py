"""JSON schemas taken apart far enough to compare the contract's with the server's."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTRACT = json.loads((Path(__file__).resolve().parents[1] / "data" / "trace-core.json").read_text(encoding="utf-8"))
ENDPOINTS: dict[str, dict[str, Any]] = {key: value for key, value in CONTRACT.items() if not key.startswith("$")}
ANYTHING = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})

Schema = dict[str, Any]


@dataclass
class Shape:
    """What a schema allows: JSON types, texts of an enum, properties of an object, items of an array."""

    types: set[str] = field(default_factory=set)
    enum: set[str] | None = None
    properties: dict[str, list[Schema]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    items: list[Schema] = field(default_factory=list)
    values: list[Schema] = field(default_factory=list)


def resolve(schema: Schema, root: Schema) -> Schema:
    """The schema behind a `$ref`."""
    while "$ref" in schema:
        place: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[part]
        schema = {**place, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def shape(schemas: list[Schema], root: Schema) -> Shape:
    """The union of the alternatives; an object key is required when every object alternative requires it."""
    found = Shape()
    required: set[str] | None = None
    enum: set[str] = set()
    free_text = False
    for schema in schemas:
        for part in _alternatives(resolve(schema, root), root):
            types = _types(part)
            found.types |= types
            if "enum" in part or "const" in part:
                enum |= {str(value) for value in part.get("enum", [part.get("const")])}
            elif "string" in types:
                free_text = True
            if "object" in types and types != ANYTHING:
                for name, value in part.get("properties", {}).items():
                    found.properties.setdefault(name, []).append(value)
                required = set(part.get("required", ())) & (
                    required if required is not None else set(part.get("required", ()))
                )
                if isinstance(part.get("additionalProperties"), dict):
                    found.values.append(part["additionalProperties"])
            if isinstance(part.get("items"), dict):
                found.items.append(part["items"])
    found.required = required or set()
    found.enum = enum if enum and not free_text else None
    return found


def _alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The schema's `anyOf`/`oneOf` parts taken apart; `allOf` parts merged into one."""
    if "allOf" in schema:
        merged: Schema = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            part = resolve(part, root)
            merged = {
                **part,
                **merged,
                "properties": {**part.get("properties", {}), **merged.get("properties", {})},
                "required": [*part.get("required", []), *merged.get("required", [])],
            }
        return _alternatives(merged, root)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return [part for item in schema[word] for part in _alternatives(resolve(item, root), root)]
    return [schema]


def _types(schema: Schema) -> set[str]:
    if "type" in schema:
        named = schema["type"]
        return set(named if isinstance(named, list) else [named])
    if "properties" in schema or "additionalProperties" in schema:
        return {"object"}
    if "const" in schema or "enum" in schema:
        return {"string"}
    return set(ANYTHING)


# --- the newer SDK's additions ----------------------------------------------------------------------------------------


def request_schema(key: str) -> Schema:
    """The body schema of an endpoint with the additions of 0.54.0."""
    added = ENDPOINTS[key].get("delta_0.54.0", {}).get("request_added", {})
    return {"allOf": [_open(ENDPOINTS[key]["request"]), *(_at(path, value) for path, value in added.items())]}


def response_schemas(key: str) -> list[Schema]:
    """Schemas that an answer (of a stream: each line) of the endpoint must all fit."""
    endpoint = ENDPOINTS[key]
    delta = endpoint.get("delta_0.54.0", {})
    schemas = [endpoint["response"]]
    schemas += [_at(path, value) for path, value in delta.get("response_added", {}).items()]
    schemas += [_at(path, value) for path, value in delta.get("response_changed", {}).items()]
    return [{**schema, "$defs": CONTRACT["$defs"]} for schema in schemas]


def _open(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "additionalProperties"}


def _at(path: str, value: Any) -> Schema:
    """A schema that says `value` about the place `path`: `a`, `a[].b`, `a{}{}.b` or `a[].b|c`."""
    name, _, rest = path.partition(".")
    head = name.rstrip("[]{}")
    if not rest:
        return _fields(head, value)
    inner = _at(rest, value)
    for wrapper in reversed([name[start : start + 2] for start in range(len(head), len(name), 2)]):
        inner = {"items": inner} if wrapper == "[]" else {"additionalProperties": inner}
    return {"properties": {head: inner}}


def _fields(names: str, value: Any) -> Schema:
    if names == "<integer fields>":
        usage = CONTRACT["$defs"]["LLMAggregatedUsage"]["properties"]
        return {"required": [name for name, schema in usage.items() if schema.get("type") == "integer"]}
    if value == "required":
        return {"required": names.split("|")}
    schema = {key: item for key, item in value.items() if key != "required"}
    if isinstance(schema.get("items"), dict) and "type" not in schema["items"]:
        schema["items"] = {"type": "object", "properties": {n: _plain(s) for n, s in schema["items"].items()}}
    return {"properties": {names: schema}, "required": [names] if value.get("required") else []}


def _plain(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "required"}
