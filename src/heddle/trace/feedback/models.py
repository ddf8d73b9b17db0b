"""Requests and answers of the feedback routes."""

from datetime import UTC, datetime, timedelta
from typing import Any
from typing import Literal as OneOf

from pydantic import Field, model_validator

from heddle.http import RequestModel, ResponseModel
from heddle.store.control.feedback import Window
from heddle.trace.calls.pack import instant
from heddle.trace.rows import PurgeReq, RowQueryReq
from heddle.wire import times
from heddle.wire.buckets import MAX_RANGE_DAYS, AggregationType

ValueType = OneOf["numeric", "boolean", "categorical"]
GroupBy = OneOf["scorer_id", "span_agent_name", "span_agent_version", "span_status_code"]
SpanType = OneOf["agent_turn", "agent_conversation"]

MAX_AGGREGATE_BUCKETS = 256
DEFAULT_SAMPLE = 2000
MAX_SAMPLE = 5000

_DEFAULT_AGGREGATIONS = {
    "numeric": [AggregationType.AVG, AggregationType.MIN, AggregationType.MAX],
    "boolean": [AggregationType.COUNT_TRUE, AggregationType.COUNT_FALSE],
    "categorical": [AggregationType.COUNT],
}


class FeedbackCreateReq(RequestModel):
    """One feedback row to store."""

    id: str | None = None
    project_id: str
    weave_ref: str
    creator: str | None = None
    feedback_type: str
    payload: dict[str, Any]
    annotation_ref: str | None = None
    runnable_ref: str | None = None
    call_ref: str | None = None
    trigger_ref: str | None = None
    queue_id: str | None = None
    scorer_tags: list[str] = Field(default_factory=list)
    scorer_tag_reasons: dict[str, str] = Field(default_factory=dict)
    scorer_tag_confidences: dict[str, float] = Field(default_factory=dict)
    scorer_ratings: dict[str, float] = Field(default_factory=dict)
    scorer_rating_reasons: dict[str, str] = Field(default_factory=dict)
    scorer_rating_confidences: dict[str, float] = Field(default_factory=dict)
    span_agent_name: str = ""
    span_agent_version: str = ""
    span_status_code: str = "UNSET"
    span_trace_id: str = ""
    span_conversation_id: str = ""
    scorer_trace_id: str = ""
    wb_user_id: str | None = None


class FeedbackCreateRes(ResponseModel):
    """What was stored; the payload of reactions has more than what was sent."""

    id: str
    created_at: datetime
    wb_user_id: str
    payload: dict[str, Any]


class FeedbackBatchCreateReq(RequestModel):
    """Rows to store, all or none."""

    batch: list[FeedbackCreateReq]


class FeedbackBatchCreateRes(ResponseModel):
    """What was stored, in order."""

    res: list[FeedbackCreateRes]


class FeedbackReplaceReq(FeedbackCreateReq):
    """A row to store in place of another."""

    feedback_id: str


class FeedbackQueryReq(RowQueryReq):
    """A selection of feedback rows."""


class FeedbackQueryRes(ResponseModel):
    """The selected rows, and how many match before limit and offset."""

    result: list[dict[str, Any]]
    total_count: int


class FeedbackPurgeReq(PurgeReq):
    """Feedback rows to delete, named by their ids."""


class FeedbackWindowReq(RequestModel):
    """The rows of a time range of at most 31 days."""

    project_id: str
    start: datetime
    end: datetime | None = None
    feedback_type: str | None = None
    trigger_ref: str | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "FeedbackWindowReq":
        start, end = _aware(self.start), _aware(self.end or datetime.now(UTC))
        if end < start:
            raise ValueError("Feedback request end must be after start")
        if end - start > timedelta(days=MAX_RANGE_DAYS):
            raise ValueError(f"Feedback request date range cannot exceed {MAX_RANGE_DAYS} days")
        return self

    def window(self) -> Window:
        """The range in the store's terms; it ends now when no end is given."""
        end = times.now() if self.end is None else instant(self.end)
        return Window(instant(self.start), end, self.feedback_type, self.trigger_ref)


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


class FeedbackMetricSpec(RequestModel):
    """A value inside the payload, and what to compute over it."""

    json_path: str
    value_type: ValueType = "numeric"
    aggregations: list[AggregationType] = Field(default_factory=list)
    percentiles: list[float] = Field(default_factory=list)

    @model_validator(mode="after")
    def _with_defaults(self) -> "FeedbackMetricSpec":
        if not self.aggregations:
            self.aggregations = list(_DEFAULT_AGGREGATIONS[self.value_type])
        return self


class FeedbackStatsReq(FeedbackWindowReq):
    """Figures over payload values, per time bucket and over the whole range."""

    granularity: int | None = None
    timezone: str = "UTC"
    metrics: list[FeedbackMetricSpec] = Field(default_factory=list)


class FeedbackStatsRes(ResponseModel):
    """Buckets `{timestamp, count, <agg>_<slug>, p<N>_<slug>}`, and `{slug: {agg: figure}}` for the whole range."""

    start: datetime
    end: datetime
    granularity: int
    timezone: str
    buckets: list[dict[str, Any]]
    window_stats: dict[str, dict[str, float | None]] | None = None


class FeedbackPayloadSchemaReq(FeedbackWindowReq):
    """Which values the payloads of a range hold."""

    sample_limit: int = Field(default=DEFAULT_SAMPLE, ge=1, le=MAX_SAMPLE)


class FeedbackPayloadPath(ResponseModel):
    """A value that payloads hold, and its type."""

    json_path: str
    value_type: ValueType = "numeric"


class FeedbackPayloadSchemaRes(ResponseModel):
    """The values found, sorted by path."""

    paths: list[FeedbackPayloadPath]


class FeedbackAggregateReq(RequestModel):
    """Scores rolled up by time and dimension; times in milliseconds since 1970."""

    project_id: str
    after_ms: int = Field(ge=0)
    before_ms: int = Field(ge=0)
    time_bucket_seconds: int | None = Field(default=None, gt=0)
    feedback_types: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)
    rating_min: float | None = Field(default=None, ge=0, le=1)
    rating_max: float | None = Field(default=None, ge=0, le=1)
    monitor_ids: list[str] = Field(default_factory=list)
    scorer_ids: list[str] = Field(default_factory=list)
    span_agent_names: list[str] = Field(default_factory=list)
    span_types: list[SpanType] = Field(default_factory=list)
    group_by: list[GroupBy] = Field(default_factory=list)

    @model_validator(mode="after")
    def _bounded(self) -> "FeedbackAggregateReq":
        span = self.before_ms - self.after_ms
        if span <= 0:
            raise ValueError("before_ms must be greater than after_ms")
        if span > MAX_RANGE_DAYS * 86_400_000 and (self.time_bucket_seconds or self.group_by or self.is_filtered):
            raise ValueError(
                f"Feedback requests over {MAX_RANGE_DAYS} days must be a project-wide total: "
                "no time_bucket_seconds, no group_by, and no filters."
            )
        if self.time_bucket_seconds is not None and span / 1000 / self.time_bucket_seconds > MAX_AGGREGATE_BUCKETS:
            raise ValueError(f"Feedback request range cannot exceed {MAX_AGGREGATE_BUCKETS} buckets")
        return self

    @property
    def is_filtered(self) -> bool:
        """True when anything but the time range restricts the rows."""
        lists = (self.feedback_types, self.tags, self.monitor_ids, self.scorer_ids, self.span_agent_names)
        return any(lists) or bool(self.span_types) or self.rating_min is not None or self.rating_max is not None


class FeedbackAggregateBucket(ResponseModel):
    """One time bucket and group; counts and sums by tag and rating name."""

    time_bucket_start_ms: int | None = None
    group: dict[str, str]
    total_count: int
    scored_count: int
    tag_counts: dict[str, int]
    rating_counts: dict[str, int]
    rating_sums: dict[str, float]


class FeedbackAggregateRes(ResponseModel):
    """The buckets that hold rows, oldest first."""

    time_bucket_seconds: int | None = None
    after_ms: int
    before_ms: int
    buckets: list[FeedbackAggregateBucket]
