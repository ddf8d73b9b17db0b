"""What a log record says as an event: its name, its attributes with its body among them, and how it is stored."""

from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from heddle.trace.otel.conventions.genai import DETAILS, EVENTS
from heddle.trace.otel.signals import Holder, LogRecord, Scope
from heddle.trace.otel.span import OtelEvent, OtelSpan
from heddle.wire import times
from heddle.wire.conversation.values import parse_json
from heddle.wire.jsontypes import Json
from heddle.wire.metric_series import digest

EVENT_NAME, TIMESTAMP = "event.name", "event.timestamp"
UNNAMED = "log"
_CLIENT = 3


@dataclass(slots=True)
class LogEvent:
    """A log record as an event; `time` in nanoseconds, attributes flat."""

    name: str
    time: int
    attributes: Json
    scope: str = ""
    scope_version: str = ""
    resource: Json = field(default_factory=dict)
    resource_dropped: int = 0
    dropped_attributes: int = 0

    @property
    def is_genai(self) -> bool:
        """True for what the conventions read messages and tokens of."""
        return self.name in EVENTS

    def dump(self) -> str:
        """JSON text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def load(cls, text: str) -> "LogEvent":
        """The event of a JSON text."""
        return cls(**orjson.loads(text))

    @property
    def id(self) -> str:
        """The same for the same record, however often it is sent."""
        return digest(self.name, str(self.time), self.scope, orjson.dumps(self.attributes, option=_SORTED).decode())


_SORTED = orjson.OPT_SORT_KEYS


def event_of(record: LogRecord, scope: Scope, resource: Holder) -> LogEvent:
    """The event that a record tells of."""
    attributes = {**record.attributes}
    named = attributes.pop(EVENT_NAME, None)
    body = record.body
    name = named if isinstance(named, str) and named else record.event_name
    if isinstance(body, dict):
        attributes = {**body, **attributes}
    elif isinstance(body, str) and (not name or body.endswith(f".{name}")):
        # Some write the name into the body, with what it belongs to in front.
        name = body if " " not in body and "." in body and len(body) <= 200 else name
        if name != body:
            attributes.setdefault("body", body)
    elif body is not None:
        attributes.setdefault("body", body)
    if record.severity_text:
        attributes.setdefault("severity", record.severity_text)
    time = _time_of(record, attributes)
    of = scope.name, scope.version, resource.attributes, resource.dropped
    return LogEvent(name or UNNAMED, time, attributes, *of, record.dropped_attributes)


def _time_of(record: LogRecord, attributes: Json) -> int:
    """Nanoseconds of the record, else of the attribute that some write in its place, else of when it was seen."""
    if record.time:
        return record.time
    told = attributes.get(TIMESTAMP)
    micros = times.parse(told) if isinstance(told, str) else None
    return micros * 1000 if micros is not None else record.observed_time or times.now() * 1000


def add_events(span: OtelSpan, events: list[LogEvent]) -> None:
    """Give a span events that are not there; what the span says itself is said once."""
    known = {(event.name, event.time) for event in span.events}
    own = {key: parse_json(value) for key, value in span.attributes.items()}
    for event in events:
        if (event.name, event.time) not in known:
            said = {key: value for key, value in event.attributes.items() if not _is_said(own, key, value)}
            span.events.append(OtelEvent(event.name, event.time, said, event.dropped_attributes))
    span.events.sort(key=lambda event: event.time)


def _is_said(own: Json, key: str, value: Any) -> bool:
    return key in own and own[key] == parse_json(value)


def span_of_events(trace_id: str, span_id: str, events: list[LogEvent]) -> OtelSpan:
    """What stands for a span that did not come: it begins and ends with its events."""
    told = next((event for event in events if event.is_genai), events[0])
    words = (told.attributes.get(f"gen_ai.{name}") for name in ("operation.name", "request.model"))
    span = OtelSpan(
        name=" ".join(word for word in words if isinstance(word, str) and word) or told.name,
        trace_id=trace_id,
        span_id=span_id,
        parent_id="",
        start=min(event.time for event in events),
        end=max(event.time for event in events),
        kind=_CLIENT,
        attributes={**told.attributes} if told.name == DETAILS else {},
        scope=told.scope,
        scope_version=told.scope_version,
        resource=told.resource,
        resource_dropped=told.resource_dropped,
        is_of_logs=True,
    )
    add_events(span, events)
    return span
