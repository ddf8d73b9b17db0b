"""Calls over time: usage per model and figures of calls, in buckets (contract: trace-core, section 7, /calls/stats)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from heddle.errors import ValidationFailed
from heddle.http import Reader, RequestModel, ResponseModel, StoreDep, answer, group
from heddle.trace.calls.models import CallsFilter
from heddle.trace.calls.pack import instant
from heddle.trace.calls.read import filter_of, retention_of
from heddle.trace.prices import PricedUsage, ProjectPrices, Tokens, default_prices
from heddle.wire import times
from heddle.wire.buckets import MAX_RANGE_DAYS, AggregationType, Buckets, make_buckets, percentile_name, percentile_of
from heddle.wire.calls import CallsQuery, MetricRow, UniformRun

router: APIRouter = group("Calls")

UsageMetric = Literal[
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "input_cost",
    "output_cost",
    "total_cost",
]
CallMetric = Literal["latency_ms", "call_count", "error_count"]
_COSTS = ("input_cost", "output_cost", "total_cost")
_ZERO_WHEN_MISSING = ("sum", "count", "avg")
Values = dict[tuple[int, str, str], list[float]]


class UsageMetricSpec(RequestModel):
    """What to compute of one usage metric."""

    metric: UsageMetric
    aggregations: list[AggregationType] = Field(default_factory=lambda: [AggregationType.SUM])
    percentiles: list[float] = Field(default_factory=list)


class CallMetricSpec(RequestModel):
    """What to compute of one call metric."""

    metric: CallMetric
    aggregations: list[AggregationType] = Field(default_factory=lambda: [AggregationType.SUM])
    percentiles: list[float] = Field(default_factory=list)


class CallStatsReq(RequestModel):
    """Body of /calls/stats."""

    project_id: str
    start: datetime
    end: datetime | None = None
    granularity: int | None = None
    timezone: str | None = "UTC"
    filter: CallsFilter | None = None
    usage_metrics: list[UsageMetricSpec] | None = None
    call_metrics: list[CallMetricSpec] | None = None


class CallStatsRes(ResponseModel):
    """Buckets of usage per model, and buckets of calls."""

    start: datetime
    end: datetime
    granularity: int
    timezone: str
    usage_buckets: list[dict[str, Any]]
    call_buckets: list[dict[str, Any]]


Spec = UsageMetricSpec | CallMetricSpec


@router.post("/calls/stats", response_model=CallStatsRes)
async def calls_stats(body: CallStatsReq, caller: Reader, store: StoreDep) -> Response:
    """Usage and figures of calls per time bucket."""
    project = caller.open(body.project_id)
    start, end = instant(body.start), times.now() if body.end is None else instant(body.end)
    if end < start or end - start > MAX_RANGE_DAYS * times.DAY:
        raise ValidationFailed.at(
            ["body", "end"], f"end must be after start, and the range at most {MAX_RANGE_DAYS} days"
        )
    timezone = body.timezone or "UTC"
    result = {
        "start": times.to_iso(start),
        "end": times.to_iso(end),
        "granularity": 0,
        "timezone": timezone,
        "usage_buckets": [],
        "call_buckets": [],
    }
    if body.usage_metrics or body.call_metrics:
        buckets = make_buckets(start, end, body.granularity, timezone)
        runs = uniform_runs(buckets, start, end)
        query = CallsQuery(project, filter_of(body.filter, project), retention=await retention_of(store, project))
        result["granularity"] = buckets.granularity
        if body.usage_metrics:
            tokens, costs = _with_tokens(body.usage_metrics)
            rows, values = await store.call_stats.usage(query, runs, [spec.metric for spec in tokens], _ordered(tokens))
            prices = await store.costs.project_rows(project) if costs else None
            result["usage_buckets"] = _usage_buckets(buckets, tokens, rows, values, costs, prices)
        if body.call_metrics:
            rows, values = await store.call_stats.calls(
                query, runs, list(dict.fromkeys(spec.metric for spec in body.call_metrics)), _ordered(body.call_metrics)
            )
            result["call_buckets"] = _buckets(buckets, [""], body.call_metrics, rows, values)
    return answer(result)


def uniform_runs(buckets: Buckets, start: int, end: int) -> list[UniformRun]:
    """The buckets as runs of equal width, so that the store computes a bucket's number by one division."""
    starts = [*buckets.starts]
    widths = [following - first for first, following in zip(starts, [*starts[1:], end], strict=True)]
    if len(widths) > 1:
        widths[-1] = max(widths[-1], widths[-2])
    runs: list[UniformRun] = []
    for index, (first, width) in enumerate(zip(starts, widths, strict=True)):
        upper = min(first + width, end)
        if runs and runs[-1].width == width:
            runs[-1] = runs[-1]._replace(upper=upper)
        else:
            runs.append(UniformRun(index, first, max(width, 1), max(first, start), upper))
    return runs


def _ordered(specs: Sequence[Spec]) -> list[str]:
    """The metrics of which quantiles are asked for."""
    for spec in specs:
        for percentile in spec.percentiles:
            percentile_name(percentile)
    return list(dict.fromkeys(spec.metric for spec in specs if spec.percentiles))


def _with_tokens(specs: Sequence[UsageMetricSpec]) -> tuple[list[UsageMetricSpec], list[str]]:
    """The token metrics (those that costs need are added as sums), and the cost metrics asked for."""
    costs = [name for name in _COSTS if any(spec.metric == name for spec in specs)]
    tokens = [spec for spec in specs if spec.metric not in costs]
    known = {spec.metric for spec in tokens}
    if {"input_cost", "total_cost"} & set(costs) and "input_tokens" not in known:
        tokens.append(UsageMetricSpec(metric="input_tokens"))
    if {"output_cost", "total_cost"} & set(costs) and "output_tokens" not in known:
        tokens.append(UsageMetricSpec(metric="output_tokens"))
    return tokens, costs


def _usage_buckets(
    buckets: Buckets,
    specs: Sequence[UsageMetricSpec],
    rows: Sequence[MetricRow],
    values: Values,
    costs: Sequence[str],
    prices: ProjectPrices | None,
) -> list[dict[str, Any]]:
    models = sorted({row.model for row in rows})
    result = _buckets(buckets, models, specs, rows, values)
    if prices is not None:
        sums = {(row.bucket, row.model, row.metric): row.total for row in rows}
        cells = [(index, model) for index in range(len(buckets.starts)) for model in models]
        for bucket, (index, model) in zip(result, cells, strict=True):
            found = cost_of_sums(
                prices, model, {spec.metric: sums.get((index, model, spec.metric), 0) for spec in specs}
            )
            bucket.update({f"sum_{name}": found[name] for name in costs})
    return result


def cost_of_sums(prices: ProjectPrices, model: str, sums: Mapping[str, float]) -> dict[str, float]:
    """Costs of a bucket's token sums at the newest price, whatever the calls' dates."""
    tokens = Tokens(
        prompt_tokens=int(sums.get("input_tokens", 0)),
        completion_tokens=int(sums.get("output_tokens", 0)),
        cache_read_input_tokens=int(sums.get("cache_read_input_tokens", 0)),
        cache_creation_input_tokens=int(sums.get("cache_creation_input_tokens", 0)),
    )
    priced = PricedUsage.of(tokens, default_prices().newest(prices, model))
    taken = priced.completion_tokens_total_cost
    return {"input_cost": priced.total - taken, "output_cost": taken, "total_cost": priced.total}


def _buckets(
    buckets: Buckets, models: Sequence[str], specs: Sequence[Spec], rows: Sequence[MetricRow], values: Values
) -> list[dict[str, Any]]:
    """One dict per bucket and model, with every figure asked for; figures of nothing are 0 or null."""
    found = {(row.bucket, row.model, row.metric): row for row in rows}
    result = []
    for index, start in enumerate(buckets.starts):
        for model in models:
            bucket: dict[str, Any] = {"timestamp": times.to_iso(start)}
            if model:
                bucket["model"] = model
            count = 0
            for spec in specs:
                row = found.get((index, model, spec.metric))
                count = max(count, row.calls if row else 0)
                bucket.update(_figures(spec, row, values.get((index, model, spec.metric), [])))
            result.append({**bucket, "count": count})
    return result


def _figures(spec: Spec, row: MetricRow | None, ordered: list[float]) -> dict[str, float | None]:
    aggregations = spec.aggregations or ([] if spec.percentiles else [AggregationType.SUM])
    figures: dict[str, float | None] = {}
    for kind in aggregations:
        figure = _figure(kind, row)
        figures[f"{kind}_{spec.metric}"] = 0 if figure is None and kind.startswith(_ZERO_WHEN_MISSING) else figure
    for percentile in spec.percentiles:
        figures[f"{percentile_name(percentile)}_{spec.metric}"] = percentile_of(ordered, percentile)
    return figures


def _figure(kind: AggregationType, row: MetricRow | None) -> float | None:
    if row is None:
        return None
    match kind:
        case AggregationType.SUM:
            return row.total
        case AggregationType.AVG:
            return row.total / row.known if row.known else None
        case AggregationType.MIN:
            return row.smallest
        case AggregationType.MAX:
            return row.largest
        case AggregationType.COUNT:
            return row.known
        case AggregationType.COUNT_TRUE:
            return row.ones
        case _:
            return row.zeros
