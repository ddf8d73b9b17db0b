"""Token usage rolled up along the trace (contract: trace-core, sections 6.4 and 7)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from heddle.errors import InvalidRequest
from heddle.http import Reader, RequestModel, ResponseModel, StoreDep, group
from heddle.store.base import Store
from heddle.trace.calls.models import CallsFilter
from heddle.trace.calls.read import filter_of, retention_of
from heddle.trace.prices import PricedUsage, ProjectPrices, Tokens, default_prices
from heddle.wire import jsontext, refs
from heddle.wire.calls import CallsQuery, Filter, Usage, UsageRow
from heddle.wire.query import QueryBody

router: APIRouter = group("Calls")

_TOKENS = (
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_COSTS = (
    "prompt_tokens_total_cost",
    "completion_tokens_total_cost",
    "cache_read_input_tokens_total_cost",
    "cache_creation_input_tokens_total_cost",
)
Entry = dict[str, Any]
_CALLS_PER_PIECE = 500


class TraceUsageReq(RequestModel):
    """Body of /trace/usage."""

    project_id: str
    filter: CallsFilter | None = None
    query: QueryBody | None = None
    include_costs: bool = False
    limit: int = 10000


class CallsUsageReq(RequestModel):
    """Body of /calls/usage."""

    project_id: str
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
    chosen = filter_of(body.filter, project)
    query = CallsQuery(
        project, chosen, body.query, limit=_limit(body.limit), retention=await retention_of(store, project)
    )
    rows = await store.calls.usage(query)
    return await _answer(store, project, rows, [row.id for row in rows], body.include_costs)


@router.post("/calls/usage", response_model=UsageRes)
async def calls_usage(body: CallsUsageReq, caller: Reader, store: StoreDep) -> Response:
    """Usage of the named calls with all their descendants."""
    project = caller.open(body.project_id)
    limit = _limit(body.limit)
    traces = await store.calls.traces_of(project, body.call_ids) if body.call_ids else []
    rows = await store.calls.usage(CallsQuery(project, Filter(trace_ids=tuple(traces)), limit=limit)) if traces else []
    return await _answer(store, project, rows, body.call_ids, body.include_costs)


def _limit(limit: int) -> int:
    if limit < 0:
        raise InvalidRequest("limit must not be negative")
    return min(limit, 2**62)


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
        entry: Entry = dict(zip(_TOKENS, _numbers(usage), strict=True))
        if any(entry.values()):
            entry.update(_costs(usage, row.started_at, prices))
            entries[usage.model] = entry
    return entries


def _numbers(usage: Usage) -> tuple[int, ...]:
    total = usage.total or usage.prompt + usage.completion
    return usage.requests, usage.prompt, usage.completion, total, usage.cache_read, usage.cache_creation


def _costs(usage: Usage, started_at: int, prices: ProjectPrices | None) -> Entry:
    if prices is None:
        return dict.fromkeys(_COSTS)
    tokens = Tokens(*_numbers(usage))
    return asdict(PricedUsage.of(tokens, default_prices().pick(prices, usage.model, started_at)))


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
