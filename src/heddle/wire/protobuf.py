"""Protobuf's wire format.

An own reader: the messages are few and fixed, and the server needs the package for nothing else. Positions lie in one
buffer; nothing is copied.
"""

from collections.abc import Iterator
from struct import Struct

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
MAX_GROUPS = 40
MAX_NUMBER = 0x1FFF_FFFF
Field = tuple[int, int, int, int]
_double = Struct("<d").pack


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

    Raises Malformed where a field is longer than what holds it, or of a wire type that does not exist.
    """
    while at < end:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not number or number > MAX_NUMBER:
            raise Malformed("a field number is out of range")
        start, at = content(data, at, number, wire)
        if at > end:
            raise Malformed("a field is longer than what holds it")
        yield number, wire, start, at
    if at != end:
        raise Malformed("a field is longer than what holds it")


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
    raise Malformed(f"wire type {wire} is not known")


def _behind_group(data: bytes, at: int, number: int) -> int:
    """The position behind a group, an encoding that today only unknown fields can have."""
    open_groups = [number]
    while open_groups:
        tag, at = varint(data, at)
        if tag & 7 == START_GROUP:
            open_groups.append(tag >> 3)
        elif tag & 7 == END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise Malformed("a group ends that did not begin")
        else:
            at = content(data, at, tag >> 3, tag & 7)[1]
        if at > len(data) or len(open_groups) > MAX_GROUPS:
            raise Malformed("a group does not end, or nests too deep")
    return at


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
    held = value.encode() if isinstance(value, str) else value
    return varint_bytes(number << 3 | BYTES) + varint_bytes(len(held)) + held
