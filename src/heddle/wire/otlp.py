"""Protobuf's wire format, and OTLP in it: addresses, answers, failures as a Status, and spans that are sent.

An own reader: the messages are few and fixed, and the server needs the package for nothing else. Positions lie in one
buffer; nothing is copied.
"""

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from heddle.errors import HeddleError

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


_SERVER, _ERROR = 2, 2
_TIME = Struct("<BQ")
Attributes = Mapping[str, str | int]


class RequestSpan(NamedTuple):
    """A span of the kind SERVER; ids in hexadecimal, instants in nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first of a trace."""
    name: str
    start: int
    end: int
    attributes: Attributes
    is_error: bool


def encode_spans(resource: Attributes, scope: str, spans: Iterable[RequestSpan]) -> bytes:
    """An ExportTraceServiceRequest of one resource."""
    scoped = write(1, write(1, scope)) + b"".join(write(2, _encode_span(span)) for span in spans)
    return write(1, write(1, _pairs(1, resource)) + write(2, scoped))


def _encode_span(span: RequestSpan) -> bytes:
    parent = write(4, bytes.fromhex(span.parent_id)) if span.parent_id else b""
    return b"".join((
        write(1, bytes.fromhex(span.trace_id)),
        write(2, bytes.fromhex(span.span_id)),
        parent,
        write(5, span.name),
        write(6, _SERVER),
        _TIME.pack(7 << 3 | 1, span.start),
        _TIME.pack(8 << 3 | 1, span.end),
        _pairs(9, span.attributes),
        write(15, write(3, _ERROR)) if span.is_error else b"",
    ))  # fmt: skip


def _pairs(field: int, attributes: Attributes) -> bytes:
    """Attributes as KeyValue messages; numbers are not negative."""
    values = {key: write(3 if isinstance(value, int) else 1, value) for key, value in attributes.items()}
    return b"".join(write(field, write(1, key) + write(2, value)) for key, value in values.items())
