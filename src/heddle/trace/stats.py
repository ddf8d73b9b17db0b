"""Token usage of traces, rolled up along their calls, and usage and metrics of calls over time."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from heddle.errors import TooLarge
from heddle.http.parameters import not_negative
from heddle.http.routing import ProjectReq, Reader, RequestModel, ResponseModel, StoreDep, answer, group, off_loop
from heddle.store.base import Store
from heddle.trace.calls.models import CallsFilter
from heddle.trace.calls.read import filter_of, retention_of
from heddle.trace.prices import PricedUsage, ProjectPrices, default_prices, describe_tokens
from heddle.trace.rows import TimeRangeReq, TimeRangeRes
from heddle.wire import jsontext, refs, times
from heddle.wire.aggregates import AggregateRow, CallAggregate, Measure, Value, uniform_runs
from heddle.wire.batched import batched
from heddle.wire.buckets import (
    MAX_METRICS,
    MAX_PERCENTILES,
    MAX_RANGE_DAYS,
    AggregationType,
    Buckets,
    check_figures,
    filled,
    make_buckets,
    percentile_name,
    percentile_of,
)
from heddle.wire.calls import CallsQuery, Filter, Usage, UsageRow
from heddle.wire.query import QueryBody

router: APIRouter = group("Calls")

Entry = dict[str, Any]
_CALLS_PER_PIECE = 500


class TraceUsageReq(ProjectReq):
    """Body of /trace/usage."""

    filter: CallsFilter | None = None
    query: QueryBody | None = None
    include_costs: bool = False
    limit: int = 10000


class CallsUsageReq(ProjectReq):
    """Body of /calls/usage."""

    call_ids: list[str]
    include_costs: bool = False
    limit: int = 10000


class LLMAggregatedUsage(ResponseModel):
    """Tokens of one model, own and of all descendants."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    prompt_tokens_total_cost: float | None = None
    completion_tokens_total_cost: float | None = None
    cache_read_input_tokens_total_cost: float | None = None
    cache_creation_input_tokens_total_cost: float | None = None


class UsageRes(ResponseModel):
    """Usage per call and model; calls that still run are listed; models without a price are named."""

    call_usage: dict[str, dict[str, LLMAggregatedUsage]]
    unfinished_call_ids: list[str]
    x_unpriced_models: list[str] | None = Field(default=None)


@router.post("/trace/usage", response_model=UsageRes)
async def trace_usage(body: TraceUsageReq, caller: Reader, store: StoreDep) -> Response:
    """Usage of the selected calls, each with its selected descendants."""
    project = caller.open(body.project_id)
    chosen, limit = filter_of(body.filter, project), not_negative(body.limit, "limit")
    query = CallsQuery(project, chosen, body.query, limit=limit, retention=await retention_of(store, project))
    rows = await store.calls.usage(query)
    return await _answer(store, project, rows, [row.id for row in rows], body.include_costs)


@router.post("/calls/usage", response_model=UsageRes)
async def calls_usage(body: CallsUsageReq, caller: Reader, store: StoreDep) -> Response:
    """Usage of the named calls with all their descendants."""
    project = caller.open(body.project_id)
    limit = not_negative(body.limit, "limit") or 0
    traces = await store.calls.traces_of(project, body.call_ids) if body.call_ids else []
    # More traces than `limit` have more calls than that.
    parts = batched(traces, max(limit, 1))
    rows = [row for part in parts for row in await _whole_traces(store, project, part, limit)]
    return await _answer(store, project, rows, body.call_ids, body.include_costs)


async def _whole_traces(store: Store, project: str, traces: Sequence[str], limit: int) -> list[UsageRow]:
    """The usage of all calls of traces, at most `limit` read at once; raises TooLarge for a trace of more."""
    rows = await store.calls.usage(CallsQuery(project, Filter(trace_ids=tuple(traces)), limit=limit + 1))
    if len(rows) <= limit:
        return rows
    if len(traces) == 1:
        raise TooLarge(f"Request too large: trace {traces[0]!r} has more calls than limit = {limit}; raise `limit`")
    middle = len(traces) // 2
    halves = (traces[:middle], traces[middle:])
    return [row for half in halves for row in await _whole_traces(store, project, half, limit)]


async def _answer(store: Store, project: str, rows: Sequence[UsageRow], ids: Sequence[str], costs: bool) -> Response:
    prices = await store.costs.project_rows(project) if costs else None
    rolled = roll_up(rows, {row.id: own_usage(row, prices) for row in rows})
    body: Entry = {"unfinished_call_ids": sorted(row.id for row in rows if not row.ended)}
    if prices is not None:
        pick = default_prices().pick
        unpriced = {
            entry.model for row in rows for entry in row.usage if pick(prices, entry.model, row.started_at) is None
        }
        body["x_unpriced_models"] = sorted(unpriced)
    return StreamingResponse(_written(body, rolled, list(dict.fromkeys(ids))), media_type="application/json")


async def _written(body: Entry, rolled: dict[str, dict[str, Entry]], ids: Sequence[str]) -> AsyncIterator[bytes]:
    """The answer in pieces: the text of a large trace is not held as a whole."""
    yield jsontext.dumps_bytes(body)[:-1] + b',"call_usage":{'
    for start in range(0, len(ids), _CALLS_PER_PIECE):
        piece = {call_id: rolled.get(call_id, {}) for call_id in ids[start : start + _CALLS_PER_PIECE]}
        yield (b"," if start else b"") + refs.convert_out(jsontext.dumps_bytes(piece))[1:-1]
    yield b"}}"


def own_usage(row: UsageRow, prices: ProjectPrices | None) -> dict[str, Entry]:
    """A call's own entries by model; all-zero ones are dropped. Cost fields are null without prices."""
    entries: dict[str, Entry] = {}
    for usage in row.usage:
        entry: Entry = describe_tokens(usage._replace(total=usage.total or usage.prompt + usage.completion))
        if any(entry.values()):
            priced = None if prices is None else default_prices().pick(prices, usage.model, row.started_at)
            costs = PricedUsage.of(usage, priced)._asdict()
            entries[usage.model] = entry | (dict.fromkeys(costs) if prices is None else costs)
    return entries


def roll_up(rows: Sequence[UsageRow], own: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    """Each call's entries with those of its descendants added, bottom-up; a cycle of parents keeps its own.

    The sums take the place of `own`.
    """
    total = own
    parent_of = {row.id: row.parent_id for row in rows}
    waiting = dict.fromkeys(parent_of, 0)
    for parent in parent_of.values():
        if parent in waiting:
            waiting[parent] += 1
    ready = [call_id for call_id, children in waiting.items() if children == 0]
    while ready:
        call_id = ready.pop()
        parent = parent_of[call_id]
        if parent is None or parent not in waiting:
            continue
        for model, entry in total[call_id].items():
            _add(total[parent], model, entry)
        waiting[parent] -= 1
        if waiting[parent] == 0:
            ready.append(parent)
    return total


def _add(target: dict[str, Entry], model: str, entry: Entry) -> None:
    present = target.get(model)
    if present is None:
        target[model] = dict(entry)
        return
    for name, value in entry.items():
        present[name] = value if present[name] is None else present[name] + (value or 0)


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
_COST_METRICS = ("input_cost", "output_cost", "total_cost")


class Spec(RequestModel):
    """What to compute of a metric."""

    metric: str
    aggregations: list[AggregationType] = Field(default_factory=lambda: [AggregationType.SUM])
    percentiles: list[float] = Field(default_factory=list, max_length=MAX_PERCENTILES)


class UsageMetricSpec(Spec):
    """What to compute of one usage metric."""

    metric: UsageMetric


class CallMetricSpec(Spec):
    """What to compute of one call metric."""

    metric: CallMetric


class CallStatsReq(TimeRangeReq):
    """Body of /calls/stats."""

    filter: CallsFilter | None = None
    usage_metrics: list[UsageMetricSpec] | None = Field(default=None, max_length=MAX_METRICS)
    call_metrics: list[CallMetricSpec] | None = Field(default=None, max_length=MAX_METRICS)


class CallStatsRes(TimeRangeRes):
    """Buckets of usage per model, and buckets of calls."""

    usage_buckets: list[dict[str, Any]]
    call_buckets: list[dict[str, Any]]


@router.post("/calls/stats", response_model=CallStatsRes)
async def calls_stats(body: CallStatsReq, caller: Reader, store: StoreDep) -> Response:
    """Usage and figures of calls per time bucket."""
    project = caller.open(body.project_id)
    start, end = body.bounds(MAX_RANGE_DAYS)
    timezone = body.timezone or "UTC"
    result = {
        "start": times.to_iso(start),
        "end": times.to_iso(end),
        "granularity": 0,
        "timezone": timezone,
        "usage_buckets": [],
        "call_buckets": [],
    }
    made: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    size = 0
    if body.usage_metrics or body.call_metrics:
        buckets = make_buckets(start, end, body.granularity, timezone)
        for specs in (body.usage_metrics, body.call_metrics):
            check_figures(len(buckets.starts), _width(specs or ()))
        runs = uniform_runs(buckets, start, end)
        query = CallsQuery(project, filter_of(body.filter, project), retention=await retention_of(store, project))
        result["granularity"] = buckets.granularity
        if body.usage_metrics:
            tokens, costs = _with_tokens(body.usage_metrics)
            sums = [Measure(f"sum_{spec.metric}", "sum", Value(spec.metric)) for spec in tokens if costs]
            measures = list(dict.fromkeys([*_measures(tokens), *sums]))
            rows = await store.call_aggregates.aggregate(CallAggregate(query, measures, ("model",), runs, "usage"))
            prices = await store.costs.project_rows(project) if costs else None
            models = sorted({row.keys for row in rows})
            size += check_figures(len(buckets.starts) * len(models), _width(tokens) + len(costs))
            made["usage_buckets"] = partial(_usage_buckets, buckets, models, tokens, rows, costs, prices)
        if body.call_metrics:
            calls = CallAggregate(query, _measures(body.call_metrics), runs=runs)
            rows = await store.call_aggregates.aggregate(calls)
            size += check_figures(len(buckets.starts), _width(body.call_metrics))
            made["call_buckets"] = partial(_buckets, buckets, [()], body.call_metrics, rows)
    return await off_loop(size, lambda: answer(result | {name: make() for name, make in made.items()}))


def _width(specs: Sequence[Spec]) -> int:
    """How many figures one bucket has."""
    return sum(len(_kinds(spec)) + len(spec.percentiles) for spec in specs) + 1


def _kinds(spec: Spec) -> list[AggregationType]:
    return spec.aggregations or ([] if spec.percentiles else [AggregationType.SUM])


def _measures(specs: Sequence[Spec]) -> list[Measure]:
    """What is to be computed, named as buckets show it, and the values of which percentiles are asked for."""
    found = [Measure("count")]
    for spec in specs:
        value = Value(spec.metric)
        found += [Measure(f"{kind}_{spec.metric}", kind, value) for kind in _kinds(spec)]
        for percentile in spec.percentiles:
            percentile_name(percentile)
            found.append(Measure(f"values_{spec.metric}", "values", value))
    return list(dict.fromkeys(found))


def _with_tokens(specs: Sequence[UsageMetricSpec]) -> tuple[list[UsageMetricSpec], list[str]]:
    """The token metrics (those that costs need are added as sums), and the cost metrics asked for."""
    costs = [name for name in _COST_METRICS if any(spec.metric == name for spec in specs)]
    tokens = [spec for spec in specs if spec.metric not in costs]
    known = {spec.metric for spec in tokens}
    if {"input_cost", "total_cost"} & set(costs) and "input_tokens" not in known:
        tokens.append(UsageMetricSpec(metric="input_tokens"))
    if {"output_cost", "total_cost"} & set(costs) and "output_tokens" not in known:
        tokens.append(UsageMetricSpec(metric="output_tokens"))
    return tokens, costs


def _usage_buckets(
    buckets: Buckets,
    models: Sequence[tuple[str, ...]],
    specs: Sequence[UsageMetricSpec],
    rows: Sequence[AggregateRow],
    costs: Sequence[str],
    prices: ProjectPrices | None,
) -> list[dict[str, Any]]:
    result = _buckets(buckets, models, specs, rows)
    if prices is not None:
        found = {(row.bucket, row.keys): row.values for row in rows}
        cells = [(index, model) for index in range(len(buckets.starts)) for model in models]
        for bucket, (index, model) in zip(result, cells, strict=True):
            values = found.get((index, model), {})
            dollars = cost_of_sums(
                prices, model[0], {spec.metric: values.get(f"sum_{spec.metric}", 0) for spec in specs}
            )
            bucket.update({f"sum_{name}": dollars[name] for name in costs})
    return result


def cost_of_sums(prices: ProjectPrices, model: str, sums: Mapping[str, float]) -> dict[str, float]:
    """Costs of a bucket's token sums at the newest price, whatever the calls' dates."""
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    prompt, completion, *caches = (int(sums.get(name, 0)) for name in names)
    used = Usage(model, 0, prompt, completion, None, *caches)
    priced = PricedUsage.of(used, default_prices().pick(prices, model, None))
    taken = priced.completion_tokens_total_cost
    return {"input_cost": priced.total - taken, "output_cost": taken, "total_cost": priced.total}


def _buckets(
    buckets: Buckets, models: Sequence[tuple[str, ...]], specs: Sequence[Spec], rows: Sequence[AggregateRow]
) -> list[dict[str, Any]]:
    """One dict per bucket and model, with all that is asked for; sums, counts and averages of nothing are 0."""
    found = {(row.bucket, row.keys): row.values for row in rows}
    result = []
    for index, start in enumerate(buckets.starts):
        for model in models:
            values = found.get((index, model), {})
            bucket: dict[str, Any] = {"timestamp": times.to_iso(start)}
            if any(model):
                bucket["model"] = model[0]
            for spec in specs:
                bucket |= filled(
                    {name: values.get(name) for name in (f"{kind}_{spec.metric}" for kind in _kinds(spec))}
                )
                ordered = values.get(f"values_{spec.metric}", [])
                for percentile in spec.percentiles:
                    bucket[f"{percentile_name(percentile)}_{spec.metric}"] = percentile_of(ordered, percentile)
            result.append({**bucket, "count": values.get("count", 0)})
    return result
