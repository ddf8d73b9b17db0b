"""From a JSON Schema to one of which the grammar compiler enforces every word.

The compiler knows most of draft 2020-12, and leaves gaps: it skips keywords that it does not know, reads patterns in
its own dialect, cannot see that branches of `oneOf` exclude each other, and lets numbers have more digits than any
validator keeps. What is read here is rebuilt without gaps or refused with its place and a reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from heddle.inference.structured import values
from heddle.inference.structured.disjoint import overlapping
from heddle.inference.structured.finite import has_finite_value
from heddle.inference.structured.formats import FORMATS, HINTS, INTEGER_FORMATS
from heddle.inference.structured.guidance import shortened
from heddle.inference.structured.keywords import ANNOTATIONS, REFUSED
from heddle.inference.structured.limits import MAX_REFERENCE_CHAIN, chain_length, check_size
from heddle.inference.structured.numbers import Numbers, check_step
from heddle.inference.structured.patterns import translated
from heddle.inference.structured.values import Refused

Schema: TypeAlias = dict[str, Any] | bool

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

    def options(self) -> dict[str, Any]:
        """The same as options of the compiler, for the key `x-guidance` of a schema."""
        if self.gap is None:
            return {
                "whitespace_flexible": False,
                "item_separator": ",",
                "key_separator": ":",
                "json_allowed_escapes": ESCAPES,
            }
        return {"whitespace_pattern": self.gap, "json_allowed_escapes": ESCAPES}


def compiled_schema(schema: Schema, style: JsonStyle, param: str) -> dict[str, Any]:
    """The schema for the compiler, with `style` as its options; InvalidRequest when a part cannot be enforced."""
    check_size(schema, param)
    try:
        return {**_Reader(schema, style.close_objects).whole(), "x-guidance": style.options()}
    except Refused as refused:
        raise values.refusal(param, refused) from None


class _Reader:
    """Reads one schema document; every target of a reference becomes a definition of its own."""

    def __init__(self, root: Schema, close_objects: bool) -> None:
        self.root = root
        self.close_objects = close_objects
        self.definitions: dict[str, Schema] = {}
        self.names: dict[str, str] = {}
        self.waiting: list[tuple[str, str]] = []
        self.numbers = Numbers()
        self.alternatives: list[tuple[str, list[Any], dict[str, Any]]] = []

    def whole(self) -> dict[str, Any]:
        """The rebuilt root with the definitions that it uses."""
        top = self.read(self.root, "#")
        while self.waiting:
            name, pointer = self.waiting.pop()
            self.definitions[name] = self.read(self._target(pointer), pointer)
        for place, branches, beside in self.alternatives:
            self._check_exclusive(place, branches, beside)
        self._check_chains(top)
        self.numbers.finish()
        if top is False or not has_finite_value(top, self.definitions):
            raise Refused("#", "no finite value is valid under this schema")
        built: dict[str, Any] = {} if top is True else dict(top)
        return {"$defs": self.definitions, **built} if self.definitions else built

    def _check_chains(self, top: Schema) -> None:
        references = {name: list(_references(item)) for name, item in self.definitions.items()}
        longest = chain_length(list(_references(top)), references)
        if longest > MAX_REFERENCE_CHAIN:
            raise Refused("$ref", f"{longest} references lead on in a row; the limit is {MAX_REFERENCE_CHAIN}")

    def read(self, schema: Any, place: str, depth: int = 0) -> Schema:
        """One schema and all below it."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Refused(place, "a schema must be an object, true or false")
        if depth > MAX_DEPTH:
            raise Refused(place, f"nested more than {MAX_DEPTH} levels deep")
        built: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS or keyword.startswith("x-") or keyword == "propertyNames":
                continue
            if keyword in REFUSED:
                raise Refused(place, f"{keyword!r} is not supported: {REFUSED[keyword]}")
            if keyword in _VALUES:
                built[keyword] = _VALUES[keyword](value, f"{place}/{keyword}")
                continue
            handler = _HANDLERS.get(keyword)
            if handler is None:
                raise Refused(place, f"{shortened(repr(keyword))} is not a keyword of JSON Schema 2020-12")
            handler(self, built, keyword, value, f"{place}/{keyword}", depth + 1)
        self._finish(schema, built, place)
        return built

    def _finish(self, schema: dict[str, Any], built: dict[str, Any], place: str) -> None:
        if "propertyNames" in schema:
            self._property_names(schema, built, f"{place}/propertyNames")
        self.numbers.add(built)
        _limit_properties(built, place)
        if self.close_objects and _speaks_of_objects(built):
            built.setdefault("additionalProperties", False)

    # keywords that hold schemas

    def _schemas(self, built: dict[str, Any], keyword: str, value: Any, place: str, depth: int) -> None:
        branches = values.listed(value, place)
        read = [self.read(branch, f"{place}/{index}", depth) for index, branch in enumerate(branches)]
        if keyword == "oneOf":
            self.alternatives.append((place, branches, built))
        if keyword == "allOf":
            _all_of(built, read)
        elif "anyOf" in built:
            _all_of(built, [{"anyOf": read}])
        else:
            built["anyOf"] = read

    def _check_exclusive(self, place: str, branches: list[Any], beside: dict[str, Any]) -> None:
        """`beside` is the schema that the branches belong to; its type holds for all of them."""
        if "type" in beside:
            branches = [
                {"type": beside["type"], **branch} if isinstance(branch, dict) and "$ref" not in branch else branch
                for branch in branches
            ]
        pair = overlapping(branches, self.resolved, self.root)
        if pair:
            raise Refused(
                place,
                f"branches {pair[0]} and {pair[1]} are not provably exclusive; use anyOf, "
                "or give them different types or a property with different constants",
            )

    def _prefix(self, built: dict[str, Any], keyword: str, value: Any, place: str, depth: int) -> None:
        items = values.listed(value, place)
        built[keyword] = [self.read(item, f"{place}/{index}", depth) for index, item in enumerate(items)]

    def _schema(self, built: dict[str, Any], keyword: str, value: Any, place: str, depth: int) -> None:
        if isinstance(value, list):
            raise Refused(place, "a list of schemas belongs into prefixItems in draft 2020-12")
        built[keyword] = self.read(value, place, depth)

    def _properties(self, built: dict[str, Any], keyword: str, value: Any, place: str, depth: int) -> None:
        named = values.mapping(value, place)
        built[keyword] = {name: self.read(item, f"{place}/{name}", depth) for name, item in named.items()}

    def _patterns(self, built: dict[str, Any], keyword: str, value: Any, place: str, depth: int) -> None:
        named = values.mapping(value, place)
        if len(named) > MAX_PATTERNS:
            raise Refused(place, f"has {len(named)} patterns; the limit is {MAX_PATTERNS}")
        built[keyword] = {translated(name): self.read(item, f"{place}/{name}", depth) for name, item in named.items()}
        if len(built[keyword]) < len(named):
            raise Refused(place, "two patterns mean the same")

    def _property_names(self, schema: dict[str, Any], built: dict[str, Any], place: str) -> None:
        """Names given by a list or a pattern become properties or patternProperties of a closed object."""
        names = self.resolved(schema["propertyNames"])
        if names is True or (isinstance(names, dict) and not set(names) - ANNOTATIONS - {"type"}):
            return
        if {"properties", "patternProperties"} & set(built):
            raise Refused(place, "together with properties or patternProperties it cannot be enforced")
        item = built.get("additionalProperties", True)
        keywords = set(names) - ANNOTATIONS - {"type"} if isinstance(names, dict) else set()
        if isinstance(names, dict) and keywords == {"pattern"}:
            built["patternProperties"] = {translated(values.text(names["pattern"], place)): item}
        elif isinstance(names, dict) and (keywords == {"enum"} or keywords == {"const"}):
            allowed = values.listed(names["enum"], place) if "enum" in names else [names["const"]]
            built["properties"] = {name: item for name in allowed if isinstance(name, str)}
        else:
            raise Refused(place, "only enum, const or pattern alone can be enforced on names")
        built["additionalProperties"] = False

    def _reference(self, built: dict[str, Any], keyword: str, value: Any, place: str, _depth: int) -> None:
        pointer = self._pointer(values.text(value, place), place)
        self.resolved({"$ref": pointer})
        if pointer not in self.names:
            self.names[pointer] = f"d{len(self.names)}"
            self.waiting.append((self.names[pointer], pointer))
        built[keyword] = f"#/$defs/{self.names[pointer]}"

    def _pointer(self, reference: str, place: str) -> str:
        base = self.root.get("$id") if isinstance(self.root, dict) else None
        if isinstance(base, str) and reference.startswith(base.rstrip("#") + "#"):
            reference = reference[len(base.rstrip("#")) :]
        if reference != "#" and not reference.startswith("#/"):
            raise Refused(place, f"{shortened(repr(reference))} does not point into this schema (#/...)")
        self._target(reference, place)
        return reference

    def _target(self, pointer: str, place: str = "$ref") -> Any:
        found: Any = self.root
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise Refused(place, f"{shortened(pointer)!r} does not exist")
        if not isinstance(found, dict | bool):
            raise Refused(place, f"{shortened(pointer)!r} is not a schema")
        return found

    def resolved(self, schema: Any) -> Any:
        """The schema that a chain of plain references ends at."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or set(schema) - ANNOTATIONS != {"$ref"}:
                return schema
            schema = self._target(self._pointer(values.text(schema["$ref"], "$ref"), "$ref"))
        raise Refused("$ref", "references go round in a circle")

    # keywords that hold values

    def _identity(self, _built: dict[str, Any], _keyword: str, value: Any, place: str, _depth: int) -> None:
        if place != "#/$id":
            raise Refused(place, "only the root may have an $id")
        values.text(value, place)

    def _only(self, _built: dict[str, Any], keyword: str, value: Any, place: str, _depth: int) -> None:
        free = keyword != "uniqueItems"
        if value is not free:
            raise Refused(place, "it cannot be enforced while text is generated")

    def _pattern(self, built: dict[str, Any], _keyword: str, value: Any, place: str, _depth: int) -> None:
        _patterned(built, translated(values.text(value, place)))

    def _format(self, built: dict[str, Any], _keyword: str, value: Any, place: str, _depth: int) -> None:
        name = values.text(value, place)
        if name in INTEGER_FORMATS:
            limit = INTEGER_FORMATS[name]
            _all_of(built, [{"minimum": -min(limit, 2**53), "maximum": min(limit - 1, 2**53)}])
        elif name in FORMATS:
            _patterned(built, f"^(?:{FORMATS[name]})$")
        elif name not in HINTS:
            raise Refused(place, f"{shortened(repr(name))} is none of the formats that can be enforced")


def _all_of(built: dict[str, Any], conditions: Sequence[Schema]) -> None:
    built["allOf"] = [*built.get("allOf", ()), *conditions]


def _patterned(built: dict[str, Any], pattern: str) -> None:
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


def _speaks_of_objects(built: dict[str, Any]) -> bool:
    kinds = built.get("type", ())
    return "object" in ([kinds] if isinstance(kinds, str) else kinds) or (
        not kinds and bool({"properties", "patternProperties", "required"} & set(built))
    )


def _limit_properties(built: dict[str, Any], place: str) -> None:
    """A count of properties is enforced over text, where one name may come twice; only safe counts are let through."""
    only_named = built.get("additionalProperties") is False and "patternProperties" not in built
    if only_named and built.get("maxProperties", 0) >= len(built.get("properties", ())):
        built.pop("maxProperties", None)
    least = built.get("minProperties", 0)
    if least <= len(built.get("required", ())):
        built.pop("minProperties", None)
    elif least > 1:
        raise Refused(f"{place}/minProperties", "beyond 1 it can only be enforced through required")


def _step(value: Any, place: str) -> int | float:
    step = values.step(value, place)
    check_step(step, place)
    return step


_VALUES: dict[str, Callable[[Any, str], Any]] = {
    "const": values.constant,
    "enum": values.constants,
    "exclusiveMaximum": values.number,
    "exclusiveMinimum": values.number,
    "maxItems": values.count,
    "maxLength": values.count,
    "maxProperties": values.count,
    "maximum": values.number,
    "minItems": values.count,
    "minLength": values.count,
    "minProperties": values.count,
    "minimum": values.number,
    "multipleOf": _step,
    "required": values.names,
    "type": values.types,
}
"""Keywords that hold a value, which is checked and taken as it is."""

_Handler = Callable[[_Reader, dict[str, Any], str, Any, str, int], None]

_HANDLERS: dict[str, _Handler] = {
    "$id": _Reader._identity,
    "$ref": _Reader._reference,
    "additionalProperties": _Reader._schema,
    "allOf": _Reader._schemas,
    "anyOf": _Reader._schemas,
    "format": _Reader._format,
    "items": _Reader._schema,
    "oneOf": _Reader._schemas,
    "pattern": _Reader._pattern,
    "patternProperties": _Reader._patterns,
    "prefixItems": _Reader._prefix,
    "properties": _Reader._properties,
    "unevaluatedItems": _Reader._only,
    "unevaluatedProperties": _Reader._only,
    "uniqueItems": _Reader._only,
}

KEYWORDS = frozenset((*_VALUES, *_HANDLERS, "propertyNames"))
"""All that are enforced."""
