"""Proofs that the alternatives of a JSON Schema exclude each other."""

import json
import re
from collections.abc import Callable
from itertools import combinations
from typing import Any, TypeAlias

SchemaObject: TypeAlias = dict[str, Any]
Schema: TypeAlias = SchemaObject | bool
MAX_STEPS = 100_000
VALIDATION_STEPS = 100
"""What it costs to ask a validator, in steps."""
_ALL = frozenset({"null", "boolean", "number", "string", "array", "object"})


def find_overlap(branches: list[Any], resolved: Callable[[Any], Any], root: Any) -> tuple[int, int] | None:
    """The first two branches that cannot be proven exclusive; None when all exclude each other.

    `resolved` follows references, `root` is the document in which they lie.
    """
    proof = _Proof(resolved, root)
    for (first, one), (second, other) in combinations(enumerate(branches), 2):
        if not proof.are_exclusive(one, other):
            return first, second
    return None


class _Proof:
    def __init__(self, resolved: Callable[[Any], Any], root: Any) -> None:
        self.resolved = resolved
        self.root = root
        self.steps = 0

    def are_exclusive(self, one: Any, other: Any, depth: int = 0) -> bool:
        """Whether no value is valid under both; False also when it is not known."""
        one, other = self.resolved(one), self.resolved(other)
        self.steps += 1
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict) or depth > 8 or self.steps > MAX_STEPS:
            return False
        ones, others = _constants(one), _constants(other)
        if ones is not None and others is not None and {_key(value) for value in ones}.isdisjoint(map(_key, others)):
            return True
        for values, against in ((ones, other), (others, one)):
            if values is not None:
                return not any(self._valid(value, against) for value in values)
        if self._exclusive_parts(one, other, depth) or self._exclusive_parts(other, one, depth):
            return True
        shared = _types(one) & _types(other)
        return all(self._exclusive_kind(kind, one, other, depth) for kind in shared)

    def _exclusive_parts(self, whole: SchemaObject, other: Any, depth: int) -> bool:
        """Whether a part that must hold, or each of the parts of which one must hold, excludes the other."""
        if any(self.are_exclusive(part, other, depth + 1) for part in whole.get("allOf", ())):
            return True
        return any(
            all(self.are_exclusive(part, other, depth + 1) for part in whole[keyword])
            for keyword in ("anyOf", "oneOf")
            if keyword in whole
        )

    def _valid(self, value: Any, schema: SchemaObject) -> bool:
        # Few servers are asked for schemas that need it.
        from jsonschema import Draft202012Validator

        self.steps += VALIDATION_STEPS
        try:
            return bool(Draft202012Validator(self.root).evolve(schema=schema).is_valid(value))
        except (re.error, RecursionError):
            return True

    def _exclusive_kind(self, kind: str, one: SchemaObject, other: SchemaObject, depth: int) -> bool:
        if kind == "number":
            return _are_apart(one, other, "minimum", "maximum")
        if kind == "string":
            return _are_apart(one, other, "minLength", "maxLength")
        if kind == "array":
            return _are_apart(one, other, "minItems", "maxItems")
        if kind != "object":
            return False
        required = set(one.get("required", ())) | set(other.get("required", ()))
        return any(self.are_exclusive(_property(name, one), _property(name, other), depth + 1) for name in required)


def _constants(schema: SchemaObject) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _key(value: Any) -> str:
    """Equal for values that a schema does not tell apart, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(map(_key, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(sorted(f'{json.dumps(key)}:{_key(item)}' for key, item in value.items()))}}}"
    return json.dumps(value)


def _types(schema: SchemaObject) -> frozenset[str]:
    kinds = schema.get("type")
    if kinds is None:
        return _ALL
    names = [kinds] if isinstance(kinds, str) else kinds
    return frozenset("number" if name == "integer" else name for name in names)


def _property(name: str, schema: SchemaObject) -> Any:
    """What the value under a name must be; True when several keywords speak of it."""
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _are_apart(one: SchemaObject, other: SchemaObject, lower: str, upper: str) -> bool:
    """Whether the ranges of the two do not touch."""
    for first, second in ((one, other), (other, one)):
        if upper in first and lower in second and first[upper] < second[lower]:
            return True
    return False
