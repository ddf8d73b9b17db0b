"""OTLP beside the telemetry that is taken: addresses, answers, failures as a Status, and spans that are sent."""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from heddle.errors import HeddleError
from heddle.wire.protobuf import varint_bytes

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
_MESSAGE = 2 << 3 | 2
"""The tag of the second field; the code before it is smaller."""
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


def is_otlp(path: str) -> bool:
    """True for the address of an export, under whichever prefix."""
    return path.endswith(_ENDINGS)


def status_code(error: HeddleError) -> int:
    """The code of gRPC that stands for the HTTP status of a failure."""
    return _CODES.get(error.status, _INTERNAL)


def encode_status(error: HeddleError) -> bytes:
    """A google.rpc.Status with code and message, and a RetryInfo where the sender is to try again later."""
    encoded = _number(1, status_code(error)) + _bytes(2, error.reason.encode("utf-8", "replace"))
    seconds = error.headers.get("Retry-After", "")
    if seconds.isdigit():
        info = _bytes(1, _number(1, int(seconds)))
        encoded += _bytes(3, _bytes(1, _RETRY_INFO) + _bytes(2, info))
    return encoded


def decode_status(data: bytes) -> str:
    """The message of a Status that `encode_status` made."""
    length, at = _varint(data, data.index(_MESSAGE) + 1)
    return data[at : at + length].decode("utf-8", "replace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length number, and where what follows it begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at


def encode_partial_success(rejected: int, message: str) -> bytes:
    """The answer of an export of any signal; `partial_success` is left out when nothing was rejected."""
    if not rejected and not message:
        return b""
    return _bytes(1, _number(1, rejected) + _bytes(2, message.encode("utf-8", "replace")))


def decode_partial_success(data: bytes) -> tuple[int, str]:
    """How many items of an export were rejected, and why; nothing where the answer is no such message."""
    try:
        if not data or data[0] != 1 << 3 | 2:
            return 0, ""
        _, at = _varint(data, 1)
        rejected = 0
        if data[at] == 1 << 3:
            rejected, at = _varint(data, at + 1)
        if data[at : at + 1] != bytes((_MESSAGE,)):
            return rejected, ""
        length, at = _varint(data, at + 1)
        return rejected, data[at : at + length].decode("utf-8", "replace")
    except IndexError:
        return 0, ""


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + varint_bytes(value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + varint_bytes(len(value)) + value


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
    scoped = _bytes(1, _bytes(1, scope.encode())) + b"".join(_bytes(2, _encode_span(span)) for span in spans)
    return _bytes(1, _bytes(1, _pairs(1, resource)) + _bytes(2, scoped))


def _encode_span(span: RequestSpan) -> bytes:
    parent = _bytes(4, bytes.fromhex(span.parent_id)) if span.parent_id else b""
    return b"".join((
        _bytes(1, bytes.fromhex(span.trace_id)),
        _bytes(2, bytes.fromhex(span.span_id)),
        parent,
        _bytes(5, span.name.encode("utf-8", "replace")),
        _number(6, _SERVER),
        _TIME.pack(7 << 3 | 1, span.start),
        _TIME.pack(8 << 3 | 1, span.end),
        _pairs(9, span.attributes),
        _bytes(15, _number(3, _ERROR)) if span.is_error else b"",
    ))  # fmt: skip


def _pairs(field: int, attributes: Attributes) -> bytes:
    """Attributes as KeyValue messages; numbers are not negative."""
    pairs = (_bytes(1, key.encode()) + _bytes(2, _any(value)) for key, value in attributes.items())
    return b"".join(_bytes(field, pair) for pair in pairs)


def _any(value: str | int) -> bytes:
    return _number(3, value) if isinstance(value, int) else _bytes(1, value.encode("utf-8", "replace"))
