"""Figures of calls for charts: any measure of any calls, by any field, over time or by size."""

import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field

from heddle.errors import ValidationFailed
from heddle.http.own_bodies import OwnCallsFilter, OwnReq
from heddle.http.routing import PricesDep, Reader, ResponseModel, StoreDep, answer, group
from heddle.store.base import Store
from heddle.trace.calls.read import filter_of, retention_of
from heddle.trace.chart_measure import ChartMeasure
from heddle.trace.rows import TimeRangeRes
from heddle.wire import times
from heddle.wire.aggregates import (
    FIGURES,
    MODEL,
    OTHERS,
    TOKENS,
    AggregateRow,
    CallAggregate,
    Measure,
    Split,
    Value,
    cut_run,
    uniform_runs,
)
from heddle.wire.buckets import make_buckets, percentile_of, readable_width, zone_of
from heddle.wire.call_fields import resolve_field
from heddle.wire.calls import CallsQuery, UniformRun
from heddle.wire.inference import PricesOf, sum_of_costs
from heddle.wire.query import QueryBody

router: APIRouter = group("Calls")

MOST_POINTS = 50_000
_COSTLY = 200
"""Of so many groups with the most tokens those are found that cost the most."""
_CALLS_OF = {"calls": Measure("calls"), "errors": Measure("errors", "sum", Value("error_count"))}


class AskedMeasure(ChartMeasure, extra="forbid"):
    """A figure of calls; a stored chart may hold more than this version knows, a request may not."""


class CallsAggregateReq(OwnReq):
    """Body of /calls/aggregate."""

    measures: list[AskedMeasure] = Field(default_factory=lambda: [AskedMeasure()], min_length=1, max_length=6)
    group_by: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    """Any field of calls, or `model`: that of the tokens."""
    filter: OwnCallsFilter | None = None
    query: QueryBody | None = None
    start: datetime | None = None
    """Without one, the first call."""
    end: datetime | None = None
    granularity: int | None = Field(default=None, ge=0)
    """Seconds of a bucket; 0: no buckets, null: by the length of the range."""
    timezone: str = "UTC"
    limit: int = Field(default=10, ge=1, le=100)
    """The most groups; all others are one more."""
    bins: int = Field(default=0, ge=0, le=200)
    """Above 0: how often the first measure's field has values of which size."""


class Series(ResponseModel):
    """One measure of one group; `values` are by bucket, null where there is nothing to compute it from."""

    measure: int
    group: str | None
    is_other: bool
    value: float | None
    values: list[float | None]


class Bin(ResponseModel):
    """How many values lie in `[lower, upper)`, by the groups in order."""

    lower: float
    upper: float
    counts: list[int]


class CallsAggregateRes(TimeRangeRes):
    """The figures; `groups` are the largest first, null stands for all others."""

    buckets: list[datetime]
    groups: list[str | None]
    series: list[Series]
    bins: list[Bin]
    unpriced_models: list[str]


@router.post("/calls/aggregate", response_model=CallsAggregateRes)
async def calls_aggregate(body: CallsAggregateReq, caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """Figures of the selected calls, by a field and over time."""
    project = caller.open(body.project_id)
    if body.group_by not in (None, MODEL):
        resolve_field(body.group_by)
    start, end = await _range(store, project, body)
    starts, runs, granularity = _buckets(body, start, end)
    query = CallsQuery(
        project, filter_of(body.filter, project), body.query, retention=await retention_of(store, project)
    )
    figures = _Figures(store, prices, query, UniformRun(0, start, max(end - start, 1), start, end), runs, len(starts))
    groups: list[str] = []
    if body.group_by is not None:
        groups = await figures.find_groups(body.group_by, body.measures[0], body.limit)
        figures.split = Split(body.group_by, tuple(groups))
    if (len(groups) + 1) * max(len(starts), 1) * len(body.measures) > MOST_POINTS:
        raise ValidationFailed.at(["body", "granularity"], f"The response would have more than {MOST_POINTS} points")
    series: list[dict[str, Any]] = []
    bins: list[dict[str, Any]] = []
    if groups or body.group_by is None:
        if body.bins:
            bins = await figures.count_sizes(body.measures[0], body.bins)
        else:
            series = [one for at, spec in enumerate(body.measures) for one in await figures.compute(at, spec)]
    return answer(
        {
            "start": times.to_iso(start),
            "end": times.to_iso(end),
            "granularity": granularity,
            "timezone": body.timezone,
            "buckets": [times.to_iso(one) for one in starts],
            "groups": [None if name == OTHERS else name for name in figures.names],
            "series": series,
            "bins": bins,
            "unpriced_models": sorted(figures.unpriced),
        }
    )


async def _range(store: Store, project: str, body: CallsAggregateReq) -> tuple[int, int]:
    end = times.now() if body.end is None else times.to_micros(body.end)
    if body.start is not None:
        start = times.to_micros(body.start)
    else:
        bounds = await store.call_aggregates.bounds(project)
        start = end - times.DAY if bounds is None else min(bounds[0], end)
    if end < start:
        raise ValidationFailed.at(["body", "end"], "end must be after start")
    return start, end


def _buckets(body: CallsAggregateReq, start: int, end: int) -> tuple[Sequence[int], list[UniformRun], int]:
    """When the buckets begin, the same as runs, and their width in seconds."""
    if body.granularity == 0 or body.bins:
        zone_of(body.timezone)
        return (), [], 0
    found = make_buckets(start, end, body.granularity or readable_width((end - start) / times.SECOND), body.timezone)
    return found.starts, uniform_runs(found, start, end), found.granularity


Cells = dict[tuple[str, int], float | None]
"""Figures by group and bucket."""


@dataclass(slots=True)
class _Figures:
    """What is computed of the calls of one request."""

    store: Store
    prices: PricesOf
    query: CallsQuery
    whole: UniformRun
    runs: list[UniformRun]
    buckets: int
    split: Split | None = None
    unpriced: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    """The groups that have any call, in order."""

    async def find_groups(self, path: str, spec: ChartMeasure, limit: int) -> list[str]:
        """The largest groups by a measure, else by the number of calls."""
        rank, of, most = Measure("rank"), _family(spec, path), limit
        if spec.field == "errors":
            rank = Measure("rank", "sum", Value("error_count"))
        elif spec.field == "cost" or (spec.field in TOKENS and spec.aggregation == "sum"):
            rank, of = Measure("rank", "sum", Value("tokens") if spec.field == "cost" else _value(spec)), "totals"
            most = max(limit, _COSTLY) if spec.field == "cost" else limit
        found = await self.store.call_aggregates.aggregate(
            CallAggregate(self.query, [rank], (), [self.whole], of, order="rank", most=most, split=Split(path))
        )
        names = [row.keys[0] for row in sorted(found, key=lambda row: (-row.values["rank"], row.keys[0]))]
        if spec.field == "cost" and len(names) > limit:
            self.split = Split(path, tuple(names))
            costs = await self._costs([self.whole])
            names.sort(key=lambda name: -(costs.get((name, 0)) or 0.0))
        self.names = names[:limit]
        return list(self.names)

    async def compute(self, at: int, spec: ChartMeasure) -> list[dict[str, Any]]:
        """The series of a measure, one for each group."""
        totals = await self._cells(spec, [self.whole])
        cells = await self._cells(spec, self.runs) if self.runs else {}
        for name, _ in totals:
            if name not in self.names:
                self.names.append(name)
        nothing = 0.0 if spec.aggregation in ("sum", "count", "count_true", "count_false") else None
        nothing = None if spec.field == "cost" and self.unpriced else nothing
        return [
            {
                "measure": at,
                "group": None if name == OTHERS or self.split is None else name,
                "is_other": name == OTHERS,
                "value": totals.get((name, 0), nothing),
                "values": [cells.get((name, bucket), nothing) for bucket in range(self.buckets)],
            }
            for name in (self.names if self.split is not None else [""])
        ]

    async def count_sizes(self, spec: ChartMeasure, most: int) -> list[dict[str, Any]]:
        """How many values have which size, in round steps."""
        if spec.field in FIGURES and spec.field not in ("latency_ms", *TOKENS):
            raise ValidationFailed.at(["body", "bins"], f"{spec.field} is not a numeric field of a call")
        rows = await self._rows(spec, [Measure("all", "values", _value(spec))], [self.whole])
        found = {row.keys[0] if row.keys else "": row.values["all"] for row in rows if row.values["all"]}
        self.names = [name for name in [*self.names, OTHERS] if name in found] if self.split is not None else [""]
        if not found:
            return []
        low, high = min(values[0] for values in found.values()), max(values[-1] for values in found.values())
        edges = _edges(low, high, most)
        below = {
            name: [0, *(bisect_left(values, edge) for edge in edges[1:-1]), len(values)]
            for name, values in found.items()
        }
        return [
            {"lower": lower, "upper": upper, "counts": [below[name][at + 1] - below[name][at] for name in self.names]}
            for at, (lower, upper) in enumerate(pairwise(edges))
        ]

    async def _cells(self, spec: ChartMeasure, runs: Sequence[UniformRun]) -> Cells:
        if spec.field == "cost":
            return await self._costs(runs)
        kind = spec.aggregation or ""
        measures = [_CALLS_OF["calls"], _CALLS_OF["errors"]]
        if spec.field not in ("calls", "errors", "error_share"):
            measures = [Measure("figure", "values" if kind.startswith("p") else kind, _value(spec))]
        rows = await self._rows(spec, measures, runs)
        return {(row.keys[0] if row.keys else "", row.bucket): _figure(spec, row) for row in rows}

    async def _rows(
        self, spec: ChartMeasure, measures: Sequence[Measure], runs: Sequence[UniformRun]
    ) -> list[AggregateRow]:
        of = _family(spec, self.split.path if self.split is not None else "")
        return await self.store.call_aggregates.aggregate(
            CallAggregate(self.query, measures, runs=runs, of=of, split=self.split)
        )

    async def _costs(self, runs: Sequence[UniformRun]) -> Cells:
        """Dollars at the prices that held when calls started."""
        project = self.query.project
        cost_of, changes = await self.prices(project), await self.prices.changes(project)
        cut = [piece for run in runs for piece in cut_run(run, changes)]
        costs: dict[tuple[str, int], list[float | None]] = {}
        for row in await self.store.call_aggregates.usage(self.query, cut, split=self.split):
            cost = cost_of(row, row.priced_at)
            if cost is None:
                self.unpriced.add(row.model)
            costs.setdefault((row.name, row.bucket), []).append(cost)
        return {key: sum_of_costs(found) for key, found in costs.items()}


def _family(spec: ChartMeasure, path: str) -> str:
    """What is summed up: calls, their tokens, or calls by each model that they used."""
    if spec.field in TOKENS:
        return "totals"
    return "usage" if path == MODEL else "calls"


def _value(spec: ChartMeasure) -> Value:
    if spec.field == "total_tokens":
        # Where a call reports no total, its input and output make one.
        return Value("tokens")
    return Value(spec.field, "field" if spec.field in FIGURES else "path")


def _figure(spec: ChartMeasure, row: AggregateRow) -> float | None:
    if spec.field in ("calls", "errors"):
        return float(row.values[spec.field])
    if spec.field == "error_share":
        return row.values["errors"] / row.values["calls"] if row.values["calls"] else None
    found = row.values["figure"]
    if isinstance(found, list):
        return percentile_of(found, float((spec.aggregation or "p0")[1:]))
    return None if found is None else float(found)


def _edges(low: float, high: float, most: int) -> list[float]:
    """Multiples of a round step, the first not above `low` and the last above `high`, as far as floats can tell."""
    width = high / most - low / most
    # Steps beyond these have no power of ten that is a float.
    step = _round_step(min(max(width, 1e-300), 1e307)) if high > low else abs(low) or 1.0
    digits = 12 - math.floor(math.log10(step))
    numbers = range(math.floor(low / step), math.floor(high / step) + 2)
    return [max(-sys.float_info.max, min(sys.float_info.max, round(number * step, digits))) for number in numbers]


def _round_step(width: float) -> float:
    """The next width that people count in: 1, 2, 2.5 or 5 with zeros."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= width * (1 - 1e-9)) * power
