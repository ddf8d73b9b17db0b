"""Attributes and values of OTLP, read from protobuf and from JSON."""

import base64
import binascii
import math
import re
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, TypeVar

from heddle.wire import jsontext, otlp
from heddle.wire.jsontypes import Json
from heddle.wire.otlp import BYTES, FIXED64, VARINT, Malformed, signed, varint

Attribute = tuple[str, Any]
MAX_DEPTH = 40
"""How deep values nest; the packages of OTLP stop at about 45."""
read_double = Struct("<d").unpack_from


def attribute(data: bytes, at: int, end: int, depth: int = 0) -> Attribute:
    """Key and value of one KeyValue; the usual shape, key before value, without the general way.

    Raises Malformed or UnicodeDecodeError, IndexError at the end of the buffer.
    """
    if end - at > 3 and data[at] == 0x0A:
        key_end = at + 2 + data[at + 1]
        if data[at + 1] < 0x80 and key_end + 1 < end and data[key_end] == 0x12:
            length, start = data[key_end + 1], key_end + 2
            if length > 0x7F:
                length, start = varint(data, key_end + 1)
            if start + length == end:
                return data[at + 2 : key_end].decode(), any_value(data, start, end, depth)
    return _any_attribute(data, at, end, depth)


def _any_attribute(data: bytes, at: int, end: int, depth: int) -> Attribute:
    """A KeyValue of any shape; a message field that comes twice is the two contents joined."""
    key, parts = "", []
    for number, wire, start, stop in otlp.fields(data, at, end):
        if number == 1 and wire == BYTES:
            key = data[start:stop].decode()
        elif number == 2 and wire == BYTES:
            parts.append(data[start:stop])
    value = b"".join(parts)
    return key, any_value(value, 0, len(value), depth)


def any_value(data: bytes, at: int, end: int, depth: int) -> Any:
    """An AnyValue; None when it holds nothing."""
    if at == end:
        return None
    tag = data[at]
    if tag == 0x0A:
        length, start = data[at + 1], at + 2
        if length > 0x7F:
            length, start = varint(data, at + 1)
        if start + length == end:
            return data[start:end].decode()
    elif tag == 0x18:
        value, stop = varint(data, at + 1)
        if stop == end:
            return signed(value)
    elif tag == 0x21 and end - at == 9:
        return _number(read_double(data, at + 1)[0])
    return _any_value(data, at, end, depth)


def _any_value(data: bytes, at: int, end: int, depth: int) -> Any:
    """An AnyValue of any shape: the last kind that it holds counts, a list that comes in parts is joined."""
    kind, parts = 0, [b""]
    for number, wire, start, stop in otlp.fields(data, at, end):
        if _VALUE_WIRES.get(number) == wire:
            if number != kind or number not in _LISTS:
                parts = []
            parts.append(data[start:stop])
            kind = number
    return _content_of(kind, b"".join(parts), depth) if kind else None


_VALUE_WIRES = {1: BYTES, 2: VARINT, 3: VARINT, 4: FIXED64, 5: BYTES, 6: BYTES, 7: BYTES}
_LISTS = (5, 6)


def _content_of(kind: int, held: bytes, depth: int) -> Any:
    if kind == 1:
        return held.decode()
    if kind == 2:
        return varint(held, 0)[0] != 0
    if kind == 3:
        return signed(varint(held, 0)[0])
    if kind == 4:
        return _number(read_double(held, 0)[0])
    if kind == 7:
        return base64.b64encode(held).decode()
    if depth >= MAX_DEPTH:
        raise Malformed(f"attribute values are nested deeper than {MAX_DEPTH} levels")
    items = [
        (start, stop) for number, wire, start, stop in otlp.fields(held, 0, len(held)) if (number, wire) == (1, BYTES)
    ]
    if kind == 5:
        return [any_value(held, start, stop, depth + 1) for start, stop in items]
    return dict([attribute(held, start, stop, depth + 1) for start, stop in items])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


T = TypeVar("T")
_INT64 = 2**63


def read_body(data: bytes) -> Json:
    """The object of a JSON body; raises Malformed or ValidationFailed."""
    body = jsontext.loads(data)
    if not isinstance(body, dict):
        raise Malformed(f"expected an object, got {body!r:.100}", "the body")
    return body


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


to_int64 = integer_between(-_INT64, _INT64 - 1, "a 64-bit integer")


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
