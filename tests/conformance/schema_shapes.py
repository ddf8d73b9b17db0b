"""JSON schemas taken apart far enough to compare the contract's with the server's."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data"
CORE = json.loads((DATA / "trace-core.json").read_text(encoding="utf-8"))
EVALS = json.loads((DATA / "trace-evals.json").read_text(encoding="utf-8"))
ANYTHING = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})

Schema = dict[str, Any]

OF_EVALS = "evals."
ADDED_TO_EVALS: dict[str, dict[str, Any]] = {
    "POST /v2/{entity}/{project}/eval_results/query": {
        "request_added": {"include_costs": {"type": "boolean"}},
        "response_added": {
            "rows[].evaluations[].trials[].total_cost": {"type": ["number", "null"]},
            "summary.evaluations[].predict_total_cost": {"type": ["number", "null"]},
        },
    },
    "POST /agents/traces/chat": {"request_added": {"include_model_tool_calls": {"type": "boolean"}}},
    "POST /agents/conversations/chat": {"request_added": {"include_model_tool_calls": {"type": "boolean"}}},
}
"""What `sdk_0_54_deltas` of trace-evals.json says of its own routes, as trace-core.json writes such additions."""


def _renamed(value: Any) -> Any:
    """A schema of trace-evals.json with its refs pointing to where `CONTRACT` has what they mean."""
    if isinstance(value, dict):
        ref = value.get("$ref")
        if isinstance(ref, str):
            return {**value, "$ref": ref.replace("#/schemas/", f"#/$defs/{OF_EVALS}")}
        return {key: _renamed(item) for key, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list) else value


def _of_evals(key: str, endpoint: dict[str, Any]) -> dict[str, Any]:
    """An endpoint of trace-evals.json as trace-core.json writes its own."""
    sent, response = endpoint["request"], endpoint["response"]
    request: Schema = {}
    if isinstance(sent.get("body"), str):
        request = {"content_types": [sent["content_type"]], "body": sent["body"]}
    elif "body" in sent:
        request = _renamed(sent["body"])
    elif "query" in sent:
        request = {"query": sent["query"]}
    return {
        "request": request,
        "response": _renamed(response.get("stream_of", response)),
        "media_type": endpoint["media_type"],
        "in_seed": endpoint["in_seed"],
        "delta_0.54.0": ADDED_TO_EVALS.get(key, {}),
    }


CORE_ENDPOINTS: dict[str, dict[str, Any]] = {key: value for key, value in CORE.items() if not key.startswith("$")}
EVALS_ENDPOINTS = {
    key: _of_evals(key, endpoint) for key, endpoint in EVALS["endpoints"].items() if key not in CORE_ENDPOINTS
}
ENDPOINTS = CORE_ENDPOINTS | EVALS_ENDPOINTS
"""Every route of both documents; where both have one, trace-core.json says more of it."""
CONTRACT = {
    "$defs": CORE["$defs"] | {f"{OF_EVALS}{name}": _renamed(schema) for name, schema in EVALS["schemas"].items()}
}


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
