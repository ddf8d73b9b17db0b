"""The figures that alerts watch: of the calls that a filter chooses, over the time just past."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from heddle.store.base import Store
from heddle.store.control.feedback import Window
from heddle.trace.alerts.models import AlertRule
from heddle.trace.calls.read import filter_of
from heddle.trace.feedback.rules import RUNNABLE
from heddle.trace.stats import cost_of_sums
from heddle.wire import refs
from heddle.wire.buckets import percentile_of
from heddle.wire.calls import CallsQuery, Filter, UniformRun
from heddle.wire.query import parse_query

_PART = 500
_TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class Figure(NamedTuple):
    """A figure and how many calls (or scores) it comes from; None where there is nothing to compute it from."""

    value: float | None
    calls: int


async def measure(store: Store, project: str, rule: AlertRule, now: int) -> Figure:
    """The figure of a rule in a project (internal id) at an instant (microseconds).

    Calls count by when they started, scores by when they were given.
    """
    start = now - rule.window_seconds * 1_000_000
    query = CallsQuery(
        project, filter_of(rule.filter, project), None if rule.query is None else parse_query(rule.query)
    )
    if rule.metric == "score":
        return await _score(store, query, rule, Window(start, now + 1, f"{RUNNABLE}.{rule.scorer}"))
    runs = [UniformRun(0, start, now + 1 - start, start, now + 1)]
    if rule.metric == "cost":
        return await _cost(store, query, runs)
    quantiles = ("latency_ms",) if rule.metric == "p95_latency_ms" else ()
    metrics = ("call_count", "error_count", "latency_ms")
    rows, values = await store.call_stats.calls(query, runs, metrics, quantiles)
    found = {row.metric: row for row in rows}
    if not found:
        return Figure(0.0 if rule.metric == "count" else None, 0)
    calls = found["call_count"].calls
    if rule.metric == "count":
        return Figure(float(calls), calls)
    if rule.metric == "error_share":
        ended = found["latency_ms"].known
        return Figure(found["error_count"].total / ended if ended else None, ended)
    ordered = values.get((0, "", "latency_ms"), [])
    return Figure(percentile_of(ordered, 95.0), len(ordered))


async def _cost(store: Store, query: CallsQuery, runs: Sequence[UniformRun]) -> Figure:
    rows, _ = await store.call_stats.usage(query, runs, _TOKENS, ())
    prices = await store.costs.project_rows(query.project)
    sums: dict[str, dict[str, float]] = {}
    calls: dict[str, int] = {}
    for row in rows:
        sums.setdefault(row.model, {})[row.metric] = row.total
        calls[row.model] = row.calls
    total = sum(cost_of_sums(prices, model, figures)["total_cost"] for model, figures in sums.items())
    return Figure(total, sum(calls.values()))


async def _score(store: Store, query: CallsQuery, rule: AlertRule, window: Window) -> Figure:
    """The mean of the scores that calls of the filter were given."""
    given: list[tuple[str, float]] = []

    def take(row: Any) -> None:
        number = _number(orjson.loads(row.payload).get("output"), rule.score_path)
        if number is not None:
            given.append((row.weave_ref, number))

    await store.feedback.scan(query.project, window, ("weave_ref", "payload"), take)
    if query.filter != Filter() or query.query is not None:
        chosen = await _chosen(store, query, [ref for ref, _ in given])
        given = [item for item in given if item[0] in chosen]
    return Figure(sum(number for _, number in given) / len(given) if given else None, len(given))


async def _chosen(store: Store, query: CallsQuery, targets: Sequence[str]) -> set[str]:
    """Which of the refs are calls that the query selects."""
    prefix = refs.call_ref(query.project, "")
    ids = [ref[len(prefix) :] for ref in dict.fromkeys(targets) if ref.startswith(prefix)]
    if query.filter.call_ids is not None:
        ids = [call_id for call_id in ids if call_id in query.filter.call_ids]
    found: set[str] = set()
    for start in range(0, len(ids), _PART):
        part = Filter(**{**_fields(query.filter), "call_ids": tuple(ids[start : start + _PART])})
        async for rows in store.calls.stream(CallsQuery(query.project, part, query.query)):
            found.update(refs.call_ref(query.project, row.id) for row in rows)
    return found


def _fields(chosen: Filter) -> dict[str, Any]:
    return {name: getattr(chosen, name) for name in Filter.__slots__}


def _number(value: Any, path: str | None) -> float | None:
    for part in path.split(".") if path else ():
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None
