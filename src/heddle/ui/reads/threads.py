"""The threads of a project with their figures: the public API lists threads, and sums tokens by trace only."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from heddle.http import PricesDep, Reader, StoreDep, answer, group
from heddle.wire import times
from heddle.wire.calls import ThreadRow

router = group("Pages")
SORTS: dict[str, Callable[[ThreadRow], Any]] = {
    "thread": lambda row: row.thread_id.lower(),
    "turns": lambda row: row.turn_count,
    "duration": lambda row: sum(row.durations),
    "started": lambda row: row.start_time,
    "active": lambda row: row.last_updated or row.start_time,
}


@router.get("/_ui/api/threads/{entity}/{project}", include_in_schema=False)
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
    page = sorted(found, key=SORTS[sort], reverse=descending)[offset : offset + limit]
    price = await prices(internal)
    figures = await store.thread_sums.figures(internal, [row.thread_id for row in page], price) if page else []
    shown = [
        {
            "thread_id": row.thread_id,
            "turns": row.turn_count,
            "started_at": times.to_iso(row.start_time),
            "active_at": times.to_iso(row.last_updated or row.start_time),
            "first_turn": row.first_turn_id,
            "last_turn": row.last_turn_id,
            "seconds": sum(row.durations) / 1000,
            "tokens": sums.tokens,
            "dollars": sums.dollars,
            "errors": sums.errors,
        }
        for row, sums in zip(page, figures, strict=True)
    ]
    return answer({"threads": shown, "found": len(found), "total": len(rows)})
