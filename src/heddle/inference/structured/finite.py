"""Whether a schema has any value that ends."""

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any] | bool


def has_finite_value(schema: Schema, definitions: dict[str, Schema]) -> bool:
    """False when every value would have to hold another of its kind without end.

    `schema` and `definitions` are as rebuilt by the reader: references are `#/$defs/NAME`.
    """
    finite: set[str] = set()
    while True:
        grown = {name for name, item in definitions.items() if name in finite or _finite(item, finite)}
        if grown == finite:
            return _finite(schema, finite)
        finite = grown


def _finite(schema: Schema, finite: set[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in finite:
        return False
    if not all(_finite(part, finite) for part in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(_finite(part, finite) for part in schema["anyOf"]):
        return False
    if "const" in schema or "enum" in schema:
        return True
    kinds = schema.get("type", "null")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return any(_finite_kind(kind, schema, finite) for kind in kinds)


def _finite_kind(kind: str, schema: dict[str, Any], finite: set[str]) -> bool:
    if kind == "object":
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        return all(
            _finite(properties.get(name, others), finite) or (name not in properties and "patternProperties" in schema)
            for name in schema.get("required", ())
        )
    if kind == "array":
        first = schema.get("prefixItems", [])
        needed = schema.get("minItems", 0)
        return all(_finite(item, finite) for item in first[:needed]) and (
            needed <= len(first) or _finite(schema.get("items", True), finite)
        )
    return True
