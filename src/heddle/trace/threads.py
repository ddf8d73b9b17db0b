"""Threads: conversations summed over their turn calls."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from operator import attrgetter
from typing import Any

from fastapi import APIRouter, Response

from heddle.errors import InvalidRequest
from heddle.http.parameters import not_negative
from heddle.http.routing import (
    Lines,
    Reader,
    RequestModel,
    ResponseModel,
    StoreDep,
    describe_row,
    group,
    json_lines,
    lines,
    local,
)
from heddle.trace.calls.models import PageReq, SortBy
from heddle.trace.calls.read import MAX_FILTER_ENTRIES
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.buckets import percentile_of
from heddle.wire.calls import ThreadRow
from heddle.wire.jsontypes import Json

router: APIRouter = group("Threads")
_LINES_PER_CHUNK = 256

SORT_KEYS: dict[str, Callable[[ThreadRow], Any]] = {
    **{name: attrgetter(name) for name in ("thread_id", "turn_count", "start_time", "last_updated")},
    "p50_turn_duration_ms": lambda row: percentile_of(row.durations, 50),
    "p99_turn_duration_ms": lambda row: percentile_of(row.durations, 99),
}


class ThreadsQueryFilter(RequestModel):
    """Which threads: strictly after and before an instant, by id."""

    after_datetime: datetime | None = None
    before_datetime: datetime | None = None
    thread_ids: list[str] | None = None


class ThreadsQueryReq(PageReq):
    """Body of /threads/stream_query."""

    filter: ThreadsQueryFilter | None = None


class ThreadSchema(ResponseModel):
    """One thread."""

    thread_id: str
    turn_count: int
    start_time: datetime
    last_updated: datetime
    first_turn_id: str | None
    last_turn_id: str | None
    p50_turn_duration_ms: float | None
    p99_turn_duration_ms: float | None


@router.post(
    "/threads/stream_query",
    response_model=ThreadSchema,
    response_class=Lines,
    response_description="One thread per line",
)
@local
async def threads_stream_query(body: ThreadsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The threads of a project as JSON lines; the last updated first unless asked otherwise."""
    project = caller.open(body.project_id)
    limit, offset = not_negative(body.limit, "limit"), not_negative(body.offset, "offset") or 0
    for term in body.sort_by or ():
        if term.field not in SORT_KEYS:
            raise InvalidRequest(
                f"Unsupported sort field: {term.field[:200]}. Supported fields: {', '.join(SORT_KEYS)}"
            )
    chosen = body.filter or ThreadsQueryFilter()
    if len(chosen.thread_ids or ()) > MAX_FILTER_ENTRIES:
        raise InvalidRequest(f"filter.thread_ids has more than {MAX_FILTER_ENTRIES} entries")
    after = times.to_micros(chosen.after_datetime) if chosen.after_datetime else None
    before = times.to_micros(chosen.before_datetime) if chosen.before_datetime else None
    rows = await store.calls.threads(project, chosen.thread_ids, after, before)
    for term in reversed(body.sort_by or [SortBy(field="last_updated", direction="desc")]):
        rows = _sorted(rows, SORT_KEYS[term.field], term.direction == "desc")
    page = rows[offset:] if limit is None else rows[offset : offset + limit]
    return lines(_chunks([row for row in page if row.last_updated is not None]))


def _sorted(rows: list[ThreadRow], key: Callable[[ThreadRow], Any], descending: bool) -> list[ThreadRow]:
    """The rows by a key, those without a value last in both directions."""
    filled = [row for row in rows if key(row) is not None]
    return sorted(filled, key=key, reverse=descending) + [row for row in rows if key(row) is None]


async def _chunks(rows: list[ThreadRow]) -> AsyncIterator[bytes]:
    for some in batched(rows, _LINES_PER_CHUNK):
        yield json_lines(map(_describe, some))


def _describe(row: ThreadRow) -> Json:
    return describe_row(
        ThreadSchema,
        row,
        start_time=times.to_iso(row.start_time),
        last_updated=times.optional_iso(row.last_updated),
        p50_turn_duration_ms=percentile_of(row.durations, 50),
        p99_turn_duration_ms=percentile_of(row.durations, 99),
    )
