"""Sums over agent spans: by groups, over time, by ranges of a number, and how values are distributed."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidField, InvalidRequest
from heddle.store.control.agents.fields import (
    BOOLEAN,
    DATETIME,
    NUMBER,
    STRING,
    TEXTS_TYPE,
    Fields,
    GroupFilter,
    Prices,
    SpanFilter,
    Typed,
)
from heddle.store.control.agents.table import TOKENS, agent_spans
from heddle.store.control.repository import Repository, reads
from heddle.store.control.row_queries import CodePoints, Expression, Listed, Sort, Whole
from heddle.wire import times
from heddle.wire.aggregates import AggregateRow, Key, Measure, Value
from heddle.wire.buckets import percentile_of
from heddle.wire.calls import UniformRun

_c = agent_spans.c
STREAMED = 2000

LISTS = (
    Measure("agent_names", "list", Value("agent_name")),
    Measure("agent_versions", "list", Value("agent_version")),
    Measure("provider_names", "list", Value("provider_name")),
    Measure("request_models", "list", Value("request_model")),
    Measure("conversation_names", "list", Value("conversation_name")),
)
COST_SUMS = (
    Measure("total_cost_usd", "sum", Value("total_cost_usd", "derived")),
    Measure("total_input_cost_usd", "sum", Value("input_cost_usd", "derived")),
    Measure("total_output_cost_usd", "sum", Value("output_cost_usd", "derived")),
)
SUMS = (
    Measure("span_count"),
    Measure("invocation_count", "count_true", Value("is_invocation", "derived")),
    Measure("conversation_count", "count_distinct", Value("conversation_id")),
    Measure("total_duration_ms", "sum", Value("duration_ms", "derived")),
    Measure("error_count", "count_true", Value("is_error", "derived")),
    Measure("first_seen", "min", Value("started_at")),
    Measure("last_seen", "max", Value("started_at")),
    *(Measure(f"total_{name}", "total", Value(name)) for name in TOKENS),
)
"""What every group shows, and what groups can be sorted by."""


@dataclass(frozen=True, slots=True)
class SpanAggregate:
    """What is computed of which groups of spans; `prices` are needed where a measure is a cost.

    `having` keeps the groups that pass, `within` the spans of groups that do.
    """

    filter: SpanFilter
    measures: Sequence[Measure] = ()
    group_by: Sequence[Key] = ()
    having: Sequence[GroupFilter] = ()
    within: Sequence[GroupFilter] = ()
    sort: Sequence[Sort] = ()
    limit: int = 100
    offset: int = 0
    prices: Prices = ()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of a number: `bins` of equal width between two bounds, which are those of the values where not given."""

    bins: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """One range `[low, high)` (the last one includes its end), and the measures of the spans in it."""

    index: int
    low: float
    high: float
    values: dict[str, Any]


@dataclass(slots=True)
class Distribution:
    """The values of one attribute in one group: how many spans have it, ranges of numbers, the most frequent others."""

    total_count: int = 0
    present_count: int = 0
    missing_count: int = 0
    other_count: int = 0
    bins: list[dict[str, float]] = field(default_factory=list)
    values: list[dict[str, str | int]] = field(default_factory=list)


class AgentAggregates(Repository):
    """Sums of spans; values are as answers show them."""

    @reads
    def groups(self, connection: sa.Connection, request: SpanAggregate) -> tuple[list[AggregateRow], int]:
        """The groups of a page, and how many there are before limit and offset."""
        fields = Fields(request.prices)
        within, having = _within(fields, request), fields.having(request.having)
        order = _ordering(fields, request)
        keys = _labelled("k", [fields.key(key) for key in request.group_by])
        each = sa.select(*keys).where(within).group_by(*(key.name for key in keys)).having(*having).subquery()

        def page(statement: sa.Select[Any]) -> sa.Select[Any]:
            return statement.having(*having).order_by(*order).limit(request.limit).offset(request.offset)

        rows = list(_compute(connection, fields, request, within, page=page))
        known = request.offset + len(rows)
        if len(rows) == request.limit or (request.offset and not rows):
            known = int(connection.execute(sa.select(sa.func.count()).select_from(each)).scalar_one())
        return rows, known

    @reads
    def over_time(
        self, connection: sa.Connection, request: SpanAggregate, runs: Sequence[UniformRun]
    ) -> tuple[list[tuple[Any, ...]], list[AggregateRow]]:
        """The keys of the largest groups (at most `limit`), and their rows by time bucket."""
        fields = Fields(request.prices)
        typed = [fields.key(key) for key in request.group_by]
        keys = _labelled("k", typed)
        within = mine = _within(fields, request)
        groups: list[tuple[Any, ...]] = [()]
        if keys:
            names = [key.name for key in keys]
            largest = sa.select(*keys).where(within).group_by(*names)
            largest = largest.order_by(sa.func.count().desc(), *names).limit(request.limit)
            stored = [tuple(row) for row in connection.execute(largest)]
            mine = sa.and_(within, _among(typed[0].expression, [group[0] for group in stored]))
            groups = [tuple(_show(key.type, item) for key, item in zip(typed, row, strict=True)) for row in stored]
        wanted = set(groups)
        rows = _compute(connection, fields, request, mine, _bucket(runs)) if groups else ()
        return groups, [row for row in rows if row.keys in wanted]

    @reads
    def by_range(
        self, connection: sa.Connection, request: SpanAggregate, of: Value | Measure, ranges: Ranges
    ) -> list[Range]:
        """The spans by ranges of a number of theirs, or the groups by ranges of a measure; `count` is always computed.

        What lies outside the bounds, or lacks the number, is left out.
        """
        fields = Fields(request.prices)
        within = _within(fields, request)
        if isinstance(of, Value):
            number = fields.value(of, NUMBER).expression
        else:
            typed = fields.measure(of)
            if typed.type != NUMBER:
                raise InvalidRequest(f"The measure of a numeric bucket must be a number, got {typed.type}")
            keys = [fields.key(key).expression for key in request.group_by]
            groups = sa.select(typed.expression.label("number")).where(within).group_by(*keys)
            number = groups.having(*fields.having(request.having)).subquery().c.number
            within = sa.true()

        extremes = sa.select(sa.func.min(number), sa.func.max(number)).where(within, number.is_not(None))
        bounds = _bounds(ranges, *connection.execute(extremes).one())
        if bounds is None:
            return []
        low, high, bins = bounds
        index: Expression = sa.literal(0)
        if high > low:
            width = sa.literal(_width(low, high, bins), sa.Float())
            if math.isfinite(high - low):
                # Divided by the width, what is near the lower bound could be too small a number for PostgreSQL.
                place: Expression = sa.case((number - low < width, 0), else_=Whole((number - low) / width))
            else:
                place = Whole(sa.case((sa.func.abs(number) < 1, 0.0), else_=number) / width - low / width)
            index = sa.case((place >= bins, bins - 1), else_=place)
        inside = sa.and_(within, number.is_not(None), number >= low, number <= high)
        counted = SpanAggregate(request.filter, (*request.measures, Measure("count")))
        found = {row.bucket: row.values for row in _compute(connection, fields, counted, inside, index)}
        return [Range(place, *_range(low, high, bins, place), found.get(place, {})) for place in range(bins)]

    @reads
    def distributions(
        self,
        connection: sa.Connection,
        selected: SpanFilter,
        key: Key,
        groups: Sequence[Any],
        value: Value,
        bins: int,
        top_n: int,
    ) -> dict[Any, Distribution]:
        """How the values of a custom attribute are distributed in each of the groups (values of `key`).

        Numbers are counted in `bins` ranges, of others the `top_n` most frequent values.
        """
        fields = Fields()
        group, typed = fields.key(key).expression, fields.value(value)
        item = typed.expression
        within = sa.and_(selected.compile(fields), _among(group, groups))
        number = sa.func.count().label("number")
        by_value = sa.select(group.label("k"), item, number).where(within, item.is_not(None)).group_by("k", item)
        by_value = by_value.order_by("k", sa.desc("number"), CodePoints(item) if typed.type == STRING else item)

        counts = sa.select(group, sa.func.count(), sa.func.count(item), sa.func.min(item), sa.func.max(item))
        found = {each: Distribution() for each in groups}
        bounds: dict[Any, tuple[Any, Any]] = {}
        for each, total, present, low, high in connection.execute(counts.where(within).group_by(group)):
            found[each], bounds[each] = Distribution(total, present, total - present), (low, high)
        rows = connection.execute(by_value, execution_options={"yield_per": STREAMED})
        for each, values in groupby(rows, key=lambda row: row[0]):
            if typed.type == NUMBER:
                found[each].bins = _bins(values, *bounds[each], bins)
                continue
            best = [(_show(typed.type, text), count) for _, text, count in islice(values, top_n)]
            found[each].values = [{"value": _text(text), "count": count} for text, count in best]
            found[each].other_count = found[each].present_count - sum(count for _, count in best)
        return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bins(values: Iterable[Any], low: float, high: float, bins: int) -> list[dict[str, float]]:
    """How many numbers between two bounds lie in each of some ranges."""
    tally = [0] * (bins if low != high else 1)
    for _, number, count in values:
        place = 0 if high == low else int(_share(number, low, high) * len(tally))
        tally[min(place, len(tally) - 1)] += count
    ranges = (_range(low, high, len(tally), index) for index in range(len(tally)))
    return [
        {"index": index, "min": least, "max": most, "count": tally[index]} for index, (least, most) in enumerate(ranges)
    ]


def _within(fields: Fields, request: SpanAggregate) -> Expression:
    """The spans of a request; each filter of groups looks at the spans that the ones before it left."""
    within = request.filter.compile(fields)
    for item in request.within:
        keys = [fields.key(key).expression for key in item.group_by]
        passing = sa.select(*keys).where(within).group_by(*keys).having(*fields.having([item]))
        target = keys[0] if len(keys) == 1 else sa.tuple_(*keys)
        within = sa.and_(within, target.in_(passing))
    return within


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


def _compute(
    connection: sa.Connection,
    fields: Fields,
    request: SpanAggregate,
    within: Expression,
    bucket: Expression | None = None,
    page: Callable[[sa.Select[Any]], sa.Select[Any]] = lambda statement: statement,
) -> Iterator[AggregateRow]:
    """The rows of every bucket and group that has spans."""
    keys = [fields.key(key) for key in request.group_by]
    columns = [*([] if bucket is None else [bucket.label("bucket")]), *_labelled("k", keys)]
    names = [column.name for column in columns]
    computed = [(item.alias, fields.measure(item)) for item in request.measures if item.function != "percentile"]
    statement = sa.select(*columns, *_labelled("m", [typed for _, typed in computed])).where(within).group_by(*names)
    rows = connection.execute(page(statement)).fetchall()
    ranked = _percentiles(connection, fields, request.measures, columns, within)
    for row in rows:
        place, values = tuple(row[: len(names)]), row[len(names) :]
        found = {name: _show(typed.type, item) for (name, typed), item in zip(computed, values, strict=True)}
        own = place[len(place) - len(keys) :]
        shown = tuple(_show(key.type, item) for key, item in zip(keys, own, strict=True))
        yield AggregateRow(0 if bucket is None else place[0], shown, found | ranked.get(place, {}))


def _percentiles(
    connection: sa.Connection, fields: Fields, measures: Sequence[Measure], columns: Sequence[Any], within: Expression
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The percentiles among the measures, by bucket and keys."""
    by_value: dict[Value, list[Measure]] = {}
    for item in measures:
        if item.function == "percentile" and item.value is not None:
            by_value.setdefault(item.value, []).append(item)
    names = [column.name for column in columns]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for value, asked in by_value.items():
        number = fields.value(value, NUMBER).expression
        statement = sa.select(*columns, number.label("value")).where(within, number.is_not(None))
        rows = connection.execute(statement.order_by(*names, "value"), execution_options={"yield_per": STREAMED})
        for place, group in groupby(rows, key=lambda row: tuple(row[:-1])):
            ordered = array("d", (row[-1] for row in group))
            found.setdefault(place, {}).update({item.alias: percentile_of(ordered, item.rank) for item in asked})
    return found


def _labelled(prefix: str, values: Sequence[Typed]) -> list[sa.Label[Any]]:
    return [value.expression.label(f"{prefix}{number}") for number, value in enumerate(values)]


def _ordering(fields: Fields, request: SpanAggregate) -> list[Expression | str]:
    named = {key.alias: fields.key(key) for key in request.group_by}
    named |= {
        item.alias: fields.measure(item) for item in request.measures if item.function not in ("list", "percentile")
    }
    order: list[Expression | str] = []
    for term in request.sort:
        if term.field not in named:
            raise InvalidField(f"Invalid sort field: {term.field[:200]}; expected one of {', '.join(named)}")
        expression = named[term.field].expression
        order.append((sa.desc(expression) if term.descending else sa.asc(expression)).nulls_last())
    return [*order, *(f"k{number}" for number in range(len(request.group_by)))]


def _among(key: Expression, groups: Sequence[Any]) -> Expression:
    """A condition that holds for the spans of some groups, None among them."""
    said = [group for group in groups if group is not None]
    tests: list[Expression] = [Listed(key, said)] if said else []
    if len(said) < len(groups):
        tests.append(key.is_(None))
    return sa.or_(*tests) if tests else sa.false()


def _bounds(ranges: Ranges, least: float | None, most: float | None) -> tuple[float, float, int] | None:
    """The bounds and the number of ranges: one where all values are the same, none without values."""
    if least is None or most is None:
        return None
    low = float(least if ranges.low is None else ranges.low)
    high = float(most if ranges.high is None else ranges.high)
    if not (math.isfinite(low) and math.isfinite(high)) or high < low:
        return None
    return low, high, ranges.bins if _width(low, high, ranges.bins) > 0 else 1


def _width(low: float, high: float, bins: int) -> float:
    """The width of one range; bounds may lie further apart than the largest float."""
    return (high - low) / bins if math.isfinite(high - low) else high / bins - low / bins


def _share(number: float, low: float, high: float) -> float:
    """Where a number lies between the bounds, from 0 to 1."""
    if math.isfinite(high - low):
        return (number - low) / (high - low)
    return (number / 2 - low / 2) / (high / 2 - low / 2)


def _range(low: float, high: float, bins: int, place: int) -> tuple[float, float]:
    width = _width(low, high, bins)
    return low + place * width, high if place == bins - 1 else low + (place + 1) * width


def _show(kind: str, value: Any) -> Any:
    """A value of a type as answers show it."""
    if value is None:
        return None
    if kind == BOOLEAN:
        return bool(value)
    if kind == DATETIME:
        return times.to_iso(int(value))
    if kind == TEXTS_TYPE:
        return sorted(text for text in orjson.loads(value) if text)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
