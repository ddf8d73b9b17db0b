"""The binary encoding of OTLP: ExportTraceServiceRequest read, ExportTraceServiceResponse written.

An own reader of protobuf's wire format: the messages are few and fixed, and the server needs the package for nothing
else. Field numbers are those of opentelemetry-proto (`trace.proto`, `common.proto`, `resource.proto`).
"""

from collections.abc import Callable
from struct import Struct

from heddle.errors import InvalidRequest
from heddle.trace.otel.protobuf_values import Attribute, attribute, read_attribute
from heddle.trace.otel.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    MAX_NUMBER,
    VARINT,
    Malformed,
    content,
    fields,
    int32,
    varint,
    varint_bytes,
)
from heddle.trace.otel.span import OtelEvent, OtelLink, OtelSpan, ResourceSpans, check_parts
from heddle.wire.jsontypes import Json

_uint64 = Struct("<Q").unpack_from
_uint32 = Struct("<I").unpack_from
_Known = dict[bytes, Attribute]
"""Short attributes of one export by their bytes: most spans repeat those of the span before."""
_SHORT = 96
_STRUCTURES = (dict, list)


def decode(data: bytes) -> list[ResourceSpans]:
    """The spans of an ExportTraceServiceRequest, of every resource that has any.

    Raises InvalidRequest for bytes that are none, TooLarge for one of too many parts.
    """
    known: _Known = {}
    try:
        found, parts = [], 0
        for number, wire, start, end in fields(data, 0, len(data)):
            if number == 1 and wire == BYTES:
                group = _resource_spans(data, start, end, known)
                parts += 1 + group.parts
                check_parts(parts)
                if group.spans:
                    found.append(group)
        return found
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The body is no ExportTraceServiceRequest: a text is not UTF-8 ({error.reason})"
        ) from None
    except Malformed as error:
        raise InvalidRequest(f"The body is no ExportTraceServiceRequest: {error}") from None
    except IndexError:
        raise InvalidRequest("The body is no ExportTraceServiceRequest: it ends within a field") from None


def response(rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse; `partial_success` is left out when nothing was rejected."""
    if not rejected and not message:
        return b""
    text = message.encode("utf-8", "replace")
    partial = b"\x08" + varint_bytes(rejected) + b"\x12" + varint_bytes(len(text)) + text
    return b"\x0a" + varint_bytes(len(partial)) + partial


def _resource_spans(data: bytes, at: int, end: int, known: _Known) -> ResourceSpans:
    found = ResourceSpans()
    scopes = []
    for number, wire, start, stop in fields(data, at, end):
        if wire == BYTES and number == 1:
            _resource(data, start, stop, found)
        elif wire == BYTES and number == 2:
            scopes.append((start, stop))
            check_parts(len(scopes), "scopes")
    for start, stop in scopes:
        _scope_spans(data, start, stop, found, known)
    return found


def _resource(data: bytes, at: int, end: int, into: ResourceSpans) -> None:
    for number, wire, start, stop in fields(data, at, end):
        if number == 1 and wire == BYTES:
            read_attribute(data, start, stop, into.resource)
        elif number == 2 and wire == VARINT:
            into.resource_dropped = varint(data, start)[0] & 0xFFFF_FFFF


def _scope_spans(data: bytes, at: int, end: int, into: ResourceSpans, known: _Known) -> None:
    name = version = ""
    spans = []
    for number, wire, start, stop in fields(data, at, end):
        if wire != BYTES:
            continue
        if number == 1:
            for inner, inner_wire, first, last in fields(data, start, stop):
                if inner == 1 and inner_wire == BYTES:
                    name = data[first:last].decode()
                elif inner == 2 and inner_wire == BYTES:
                    version = data[first:last].decode()
                elif inner == 3 and inner_wire == BYTES:
                    read_attribute(data, first, last, {})
        elif number == 2:
            span = _span(data, start, stop, known)
            spans.append(span)
            into.parts += 1 + len(span.events) + len(span.links)
            check_parts(into.parts)
        elif number == 3:
            data[start:stop].decode()
    for span in spans:
        span.scope, span.scope_version = name, version
        span.resource, span.resource_dropped = into.resource, into.resource_dropped
    into.spans += spans


def _span(data: bytes, at: int, end: int, known: _Known) -> OtelSpan:
    """One span; attributes and the fields that every span has are read without the general way."""
    attributes: Json = {}
    span = OtelSpan("", "", "", "", 0, 0, 0, attributes)
    while at < end:
        tag = data[at]
        if tag == 0x4A:
            length = data[at + 1]
            start = at + 2
            if length > 0x7F:
                length, start = varint(data, at + 1)
            at = start + length
            if at > end:
                break
            raw = data[start:at] if length <= _SHORT else b""
            pair = known.get(raw)
            if pair is None:
                pair = attribute(data, start, at)
                if raw and type(pair[1]) not in _STRUCTURES:
                    known[raw] = pair
            attributes[pair[0]] = pair[1]
        elif tag == 0x39 and at + 9 <= end:
            span.start = _uint64(data, at + 1)[0]
            at += 9
        elif tag == 0x41 and at + 9 <= end:
            span.end = _uint64(data, at + 1)[0]
            at += 9
        elif tag in _SHORT_FIELDS and data[at + 1] <= 0x7F and (stop := at + 2 + data[at + 1]) <= end:
            _SHORT_FIELDS[tag](data, at + 2, stop, span)
            at = stop
        else:
            at = _span_field(data, at, end, span)
    if at != end:
        raise Malformed("a field is longer than what holds it")
    return span


def _span_field(data: bytes, at: int, end: int, span: OtelSpan) -> int:
    """Read one field of a span; returns the position behind it."""
    tag, at = varint(data, at)
    number, wire = tag >> 3, tag & 7
    if not 0 < number <= MAX_NUMBER:
        raise Malformed("a field number is out of range")
    start, stop = content(data, at, number, wire)
    if stop > end:
        raise Malformed("a field is longer than what holds it")
    read = _SPAN_FIELDS.get(tag)
    if read is not None:
        read(data, start, stop, span)
    return stop


def _trace_id(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    span.trace_id = data[start:stop].hex()


def _span_id(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    span.span_id = data[start:stop].hex()


def _trace_state(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    span.trace_state = data[start:stop].decode()


def _parent_id(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    span.parent_id = data[start:stop].hex()


def _name(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    span.name = data[start:stop].decode()


def _kind(data: bytes, start: int, _stop: int, span: OtelSpan) -> None:
    span.kind = int32(varint(data, start)[0])


def _start(data: bytes, start: int, _stop: int, span: OtelSpan) -> None:
    span.start = _uint64(data, start)[0]


def _end(data: bytes, start: int, _stop: int, span: OtelSpan) -> None:
    span.end = _uint64(data, start)[0]


def _event(data: bytes, at: int, end: int, span: OtelSpan) -> None:
    event = OtelEvent("", 0, {})
    for number, wire, start, stop in fields(data, at, end):
        if number == 3 and wire == BYTES:
            read_attribute(data, start, stop, event.attributes)
        elif number == 1 and wire == FIXED64:
            event.time = _uint64(data, start)[0]
        elif number == 2 and wire == BYTES:
            event.name = data[start:stop].decode()
        elif number == 4 and wire == VARINT:
            event.dropped_attributes = varint(data, start)[0] & 0xFFFF_FFFF
    span.events.append(event)
    check_parts(len(span.events))


def _link(data: bytes, at: int, end: int, span: OtelSpan) -> None:
    link = OtelLink("", "", "", {})
    for number, wire, start, stop in fields(data, at, end):
        if number == 1 and wire == BYTES:
            link.trace_id = data[start:stop].hex()
        elif number == 2 and wire == BYTES:
            link.span_id = data[start:stop].hex()
        elif number == 3 and wire == BYTES:
            link.trace_state = data[start:stop].decode()
        elif number == 4 and wire == BYTES:
            read_attribute(data, start, stop, link.attributes)
        elif number == 5 and wire == VARINT:
            link.dropped_attributes = varint(data, start)[0] & 0xFFFF_FFFF
        elif number == 6 and wire == FIXED32:
            link.flags = _uint32(data, start)[0]
    span.links.append(link)
    check_parts(len(span.links))


def _status(data: bytes, at: int, end: int, span: OtelSpan) -> None:
    if end - at == 2 and data[at] == 0x18 and data[at + 1] < 0x80:
        span.status_code = data[at + 1]
        return
    for number, wire, start, stop in fields(data, at, end):
        if number == 2 and wire == BYTES:
            span.status_message = data[start:stop].decode()
        elif number == 3 and wire == VARINT:
            span.status_code = int32(varint(data, start)[0])


_SPAN_FIELDS: dict[int, Callable[[bytes, int, int, OtelSpan], None]] = {
    1 << 3 | BYTES: _trace_id,
    2 << 3 | BYTES: _span_id,
    3 << 3 | BYTES: _trace_state,
    4 << 3 | BYTES: _parent_id,
    5 << 3 | BYTES: _name,
    6 << 3 | VARINT: _kind,
    7 << 3 | FIXED64: _start,
    8 << 3 | FIXED64: _end,
    9 << 3 | BYTES: lambda data, start, stop, span: read_attribute(data, start, stop, span.attributes),
    11 << 3 | BYTES: _event,
    13 << 3 | BYTES: _link,
    15 << 3 | BYTES: _status,
}
_SHORT_FIELDS = {tag: _SPAN_FIELDS[tag] for tag in (0x0A, 0x12, 0x22, 0x2A, 0x7A)}
