"""From a JSON Schema to one of which the grammar compiler enforces every word."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from heddle.inference.structured.checks import (
    MAX_REFERENCE_CHAIN,
    Numbers,
    Refused,
    chain_length,
    check_size,
    check_step,
    read_constant,
    read_constants,
    read_count,
    read_list,
    read_names,
    read_number,
    read_object,
    read_step,
    read_text,
    read_types,
)
from heddle.inference.structured.guidance import refusal, shorten
from heddle.inference.structured.overlaps import Schema, SchemaObject, find_overlap
from heddle.inference.structured.patterns import FORMATS, HINTS, INTEGER_FORMATS, translate_pattern
from heddle.wire.jsontypes import is_index


def has_finite_value(schema: Schema, definitions: dict[str, Schema]) -> bool:
    """False when every value would have to hold another of its kind without end.

    `schema` and `definitions` are as rebuilt by the reader: references are `#/$defs/NAME`.
    """
    finite: set[str] = set()
    while True:
        grown = {name for name, item in definitions.items() if name in finite or _is_finite(item, finite)}
        if grown == finite:
            return _is_finite(schema, finite)
        finite = grown


def _is_finite(schema: Schema, finite: set[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in finite:
        return False
    if not all(_is_finite(part, finite) for part in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(_is_finite(part, finite) for part in schema["anyOf"]):
        return False
    if "const" in schema or "enum" in schema:
        return True
    kinds = schema.get("type", "null")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return any(_is_finite_kind(kind, schema, finite) for kind in kinds)


def _is_finite_kind(kind: str, schema: SchemaObject, finite: set[str]) -> bool:
    if kind == "object":
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        return all(
            _is_finite(properties.get(name, others), finite)
            or (name not in properties and "patternProperties" in schema)
            for name in schema.get("required", ())
        )
    if kind == "array":
        first = schema.get("prefixItems", [])
        needed = schema.get("minItems", 0)
        return all(_is_finite(item, finite) for item in first[:needed]) and (
            needed <= len(first) or _is_finite(schema.get("items", True), finite)
        )
    return True


ANNOTATIONS = frozenset((
    "$anchor", "$comment", "$defs", "$schema", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema",
    "default", "definitions", "deprecated", "description", "discriminator", "example", "examples", "externalDocs",
    "readOnly", "title", "writeOnly", "xml",
))  # fmt: skip
"""Say nothing about which values are valid; taken as they are. So do all names that begin with `x-`."""
_REFUSALS = {
    "dynamic references are not supported; use $ref":
        ("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"),
    "it cannot be enforced while text is generated": ("contains", "maxContains", "minContains"),
    "it cannot be enforced; use anyOf of two object schemas": ("dependencies", "dependentRequired", "dependentSchemas"),
    "it cannot be enforced; use anyOf": ("if", "then", "else"),
    "it cannot be enforced; say what is allowed": ("not",),
    "it is not a keyword of JSON Schema; add 'null' to type": ("nullable",),
    "use prefixItems and items of draft 2020-12": ("additionalItems",),
    "use multipleOf": ("divisibleBy",),
    "use allOf": ("extends",),
    "use $id at the root": ("id",),
}  # fmt: skip
REFUSED = {keyword: what for what, keywords in _REFUSALS.items() for keyword in keywords}
"""Refused wherever they stand, with what to do."""
MAX_DEPTH = 64
MAX_PATTERNS = 32
"""Of patternProperties; the compiler compares each with each."""
GAP = r" |\r?\n(?: {0,40}|\t{0,12})"
"""The whitespace that JSON may have between two tokens by default: one blank, or a line break and its indentation.

Free whitespace lets a model fill its budget with blanks; this accepts one-line and indented JSON alike and no more.
"""
ESCAPES = 'nrbtf\\"'
"""Escapes in strings. Without \\u one text has one spelling, so a key cannot hide behind another spelling."""


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """The switches of a request that act on JSON."""

    gap: str | None = GAP
    """Regular expression of one gap, which may also be empty; None = compact, no whitespace anywhere."""
    close_objects: bool = False
    """Object schemas that do not speak of additional properties forbid them."""

    def options(self) -> SchemaObject:
        """The same as options of the compiler, for the key `x-guidance` of a schema."""
        if self.gap is None:
            return {
                "whitespace_flexible": False,
                "item_separator": ",",
                "key_separator": ":",
                "json_allowed_escapes": ESCAPES,
            }
        return {"whitespace_pattern": self.gap, "json_allowed_escapes": ESCAPES}


def compile_schema(schema: Schema, style: JsonStyle, param: str) -> SchemaObject:
    """The schema for the compiler, with `style` as its options; InvalidRequest when a part cannot be enforced."""
    check_size(schema, param)
    try:
        return {**_Reader(schema, style.close_objects).build(), "x-guidance": style.options()}
    except Refused as refused:
        raise refusal(param, refused) from None


class _Reader:
    """Reads one schema document; every target of a reference becomes a definition of its own."""

    def __init__(self, root: Schema, close_objects: bool) -> None:
        self.root = root
        self.close_objects = close_objects
        self.definitions: dict[str, Schema] = {}
        self.names: dict[str, str] = {}
        self.waiting: list[tuple[str, str]] = []
        self.numbers = Numbers()
        self.alternatives: list[tuple[str, list[Any], SchemaObject]] = []

    def build(self) -> SchemaObject:
        """The rebuilt root with the definitions that it uses."""
        top = self.read(self.root, "#")
        while self.waiting:
            name, pointer = self.waiting.pop()
            self.definitions[name] = self.read(self._target(pointer), pointer)
        for place, branches, beside in self.alternatives:
            self._check_exclusive(place, branches, beside)
        references = {name: list(_references(item)) for name, item in self.definitions.items()}
        longest = chain_length(list(_references(top)), references)
        if longest > MAX_REFERENCE_CHAIN:
            raise Refused("$ref", f"{longest} references follow each other; the limit is {MAX_REFERENCE_CHAIN}")
        self.numbers.finish()
        if top is False or not has_finite_value(top, self.definitions):
            raise Refused("#", "no finite value is valid under this schema")
        built: SchemaObject = {} if top is True else dict(top)
        return {"$defs": self.definitions, **built} if self.definitions else built

    def read(self, schema: Any, place: str, depth: int = 0) -> Schema:
        """One schema and all below it."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Refused(place, "a schema must be an object, true or false")
        if depth > MAX_DEPTH:
            raise Refused(place, f"nested more than {MAX_DEPTH} levels deep")
        built: SchemaObject = {}
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS or keyword.startswith("x-") or keyword == "propertyNames":
                continue
            if keyword in REFUSED:
                raise Refused(place, f"{keyword!r} is not supported: {REFUSED[keyword]}")
            if keyword in _VALUES:
                built[keyword] = _VALUES[keyword](value, f"{place}/{keyword}")
            elif not self._read_keyword(built, keyword, value, f"{place}/{keyword}", depth + 1):
                raise Refused(place, f"{shorten(repr(keyword))} is not a keyword of JSON Schema 2020-12")
        if "propertyNames" in schema:
            self._property_names(schema, built, f"{place}/propertyNames")
        self.numbers.add(built)
        only_named = built.get("additionalProperties") is False and "patternProperties" not in built
        if only_named and built.get("maxProperties", 0) >= len(built.get("properties", ())):
            built.pop("maxProperties", None)
        least = built.get("minProperties", 0)
        if least <= len(built.get("required", ())):
            built.pop("minProperties", None)
        elif least > 1:
            raise Refused(f"{place}/minProperties", "values above 1 can only be enforced with required")
        if self.close_objects and _speaks_of_objects(built):
            built.setdefault("additionalProperties", False)
        return built

    def _read_keyword(self, built: SchemaObject, keyword: str, value: Any, place: str, depth: int) -> bool:
        """Rebuild a keyword that holds schemas, or a value that the compiler does not take as it is. False for none."""
        match keyword:
            case "allOf" | "anyOf" | "oneOf":
                self._read_branches(built, keyword, read_list(value, place), place, depth)
            case "prefixItems":
                items = enumerate(read_list(value, place))
                built[keyword] = [self.read(item, f"{place}/{index}", depth) for index, item in items]
            case "items" | "additionalProperties":
                if isinstance(value, list):
                    raise Refused(place, "use prefixItems for a list of schemas, as in draft 2020-12")
                built[keyword] = self.read(value, place, depth)
            case "properties":
                named = read_object(value, place).items()
                built[keyword] = {name: self.read(item, f"{place}/{name}", depth) for name, item in named}
            case "patternProperties":
                named = read_object(value, place).items()
                if len(named) > MAX_PATTERNS:
                    raise Refused(place, f"has {len(named)} patterns; the limit is {MAX_PATTERNS}")
                built[keyword] = {translate_pattern(name): self.read(i, f"{place}/{name}", depth) for name, i in named}
                if len(built[keyword]) < len(named):
                    raise Refused(place, "two patterns are equivalent")
            case "$ref":
                pointer = self._pointer(read_text(value, place), place)
                self.resolve({"$ref": pointer})
                if pointer not in self.names:
                    self.names[pointer] = f"d{len(self.names)}"
                    self.waiting.append((self.names[pointer], pointer))
                built[keyword] = f"#/$defs/{self.names[pointer]}"
            case "$id":
                if place != "#/$id":
                    raise Refused(place, "only the root can have an $id")
                read_text(value, place)
            case "pattern":
                _add_pattern(built, translate_pattern(read_text(value, place)))
            case "format":
                _add_format(built, read_text(value, place), place)
            case "uniqueItems" | "unevaluatedItems" | "unevaluatedProperties":
                if value is not (keyword != "uniqueItems"):
                    raise Refused(place, "it cannot be enforced while text is generated")
            case _:
                return False
        return True

    def _read_branches(self, built: SchemaObject, keyword: str, branches: list[Any], place: str, depth: int) -> None:
        read = [self.read(branch, f"{place}/{index}", depth) for index, branch in enumerate(branches)]
        if keyword == "oneOf":
            self.alternatives.append((place, branches, built))
        if keyword == "allOf":
            _all_of(built, read)
        elif "anyOf" in built:
            _all_of(built, [{"anyOf": read}])
        else:
            built["anyOf"] = read

    def _check_exclusive(self, place: str, branches: list[Any], beside: SchemaObject) -> None:
        """`beside` is the schema that the branches belong to; its type holds for all of them."""
        if "type" in beside:
            branches = [
                {"type": beside["type"], **branch} if isinstance(branch, dict) and "$ref" not in branch else branch
                for branch in branches
            ]
        pair = find_overlap(branches, self.resolve, self.root)
        if pair:
            raise Refused(
                place,
                f"branches {pair[0]} and {pair[1]} may overlap; use anyOf, "
                "or give them different types or a property with different constants",
            )

    def _property_names(self, schema: SchemaObject, built: SchemaObject, place: str) -> None:
        """Names given by a list or a pattern become properties or patternProperties of a closed object."""
        names = self.resolve(schema["propertyNames"])
        if names is True or (isinstance(names, dict) and not set(names) - ANNOTATIONS - {"type"}):
            return
        if {"properties", "patternProperties"} & set(built):
            raise Refused(place, "it cannot be enforced together with properties or patternProperties")
        item = built.get("additionalProperties", True)
        keywords = set(names) - ANNOTATIONS - {"type"} if isinstance(names, dict) else set()
        if isinstance(names, dict) and keywords == {"pattern"}:
            built["patternProperties"] = {translate_pattern(read_text(names["pattern"], place)): item}
        elif isinstance(names, dict) and (keywords == {"enum"} or keywords == {"const"}):
            allowed = read_list(names["enum"], place) if "enum" in names else [names["const"]]
            built["properties"] = {name: item for name in allowed if isinstance(name, str)}
        else:
            raise Refused(place, "only a single enum, const or pattern can be enforced on property names")
        built["additionalProperties"] = False

    def _pointer(self, reference: str, place: str) -> str:
        base = self.root.get("$id") if isinstance(self.root, dict) else None
        if isinstance(base, str) and reference.startswith(base.rstrip("#") + "#"):
            reference = reference[len(base.rstrip("#")) :]
        if reference != "#" and not reference.startswith("#/"):
            raise Refused(place, f"{shorten(repr(reference))} does not point into this schema (#/...)")
        self._target(reference, place)
        return reference

    def _target(self, pointer: str, place: str = "$ref") -> Any:
        found: Any = self.root
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and is_index(key) and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise Refused(place, f"{shorten(pointer)!r} does not exist")
        if not isinstance(found, dict | bool):
            raise Refused(place, f"{shorten(pointer)!r} is not a schema")
        return found

    def resolve(self, schema: Any) -> Any:
        """The schema that a chain of plain references ends at."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or set(schema) - ANNOTATIONS != {"$ref"}:
                return schema
            schema = self._target(self._pointer(read_text(schema["$ref"], "$ref"), "$ref"))
        raise Refused("$ref", "the references are circular")


def _add_format(built: SchemaObject, name: str, place: str) -> None:
    if name in INTEGER_FORMATS:
        limit = INTEGER_FORMATS[name]
        _all_of(built, [{"minimum": -min(limit, 2**53), "maximum": min(limit - 1, 2**53)}])
    elif name in FORMATS:
        _add_pattern(built, f"^(?:{FORMATS[name]})$")
    elif name not in HINTS:
        raise Refused(place, f"{shorten(repr(name))} is not a format that can be enforced")


def _all_of(built: SchemaObject, conditions: Sequence[Schema]) -> None:
    built["allOf"] = [*built.get("allOf", ()), *conditions]


def _add_pattern(built: SchemaObject, pattern: str) -> None:
    if "pattern" in built:
        _all_of(built, [{"pattern": pattern}])
    else:
        built["pattern"] = pattern


def _references(value: Any) -> Iterator[str]:
    """The definitions that a rebuilt schema refers to, with those of what it holds."""
    for key, item in value.items() if isinstance(value, dict) else ():
        if key == "$ref" and isinstance(item, str):
            yield item.removeprefix("#/$defs/")
        elif key not in ("const", "enum"):
            yield from _references(item)
    for item in value if isinstance(value, list) else ():
        yield from _references(item)


def _speaks_of_objects(built: SchemaObject) -> bool:
    kinds = built.get("type", ())
    return "object" in ([kinds] if isinstance(kinds, str) else kinds) or (
        not kinds and bool({"properties", "patternProperties", "required"} & set(built))
    )


def _step(value: Any, place: str) -> int | float:
    step = read_step(value, place)
    check_step(step, place)
    return step


_VALUES: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), read_number),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), read_count),
    "const": read_constant,
    "enum": read_constants,
    "multipleOf": _step,
    "required": read_names,
    "type": read_types,
}
"""Keywords that hold a value, which is checked and taken as it is."""
