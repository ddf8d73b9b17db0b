"""Spans, log records and metrics as they were exported: the messages of OTLP as tables of their fields.

Ids are lower-case hex (empty: none), times nanoseconds (0: not known); attributes are flat with dotted keys, their
values as those of spans.
"""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from heddle.trace.otel.messages import (
    ANY_VALUE,
    BOOLEAN,
    COUNT,
    DOUBLE,
    FLAGS,
    HEX,
    INTEGER,
    SINT32,
    TEXT,
    TIME,
    UINT32,
    UINT64,
    Export,
    Field,
    Message,
    enum,
    one_of,
    pairs,
    reading,
    repeated,
    singular,
)
from heddle.trace.otel.span import OtelSpan
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json
from heddle.wire.otlp import Malformed

T = TypeVar("T")
DELTA, CUMULATIVE = 1, 2
"""How points of sums and histograms follow each other."""
NO_RECORDED_VALUE = 1
"""The flag of a point that says only that its series has ended."""


@dataclass(slots=True)
class Holder:
    """A resource: its attributes, and how many of them were dropped."""

    attributes: Json = pairs(1)
    dropped: int = singular(2, "droppedAttributesCount", UINT32)


@dataclass(slots=True)
class Scope:
    """An instrumentation library."""

    name: str = singular(1, "name", TEXT)
    version: str = singular(2, "version", TEXT)
    attributes: Json = pairs(3)


@dataclass(slots=True)
class ScopeItems(Generic[T]):
    """What one library reports."""

    scope: Scope = field(default_factory=Scope)
    items: list[T] = field(default_factory=list)


@dataclass(slots=True)
class ResourceItems(Generic[T]):
    """What one resource reports."""

    resource: Holder = field(default_factory=Holder)
    scopes: list[ScopeItems[T]] = field(default_factory=list)

    @property
    def items(self) -> list[T]:
        """What all of its libraries report."""
        return [item for scope in self.scopes for item in scope.items]


@dataclass(slots=True)
class _Export(Generic[T]):
    resources: list[ResourceItems[T]] = field(default_factory=list)


_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_SEVERITY = enum(
    "SEVERITY_NUMBER_", "UNSPECIFIED", *(f"{word}{number or ''}" for word in _LEVELS for number in (0, 2, 3, 4))
)
_TEMPORALITY = enum("AGGREGATION_TEMPORALITY_", "UNSPECIFIED", "DELTA", "CUMULATIVE")


@dataclass(slots=True)
class LogRecord:
    """One log record; an event has a name."""

    time: int = singular(1, "timeUnixNano", TIME)
    severity_number: int = singular(2, "severityNumber", _SEVERITY)
    severity_text: str = singular(3, "severityText", TEXT)
    body: Any = singular(5, "body", ANY_VALUE)
    attributes: Json = pairs(6)
    dropped_attributes: int = singular(7, "droppedAttributesCount", UINT32)
    flags: int = singular(8, "flags", FLAGS)
    trace_id: str = singular(9, "traceId", HEX)
    span_id: str = singular(10, "spanId", HEX)
    observed_time: int = singular(11, "observedTimeUnixNano", TIME)
    event_name: str = singular(12, "eventName", TEXT)


@dataclass(slots=True)
class NumberPoint:
    """A point of a gauge or a sum."""

    start: int = singular(2, "startTimeUnixNano", TIME)
    time: int = singular(3, "timeUnixNano", TIME)
    value: int | float | None = one_of((4, "asDouble", DOUBLE), (6, "asInt", INTEGER))
    attributes: Json = pairs(7)
    flags: int = singular(8, "flags", UINT32)


@dataclass(slots=True)
class HistogramPoint:
    """A point of a histogram: `counts[i]` values lie above `bounds[i - 1]` and up to `bounds[i]`."""

    start: int = singular(2, "startTimeUnixNano", TIME)
    time: int = singular(3, "timeUnixNano", TIME)
    count: int = singular(4, "count", COUNT)
    sum: float | None = one_of((5, "sum", DOUBLE))
    counts: list[int] = repeated(6, "bucketCounts", COUNT)
    bounds: list[float] = repeated(7, "explicitBounds", DOUBLE)
    attributes: Json = pairs(9)
    flags: int = singular(10, "flags", UINT32)
    min: float | None = one_of((11, "min", DOUBLE))
    max: float | None = one_of((12, "max", DOUBLE))


@dataclass(slots=True)
class ExponentialBuckets:
    """Counts of buckets; that at `index` holds values above `base ** (offset + index)`."""

    offset: int = singular(1, "offset", SINT32)
    counts: list[int] = repeated(2, "bucketCounts", UINT64)


@dataclass(slots=True)
class ExponentialPoint:
    """A point of a histogram whose buckets grow by the factor `2 ** 2 ** -scale`."""

    attributes: Json = pairs(1)
    start: int = singular(2, "startTimeUnixNano", TIME)
    time: int = singular(3, "timeUnixNano", TIME)
    count: int = singular(4, "count", COUNT)
    sum: float | None = one_of((5, "sum", DOUBLE))
    scale: int = singular(6, "scale", SINT32)
    zero_count: int = singular(7, "zeroCount", COUNT)
    positive: ExponentialBuckets = singular(8, "positive", Message.of(ExponentialBuckets))
    negative: ExponentialBuckets = singular(9, "negative", Message.of(ExponentialBuckets))
    flags: int = singular(10, "flags", UINT32)
    min: float | None = one_of((12, "min", DOUBLE))
    max: float | None = one_of((13, "max", DOUBLE))
    zero_threshold: float = singular(14, "zeroThreshold", DOUBLE)


@dataclass(slots=True)
class SummaryPoint:
    """A point of a summary, whose quantiles are passed over."""

    start: int = singular(2, "startTimeUnixNano", TIME)
    time: int = singular(3, "timeUnixNano", TIME)
    attributes: Json = pairs(7)
    flags: int = singular(8, "flags", UINT32)


@dataclass(slots=True)
class Gauge:
    """Values that are looked at."""

    points: list[NumberPoint] = repeated(1, "dataPoints", Message.of(NumberPoint))


@dataclass(slots=True)
class Sum:
    """Values that are added up."""

    points: list[NumberPoint] = repeated(1, "dataPoints", Message.of(NumberPoint))
    temporality: int = singular(2, "aggregationTemporality", _TEMPORALITY)
    is_monotonic: bool = singular(3, "isMonotonic", BOOLEAN)


@dataclass(slots=True)
class Histogram:
    """Distributions of values."""

    points: list[HistogramPoint] = repeated(1, "dataPoints", Message.of(HistogramPoint))
    temporality: int = singular(2, "aggregationTemporality", _TEMPORALITY)


@dataclass(slots=True)
class ExponentialHistogram:
    """Distributions of values, over many magnitudes."""

    points: list[ExponentialPoint] = repeated(1, "dataPoints", Message.of(ExponentialPoint))
    temporality: int = singular(2, "aggregationTemporality", _TEMPORALITY)


@dataclass(slots=True)
class Summary:
    """Distributions of values, as Prometheus sums them up."""

    points: list[SummaryPoint] = repeated(1, "dataPoints", Message.of(SummaryPoint))


@dataclass(slots=True)
class Metric:
    """A metric with its points; `data` is None for a kind that is not known."""

    name: str = singular(1, "name", TEXT)
    description: str = singular(2, "description", TEXT)
    unit: str = singular(3, "unit", TEXT)
    data: Gauge | Sum | Histogram | ExponentialHistogram | Summary | None = one_of(
        (5, "gauge", Message.of(Gauge)),
        (7, "sum", Message.of(Sum)),
        (9, "histogram", Message.of(Histogram)),
        (10, "exponentialHistogram", Message.of(ExponentialHistogram)),
        (11, "summary", Message.of(Summary)),
    )


def _export_of(item: Message, resources: str, scopes: str, items: str) -> Message:
    of_scope = Message(
        ScopeItems, (Field(1, "scope", "scope", Message.of(Scope)), Field(2, items, "items", item, is_repeated=True))
    )
    of_resource = Message(
        ResourceItems,
        (Field(1, "resource", "resource", Message.of(Holder)), Field(2, scopes, "scopes", of_scope, is_repeated=True)),
    )
    return Message(_Export, (Field(1, resources, "resources", of_resource, is_repeated=True),))


_SPANS = _export_of(Message.of(OtelSpan), "resourceSpans", "scopeSpans", "spans")
_LOGS = _export_of(Message.of(LogRecord), "resourceLogs", "scopeLogs", "logRecords")
_METRICS = _export_of(Message.of(Metric), "resourceMetrics", "scopeMetrics", "metrics")


def decode_spans(data: bytes, is_json: bool) -> list[ResourceItems[OtelSpan]]:
    """The spans of an ExportTraceServiceRequest by resource, of every resource that has any.

    Raises InvalidRequest or ValidationFailed for a body that is none, TooLarge for one of too many parts.
    """
    found: list[ResourceItems[OtelSpan]]
    found = _decode("ExportTraceServiceRequest", _SPANS, data, is_json, "spans, events and links")
    for group in found:
        for scope in group.scopes:
            for span in scope.items:
                span.scope, span.scope_version = scope.scope.name, scope.scope.version
                span.resource, span.resource_dropped = group.resource.attributes, group.resource.dropped
    return found


def decode_logs(data: bytes, is_json: bool) -> list[ResourceItems[LogRecord]]:
    """The log records of an ExportLogsServiceRequest by resource; as `decode_spans`."""
    found: list[ResourceItems[LogRecord]]
    found = _decode("ExportLogsServiceRequest", _LOGS, data, is_json, "log records")
    return found


def decode_metrics(data: bytes, is_json: bool) -> list[ResourceItems[Metric]]:
    """The metrics of an ExportMetricsServiceRequest by resource; as `decode_spans`."""
    found: list[ResourceItems[Metric]]
    found = _decode("ExportMetricsServiceRequest", _METRICS, data, is_json, "metrics and data points")
    return found


def _decode(name: str, message: Message, data: bytes, is_json: bool, items: str) -> Any:
    export = Export(items)
    with reading(name):
        if is_json:
            body = jsontext.loads(data)
            if not isinstance(body, dict):
                raise Malformed(f"expected an object, got {body!r:.100}", "the body")
            whole = message.of_json(body, export)
        else:
            whole = message.of_protobuf(data, 0, len(data), export)
    return [group for group in whole.resources if group.items]
