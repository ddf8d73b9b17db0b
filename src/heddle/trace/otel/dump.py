"""A whole span as the call's `otel_dump`, and back."""

from functools import lru_cache
from typing import Any

from heddle.trace.otel.expand import Conflict, expand, flatten
from heddle.trace.otel.span import KINDS, STATUS_CODES, OtelEvent, OtelLink, OtelSpan
from heddle.wire import times
from heddle.wire.jsontypes import Json


def to_dump(span: OtelSpan, attributes: Json, texts: list[str], resource: Any) -> Json:
    """The form in which a span is stored and read as `attributes.otel_span`.

    `attributes` is the tree of the span's attributes and `texts` the keys that came as JSON text; `resource` is the
    result of `resource_dump`, or JSON text of it. Beyond the fields of the contract it holds the scope and `texts`.
    """
    return {
        "name": span.name,
        "context": {"trace_id": span.trace_id, "span_id": span.span_id, "trace_state": span.trace_state},
        "kind": kind_name(span.kind),
        "parent_id": parent_of(span),
        "start_time": _iso(span.start),
        "end_time": _iso(span.end),
        "status": {"code": status_name(span.status_code), "message": span.status_message},
        "attributes": attributes,
        "events": [_event(event) for event in span.events],
        "links": [_link(link) for link in span.links],
        "resource": resource,
        "scope": {"name": span.scope, "version": span.scope_version},
        "json_attributes": texts,
    }


def resource_dump(attributes: Json, dropped: int) -> Json:
    """The resource of a span, as its dump holds it."""
    return {"attributes": tree_of(attributes), "dropped_attributes_count": dropped}


def parent_of(span: OtelSpan) -> str | None:
    """The id of the parent; all zeros are none."""
    return span.parent_id if span.parent_id.strip("0") else None


def kind_name(kind: int) -> str:
    """The kind of a span in words."""
    return KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]


def status_name(code: int) -> str:
    """The status of a span in words."""
    return STATUS_CODES[code] if 0 <= code < len(STATUS_CODES) else STATUS_CODES[0]


def tree_of(flat: Json) -> Json:
    """The tree of attributes beside the span's own; keys in conflict stay whole there."""
    try:
        return expand(flat)[0]
    except Conflict:
        return flat


def _iso(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds // 1000, times.SECOND)
    return f"{_second(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """ISO text without the fraction; the spans of a batch share few of them."""
    return times.to_iso(seconds * times.SECOND)[:-8]


def _event(event: OtelEvent) -> Json:
    return {
        "name": event.name,
        "timestamp": event.time,
        "attributes": tree_of(event.attributes),
        "dropped_attributes_count": event.dropped_attributes,
    }


def _link(link: OtelLink) -> Json:
    return {
        "trace_id": link.trace_id,
        "span_id": link.span_id,
        "trace_state": link.trace_state,
        "attributes": tree_of(link.attributes),
        "dropped_attributes_count": link.dropped_attributes,
        "flags": link.flags,
    }


def to_span(dump: Json) -> OtelSpan:
    """The span of a dump; what the dump lacks, or holds in another form, is empty."""
    context, status = _dict(dump, "context"), _dict(dump, "status")
    resource, scope = _dict(dump, "resource"), _dict(dump, "scope")
    texts = dump.get("json_attributes")
    return OtelSpan(
        name=_text(dump, "name"),
        trace_id=_text(context, "trace_id"),
        span_id=_text(context, "span_id"),
        parent_id=_text(dump, "parent_id"),
        start=_nanoseconds(dump.get("start_time")),
        end=_nanoseconds(dump.get("end_time")),
        kind=_place(KINDS, dump.get("kind")),
        attributes=flatten(_dict(dump, "attributes"), texts if isinstance(texts, list) else ()),
        status_code=_place(STATUS_CODES, status.get("code")),
        status_message=_text(status, "message"),
        trace_state=_text(context, "trace_state"),
        events=[
            OtelEvent(_text(item, "name"), _whole(item, "timestamp"), flatten(_dict(item, "attributes")))
            for item in _dicts(dump, "events")
        ],
        links=[
            OtelLink(_text(item, "trace_id"), _text(item, "span_id"), "", flatten(_dict(item, "attributes")))
            for item in _dicts(dump, "links")
        ],
        scope=_text(scope, "name"),
        scope_version=_text(scope, "version"),
        resource=flatten(_dict(resource, "attributes")),
        resource_dropped=_whole(resource, "dropped_attributes_count"),
    )


def _dict(holder: Json, name: str) -> Json:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _dicts(holder: Json, name: str) -> list[Json]:
    found = holder.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _text(holder: Json, name: str) -> str:
    found = holder.get(name)
    return found if isinstance(found, str) else ""


def _whole(holder: Json, name: str) -> int:
    found = holder.get(name)
    return found if isinstance(found, int) else 0


def _place(words: tuple[str, ...], word: Any) -> int:
    return words.index(word) if word in words else 0


def _nanoseconds(text: Any) -> int:
    micros = times.parse(text) if isinstance(text, str) else None
    return (micros or 0) * 1000
