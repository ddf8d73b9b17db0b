"""Figures over agent spans for charts: by time buckets and groups, or by ranges of a number."""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.agents.fields import NUMBER, Fields, ModelPrice, Typed, shown
from heddle.store.control.agents.groups import among
from heddle.store.control.agents.measures import (
    GroupFilter,
    GroupRef,
    Measure,
    ValueRef,
    aggregate,
    aggregated,
    group_expression,
    having,
    value_expression,
)
from heddle.store.control.agents.query import SpanFilter
from heddle.store.control.agents.reads import STREAMED
from heddle.store.control.agents.sql import Whole
from heddle.store.control.agents.table import agent_spans
from heddle.store.control.expressions import Expression
from heddle.store.control.schema import Executor
from heddle.wire.buckets import percentile_of
from heddle.wire.calls import UniformRun

_c = agent_spans.c
Key = tuple[Any, ...]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """Figures of one value: aggregations, and percentiles from 0 to 100, each with its name in the answer."""

    value: ValueRef
    value_type: str
    aggregations: Sequence[tuple[str, str]]
    percentiles: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class StatsRequest:
    """Which spans, and what of them; `group_filters` keep the spans of the groups that pass each of them."""

    filter: SpanFilter
    metrics: Sequence[Metric]
    group_filters: Sequence[GroupFilter] = ()
    prices: Sequence[ModelPrice] = ()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of a number: `bins` of equal width between two bounds, which are those of the values where not given."""

    bins: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """One range `[low, high)` (the last one includes its end), and the figures of the spans in it."""

    index: int
    low: float
    high: float
    figures: Figures


class AgentStats:
    """Figures of spans."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def over_time(
        self, request: StatsRequest, runs: Sequence[UniformRun], group_by: Sequence[GroupRef], group_limit: int
    ) -> tuple[list[Key], dict[tuple[int, Key], Figures]]:
        """The `group_limit` largest groups, and the figures of each by the number of the time bucket."""
        fields = Fields(request.prices)
        keys = [group_expression(fields, ref) for ref in group_by]
        within = await _within(fields, request)
        bucket = _bucket(runs)

        def work(connection: sa.Connection) -> tuple[list[Key], dict[tuple[int, Key], Figures]]:
            groups = _largest(connection, keys, within, group_limit) if keys else [()]
            if not groups:
                return [], {}
            kept = sa.and_(within, among(keys[0].expression, [group[0] for group in groups])) if keys else within
            places = [bucket, *(key.expression for key in keys)]
            wanted = set(groups)
            found: dict[tuple[int, Key], Figures] = {}
            for place, figures in _figures(connection, fields, request.metrics, places, kept):
                if place[1:] in wanted:
                    found.setdefault((place[0], place[1:]), {}).update(figures)
            named = [tuple(shown(key.type, item) for key, item in zip(keys, group, strict=True)) for group in groups]
            renamed = dict(zip(groups, named, strict=True))
            return named, {(index, renamed[group]): figures for (index, group), figures in found.items()}

        return await self._executor.read(work)

    async def by_value(self, request: StatsRequest, value: ValueRef, ranges: Ranges) -> list[Range]:
        """The spans by ranges of a number of theirs; spans outside the bounds, or without it, are left out."""
        fields = Fields(request.prices)
        number = value_expression(fields, value, NUMBER).expression
        within = sa.and_(await _within(fields, request), number.is_not(None))

        def work(connection: sa.Connection) -> list[Range]:
            extremes = sa.select(sa.func.min(number), sa.func.max(number)).where(within)
            bounds = _bounds(ranges, *connection.execute(extremes).one())
            if bounds is None:
                return []
            low, high, bins = bounds
            inside = sa.and_(within, number >= low, number <= high)
            index: Expression = sa.literal(0)
            if high > low:
                place = Whole((number - low) / sa.literal((high - low) / bins, sa.Float()))
                index = sa.case((place >= bins, bins - 1), else_=place)
            found: dict[int, Figures] = {}
            for key, figures in _figures(connection, fields, request.metrics, [index], inside):
                found.setdefault(key[0], {}).update(figures)
            return _ranges(low, high, bins, found)

        return await self._executor.read(work)

    async def by_group_value(
        self, request: StatsRequest, group_by: Sequence[GroupRef], measure: Measure, ranges: Ranges
    ) -> list[Range]:
        """The groups by ranges of a figure of theirs; the one figure of a range is `count`."""
        fields = Fields(request.prices)
        figure = aggregate(fields, measure)
        if figure.type != NUMBER:
            raise InvalidRequest(f"The measure of a numeric bucket must be a number, not {figure.type}")
        keys = [group_expression(fields, ref).expression for ref in group_by]
        statement = sa.select(figure.expression).where(await request.filter.compiled(fields)).group_by(*keys)
        statement = statement.having(*having(fields, request.group_filters))

        def work(connection: sa.Connection) -> list[Range]:
            values = array("d")
            for (item,) in connection.execute(statement, execution_options={"yield_per": STREAMED}):
                if item is not None:
                    values.append(item)
            bounds = _bounds(ranges, min(values, default=None), max(values, default=None))
            if bounds is None:
                return []
            low, high, bins = bounds
            counts = [0] * bins
            for item in values:
                if low <= item <= high:
                    counts[min(bins - 1, int((item - low) / (high - low) * bins)) if high > low else 0] += 1
            return _ranges(low, high, bins, {index: {"count": count} for index, count in enumerate(counts)})

        return await self._executor.read(work)


async def _within(fields: Fields, request: StatsRequest) -> Expression:
    """The spans of a request; each group filter looks at the spans that the ones before it left."""
    within = await request.filter.compiled(fields)
    for item in request.group_filters:
        keys = [group_expression(fields, ref).expression for ref in item.group_by]
        passing = sa.select(*keys).where(within).group_by(*keys).having(*having(fields, [item]))
        target = keys[0] if len(keys) == 1 else sa.tuple_(*keys)
        within = sa.and_(within, target.in_(passing))
    return within


def _largest(connection: sa.Connection, keys: Sequence[Typed], within: Expression, limit: int) -> list[Key]:
    columns = [key.expression.label(f"k{number}") for number, key in enumerate(keys)]
    names = [f"k{number}" for number in range(len(keys))]
    statement = sa.select(*columns).where(within).group_by(*names)
    statement = statement.order_by(sa.func.count().desc(), *names).limit(limit)
    return [tuple(row) for row in connection.execute(statement)]


def _bucket(runs: Sequence[UniformRun]) -> Expression:
    """The number of the time bucket that a span started in."""
    branches: list[Any] = [
        (
            sa.and_(_c.started_at >= run.lower, _c.started_at < run.upper),
            run.first + (_c.started_at - run.start) // sa.literal(run.width, sa.BigInteger()),
        )
        for run in runs
    ]
    return sa.case(*branches) if branches else sa.literal(0)


def _figures(
    connection: sa.Connection,
    fields: Fields,
    metrics: Sequence[Metric],
    places: Sequence[Expression],
    within: Expression,
) -> Iterator[tuple[Key, Figures]]:
    """The figures of every place (a tuple of the values of `places`) that has spans, piece by piece."""
    names = [f"p{number}" for number in range(len(places))]
    columns = [place.label(name) for place, name in zip(places, names, strict=True)]
    asked: list[tuple[str, Typed]] = []
    for metric in metrics:
        value = value_expression(fields, metric.value, metric.value_type)
        asked += [(name, aggregated(kind, value)) for kind, name in metric.aggregations]
    asked.append(("count", Typed(sa.func.count(), NUMBER)))
    sums = [typed.expression.label(f"f{number}") for number, (_, typed) in enumerate(asked)]
    for row in connection.execute(sa.select(*columns, *sums).where(within).group_by(*names)):
        key, values = tuple(row[: len(names)]), row[len(names) :]
        yield key, {name: shown(typed.type, item) for (name, typed), item in zip(asked, values, strict=True)}
    for metric in metrics:
        if metric.percentiles:
            yield from _percentiles(connection, fields, metric, columns, within)


def _percentiles(
    connection: sa.Connection, fields: Fields, metric: Metric, columns: Sequence[Any], within: Expression
) -> Iterator[tuple[Key, Figures]]:
    value = value_expression(fields, metric.value, metric.value_type).expression
    names = [column.name for column in columns]
    statement = sa.select(*columns, value.label("value")).where(within, value.is_not(None)).order_by(*names, "value")
    rows = connection.execute(statement, execution_options={"yield_per": STREAMED})
    for key, found in groupby(rows, key=lambda row: tuple(row[:-1])):
        ordered = array("d", (row[-1] for row in found))
        yield key, {name: percentile_of(ordered, percentile) for name, percentile in metric.percentiles}


def _bounds(ranges: Ranges, least: float | None, most: float | None) -> tuple[float, float, int] | None:
    """The bounds and the number of ranges: one where all values are the same, none without values."""
    if least is None or most is None:
        return None
    low = float(least if ranges.low is None else ranges.low)
    high = float(most if ranges.high is None else ranges.high)
    if not (math.isfinite(low) and math.isfinite(high)) or high < low:
        return None
    return low, high, ranges.bins if high > low else 1


def _ranges(low: float, high: float, bins: int, found: dict[int, Figures]) -> list[Range]:
    width = (high - low) / bins
    return [
        Range(
            index, low + index * width, high if index == bins - 1 else low + (index + 1) * width, found.get(index, {})
        )
        for index in range(bins)
    ]
