"""Groups of agent spans: one row per group with a fixed set of sums, asked figures, and distributions."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidField
from heddle.store.control.agents.fields import DATETIME, INVOKES, NUMBER, Fields, ModelPrice, Typed, shown
from heddle.store.control.agents.measures import (
    GroupFilter,
    GroupRef,
    Measure,
    aggregate,
    aggregated,
    group_expression,
    having,
    labelled,
)
from heddle.store.control.agents.query import SpanFilter
from heddle.store.control.agents.reads import STREAMED
from heddle.store.control.agents.sql import DistinctList, Listed
from heddle.store.control.agents.table import TOKENS, agent_spans
from heddle.store.control.expressions import Expression
from heddle.store.control.rowtable import Sort
from heddle.store.control.schema import Executor

_c = agent_spans.c
Group = dict[str, Any]

_LISTS = {
    "agent_names": "agent_name",
    "agent_versions": "agent_version",
    "provider_names": "provider_name",
    "request_models": "request_model",
    "conversation_names": "conversation_name",
}
_COST_SUMS = {
    "total_cost_usd": "total_cost_usd",
    "total_input_cost_usd": "input_cost_usd",
    "total_output_cost_usd": "output_cost_usd",
}


def _sums() -> dict[str, Typed]:
    elapsed = Fields().derived("duration_ms").expression
    sums = {
        "span_count": Typed(sa.func.count(), NUMBER),
        "invocation_count": Typed(sa.func.count(sa.case((INVOKES, 1))), NUMBER),
        "conversation_count": Typed(sa.func.count(sa.distinct(sa.func.nullif(_c.conversation_id, ""))), NUMBER),
        "total_duration_ms": Typed(sa.func.sum(elapsed), NUMBER),
        "error_count": Typed(sa.func.count(sa.case((_c.status_code == "ERROR", 1))), NUMBER),
        "first_seen": Typed(sa.func.min(_c.started_at), DATETIME),
        "last_seen": Typed(sa.func.max(_c.started_at), DATETIME),
    }
    return sums | {
        f"total_{name}": Typed(sa.func.coalesce(aggregated("sum", Fields().field(name)).expression, 0), NUMBER)
        for name in TOKENS
    }


SUMS = _sums()
"""What every group shows, and what groups can be sorted by."""
RESERVED = frozenset((*SUMS, *_LISTS, *_COST_SUMS))
"""Names of a group row that no measure may take."""


@dataclass(frozen=True, slots=True)
class GroupsRequest:
    """A page of groups; those last seen (or, with measures, those of the largest first figure) come first."""

    filter: SpanFilter
    group_by: Sequence[GroupRef]
    measures: Sequence[Measure] = ()
    filters: Sequence[GroupFilter] = ()
    sort: Sequence[Sort] = ()
    limit: int = 100
    offset: int = 0
    prices: Sequence[ModelPrice] | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """A custom attribute whose values are counted: numbers in `bins` ranges, others by their `top_n` values."""

    alias: str
    source: str
    key: str
    bins: int
    top_n: int


class AgentGroups:
    """Groups of spans; rows are shaped as answers show them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def groups(self, request: GroupsRequest) -> tuple[list[Group], int]:
        """The groups of a page, and how many there are before limit and offset."""
        fields = Fields(request.prices or ())
        keys = [(ref.alias, group_expression(fields, ref)) for ref in request.group_by]
        measures = [(measure.alias, aggregate(fields, measure)) for measure in request.measures]
        sums = list(SUMS.items())
        if request.prices is not None:
            sums += [(name, aggregated("sum", fields.derived(cost))) for name, cost in _COST_SUMS.items()]
        # Labels of our own: the names of groups and figures are the caller's.
        named = [(f"k{number}", value) for number, (_, value) in enumerate(keys)]
        named += [(f"m{number}", value) for number, (_, value) in enumerate(measures)] + sums
        lists = [DistinctList(_c[column]).label(name) for name, column in _LISTS.items()]
        grouped = (
            sa.select(*labelled(named), *lists)
            .where(await request.filter.compiled(fields))
            .group_by(*[f"k{number}" for number in range(len(keys))])
            .having(*having(fields, request.filters))
        )
        order = _ordering(request, dict(keys) | dict(measures) | dict(sums), len(keys))
        page = grouped.order_by(*order).limit(request.limit).offset(request.offset)
        each = grouped.with_only_columns(*labelled(named[: len(keys)])).subquery()
        count = sa.select(sa.func.count()).select_from(each)

        def work(connection: sa.Connection) -> tuple[list[Group], int]:
            rows = connection.execute(page).fetchall()
            known = request.offset + len(rows)
            if len(rows) == request.limit or (request.offset and not rows):
                known = int(connection.execute(count).scalar_one())
            return [_group(row, keys, measures, sums) for row in rows], known

        return await self._executor.read(work)

    async def distributions(
        self, selected: SpanFilter, ref: GroupRef, groups: Sequence[Any], spec: Distribution
    ) -> dict[Any, dict[str, Any]]:
        """How the values of one custom attribute are distributed in each of the groups (values of `ref`)."""
        fields = Fields()
        key = group_expression(fields, ref).expression
        value = fields.custom(spec.source, spec.key).expression
        within = sa.and_(await selected.compiled(fields), among(key, groups))

        def work(connection: sa.Connection) -> dict[Any, dict[str, Any]]:
            counts = sa.select(key, sa.func.count(), sa.func.count(value), sa.func.min(value), sa.func.max(value))
            found = {
                group: _Tally(total, present, low, high)
                for group, total, present, low, high in connection.execute(counts.where(within).group_by(key))
            }
            if spec.source in ("custom_attrs_int", "custom_attrs_float"):
                for tally in found.values():
                    tally.bins = [0] * (spec.bins if tally.low != tally.high else 1 if tally.present else 0)
                each = sa.select(key, value).where(within, value.is_not(None))
                for group, number in connection.execute(each, execution_options={"yield_per": STREAMED}):
                    if group in found:
                        found[group].count(number)
            else:
                number = sa.func.count().label("number")
                by_value = sa.select(key, value, number).where(within, value.is_not(None)).group_by(key, value)
                for group, item, amount in connection.execute(by_value, execution_options={"yield_per": STREAMED}):
                    if group in found:
                        found[group].top(item, amount, spec.top_n)
            is_truth = spec.source == "custom_attrs_bool"
            return {group: found.get(group, _Tally()).answer(is_truth) for group in groups}

        return await self._executor.read(work)


@dataclass(slots=True)
class _Tally:
    """The values of one attribute in one group."""

    total: int = 0
    present: int = 0
    low: Any = None
    high: Any = None
    bins: list[int] | None = None
    best: "list[tuple[int, _Reversed]] | None" = None

    def count(self, number: float) -> None:
        # Spans that were written since the bounds were read are left out.
        if self.bins and self.low <= number <= self.high:
            place = 0 if self.high == self.low else int((number - self.low) / (self.high - self.low) * len(self.bins))
            self.bins[min(place, len(self.bins) - 1)] += 1

    def top(self, value: Any, amount: int, most: int) -> None:
        self.best = self.best or []
        item = (amount, _Reversed(value))
        if len(self.best) < most:
            heapq.heappush(self.best, item)
        else:
            heapq.heappushpop(self.best, item)

    def answer(self, is_truth: bool) -> dict[str, Any]:
        bins = self.bins or []
        best = [(amount, item.value) for amount, item in sorted(self.best or (), reverse=True)]
        width = (self.high - self.low) / len(bins) if bins else 0
        return {
            "total_count": self.total,
            "present_count": self.present,
            "missing_count": self.total - self.present,
            "other_count": self.present - sum(amount for amount, _ in best) if best else 0,
            "bins": [
                {
                    "index": index,
                    "min": self.low + index * width,
                    "max": self.high if index == len(bins) - 1 else self.low + (index + 1) * width,
                    "count": amount,
                }
                for index, amount in enumerate(bins)
            ],
            "values": [
                {"value": ("true" if value else "false") if is_truth else str(value), "count": amount}
                for amount, value in best
            ],
        }


class _Reversed:
    """A value that sorts the other way round, so that of equal counts the first in the alphabet is kept."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: "_Reversed") -> bool:
        return bool(self.value > other.value)


def among(key: Expression, groups: Sequence[Any]) -> Expression:
    """A condition that holds for the spans of some groups, None among them."""
    said = [group for group in groups if group is not None]
    tests: list[Expression] = [Listed(key, said)] if said else []
    if len(said) < len(groups):
        tests.append(key.is_(None))
    return sa.or_(*tests) if tests else sa.false()


def _ordering(request: GroupsRequest, named: dict[str, Typed], keys: int) -> list[Expression | str]:
    terms = list(request.sort)
    if not terms:
        terms = [Sort(request.measures[0].alias if request.measures else "last_seen", descending=True)]
    order: list[Expression | str] = []
    for term in terms:
        if term.field not in named:
            raise InvalidField(f"Invalid sort field: {term.field[:200]}; known are {', '.join(named)}")
        expression = named[term.field].expression
        order.append((sa.desc(expression) if term.descending else sa.asc(expression)).nulls_last())
    return [*order, *(f"k{number}" for number in range(keys))]


def _group(
    row: sa.Row[Any],
    keys: Sequence[tuple[str, Typed]],
    measures: Sequence[tuple[str, Typed]],
    sums: Sequence[tuple[str, Typed]],
) -> Group:
    values = row._mapping
    group: Group = {
        "group_keys": {alias: shown(typed.type, values[f"k{number}"]) for number, (alias, typed) in enumerate(keys)},
        **dict.fromkeys(_COST_SUMS),
        **{name: shown(typed.type, values[name]) for name, typed in sums},
        **{name: sorted(text for text in orjson.loads(values[name]) if text) for name in _LISTS},
        "first_message": None,
        "last_message": None,
        "metrics": {alias: shown(typed.type, values[f"m{n}"]) for n, (alias, typed) in enumerate(measures)},
        "distributions": {},
    }
    group["total_duration_ms"] = round(group["total_duration_ms"] or 0)
    return group
