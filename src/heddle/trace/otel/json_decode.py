"""The JSON encoding of OTLP: hex ids, 64-bit integers as text or number, names in camelCase or snake_case.

Errors say where in the body they are, as a path such as `resourceSpans[0].scopeSpans[0].spans[2].startTimeUnixNano`.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from heddle.errors import InvalidRequest
from heddle.trace.otel.span import (
    KINDS,
    MAX_DEPTH,
    STATUS_CODES,
    OtelEvent,
    OtelLink,
    OtelSpan,
    ResourceSpans,
    check_parts,
)
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

_UINT64, _UINT32, _INT64 = 2**64 - 1, 2**32 - 1, 2**63


def decode(data: bytes) -> list[ResourceSpans]:
    """The spans of an ExportTraceServiceRequest, of every resource that has any.

    Raises InvalidRequest or ValidationFailed for a body that is none, TooLarge for one of too many parts.
    """
    body = jsontext.loads(data)
    if not isinstance(body, dict):
        raise _wrong("the body", "an object", body)
    found, parts = [], 0
    for group, place in _objects(body, "resourceSpans", ""):
        read = _resource_spans(group, place)
        parts += 1 + read.parts
        check_parts(parts)
        if read.spans:
            found.append(read)
    return found


def _wrong(place: str, expected: str, found: Any) -> InvalidRequest:
    return InvalidRequest(f"The body is no ExportTraceServiceRequest: {place}: expected {expected}, got {found!r:.100}")


@cache
def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _get(holder: Json, name: str) -> Any:
    found = holder.get(name)
    return holder.get(_snake(name)) if found is None else found


def _objects(holder: Json, name: str, place: str) -> Iterator[tuple[Json, str]]:
    """The objects of a list, each with its place."""
    found = _get(holder, name)
    if found is None:
        return
    where = f"{place}.{name}" if place else name
    if not isinstance(found, list):
        raise _wrong(where, "a list", found)
    check_parts(len(found), name)
    for index, item in enumerate(found):
        if not isinstance(item, dict):
            raise _wrong(f"{where}[{index}]", "an object", item)
        yield item, f"{where}[{index}]"


def _object(holder: Json, name: str, place: str) -> Json:
    found = holder.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _wrong(f"{place}.{name}", "an object", found)
    return found


def _text(holder: Json, name: str, place: str) -> str:
    found = _get(holder, name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise _wrong(f"{place}.{name}", "text", found)
    return found


def _id(holder: Json, name: str, place: str) -> str:
    return _text(holder, name, place).lower()


def _whole(holder: Json, name: str, place: str, most: int) -> int:
    """A number that is not negative, written as a number or as text; 0 when it is absent."""
    found = _get(holder, name)
    if found is None or found == "":
        return 0
    number = _integer(found)
    if number is None or not 0 <= number <= most:
        raise _wrong(f"{place}.{name}", f"an integer from 0 to {most}", found)
    return number


def _integer(found: Any) -> int | None:
    if isinstance(found, bool):
        return None
    if isinstance(found, int):
        return found
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if isinstance(found, str) and len(found) < 25 and found.isascii() and found.lstrip("-").isdigit():
        return int(found) if found.count("-") <= 1 else None
    return None


def _word(holder: Json, name: str, place: str, prefix: str, words: tuple[str, ...]) -> int:
    """An enum: its number, or its name as protobuf's own JSON writes it."""
    found = holder.get(name)
    if found is None:
        return 0
    if isinstance(found, str) and found.removeprefix(prefix) in words:
        return words.index(found.removeprefix(prefix))
    number = _integer(found)
    if number is None or not -(2**31) <= number < 2**31:
        raise _wrong(f"{place}.{name}", f"an integer or {prefix}{words[-1]} and the like", found)
    return number


def _resource_spans(group: Json, place: str) -> ResourceSpans:
    resource = _object(group, "resource", place)
    where = f"{place}.resource"
    found = ResourceSpans(_attributes(resource, where), _dropped(resource, where))
    for scope_spans, scope_place in _objects(group, "scopeSpans", place):
        scope = _object(scope_spans, "scope", scope_place)
        name = _text(scope, "name", f"{scope_place}.scope")
        version = _text(scope, "version", f"{scope_place}.scope")
        for item, span_place in _objects(scope_spans, "spans", scope_place):
            span = _span(item, span_place)
            span.scope, span.scope_version = name, version
            span.resource, span.resource_dropped = found.resource, found.resource_dropped
            found.spans.append(span)
            found.parts += 1 + len(span.events) + len(span.links)
            check_parts(found.parts)
    return found


def _span(item: Json, place: str) -> OtelSpan:
    status = _object(item, "status", place)
    return OtelSpan(
        name=_text(item, "name", place),
        trace_id=_id(item, "traceId", place),
        span_id=_id(item, "spanId", place),
        parent_id=_id(item, "parentSpanId", place),
        start=_whole(item, "startTimeUnixNano", place, _UINT64),
        end=_whole(item, "endTimeUnixNano", place, _UINT64),
        kind=_word(item, "kind", place, "SPAN_KIND_", KINDS),
        attributes=_attributes(item, place),
        status_code=_word(status, "code", f"{place}.status", "STATUS_CODE_", STATUS_CODES),
        status_message=_text(status, "message", f"{place}.status"),
        trace_state=_text(item, "traceState", place),
        events=[_event(event, where) for event, where in _objects(item, "events", place)],
        links=[_link(link, where) for link, where in _objects(item, "links", place)],
    )


def _event(item: Json, place: str) -> OtelEvent:
    time = _whole(item, "timeUnixNano", place, _UINT64)
    return OtelEvent(_text(item, "name", place), time, _attributes(item, place), _dropped(item, place))


def _link(item: Json, place: str) -> OtelLink:
    return OtelLink(
        trace_id=_id(item, "traceId", place),
        span_id=_id(item, "spanId", place),
        trace_state=_text(item, "traceState", place),
        attributes=_attributes(item, place),
        dropped_attributes=_dropped(item, place),
        flags=_whole(item, "flags", place, _UINT32),
    )


def _dropped(item: Json, place: str) -> int:
    return _whole(item, "droppedAttributesCount", place, _UINT32)


def _attributes(holder: Json, place: str) -> Json:
    return _pairs(holder.get("attributes"), place, "attributes", 0)


def _pairs(found: Any, place: str, name: str, depth: int) -> Json:
    """Attributes of a list of KeyValue."""
    if found is None:
        return {}
    if not isinstance(found, list):
        raise _wrong(f"{place}.{name}", "a list", found)
    pairs: Json = {}
    for index, pair in enumerate(found):
        key = pair.get("key", "") if isinstance(pair, dict) else None
        if not isinstance(key, str):
            raise _wrong(f"{place}.{name}[{index}]", "an object with `key` and `value`", pair)
        value = pair.get("value")
        # The usual kind of value needs no more than this.
        text = value.get("stringValue") if type(value) is dict else None
        pairs[key] = text if type(text) is str else _value(value, f"{place}.{name}[{index}].value", depth)
    return pairs


def _value(value: Any, place: str, depth: int) -> Any:
    """An AnyValue; None when it holds nothing."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(place, 'an object such as {"stringValue": "..."}', value)
    if depth > MAX_DEPTH:
        raise InvalidRequest(
            f"The body is no ExportTraceServiceRequest: {place}: nested deeper than {MAX_DEPTH} levels"
        )
    for name, read in _VALUES:
        held = _get(value, name)
        if held is not None:
            return read(held, f"{place}.{name}", depth)
    return None


def _string(held: Any, place: str, _depth: int) -> str:
    if not isinstance(held, str):
        raise _wrong(place, "text", held)
    return held


def _boolean(held: Any, place: str, _depth: int) -> bool:
    if not isinstance(held, bool):
        raise _wrong(place, "true or false", held)
    return held


def _int64(held: Any, place: str, _depth: int) -> int:
    number = _integer(held)
    if number is None or not -_INT64 <= number < _INT64:
        raise _wrong(place, "a 64-bit integer", held)
    return number


def _double(held: Any, place: str, _depth: int) -> float | str:
    if isinstance(held, str) and held in ("NaN", "Infinity", "-Infinity"):
        return str(float(held))
    try:
        number = float(held) if isinstance(held, (int, float, str)) and not isinstance(held, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise _wrong(place, "a number", held)
    return number if math.isfinite(number) else str(number)


def _bytes(held: Any, place: str, _depth: int) -> str:
    try:
        content = base64.b64decode(_string(held, place, 0).replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(place, "base64", held) from None
    return base64.b64encode(content).decode()


def _array(held: Any, place: str, depth: int) -> list[Any]:
    items = held.get("values") if isinstance(held, dict) else None
    if not isinstance(held, dict) or not isinstance(items, list | None):
        raise _wrong(place, "an object with a list `values`", held)
    return [_value(item, f"{place}.values[{index}]", depth + 1) for index, item in enumerate(items or ())]


def _kvlist(held: Any, place: str, depth: int) -> Json:
    if not isinstance(held, dict):
        raise _wrong(place, "an object with a list `values`", held)
    return _pairs(held.get("values"), place, "values", depth + 1)


_VALUES = (
    ("stringValue", _string),
    ("intValue", _int64),
    ("boolValue", _boolean),
    ("doubleValue", _double),
    ("arrayValue", _array),
    ("kvlistValue", _kvlist),
    ("bytesValue", _bytes),
)
