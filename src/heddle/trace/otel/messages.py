"""Messages of OTLP read by a table of their fields, from either encoding.

In protobuf's wire format positions lie in one buffer and nothing is copied. In JSON 64-bit integers are text or number,
names camelCase or snake_case; failures say where in the body they are, as a path such as
`resourceSpans[0].scopeSpans[0].spans[2].startTimeUnixNano`: each holder adds its part to a failure that passes it.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from struct import Struct
from typing import Any, TypeVar

from heddle.errors import InvalidRequest, TooLarge
from heddle.wire import otlp
from heddle.wire.jsontypes import Json
from heddle.wire.otlp import (
    BYTES,
    FIXED32,
    FIXED64,
    MAX_DEPTH,
    VARINT,
    Malformed,
    any_value,
    attribute,
    read_double,
    varint,
)

MAX_PARTS = 200_000
"""How many spans, events and links, log records or data points one export may hold together."""

T = TypeVar("T")


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Read a message of this name; raises InvalidRequest for a body that is none."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not a valid {message}: a string is not UTF-8 ({error.reason})") from None
    except Malformed as error:
        raise InvalidRequest(f"The body is not a valid {message}: {error}") from None
    except IndexError:
        raise InvalidRequest(f"The body is not a valid {message}: it is truncated within a field") from None


@dataclass(slots=True)
class Export:
    """One export while it is read; `items` is what it holds.

    `known` has short attributes by their bytes: most items repeat those of the item before.
    """

    items: str
    parts: int = 0
    known: dict[bytes, tuple[str, Any]] = field(default_factory=dict)

    def count_part(self) -> None:
        """Count one more part; raises TooLarge for more than one export may hold.

        An empty part takes two bytes of a body, hundreds of memory.
        """
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise TooLarge(f"Request too large: over {MAX_PARTS} {self.items} in one export; send smaller batches")


def wrong(expected: str, found: Any) -> Malformed:
    """The failure of a value that is not of its kind."""
    return Malformed(f"expected {expected}, got {found!r:.100}")


@cache
def to_snake(name: str) -> str:
    """A name in snake_case."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def read_list(found: Any, read: Callable[[Any], T]) -> list[T]:
    """Each item of a list, read."""
    if not isinstance(found, list):
        raise wrong("a list", found)
    made: list[T] = []
    try:
        for item in found:
            made.append(read(item))
    except Malformed as error:
        raise error.within(f"[{len(made)}]") from None
    return made


def to_integer(found: Any) -> int | None:
    """The whole number that a number or a text means; None for anything else."""
    if isinstance(found, bool):
        return None
    if isinstance(found, int):
        return found
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if isinstance(found, str) and len(found) < 25 and found.isascii() and found.lstrip("-").isdigit():
        return int(found) if found.count("-") <= 1 else None
    return None


def integer_between(least: int, most: int, expected: str) -> Callable[[Any], int]:
    """A reader of whole numbers between two bounds, written as numbers or as texts."""

    def read(found: Any) -> int:
        number = to_integer(found)
        if number is None or not least <= number <= most:
            raise wrong(expected, found)
        return number

    return read


def to_text(found: Any) -> str:
    """A text."""
    if not isinstance(found, str):
        raise wrong("text", found)
    return found


def to_boolean(found: Any) -> bool:
    """True or false."""
    if not isinstance(found, bool):
        raise wrong("true or false", found)
    return found


to_int64 = integer_between(-(2**63), 2**63 - 1, "a 64-bit integer")


def to_double(found: Any) -> float | str:
    """A number; `nan`, `inf` and `-inf` as texts."""
    if isinstance(found, str) and found in ("NaN", "Infinity", "-Infinity"):
        return str(float(found))
    try:
        number = float(found) if isinstance(found, (int, float, str)) and not isinstance(found, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise wrong("a number", found)
    return number if math.isfinite(number) else str(number)


def _to_bytes(found: Any) -> str:
    text = to_text(found)
    try:
        content = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise wrong("base64", found) from None
    return base64.b64encode(content).decode()


def to_attributes(found: Any, depth: int = 0) -> Json:
    """The attributes of a list of KeyValue."""
    return dict(read_list(found, lambda pair: _pair(pair, depth)))


def _pair(pair: Any, depth: int) -> tuple[str, Any]:
    key = pair.get("key", "") if isinstance(pair, dict) else None
    if not isinstance(key, str):
        raise wrong("an object with `key` and `value`", pair)
    value = pair.get("value")
    # The usual kind of value needs no more than this.
    text = value.get("stringValue") if type(value) is dict else None
    if type(text) is str:
        return key, text
    try:
        return key, to_value(value, depth)
    except Malformed as error:
        raise error.within(".value") from None


def to_value(found: Any, depth: int = 0) -> Any:
    """An AnyValue; None when it holds nothing."""
    if found is None:
        return None
    if not isinstance(found, dict):
        raise wrong('an object such as {"stringValue": "..."}', found)
    if depth > MAX_DEPTH:
        raise Malformed(f"nested deeper than {MAX_DEPTH} levels")
    for name, snake, read in _VALUES:
        held = found.get(name)
        if held is None:
            held = found.get(snake)
        if held is not None:
            try:
                return read(held, depth)
            except Malformed as error:
                raise error.within(f".{name}") from None
    return None


def _items_of(read: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """A reader of an object with items, by the reader of their list."""

    def read_items(found: Any, depth: int) -> Any:
        if not isinstance(found, dict):
            raise wrong("an object with a list `values`", found)
        try:
            return read(found.get("values") or [], depth + 1)
        except Malformed as error:
            raise error.within(".values") from None

    return read_items


_READERS: dict[str, Callable[[Any, int], Any]] = {
    "stringValue": lambda found, _: to_text(found),
    "intValue": lambda found, _: to_int64(found),
    "boolValue": lambda found, _: to_boolean(found),
    "doubleValue": lambda found, _: to_double(found),
    "arrayValue": _items_of(lambda found, depth: read_list(found, lambda item: to_value(item, depth))),
    "kvlistValue": _items_of(to_attributes),
    "bytesValue": lambda found, _: _to_bytes(found),
}
_VALUES = [(name, to_snake(name), read) for name, read in _READERS.items()]


_UINT64, _UINT32 = 2**64 - 1, 2**32 - 1
_fixed64, _sfixed64, _fixed32 = (Struct(f"<{code}").unpack_from for code in "QqI")
MAX_NUMBERS = 10_000
"""How many numbers one list of a message may hold, such as the buckets of a histogram."""
_SHORT = 96
_LEAST_TAG, _MOST_TAG = 1 << 3, otlp.MAX_NUMBER << 3 | 7
_STRUCTURES = (dict, list)
Read = Callable[[bytes, int, int, Any, Export], None]
"""Reads the content of a field, between two positions, into the message that it belongs to."""
ReadJson = Callable[[Any, Any, Export], None]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A kind of value: its wire type, and how it is read from protobuf (between two positions) and from JSON."""

    wire: int
    read: Callable[[bytes, int, int], Any]
    of_json: Callable[[Any], Any]
    nothing: Any = 0
    """What a message that does not say it holds."""


def _whole(most: int) -> Callable[[Any], int]:
    read = integer_between(0, most, f"an integer from 0 to {most}")
    return lambda value: 0 if value == "" else read(value)


def _sint32(data: bytes, start: int, _stop: int) -> int:
    value = varint(data, start)[0] & _UINT32
    return value >> 1 ^ -(value & 1)


def _int32(data: bytes, start: int, _stop: int) -> int:
    value = varint(data, start)[0] & _UINT32
    return value - 0x1_0000_0000 if value >> 31 else value


TEXT = Scalar(BYTES, lambda data, start, stop: data[start:stop].decode(), to_text, "")
HEX = Scalar(BYTES, lambda data, start, stop: data[start:stop].hex(), lambda value: to_text(value).lower(), "")
TIME = Scalar(FIXED64, lambda data, start, _: _fixed64(data, start)[0], _whole(_UINT64))
"""Nanoseconds; counts are encoded alike."""
COUNT = TIME
INTEGER = Scalar(FIXED64, lambda data, start, _: _sfixed64(data, start)[0], to_int64)
DOUBLE = Scalar(FIXED64, lambda data, start, _: read_double(data, start)[0], lambda value: float(to_double(value)))
UINT64 = Scalar(VARINT, lambda data, start, _: varint(data, start)[0], _whole(_UINT64))
UINT32 = Scalar(VARINT, lambda data, start, _: varint(data, start)[0] & _UINT32, _whole(_UINT32))
SINT32 = Scalar(VARINT, _sint32, integer_between(-(2**31), 2**31 - 1, "a 32-bit integer"))
FLAGS = Scalar(FIXED32, lambda data, start, _: _fixed32(data, start)[0], _whole(_UINT32))
BOOLEAN = Scalar(VARINT, lambda data, start, _: varint(data, start)[0] != 0, to_boolean, False)
ANY_VALUE = Scalar(BYTES, lambda data, start, stop: any_value(data, start, stop, 0), to_value, None)


def enum(prefix: str, *words: str) -> Scalar:
    """A number with names, of which JSON may hold either."""
    read = integer_between(-(2**31), 2**31 - 1, f"an integer or {prefix}{words[-1]} and the like")

    def of_json(value: Any) -> int:
        word = value.removeprefix(prefix) if isinstance(value, str) else None
        return words.index(word) if word in words else read(value)

    return Scalar(VARINT, _int32, of_json)


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its number, its name in JSON, the attribute that takes it, and what it holds.

    A list of scalars or messages is `repeated`; `attributes` of KeyValue become a dict.
    """

    number: int
    name: str
    into: str
    """Empty for a message whose fields belong to what holds it."""
    kind: "Scalar | Message | None"
    """None for attributes."""
    is_repeated: bool = False
    within: tuple[int, str] | None = None
    """The message, by number and name, that has the field while its holder takes it."""

    def readers(self) -> Iterator[tuple[int, Read]]:
        """How the field is read from protobuf, by the tags that it may have."""
        tag, name, kind = self.number << 3, self.into, self.kind
        if kind is None:
            yield tag | BYTES, _read_attribute
        elif isinstance(kind, Message):
            yield tag | BYTES, partial(self._append if self.is_repeated else self._merge, kind)
        elif not self.is_repeated:
            read = kind.read
            yield tag | kind.wire, lambda data, at, end, made, _: setattr(made, name, read(data, at, end))
        else:
            yield tag | kind.wire, lambda data, at, end, made, _: getattr(made, name).append(kind.read(data, at, end))
            yield tag | BYTES, lambda data, at, end, made, _: _unpack(getattr(made, name), kind, data, at, end)

    def _append(self, kind: "Message", data: bytes, at: int, end: int, made: Any, export: Export) -> None:
        getattr(made, self.into).append(kind.of_protobuf(data, at, end, export))

    def _merge(self, kind: "Message", data: bytes, at: int, end: int, made: Any, export: Export) -> None:
        kind.of_protobuf(data, at, end, export, self.inner(kind, made))

    def inner(self, kind: "Message", made: Any) -> Any:
        """The message that a message that is not repeated is read into: one that comes twice is joined."""
        held = getattr(made, self.into) if self.into else made
        if self.into and type(held) is not kind.kind:
            held = kind.kind()
            setattr(made, self.into, held)
        return held

    def json_reader(self) -> ReadJson:
        """How the field is read from JSON."""
        name, kind = self.into, self.kind
        if kind is None:
            return lambda made, value, _: made.attributes.update(to_attributes(value))
        if isinstance(kind, Message):
            read = kind.of_json
            if not self.is_repeated:
                return lambda made, value, export: read(value, export, self.inner(kind, made))
            return lambda made, value, export: getattr(made, name).extend(
                read_list(value, lambda item: read(item, export))
            )
        if self.is_repeated:
            return lambda made, value, _: setattr(made, name, _read_numbers(value, kind))
        return lambda made, value, _: setattr(made, name, kind.of_json(value))


@dataclass(frozen=True)
class Message:
    """A message: the class that holds it, and its fields; others are passed over."""

    kind: type[Any]
    fields: Sequence[Field]

    @classmethod
    def of(cls, kind: type[Any]) -> "Message":
        """The message of a dataclass whose fields say where they come from."""
        found: dict[tuple[int, str] | None, list[Field]] = {None: []}
        for one in fields(kind):
            for item in one.metadata.get(_WIRE, ()):
                found.setdefault(item.within, []).append(replace(item, into=one.name))
        inner = [Field(*place, "", cls(kind, some)) for place, some in found.items() if place is not None]
        return cls(kind, [*found[None], *inner])

    @cached_property
    def _readers(self) -> Mapping[int, Read]:
        return dict(pair for field in self.fields for pair in field.readers())

    @cached_property
    def _names(self) -> Sequence[tuple[str, str, ReadJson]]:
        return [(field.name, to_snake(field.name), field.json_reader()) for field in self.fields]

    def of_protobuf(self, data: bytes, at: int, end: int, export: Export, into: Any = None) -> Any:
        """The message between two positions; raises Malformed, IndexError or UnicodeDecodeError where there is none."""
        if into is None:
            into = self.kind()
            export.count_part()
        readers = self._readers
        while at < end:
            tag, start = data[at], at + 1
            if tag > 0x7F:
                tag, start = varint(data, at)
            if tag < _LEAST_TAG or tag > _MOST_TAG:
                raise Malformed("a field number is out of range")
            wire = tag & 7
            if wire == BYTES:
                length, start = data[start], start + 1
                if length > 0x7F:
                    length, start = varint(data, start - 1)
                at = start + length
            elif wire == FIXED64:
                at = start + 8
            else:
                start, at = otlp.content(data, start, tag >> 3, wire)
            if at > end:
                raise Malformed("a field is longer than the message that contains it")
            if (read := readers.get(tag)) is not None:
                read(data, start, at, into, export)
        return into

    def of_json(self, item: Any, export: Export, into: Any = None) -> Any:
        """The message of a JSON object; raises Malformed where it is none."""
        if not isinstance(item, dict):
            raise wrong("an object", item)
        if into is None:
            into = self.kind()
            export.count_part()
        held: Json = item
        for name, snake, read in self._names:
            value = held.get(name)
            if value is None:
                value = held.get(snake)
            if value is not None:
                try:
                    read(into, value, export)
                except Malformed as error:
                    raise error.within(f".{name}") from None
        return into


_WIRE = "wire"


def _field(*wire: Field, **default: Any) -> Any:
    return field(**default, metadata={_WIRE: wire})


def singular(number: int, name: str, kind: Scalar | Message, within: tuple[int, str] | None = None) -> Any:
    """The field of a dataclass for one value of a message, or of a message `within` it."""
    wire = Field(number, name, "", kind, within=within)
    return _field(wire, default=kind.nothing) if isinstance(kind, Scalar) else _field(wire, default_factory=kind.kind)


def repeated(number: int, name: str, kind: Scalar | Message) -> Any:
    """The field of a dataclass for a list of values."""
    return _field(Field(number, name, "", kind, is_repeated=True), default_factory=list)


def one_of(*alternatives: tuple[int, str, Scalar | Message]) -> Any:
    """The field of a dataclass for what a message says in one of several ways, or not at all."""
    return _field(*(Field(number, name, "", kind) for number, name, kind in alternatives), default=None)


def pairs(number: int) -> Any:
    """The field of a dataclass for attributes; it is called `attributes`."""
    return _field(Field(number, "attributes", "", None), default_factory=dict)


def _read_attribute(data: bytes, start: int, stop: int, made: Any, export: Export) -> None:
    raw = data[start:stop] if stop - start <= _SHORT else b""
    pair = export.known.get(raw)
    if pair is None:
        pair = attribute(data, start, stop)
        if raw and type(pair[1]) not in _STRUCTURES:
            export.known[raw] = pair
    made.attributes[pair[0]] = pair[1]


def _read_numbers(value: Any, kind: Scalar) -> list[Any]:
    _check_numbers(len(value) if isinstance(value, list) else 0)
    return read_list(value, kind.of_json)


def _unpack(into: list[Any], kind: Scalar, data: bytes, at: int, end: int) -> None:
    """Read the numbers of a packed field."""
    while at < end:
        stop = varint(data, at)[1] if kind.wire == VARINT else at + 8
        if stop > end:
            raise Malformed("a number is longer than the field that contains it")
        into.append(kind.read(data, at, stop))
        _check_numbers(len(into))
        at = stop


def _check_numbers(count: int) -> None:
    if count > MAX_NUMBERS:
        raise Malformed(f"a list has more than {MAX_NUMBERS} numbers")
