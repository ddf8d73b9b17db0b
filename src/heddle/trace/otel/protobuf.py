"""The values of OTLP in protobuf's wire format.

Positions lie in one buffer; nothing is copied.
"""

import base64
import math
from struct import Struct
from typing import Any

from heddle.trace.otel.decoding import MAX_DEPTH
from heddle.wire.protobuf import BYTES, FIXED64, VARINT, Malformed, fields, signed, varint

Attribute = tuple[str, Any]
_double = Struct("<d").unpack_from


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
    for number, wire, start, stop in fields(data, at, end):
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
        return _number(_double(data, at + 1)[0])
    return _any_value(data, at, end, depth)


def _any_value(data: bytes, at: int, end: int, depth: int) -> Any:
    """An AnyValue of any shape: the last kind that it holds counts, a list that comes in parts is joined."""
    kind, parts = 0, [b""]
    for number, wire, start, stop in fields(data, at, end):
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
        return _number(_double(held, 0)[0])
    if kind == 7:
        return base64.b64encode(held).decode()
    if depth >= MAX_DEPTH:
        raise Malformed(f"attribute values are nested deeper than {MAX_DEPTH} levels")
    items = [(start, stop) for number, wire, start, stop in fields(held, 0, len(held)) if (number, wire) == (1, BYTES)]
    if kind == 5:
        return [any_value(held, start, stop, depth + 1) for start, stop in items]
    return dict([attribute(held, start, stop, depth + 1) for start, stop in items])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
