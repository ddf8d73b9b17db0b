"""Sums over spans for charts (/agents/spans/stats)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response

from heddle.errors import ValidationFailed
from heddle.http.routing import Reader, StoreDep, answer, group, off_loop
from heddle.store.base import Store
from heddle.store.control.agents.aggregates import Ranges, SpanAggregate
from heddle.store.control.agents.fields import CUSTOM_TYPES, NUMBER, STRING, ZERO_OF_NOTHING
from heddle.trace.agents import select
from heddle.trace.agents.requests import AgentSpanStatsNumericBucketSpec, AgentSpanStatsReq, column, groups
from heddle.trace.agents.responses import AgentSpanStatsColumn, AgentSpanStatsRes
from heddle.wire import times
from heddle.wire.aggregates import Key, uniform_runs
from heddle.wire.buckets import MAX_RANGE_DAYS, check_figures, make_buckets
from heddle.wire.jsontypes import Json

router: APIRouter = group("Agents")

Columns = list[AgentSpanStatsColumn]
MAX_ROWS = 10_000
_CONVERSATION = Key("conversation_id", alias="conversation_id")


@router.post("/agents/spans/stats", response_model=AgentSpanStatsRes)
async def agents_spans_stats(body: AgentSpanStatsReq, caller: Reader, store: StoreDep) -> Response:
    """Figures over spans, by time and group, or by ranges of a number."""
    project = caller.open(body.project_id)
    select.refuse_insights(body.insight_filters)
    start, end = times.to_micros(body.start), times.now() if body.end is None else times.to_micros(body.end)
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
    values = [metric.value for metric in body.metrics] + [item.measure.value for item in body.group_filters]
    if numeric is not None:
        values.append(numeric.value if numeric.measure is None else numeric.measure.value)
    priced = any(value is not None and value.is_cost for value in values)
    keys = groups(body.group_by if numeric is None else numeric.group_by)
    filters = [item.filter(keys if numeric is not None else (_CONVERSATION,)) for item in body.group_filters]
    request = SpanAggregate(
        selected,
        [measure for metric in body.metrics for measure in metric.measures()],
        keys,
        filters if numeric is not None else (),
        filters if numeric is None else (),
        prices=await select.prices_for(store, selected) if priced else (),
    )
    shown: Json = {"start": times.to_iso(start), "end": times.to_iso(end), "timezone": body.timezone or "UTC"}
    columns = [item for metric in body.metrics for item in metric.columns()]
    if numeric is not None:
        shown |= {"granularity": None, "bucket_type": "number", **await _by_range(store, request, numeric, columns)}
    else:
        shown |= {"bucket_type": "time", **await _over_time(store, body, request, (start, end), columns)}
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
    store: Store,
    body: AgentSpanStatsReq,
    request: SpanAggregate,
    span: tuple[int, int],
    columns: Columns,
) -> Json:
    """Columns and rows: one row per bucket and group, also where there are no spans."""
    buckets = make_buckets(*span, body.granularity, body.timezone or "UTC")
    check_figures(len(buckets.starts), len(columns))
    limit = min(body.group_limit, max(1, MAX_ROWS // max(1, len(buckets.starts))))
    keys, rows = await store.agent_spans.over_time(replace(request, limit=limit), uniform_runs(buckets, *span))
    found = {(row.bucket, row.keys): row.values for row in rows}
    names = [key.alias for key in request.group_by]
    ordered = sorted(keys, key=lambda key: tuple((item is not None, str(item)) for item in key))

    def shown() -> list[Json]:
        return [
            {"timestamp": times.to_iso(at), **dict(zip(names, key, strict=True))}
            | _row(columns, found.get((index, key), {}))
            for index, at in enumerate(buckets.starts)
            for key in ordered
        ]

    size = check_figures(len(buckets.starts) * len(ordered), len(names) + len(columns))
    places = [column("timestamp", "time", "datetime")]
    places += [column(key.alias, "group", CUSTOM_TYPES.get(key.source, STRING)) for key in request.group_by]
    return {
        "granularity": buckets.granularity,
        "columns": _dumped(places + columns),
        "rows": await off_loop(size, shown),
    }


async def _by_range(
    store: Store, request: SpanAggregate, numeric: AgentSpanStatsNumericBucketSpec, columns: Columns
) -> Json:
    """Columns and rows: one row per range."""
    given = numeric.value.value() if numeric.value is not None else None
    of = numeric.measure.measure() if numeric.measure is not None else given
    assert of is not None
    ranges = await store.agent_spans.by_range(request, of, Ranges(numeric.bins, numeric.min, numeric.max))
    columns = columns or [column("count", "metric", NUMBER, "rows", "count")]
    rows = [
        {"bucket_index": item.index, "bucket_min": item.low, "bucket_max": item.high, **_row(columns, item.values)}
        for item in ranges
    ]
    places = [column(name, "bucket", NUMBER, numeric.alias) for name in ("bucket_index", "bucket_min", "bucket_max")]
    return {"columns": _dumped(places + columns), "rows": rows}


def _row(columns: Columns, values: Mapping[str, Any]) -> Json:
    """What one row shows; sums and counts of nothing are 0, others null."""
    shown: Json = {}
    for item in columns:
        value = values.get(item.name)
        is_zero = value is None and item.aggregation in ZERO_OF_NOTHING
        is_endless = isinstance(value, float) and not math.isfinite(value)
        shown[item.name] = 0 if is_zero else None if is_endless else value
    return shown


def _dumped(columns: Columns) -> list[Json]:
    return [item.model_dump() for item in columns]
