"""The binary encoding of OTLP: ExportTraceServiceRequest read, ExportTraceServiceResponse written.

An own reader of protobuf's wire format: the messages are few and fixed, and the server needs the package for nothing
else. Field numbers are those of opentelemetry-proto (`trace.proto`, `common.proto`, `resource.proto`). Positions lie in
one buffer; nothing is copied.
"""

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from heddle.errors import InvalidRequest
from heddle.trace.otel.span import MAX_DEPTH, OtelEvent, OtelLink, OtelSpan, ResourceSpans, check_parts
from heddle.wire.jsontypes import Json

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
MAX_GROUPS = 40
MAX_NUMBER = 0x1FFF_FFFF
Field = tuple[int, int, int, int]
Attribute = tuple[str, Any]
Reader = Callable[[bytes, int, int, Any], None]
"""Reads the content of a field, between two positions, into the message that it belongs to."""
_double = Struct("<d").unpack_from
_uint64 = Struct("<Q").unpack_from
_uint32 = Struct("<I").unpack_from
_Known = dict[bytes, Attribute]
"""Short attributes of one export by their bytes: most spans repeat those of the span before."""
_SHORT = 96
_STRUCTURES = (dict, list)


class Malformed(ValueError):
    """Bytes that are no message."""


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


@dataclass(slots=True)
class _Scope:
    name: str = ""
    version: str = ""
    attributes: Json = field(default_factory=dict)


def _resource_spans(data: bytes, at: int, end: int, known: _Known) -> ResourceSpans:
    found = ResourceSpans()
    scopes = []
    for number, wire, start, stop in fields(data, at, end):
        if wire == BYTES and number == 1:
            _message(data, start, stop, found, _RESOURCE)
        elif wire == BYTES and number == 2:
            scopes.append((start, stop))
            check_parts(len(scopes), "scopes")
    for start, stop in scopes:
        _scope_spans(data, start, stop, found, known)
    return found


def _scope_spans(data: bytes, at: int, end: int, into: ResourceSpans, known: _Known) -> None:
    scope, spans = _Scope(), []
    for number, wire, start, stop in fields(data, at, end):
        if wire != BYTES:
            continue
        if number == 1:
            _message(data, start, stop, scope, _SCOPE)
        elif number == 2:
            span = _span(data, start, stop, known)
            spans.append(span)
            into.parts += 1 + len(span.events) + len(span.links)
            check_parts(into.parts)
        elif number == 3:
            _text(data, start, stop)
    for span in spans:
        span.scope, span.scope_version = scope.name, scope.version
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


def _message(data: bytes, at: int, end: int, into: Any, readers: Mapping[int, Reader]) -> None:
    """Read the fields of a message that have a reader; the others are passed over."""
    for number, wire, start, stop in fields(data, at, end):
        if (read := readers.get(number << 3 | wire)) is not None:
            read(data, start, stop, into)


def _set(name: str, value: Callable[[bytes, int, int], Any]) -> Reader:
    """A reader of a field with one value."""

    def read(data: bytes, start: int, stop: int, into: Any) -> None:
        setattr(into, name, value(data, start, stop))

    return read


def _text(data: bytes, start: int, stop: int) -> str:
    return data[start:stop].decode()


def _hex(data: bytes, start: int, stop: int) -> str:
    return data[start:stop].hex()


def _nanoseconds(data: bytes, start: int, _stop: int) -> int:
    found: int = _uint64(data, start)[0]
    return found


def _count(data: bytes, start: int, _stop: int) -> int:
    return varint(data, start)[0] & 0xFFFF_FFFF


def _enum(data: bytes, start: int, _stop: int) -> int:
    """The int32 that was written as this number."""
    low = _count(data, start, _stop)
    return low - 0x1_0000_0000 if low >> 31 else low


def _attribute(data: bytes, start: int, stop: int, into: Any) -> None:
    key, value = attribute(data, start, stop)
    into.attributes[key] = value


def _event(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    event = OtelEvent("", 0, {})
    _message(data, start, stop, event, _EVENT)
    span.events.append(event)
    check_parts(len(span.events))


def _link(data: bytes, start: int, stop: int, span: OtelSpan) -> None:
    link = OtelLink("", "", "", {})
    _message(data, start, stop, link, _LINK)
    span.links.append(link)
    check_parts(len(span.links))


def _resource_attribute(data: bytes, start: int, stop: int, into: ResourceSpans) -> None:
    key, value = attribute(data, start, stop)
    into.resource[key] = value


_RESOURCE: dict[int, Reader] = {
    1 << 3 | BYTES: _resource_attribute,
    2 << 3 | VARINT: _set("resource_dropped", _count),
}
_SCOPE: dict[int, Reader] = {
    1 << 3 | BYTES: _set("name", _text),
    2 << 3 | BYTES: _set("version", _text),
    3 << 3 | BYTES: _attribute,
}
_EVENT: dict[int, Reader] = {
    1 << 3 | FIXED64: _set("time", _nanoseconds),
    2 << 3 | BYTES: _set("name", _text),
    3 << 3 | BYTES: _attribute,
    4 << 3 | VARINT: _set("dropped_attributes", _count),
}
_LINK: dict[int, Reader] = {
    1 << 3 | BYTES: _set("trace_id", _hex),
    2 << 3 | BYTES: _set("span_id", _hex),
    3 << 3 | BYTES: _set("trace_state", _text),
    4 << 3 | BYTES: _attribute,
    5 << 3 | VARINT: _set("dropped_attributes", _count),
    6 << 3 | FIXED32: _set("flags", lambda data, start, _: _uint32(data, start)[0]),
}
_STATUS: dict[int, Reader] = {
    2 << 3 | BYTES: _set("status_message", _text),
    3 << 3 | VARINT: _set("status_code", _enum),
}
_SPAN_FIELDS: dict[int, Reader] = {
    1 << 3 | BYTES: _set("trace_id", _hex),
    2 << 3 | BYTES: _set("span_id", _hex),
    3 << 3 | BYTES: _set("trace_state", _text),
    4 << 3 | BYTES: _set("parent_id", _hex),
    5 << 3 | BYTES: _set("name", _text),
    6 << 3 | VARINT: _set("kind", _enum),
    7 << 3 | FIXED64: _set("start", _nanoseconds),
    8 << 3 | FIXED64: _set("end", _nanoseconds),
    9 << 3 | BYTES: _attribute,
    11 << 3 | BYTES: _event,
    13 << 3 | BYTES: _link,
    15 << 3 | BYTES: lambda data, start, stop, span: _message(data, start, stop, span, _STATUS),
}
_SHORT_FIELDS = {tag: _SPAN_FIELDS[tag] for tag in (0x0A, 0x12, 0x22, 0x2A, 0x7A)}


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
                return data[at + 2 : key_end].decode(), _value(data, start, end, depth)
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
    return key, _value(value, 0, len(value), depth)


def _value(data: bytes, at: int, end: int, depth: int) -> Any:
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
            return _signed(value)
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
        return _signed(varint(held, 0)[0])
    if kind == 4:
        return _number(_double(held, 0)[0])
    if kind == 7:
        return base64.b64encode(held).decode()
    if depth >= MAX_DEPTH:
        raise Malformed(f"attribute values are nested deeper than {MAX_DEPTH} levels")
    items = [(start, stop) for number, wire, start, stop in fields(held, 0, len(held)) if (number, wire) == (1, BYTES)]
    if kind == 5:
        return [_value(held, start, stop, depth + 1) for start, stop in items]
    return dict([attribute(held, start, stop, depth + 1) for start, stop in items])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _signed(value: int) -> int:
    """The int64 that was written as this number."""
    return value - 0x1_0000_0000_0000_0000 if value >> 63 else value


def varint_bytes(value: int) -> bytes:
    """A number as its variable-length bytes."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


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
