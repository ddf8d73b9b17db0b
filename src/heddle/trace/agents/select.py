"""Which spans a request means, and the prices of their models."""

import operator
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.store.base import Store
from heddle.store.control.agents.fields import Prices, SpanFilter, Targets
from heddle.trace.agents.requests import AgentSignalFilter, InsightFilter, RatingCondition
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
MAX_PRICES = 300


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else times.to_micros(moment)


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
    since = [moment for moment in (_micros(after), await kept_since(store, project)) if moment is not None]
    targets = [] if signals is None else await _signalled(store, project, signals)
    return SpanFilter(project, max(since, default=None), _micros(before), query, targets)


def refuse_insights(filters: Sequence[InsightFilter]) -> None:
    """Raise InvalidRequest when a filter over extracted insights is asked for."""
    if filters:
        raise InvalidRequest("insight_filters is not supported: heddle does not extract insights")


async def prices_for(store: Store, selected: SpanFilter) -> Prices:
    """The prices of the models that the spans of a filter used, of each model the newest first."""
    models = await store.agent_spans.models(SpanFilter(selected.project, selected.after, selected.before))
    own = await store.costs.project_rows(selected.project)
    found = [step for model in models for step in _within(default_prices().steps(own, model), selected)]
    if len(found) > MAX_PRICES:
        raise InvalidRequest(
            f"The spans used models with {len(found)} prices; costs are computed with at most {MAX_PRICES}: choose a "
            "shorter time"
        )
    return found


def _within(steps: Prices, selected: SpanFilter) -> Prices:
    """The steps of a model, newest first, that hold at some instant of the filter's range."""
    after, before = selected.after, selected.before
    begun = [step for step in steps if step[0] is None or before is None or step[0] < before]
    # Those before the first that holds at the beginning have ended by then.
    ended = (at for at, (since, _) in enumerate(begun, 1) if since is None or (after is not None and since <= after))
    return begun[: next(ended, 0)]


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
