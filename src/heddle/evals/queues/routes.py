"""The annotation queue routes."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from heddle.auth import Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.evals.queues.choose import choose
from heddle.evals.queues.models import (
    AddCallsBody,
    AddCallsRes,
    ItemRes,
    ItemsFilter,
    ItemsQueryBody,
    ItemsQueryRes,
    ProgressBody,
    QueueCreateReq,
    QueueCreateRes,
    QueueRes,
    QueueSchema,
    QueuesQueryReq,
    QueuesStatsReq,
    QueuesStatsRes,
    QueueUpdateBody,
    SortBy,
)
from heddle.evals.queues.progress import move_to
from heddle.http import (
    NdLines,
    Reader,
    RecordsDep,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
    line,
    lines,
    not_negative,
    page_limit,
)
from heddle.store.control.annotation_queues import ItemFilter, ItemRow, QueueRow
from heddle.wire import ids, times
from heddle.wire.jsontypes import Json

router: APIRouter = group("Annotation queues")
ProjectParameter = Annotated[str, Query()]
MOST_STATS = 1000


@router.post("/annotation_queues", response_model=QueueCreateRes)
async def create(body: QueueCreateReq, caller: Writer, store: StoreDep) -> Response:
    """Make a queue."""
    at = times.now()
    project, queue_id = caller.open(body.project_id), ids.uuid7()
    row = QueueRow(queue_id, project, body.name, body.description, body.scorer_refs, at, caller.user, at)
    await store.annotation_queues.create(row)
    return answer({"id": queue_id})


@router.post(
    "/annotation_queues/query",
    response_model=QueueSchema,
    response_class=NdLines,
    response_description="One queue per line",
)
async def query(body: QueuesQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """The queues of a project as JSON lines, the newest first unless asked otherwise."""
    project = caller.open(body.project_id)
    limit, offset = page_limit(settings, not_negative(body.limit, "limit")), not_negative(body.offset, "offset") or 0
    rows = await store.annotation_queues.query(project, body.name, _order(body.sort_by), limit, offset)
    return lines(_lines(body.project_id, rows), NdLines)


@router.post("/annotation_queues/stats", response_model=QueuesStatsRes)
async def stats(body: QueuesStatsReq, caller: Reader, store: StoreDep) -> Response:
    """How many items each queue has, and how many are done; zeros for an unknown queue."""
    project = caller.open(body.project_id)
    if len(body.queue_ids) > MOST_STATS:
        raise InvalidRequest(f"queue_ids has {len(body.queue_ids)} entries, at most {MOST_STATS} are allowed")
    found = await store.annotation_queues.stats(project, body.queue_ids)
    counted = ((queue_id, *found.get(queue_id, (0, 0))) for queue_id in body.queue_ids)
    keys = ("queue_id", "total_items", "completed_items")
    return answer({"stats": [dict(zip(keys, values, strict=True)) for values in counted]})


@router.get("/annotation_queues/{queue_id}", response_model=QueueRes)
async def read(queue_id: str, project_id: ProjectParameter, caller: Reader, store: StoreDep) -> Response:
    """A queue."""
    row = await store.annotation_queues.read(caller.open(project_id), queue_id)
    return _queue_answer(project_id, queue_id, None if row is None or row.deleted_at is not None else row)


@router.put("/annotation_queues/{queue_id}", response_model=QueueRes)
async def update(queue_id: str, body: QueueUpdateBody, caller: Writer, store: StoreDep) -> Response:
    """Change a queue; with nothing to change it stays as it is."""
    caller.require(Scope.READ)
    changes = body.model_dump(exclude={"project_id"}, exclude_none=True)
    row = await store.annotation_queues.update(caller.open(body.project_id), queue_id, changes)
    return _queue_answer(body.project_id, queue_id, row)


@router.delete("/annotation_queues/{queue_id}", response_model=QueueRes)
async def delete(queue_id: str, project_id: ProjectParameter, caller: Writer, store: StoreDep) -> Response:
    """Delete a queue; its items and what was labelled stay."""
    caller.require(Scope.READ)
    row = await store.annotation_queues.delete(caller.open(project_id), queue_id)
    return _queue_answer(project_id, queue_id, row)


@router.post("/annotation_queues/{queue_id}/items", response_model=AddCallsRes, response_model_exclude_none=True)
async def add_items(
    queue_id: str, body: AddCallsBody, caller: Writer, settings: SettingsDep, store: StoreDep, records: RecordsDep
) -> Response:
    """Put calls into a queue; unknown and deleted ones are passed over, each call is in a queue once."""
    project = caller.open(body.project_id)
    queues = store.annotation_queues
    if not await queues.live(project, [queue_id]):
        raise _not_found(queue_id)
    chosen = await choose(settings, records, caller, body)
    rows = chosen.rows(project, queue_id, body.display_fields, caller.user)
    added = await queues.add(rows)
    told: Json = {"added_count": added, "duplicates": len(rows) - added}
    if chosen.matched is not None:
        told |= {"matched": chosen.matched, "has_more": chosen.has_more}
    return answer(told)


@router.post("/annotation_queues/{queue_id}/items/query", response_model=ItemsQueryRes)
async def query_items(
    queue_id: str, body: ItemsQueryBody, caller: Reader, settings: SettingsDep, store: StoreDep
) -> Response:
    """The items of a queue (also of a deleted one) in the order they were added, unless asked otherwise.

    A position counts from 1 in the filtered and sorted items, before the page is cut out.
    """
    project, queues = caller.open(body.project_id), store.annotation_queues
    if await queues.read(project, queue_id) is None:
        raise _not_found(queue_id)
    limit, offset = page_limit(settings, not_negative(body.limit, "limit")), not_negative(body.offset, "offset") or 0
    rows = await queues.items(project, queue_id, _filter(body.filter), _order(body.sort_by), limit, offset)
    positions = range(offset + 1, offset + 1 + len(rows))
    shown = [
        _item(body.project_id, row, position if body.include_position else None)
        for row, position in zip(rows, positions, strict=True)
    ]
    return answer({"items": shown})


@router.post("/annotation_queues/{queue_id}/items/{item_id}/progress", response_model=ItemRes)
async def progress(queue_id: str, item_id: str, body: ProgressBody, caller: Writer, store: StoreDep) -> Response:
    """Say how far the caller is with an item."""
    caller.require(Scope.READ)
    project, queues = caller.open(body.project_id), store.annotation_queues
    move = move_to(body.annotation_state)
    queue = await queues.read(project, queue_id)
    if queue is not None and queue.deleted_at is not None:
        raise _not_found(queue_id)
    row = await queues.progress(project, queue_id, item_id, caller.user, body.annotation_state, move)
    if row is None:
        raise InvalidRequest(f"Queue item '{item_id[:200]}' not found in queue '{queue_id[:200]}'")
    return answer({"item": _item(body.project_id, row, None)})


def _not_found(queue_id: str) -> NotFound:
    return NotFound(f"Queue {queue_id[:200]} not found")


def _order(sort_by: Sequence[SortBy] | None) -> list[tuple[str, bool]]:
    return [(term.field, term.direction == "desc") for term in sort_by or ()]


def _filter(asked: ItemsFilter | None) -> ItemFilter:
    if asked is None:
        return ItemFilter({})
    fields = asked.model_dump(exclude={"annotation_states"}, exclude_none=True)
    return ItemFilter(fields, asked.annotation_states or None)


async def _lines(project_id: str, rows: Sequence[QueueRow]) -> AsyncIterator[bytes]:
    for row in rows:
        yield line(_queue(project_id, row))


def _queue_answer(project_id: str, queue_id: str, row: QueueRow | None) -> Response:
    if row is None:
        raise _not_found(queue_id)
    return answer({"queue": _queue(project_id, row)})


def _queue(project_id: str, row: QueueRow) -> Json:
    return {
        "id": row.id,
        "project_id": project_id,
        "name": row.name,
        "description": row.description,
        "scorer_refs": row.scorer_refs,
        "created_at": times.to_iso(row.created_at),
        "created_by": row.created_by,
        "updated_at": times.to_iso(row.updated_at),
        "deleted_at": times.optional_iso(row.deleted_at),
    }


def _item(project_id: str, row: ItemRow, position: int | None) -> Json:
    return {
        "id": row.id,
        "project_id": project_id,
        "queue_id": row.queue_id,
        "call_id": row.call_id,
        "call_started_at": times.to_iso(row.call_started_at),
        "call_ended_at": times.optional_iso(row.call_ended_at),
        "call_op_name": row.call_op_name,
        "call_trace_id": row.call_trace_id,
        "display_fields": row.display_fields,
        "added_by": row.added_by,
        "annotation_state": row.annotation_state,
        "annotator_user_id": row.annotator_user_id,
        "created_at": times.to_iso(row.created_at),
        "created_by": row.added_by,
        "updated_at": times.to_iso(row.updated_at),
        "deleted_at": None,
        "position_in_queue": position,
    }
