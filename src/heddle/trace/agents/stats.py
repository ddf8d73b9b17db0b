"""Figures over spans for charts (/agents/spans/stats)."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from heddle.errors import ValidationFailed
from heddle.http import Reader, RequestModel, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.agents.fields import CUSTOM_TYPES, DERIVED, NUMBER, STRING, Fields
from heddle.store.control.agents.measures import AGGREGATIONS, ZERO_OF_NOTHING, GroupRef, group_expression
from heddle.store.control.agents.stats import Metric, Range, Ranges, StatsRequest
from heddle.trace.agents import select
from heddle.trace.agents.answers import AgentSpanStatsRes
from heddle.trace.agents.models import (
    AgentGroupByRef,
    AgentSignalFilter,
    AgentSpanGroupFilter,
    AgentSpanMeasureSpec,
    AgentSpanValueRef,
    Aggregation,
    Alias,
    InsightFilter,
    Number,
    ValueType,
    check_unique,
)
from heddle.trace.calls.pack import instant
from heddle.trace.stats import uniform_runs
from heddle.wire import times
from heddle.wire.buckets import MAX_RANGE_DAYS, Buckets, make_buckets, percentile_name
from heddle.wire.jsontypes import Json
from heddle.wire.query import QueryBody

router: APIRouter = group("Agents")

MAX_ROWS = 10_000
_CONVERSATION = GroupRef("field", "conversation_id", "conversation_id")


class AgentSpanStatsMetricSpec(RequestModel):
    """A value of spans, and what to compute over it."""

    alias: Alias
    value_type: ValueType
    aggregations: list[Aggregation] = Field(default_factory=list)
    percentiles: list[Number] = Field(default_factory=list)
    value: AgentSpanValueRef

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanStatsMetricSpec":
        if self.value.source == "derived" and DERIVED[self.value.key] != self.value_type:
            raise ValueError(
                f"derived metric {self.value.key!r} has value_type {DERIVED[self.value.key]!r}, got {self.value_type!r}"
            )
        if invalid := [item for item in self.aggregations if item not in AGGREGATIONS[self.value_type]]:
            raise ValueError(f"aggregations {invalid} are not valid for value_type {self.value_type!r}")
        check_unique(list(self.aggregations), "metric aggregations")
        if self.percentiles and self.value_type != NUMBER:
            raise ValueError("percentiles are only valid for number metrics")
        if any(not 0 <= percentile <= 100 for percentile in self.percentiles):
            raise ValueError(f"percentiles must be between 0 and 100, got {self.percentiles}")
        return self

    def metric(self) -> Metric:
        """The typed metric with the names of its columns."""
        figures = [(kind, f"{kind}_{self.alias}") for kind in self.aggregations]
        ranks = [(f"{_label(percentile)}_{self.alias}", percentile) for percentile in self.percentiles]
        return Metric(select.value_ref(self.value), self.value_type, figures, ranks)

    def columns(self) -> list[Json]:
        """The columns of its figures."""
        shown: list[tuple[str, str]] = [
            (kind, self.value_type if kind in ("min", "max") else NUMBER) for kind in self.aggregations
        ]
        shown += [(_label(percentile), NUMBER) for percentile in self.percentiles]
        return [_column(f"{kind}_{self.alias}", "metric", value_type, self.alias, kind) for kind, value_type in shown]


class AgentSpanStatsTimeBucketSpec(RequestModel):
    """Rows by the time at which spans started."""

    type: Literal["time"] = "time"


class AgentSpanStatsNumericBucketSpec(RequestModel):
    """Rows by ranges of a number: of a value of spans, or of a figure of groups."""

    type: Literal["number"] = "number"
    alias: Alias = "value"
    bins: int = Field(default=24, ge=1, le=200)
    min: Number | None = None
    max: Number | None = None
    value: AgentSpanValueRef | None = None
    group_by: list[AgentGroupByRef] = Field(default_factory=list)
    measure: AgentSpanMeasureSpec | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanStatsNumericBucketSpec":
        if bool(self.group_by) != (self.measure is not None):
            raise ValueError("numeric group bucket must set both group_by and measure")
        if (self.value is not None) == (self.measure is not None):
            raise ValueError("exactly one of value or group_by/measure must be set")
        if self.value is not None and self.value.source in CUSTOM_TYPES and CUSTOM_TYPES[self.value.source] != NUMBER:
            raise ValueError("numeric bucket value must be numeric")
        if self.min is not None and self.max is not None and self.max < self.min:
            raise ValueError("numeric bucket max must be greater than or equal to min")
        return self


BucketSpec = Annotated[AgentSpanStatsTimeBucketSpec | AgentSpanStatsNumericBucketSpec, Field(discriminator="type")]


class AgentSpanStatsReq(RequestModel):
    """Body of /agents/spans/stats."""

    project_id: str
    query: QueryBody | None = None
    start: datetime
    end: datetime | None = None
    granularity: int | None = Field(default=None, gt=0, le=2**40)
    timezone: str = "UTC"
    group_by: list[AgentGroupByRef] = Field(default_factory=list)
    metrics: list[AgentSpanStatsMetricSpec] = Field(default_factory=list)
    group_limit: int = Field(default=50, ge=1, le=1000)
    bucket_by: BucketSpec | None = None
    group_filters: list[AgentSpanGroupFilter] = Field(default_factory=list)
    signal_filters: AgentSignalFilter | None = None
    insight_filters: list[InsightFilter] = Field(default_factory=list)

    @property
    def numeric(self) -> AgentSpanStatsNumericBucketSpec | None:
        """The numeric bucket, None for rows over time."""
        return self.bucket_by if isinstance(self.bucket_by, AgentSpanStatsNumericBucketSpec) else None

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanStatsReq":
        numeric = self.numeric
        if numeric is None and not any(metric.aggregations or metric.percentiles for metric in self.metrics):
            raise ValueError("at least one metric with an aggregation or a percentile is required")
        names = [column["name"] for metric in self.metrics for column in metric.columns()]
        check_unique([*names, *(ref.alias or ref.key for ref in self.group_by)], "output columns")
        if numeric is not None and self.group_by:
            raise ValueError("numeric bucket stats do not support group_by")
        if numeric is not None and numeric.group_by and self.metrics:
            raise ValueError("grouped numeric bucket stats do not support explicit metrics")
        if self.group_filters and self.group_by:
            raise ValueError("group_filters do not support group_by")
        if self.group_filters and numeric is not None and not numeric.group_by:
            raise ValueError("group_filters are only supported for time stats or grouped numeric bucket stats")
        return self


@router.post("/agents/spans/stats", response_model=AgentSpanStatsRes)
async def agents_spans_stats(body: AgentSpanStatsReq, caller: Reader, store: StoreDep) -> Response:
    """Figures over spans, by time and group, or by ranges of a number."""
    project = caller.open(body.project_id)
    select.refuse_insights(body.insight_filters)
    start, end = instant(body.start), times.now() if body.end is None else instant(body.end)
    _check_range(body, start, end)
    selected = await select.span_filter(
        store,
        project,
        after=times.to_datetime(start),
        before=times.to_datetime(end),
        query=body.query,
        signals=body.signal_filters,
    )
    numeric = body.numeric
    measures = [item.measure for item in body.group_filters] + ([numeric.measure] if numeric is not None else [])
    values = [metric.value for metric in body.metrics] + ([numeric.value] if numeric is not None else [])
    default = select.group_refs(numeric.group_by) if numeric is not None else (_CONVERSATION,)
    request = StatsRequest(
        selected,
        [metric.metric() for metric in body.metrics],
        [select.group_filter(item, default) for item in body.group_filters],
        await select.prices_for(store, selected) if select.needs_costs(measures, values) else (),
    )
    shown: Json = {"start": times.to_iso(start), "end": times.to_iso(end), "timezone": body.timezone or "UTC"}
    if numeric is not None:
        rows = await _by_number(store, request, numeric)
        shown |= {"granularity": None, "bucket_type": "number", **_numeric_rows(body.metrics, rows, numeric.alias)}
    else:
        buckets = make_buckets(start, end, body.granularity, body.timezone or "UTC")
        shown |= {"granularity": buckets.granularity, "bucket_type": "time"}
        shown |= await _over_time(store, body, request, buckets, start, end)
    return answer(shown)


def _check_range(body: AgentSpanStatsReq, start: int, end: int) -> None:
    if end < start:
        raise ValidationFailed.at(["body", "end"], "end must be after start")
    bounded = body.group_by or body.group_filters or body.numeric is not None
    if bounded and end - start > MAX_RANGE_DAYS * times.DAY:
        raise ValidationFailed.at(
            ["body", "end"], f"with groups or numeric buckets the range can be at most {MAX_RANGE_DAYS} days"
        )


async def _over_time(
    store: Store, body: AgentSpanStatsReq, request: StatsRequest, buckets: Buckets, start: int, end: int
) -> Json:
    """Columns and rows: one row per bucket and group, also where there are no spans."""
    group_by = select.group_refs(body.group_by)
    limit = min(body.group_limit, max(1, MAX_ROWS // max(1, len(buckets.starts))))
    runs = uniform_runs(buckets, start, end)
    groups, found = await store.agent_spans.over_time(request, runs, group_by, limit)
    columns = [_column("timestamp", "time", "datetime")]
    columns += [_column(ref.alias, "group", _group_type(ref)) for ref in group_by]
    rows = []
    for index, moment in enumerate(buckets.starts):
        for key in sorted(groups, key=lambda key: tuple((item is not None, str(item)) for item in key)):
            row: Json = {"timestamp": times.to_iso(moment)}
            row |= dict(zip([ref.alias for ref in group_by], key, strict=True))
            rows.append(row | _figures(body.metrics, found.get((index, key), {})))
    return {"columns": columns + _metric_columns(body.metrics), "rows": rows}


async def _by_number(store: Store, request: StatsRequest, numeric: AgentSpanStatsNumericBucketSpec) -> list[Range]:
    ranges = Ranges(numeric.bins, numeric.min, numeric.max)
    if numeric.measure is not None:
        groups, measure = select.group_refs(numeric.group_by), select.measure_of(numeric.measure)
        return await store.agent_spans.by_group_value(request, groups, measure, ranges)
    assert numeric.value is not None
    return await store.agent_spans.by_value(request, select.value_ref(numeric.value), ranges)


def _numeric_rows(metrics: Sequence[AgentSpanStatsMetricSpec], ranges: Sequence[Range], alias: str) -> Json:
    columns = [_column(name, "bucket", NUMBER, alias) for name in ("bucket_index", "bucket_min", "bucket_max")]
    columns += _metric_columns(metrics) or [_column("count", "metric", NUMBER, "rows", "count")]
    rows = []
    for item in ranges:
        figures = _figures(metrics, item.figures) if metrics else {"count": item.figures.get("count", 0)}
        rows.append({"bucket_index": item.index, "bucket_min": item.low, "bucket_max": item.high, **figures})
    return {"columns": columns, "rows": rows}


def _metric_columns(metrics: Sequence[AgentSpanStatsMetricSpec]) -> list[Json]:
    return [column for metric in metrics for column in metric.columns()]


def _figures(metrics: Sequence[AgentSpanStatsMetricSpec], found: Json) -> Json:
    """The figures of one row; sums and counts of nothing are 0, others null."""
    shown: Json = {}
    for column in _metric_columns(metrics):
        figure = found.get(column["name"])
        is_zero = figure is None and column["aggregation"] in ZERO_OF_NOTHING
        is_endless = isinstance(figure, float) and not math.isfinite(figure)
        shown[column["name"]] = 0 if is_zero else None if is_endless else figure
    return shown


def _group_type(ref: GroupRef) -> str:
    return group_expression(Fields(), ref).type if ref.source in CUSTOM_TYPES else STRING


def _column(name: str, role: str, value_type: str, metric: str | None = None, aggregation: str | None = None) -> Json:
    return {"name": name, "role": role, "value_type": value_type, "metric": metric, "aggregation": aggregation}


def _label(percentile: float) -> str:
    return percentile_name(percentile).replace(".", "_")
