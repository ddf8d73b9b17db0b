"""Recorded exports of real instrumentation libraries (`tools/record_otel.py`), and spans made by hand."""

from pathlib import Path
from typing import Any

from heddle.trace.otel import reading
from heddle.trace.otel.signals import decode_spans
from heddle.trace.otel.span import OtelEvent, OtelSpan
from heddle.wire.spans import AgentSpan

Json = dict[str, Any]
RECORDED = Path(__file__).resolve().parent.parent / "data/otel"
RECORDINGS = sorted(path.name for path in RECORDED.iterdir())
SECOND = 10**9


def recorded(name: str) -> list[OtelSpan]:
    """The spans of a recording, in the order of their export."""
    body = (RECORDED / name).read_bytes()
    found = decode_spans(body, is_json=name.endswith(".json"))
    return [span for resource in found for span in resource.items]


def seen(span: OtelSpan) -> AgentSpan:
    """What the conventions make of a span."""
    return reading.describe(span, "project")


def span_of(attributes: Json, name: str = "step", scope: str = "", events: list[OtelEvent] | None = None) -> OtelSpan:
    """A span of two seconds."""
    return OtelSpan(
        name=name,
        trace_id="0af7651916cd43dd8448eb211c80319c",
        span_id="b7ad6b7169203331",
        parent_id="",
        start=100 * SECOND,
        end=102 * SECOND,
        kind=1,
        attributes=attributes,
        scope=scope,
        events=events or [],
    )


def event_of(name: str, attributes: Json) -> OtelEvent:
    """An event one second after the span's start."""
    return OtelEvent(name=name, time=101 * SECOND, attributes=attributes)
