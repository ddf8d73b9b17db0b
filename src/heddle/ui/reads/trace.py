"""Every call of one trace as columns, streamed page by page, and the threads of a project with their statistics."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from heddle.errors import NotFound
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import PricesDep, Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.wire import times
from heddle.wire.aggregates import ALL_TIME, CallAggregate, Measure, cut_run
from heddle.wire.calls import ERROR, PLAIN_KIND, RUNNING, SUCCESS, CallsQuery, CostOf, Filter, ThreadRow, UsageSum
from heddle.wire.inference import sum_of_costs
from heddle.wire.outline import ORPHAN, ROOT, Outline, Span
from heddle.wire.query import And, Compare, Field
from heddle.wire.query import Literal as Constant

router = group("Pages")

MOST_SPANS = 200_000
"""Calls of one trace that are shown; memory of the server and of the browser grow with them."""
_FIRST_PAGE = 250
_PAGE = 4000
_GZIP_LEVEL = 4


@router.get("/_ui/api/trace/{entity}/{project}/{trace_id:path}", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def trace(
    entity: str,
    project: str,
    trace_id: str,
    request: Request,
    caller: Reader,
    store: StoreDep,
    prices: PricesDep,
    call: str | None = None,
    known: str | None = None,
) -> Response:
    """A line about the trace, then lines of columns; `?known=` its version answers `{"same": true}` while it holds.

    The lines are described beside `Columns`. `?call=` asks for the position of one call.
    """
    internal = caller.open(f"{entity}/{project}")
    outline = await store.trace_spans.outline(internal, trace_id, MOST_SPANS, call)
    if not outline.rids:
        raise NotFound(f"Trace {trace_id[:200]!r} not found in {entity}/{project}")
    if known == outline.version:
        return answer({"same": True})
    pages = _pages(store, outline, Columns(await prices(internal)))
    headers = {"Vary": "Accept-Encoding", "Cache-Control": "no-store"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        pages, headers["Content-Encoding"] = _compress(pages), "gzip"
    return StreamingResponse(pages, media_type="application/jsonl", headers=headers)


async def _pages(store: Store, outline: Outline, columns: "Columns") -> AsyncIterator[bytes]:
    shown = len(outline.rids)
    head = {"total": outline.total, "shown": shown, "selected": outline.selected, "version": outline.version}
    yield orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE)
    start, size = 0, _FIRST_PAGE
    while start < shown:
        stop = min(shown, start + size)
        spans = await store.trace_spans.spans(outline, start, stop)
        yield await asyncio.to_thread(columns.page, outline, start, spans)
        start, size = stop, _PAGE


async def _compress(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same as gzip, each chunk readable as soon as it arrives."""
    # Most of it is ids: what they have in common is found by chance and costs more than it saves.
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=31, strategy=zlib.Z_FILTERED)
    async for chunk in chunks:
        yield packer.compress(chunk) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


class Columns:
    """Makes pages of columns; texts that repeat are sent once and numbered over all pages.

    A page holds `ops` ([name, kind] pairs) and `models` that are new; and for its calls `id`, `op`, `start`
    (microseconds since the call before), `length` (microseconds, -1 without an end) and `parent` (how many calls back,
    0 for a root, null for a parent outside the trace). `status` [call, 1 error or 3 running], `name` [call, display
    name], `usage` [call, model, tokens in, tokens out, dollars or null] and `orphan` [call, parent id] list only the
    calls of the page that have any.
    """

    def __init__(self, cost: CostOf) -> None:
        self._cost = cost
        self._ops: dict[tuple[str, str | None], int] = {}
        self._models: dict[str, int] = {}
        self._before = 0

    def page(self, outline: Outline, start: int, spans: list[Span | None]) -> bytes:
        """The line of the calls from position `start` on."""
        ops, models = len(self._ops), len(self._models)
        page: dict[str, Any] = {name: [] for name in ("id", "op", "start", "length", "parent")}
        sparse: dict[str, list[Any]] = {name: [] for name in ("status", "name", "usage", "orphan")}
        for position, span in enumerate(spans, start):
            self._add(page, sparse, span or _removed_span(self._before), position)
            page["parent"].append(_parent_offset(outline.parents[position], position))
            if outline.parents[position] == ORPHAN:
                sparse["orphan"].append([position, outline.orphans[position]])
        page["ops"] = list(self._ops)[ops:]
        page["models"] = list(self._models)[models:]
        return orjson.dumps(page | sparse, option=orjson.OPT_APPEND_NEWLINE)

    def _add(self, page: dict[str, Any], sparse: dict[str, list[Any]], span: Span, position: int) -> None:
        page["id"].append(span.id)
        page["op"].append(self._ops.setdefault((span.op, span.kind), len(self._ops)))
        page["start"].append(span.started_at - self._before)
        self._before = span.started_at
        page["length"].append(-1 if span.ended_at is None else max(0, span.ended_at - span.started_at))
        if span.status in (ERROR, RUNNING):
            sparse["status"].append([position, span.status])
        if span.display_name:
            sparse["name"].append([position, span.display_name])
        for use in span.usage:
            model = self._models.setdefault(use.model, len(self._models))
            dollars = self._cost(use, span.started_at)
            sparse["usage"].append([position, model, use.prompt, use.completion, dollars])


def _parent_offset(parent: int, position: int) -> int | None:
    if parent == ORPHAN:
        return None
    return 0 if parent == ROOT else position - parent


def _removed_span(at: int) -> Span:
    return Span("", "removed", PLAIN_KIND, None, at, at, SUCCESS, [])


_FAILED_TURNS = And(
    (Compare("eq", Field("summary.weave.status"), Constant("error")), Compare("eq", Field("turn_id"), Field("id")))
)
_SORTS: dict[str, Callable[[ThreadRow], Any]] = {
    "thread": lambda row: row.thread_id.lower(),
    "turns": lambda row: row.turn_count,
    "duration": lambda row: sum(row.durations),
    "started": lambda row: row.start_time,
    "active": lambda row: row.last_updated or row.start_time,
}


@router.get("/_ui/api/threads/{entity}/{project}", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def threads(
    entity: str,
    project: str,
    caller: Reader,
    store: StoreDep,
    prices: PricesDep,
    sort: Literal["thread", "turns", "duration", "started", "active"] = "active",
    descending: bool = True,
    search: str = "",
    thread: str = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """A page of threads; `search` is a part of their name, `thread` the whole name of one."""
    internal = caller.open(f"{entity}/{project}")
    rows = await store.calls.threads(internal, [thread] if thread else None, None, None)
    found = [row for row in rows if search.lower() in row.thread_id.lower()]
    page = sorted(found, key=_SORTS[sort], reverse=descending)[offset : offset + limit]
    usage, errors = await _sums(store, internal, [row.thread_id for row in page], await prices.changes(internal))
    price = await prices(internal)
    shown = [
        {
            "thread_id": row.thread_id,
            "turns": row.turn_count,
            "started_at": times.to_iso(row.start_time),
            "active_at": times.to_iso(row.last_updated or row.start_time),
            "first_turn": row.first_turn_id,
            "last_turn": row.last_turn_id,
            "seconds": sum(row.durations) / 1000,
            "tokens": sum(used.tokens for used in usage.get(row.thread_id, ())),
            "dollars": sum_of_costs(price(used, used.priced_at) for used in usage.get(row.thread_id, ())),
            "errors": errors.get(row.thread_id, 0),
        }
        for row in page
    ]
    return answer({"threads": shown, "found": len(found), "total": len(rows)})


async def _sums(
    store: Store, project: str, thread_ids: Sequence[str], changes: Sequence[int]
) -> tuple[dict[str, list[UsageSum]], dict[str, int]]:
    """What threads used, in pieces of one price each, and how many of their turns failed."""
    if not thread_ids:
        return {}, {}
    chosen = Filter(thread_ids=tuple(thread_ids))
    usage: dict[str, list[UsageSum]] = {}
    for used in await store.call_aggregates.usage(CallsQuery(project, chosen), cut_run(ALL_TIME, changes), "thread_id"):
        usage.setdefault(used.name, []).append(used)
    failed = CallAggregate(CallsQuery(project, chosen, _FAILED_TURNS), [Measure("errors")], ("thread_id",))
    return usage, {row.keys[0]: row.values["errors"] for row in await store.call_aggregates.aggregate(failed)}
