"""Protobuf's wire format, and OTLP in it: addresses, attributes, answers, and failures as a Status.

An own reader: the messages are few and fixed, and the server needs the package for nothing else. Positions lie in one
buffer; nothing is copied.
"""

import base64
import math
from collections.abc import Iterator
from struct import Struct
from typing import Any

from heddle.errors import HeddleError

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
MAX_GROUPS = 40
MAX_NUMBER = 0x1FFF_FFFF
MAX_DEPTH = 40
"""How deep values nest; the packages of OTLP stop at about 45."""
Field = tuple[int, int, int, int]
Attribute = tuple[str, Any]
_double = Struct("<d").pack
read_double = Struct("<d").unpack_from


class Malformed(ValueError):
    """A body that is no message; `place` says where in it, where the encoding has names for places."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.place = place

    def __str__(self) -> str:
        problem = super().__str__()
        return f"{self.place.lstrip('.')}: {problem}" if self.place else problem

    def within(self, place: str) -> "Malformed":
        """The same, seen from what holds it."""
        self.place = place + self.place
        return self


def signed(value: int) -> int:
    """The int64 that was written as this number."""
    return value - 0x1_0000_0000_0000_0000 if value >> 63 else value


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length number and the position behind it; raises Malformed, IndexError at the end of the buffer."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    following = data[at + 1]
    if following < 0x80:
        return byte & 0x7F | following << 7, at + 2
    value, shift = byte & 0x7F, 7
    for place in range(at + 1, at + 10):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise Malformed("a number is longer than 10 bytes")


def fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """Every field between two positions: number, wire type, and where its content starts and ends.

    Raises Malformed where a field is longer than the message that contains it, or of a wire type that does not exist.
    """
    while at < end:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not number or number > MAX_NUMBER:
            raise Malformed("a field number is out of range")
        start, at = content(data, at, number, wire)
        if at > end:
            raise Malformed("a field is longer than the message that contains it")
        yield number, wire, start, at


def content(data: bytes, at: int, number: int, wire: int) -> tuple[int, int]:
    """Where the content of a field starts and ends."""
    if wire == BYTES:
        length, start = varint(data, at)
        return start, start + length
    if wire == VARINT:
        return at, varint(data, at)[1]
    if wire == FIXED64:
        return at, at + 8
    if wire == FIXED32:
        return at, at + 4
    if wire == START_GROUP:
        return at, _behind_group(data, at, number)
    raise Malformed(f"unknown wire type {wire}")


def _behind_group(data: bytes, at: int, number: int) -> int:
    """The position behind a group, an encoding that today only unknown fields can have."""
    open_groups = [number]
    while open_groups:
        tag, at = varint(data, at)
        if tag & 7 == START_GROUP:
            open_groups.append(tag >> 3)
        elif tag & 7 == END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise Malformed("a group ends that was never started")
        else:
            at = content(data, at, tag >> 3, tag & 7)[1]
        if at > len(data) or len(open_groups) > MAX_GROUPS:
            raise Malformed("a group is not closed or is nested too deeply")
    return at


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
        return _number(read_double(data, at + 1)[0])
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
        return _number(read_double(held, 0)[0])
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


def varint_bytes(value: int) -> bytes:
    """A number as its variable-length bytes."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def write(number: int, value: bytes | str | float) -> bytes:
    """A field: bytes, a text or a message that is written already; a whole number; or a double."""
    if isinstance(value, int):
        return varint_bytes(number << 3 | VARINT) + varint_bytes(value)
    if isinstance(value, float):
        return varint_bytes(number << 3 | FIXED64) + _double(value)
    held = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint_bytes(number << 3 | BYTES) + varint_bytes(len(held)) + held


SIGNALS = ("traces", "logs", "metrics")
OTLP_PATHS = frozenset(f"/v1/{signal}" for signal in SIGNALS)
"""Where an exporter sends that was given the address of the server alone."""
_ENDINGS = tuple(sorted(OTLP_PATHS))
PROTOBUF = "application/x-protobuf"
_INVALID_ARGUMENT, _DEADLINE_EXCEEDED, _NOT_FOUND, _PERMISSION_DENIED = 3, 4, 5, 7
_RESOURCE_EXHAUSTED, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 8, 12, 13, 14, 16
_CODES = {
    400: _INVALID_ARGUMENT,
    401: _UNAUTHENTICATED,
    403: _PERMISSION_DENIED,
    404: _NOT_FOUND,
    405: _UNIMPLEMENTED,
    408: _DEADLINE_EXCEEDED,
    413: _RESOURCE_EXHAUSTED,
    415: _INVALID_ARGUMENT,
    422: _INVALID_ARGUMENT,
    429: _RESOURCE_EXHAUSTED,
    501: _UNIMPLEMENTED,
    503: _UNAVAILABLE,
    504: _DEADLINE_EXCEEDED,
}
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


def is_otlp(path: str) -> bool:
    """True for the address of an export, under whichever prefix."""
    return path.endswith(_ENDINGS)


def status_code(error: HeddleError) -> int:
    """The code of gRPC that stands for the HTTP status of a failure."""
    return _CODES.get(error.status, _INTERNAL)


def encode_status(error: HeddleError) -> bytes:
    """A google.rpc.Status with code and message, and a RetryInfo where the sender is to try again later."""
    encoded = write(1, status_code(error)) + write(2, error.reason)
    seconds = error.headers.get("Retry-After", "")
    if seconds.isdigit():
        info = write(1, write(1, int(seconds)))
        encoded += write(3, write(1, _RETRY_INFO) + write(2, info))
    return encoded


def decode_status(data: bytes) -> str:
    """The message of a Status that `encode_status` made."""
    found = (data[start:end] for number, _, start, end in fields(data, 0, len(data)) if number == 2)
    return next(found, b"").decode("utf-8", "replace")


def encode_partial_success(rejected: int, message: str) -> bytes:
    """The answer of an export of any signal; `partial_success` is left out when nothing was rejected."""
    if not rejected and not message:
        return b""
    return write(1, write(1, rejected) + write(2, message))


def decode_partial_success(data: bytes) -> tuple[int, str]:
    """How many items of an export were rejected, and why; nothing where the answer is no such message."""
    rejected, message = 0, ""
    try:
        for number, _, start, end in fields(data, 0, len(data)):
            for inner, _, at, stop in fields(data, start, end) if number == 1 else ():
                if inner == 1:
                    rejected = varint(data, at)[0]
                elif inner == 2:
                    message = data[at:stop].decode("utf-8", "replace")
    except (Malformed, IndexError):
        return 0, ""
    return rejected, message
