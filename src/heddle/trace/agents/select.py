"""From validated requests to what the store is asked: filters, groups, figures, prices, signals."""

import operator
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.store.base import Store
from heddle.store.control.agents.fields import ModelPrice, column_name
from heddle.store.control.agents.measures import GroupFilter, GroupRef, Measure, ValueRef
from heddle.store.control.agents.query import SpanFilter, Targets
from heddle.store.control.rowtable import Sort
from heddle.trace.agents.models import (
    AgentGroupByRef,
    AgentSignalFilter,
    AgentSortBy,
    AgentSpanGroupFilter,
    AgentSpanMeasureSpec,
    AgentSpanValueRef,
    InsightFilter,
    RatingCondition,
)
from heddle.trace.calls.pack import instant
from heddle.trace.calls.read import retention_of
from heddle.trace.prices import default_prices
from heddle.wire import refs, times
from heddle.wire.query import Operation

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "gte": operator.ge,
    "gt": operator.gt,
    "lte": operator.le,
    "lt": operator.lt,
    "eq": operator.eq,
}
MAX_PRICED_MODELS = 300


def micros(moment: datetime | None) -> int | None:
    """Microseconds of a request's datetime, None for none; raises InvalidRequest outside the calendar."""
    return None if moment is None else instant(moment)


async def kept_since(store: Store, project: str) -> int | None:
    """The instant before which the project keeps nothing; None: it keeps all."""
    retention = await retention_of(store, project)
    return None if retention is None else times.now() - retention


async def span_filter(
    store: Store,
    project: str,
    *,
    after: datetime | None = None,
    before: datetime | None = None,
    query: Operation | None = None,
    signals: AgentSignalFilter | None = None,
) -> SpanFilter:
    """Which spans a request means; those that are older than the project keeps are never among them."""
    since = [moment for moment in (micros(after), await kept_since(store, project)) if moment is not None]
    targets = [] if signals is None else await _signalled(store, project, signals)
    return SpanFilter(project, max(since, default=None), micros(before), query, targets)


def sort_of(sort_by: Sequence[AgentSortBy] | None) -> list[Sort]:
    """The typed order."""
    return [Sort(term.field, term.direction == "desc") for term in sort_by or ()]


def refuse_insights(filters: Sequence[InsightFilter]) -> None:
    """Raise InvalidRequest when a filter over extracted insights is asked for."""
    if filters:
        raise InvalidRequest("insight_filters: heddle extracts no insights, so it cannot filter by them")


def group_refs(given: Iterable[AgentGroupByRef]) -> tuple[GroupRef, ...]:
    """The typed groups; without an alias a field is named as its column."""
    found = []
    for ref in given:
        name = column_name(ref.key) if ref.source in ("field", "column") else ref.key
        found.append(GroupRef(ref.source, ref.key, ref.alias if ref.alias is not None else name))
    return tuple(found)


def value_ref(given: AgentSpanValueRef) -> ValueRef:
    """The typed value."""
    return ValueRef(given.source, given.key)


def measure_of(given: AgentSpanMeasureSpec) -> Measure:
    """The typed figure."""
    value = None if given.value is None else value_ref(given.value)
    return Measure(given.alias, given.aggregation, value, given.value_type, given.filter)


def group_filter(given: AgentSpanGroupFilter, default: tuple[GroupRef, ...]) -> GroupFilter:
    """The typed group filter; without groups of its own it looks at the default ones."""
    bounds = [instant(bound) if isinstance(bound, datetime) else bound for bound in (given.min, given.max)]
    is_instant = isinstance(given.min if given.min is not None else given.max, datetime)
    groups = group_refs(given.group_by) or default
    return GroupFilter(groups, measure_of(given.measure), bounds[0], bounds[1], is_instant)


def needs_costs(measures: Iterable[AgentSpanMeasureSpec | None], values: Iterable[AgentSpanValueRef | None]) -> bool:
    """True when one of the values is a cost."""
    asked = [*values, *(item.value for item in measures if item is not None)]
    return any(value is not None and value.source == "derived" and value.key.endswith("_cost_usd") for value in asked)


async def prices_for(store: Store, selected: SpanFilter) -> list[ModelPrice]:
    """The prices of the models that the spans of a filter used, of each model the newest first."""
    models = await store.agent_spans.models(SpanFilter(selected.project, selected.after, selected.before))
    own = await store.costs.project_rows(selected.project)
    prices = default_prices()
    found: list[ModelPrice] = []
    priced = 0
    for model in models:
        steps = prices.steps(own, model)
        priced += bool(steps)
        for since, price in steps:
            found.append(
                ModelPrice(
                    model,
                    since,
                    price.prompt_token_cost,
                    price.completion_token_cost,
                    price.cache_read_input_token_cost,
                    price.cache_creation_input_token_cost,
                )
            )
    if priced > MAX_PRICED_MODELS:
        raise InvalidRequest(
            f"The spans used {priced} models with a price; costs are computed over at most {MAX_PRICED_MODELS}: "
            "choose a shorter time"
        )
    return found


async def _signalled(store: Store, project: str, signals: AgentSignalFilter) -> list[Targets]:
    """For the tags and for each rating condition, what the feedback that fulfils it is about."""
    wanted: list[Callable[[list[str], dict[str, float]], bool]] = []
    if signals.tags:
        tags = set(signals.tags)
        wanted.append(lambda given, _: not tags.isdisjoint(given))
    wanted += [_rating_test(condition) for condition in signals.ratings]
    if not wanted:
        return []
    found: list[dict[str, set[str]]] = [
        {"agent_span": set(), "agent_turn": set(), "agent_conversation": set()} for _ in wanted
    ]

    def take(row: Sequence[Any]) -> None:
        ref, given, ratings = refs.parse(row[0]), orjson.loads(row[1]), orjson.loads(row[2])
        for test, targets in zip(wanted, found, strict=True):
            if ref.kind in targets and test(given, ratings):
                targets[ref.kind].add(ref.name)

    await store.feedback.scan_agents(project, ("weave_ref", "scorer_tags", "scorer_ratings"), take)
    return [
        Targets(sorted(each["agent_span"]), sorted(each["agent_turn"]), sorted(each["agent_conversation"]))
        for each in found
    ]


def _rating_test(condition: RatingCondition) -> Callable[[list[str], dict[str, float]], bool]:
    compare = _COMPARISONS[condition.op]

    def test(_: list[str], ratings: dict[str, float]) -> bool:
        rating = ratings.get(condition.scorer_key)
        return rating is not None and compare(rating, condition.value)

    return test
