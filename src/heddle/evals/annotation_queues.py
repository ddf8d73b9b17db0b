"""Annotation queues: calls that people are to label, and how far each of them is."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.http.parameters import check_repeated, not_negative, page_limit
from heddle.http.routing import (
    Annotator,
    Deleter,
    NdLines,
    ProjectReq,
    Reader,
    RecordsDep,
    RequestModel,
    ResponseModel,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    describe_row,
    group,
    json_lines,
    lines,
)
from heddle.settings import Settings
from heddle.store.control.annotation_queues import (
    COMPLETED,
    DONE,
    IN_PROGRESS,
    SKIPPED,
    ItemFilter,
    ItemRow,
    Move,
    QueueRow,
    no_queue,
)
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.calls import MAX_SORT_TERMS, CallConditions, OrderTerm
from heddle.wire.jsontypes import Json
from heddle.wire.query import QueryBody
from heddle.wire.records import Call, Records

router: APIRouter = group("Annotation queues")
ProjectParameter = Annotated[str, Query()]
State = Literal["unstarted", "in_progress", "completed", "skipped"]
ALLOWED = (COMPLETED, IN_PROGRESS, SKIPPED)
MOST_STATS = 1000
_COLUMNS = ["id", "op_name", "trace_id", "started_at", "ended_at"]
_NAMED_AT_ONCE = 1000
_NEWEST_FIRST = [{"field": "started_at", "direction": "desc"}]


class SortBy(RequestModel, OrderTerm):
    """One term of an order."""


class QueueCreateReq(ProjectReq):
    """Body of POST /annotation_queues; `scorer_refs` name what annotators fill in and are not looked up."""

    name: str
    description: str = ""
    scorer_refs: list[str]
    wb_user_id: str | None = None


class QueueCreateRes(ResponseModel):
    """The id of the new queue."""

    id: str


class QueuesQueryReq(ProjectReq):
    """Body of POST /annotation_queues/query; `name` is a part of the name in any case."""

    name: str | None = None
    sort_by: list[SortBy] | None = Field(default=None, max_length=MAX_SORT_TERMS)
    limit: int | None = None
    offset: int | None = None


class QueueUpdateBody(ProjectReq):
    """Body of PUT /annotation_queues/{queue_id}; what is null stays."""

    name: str | None = None
    description: str | None = None
    scorer_refs: list[str] | None = None


class QueueSchema(ResponseModel):
    """A queue."""

    id: str
    project_id: str
    name: str
    description: str
    scorer_refs: list[str]
    created_at: datetime
    created_by: str
    updated_at: datetime
    deleted_at: datetime | None = None


class QueueRes(ResponseModel):
    """The queue."""

    queue: QueueSchema


class CallChoice(RequestModel, CallConditions):
    """Which calls: all conditions must hold; each list is an alternative."""


class AddCallsBody(ProjectReq):
    """Body of POST /annotation_queues/{queue_id}/items.

    Calls are named by `call_ids` in their order, and, beyond the published interface, chosen by `filter` and `query`
    as in /calls/stream_query: newest first, at most `limit` of them.
    """

    call_ids: list[str]
    display_fields: list[str]
    filter: CallChoice | None = None
    query: QueryBody | None = None
    limit: int | None = Field(default=None, ge=1)


class AddCallsRes(ResponseModel):
    """How many calls are new in the queue, and how many were in it already.

    `matched` and `has_more` come where calls were chosen by a filter: how many were looked at, and whether more match.
    """

    added_count: int
    duplicates: int
    matched: int | None = None
    has_more: bool | None = None


class ItemsFilter(RequestModel):
    """Which items: all conditions together, exactly."""

    id: str | None = None
    call_id: str | None = None
    call_op_name: str | None = None
    call_trace_id: str | None = None
    added_by: str | None = None
    annotation_states: list[State] | None = None


class ItemsQueryBody(ProjectReq):
    """Body of POST /annotation_queues/{queue_id}/items/query."""

    filter: ItemsFilter | None = None
    sort_by: list[SortBy] | None = Field(default=None, max_length=MAX_SORT_TERMS)
    limit: int | None = None
    offset: int | None = None
    include_position: bool = False


class ItemSchema(ResponseModel):
    """A call in a queue, as it was when it was added; state and annotator are of the newest progress of anyone."""

    id: str
    project_id: str
    queue_id: str
    call_id: str
    call_started_at: datetime
    call_ended_at: datetime | None = None
    call_op_name: str
    call_trace_id: str
    display_fields: list[str]
    added_by: str | None = None
    annotation_state: State
    annotator_user_id: str | None = None
    created_at: datetime
    created_by: str
    updated_at: datetime
    deleted_at: datetime | None = None
    position_in_queue: int | None = None


class ItemsQueryRes(ResponseModel):
    """The items."""

    items: list[ItemSchema]


class ProgressBody(ProjectReq):
    """Body of POST .../items/{item_id}/progress."""

    annotation_state: str


class ItemRes(ResponseModel):
    """The item."""

    item: ItemSchema


class QueuesStatsReq(ProjectReq):
    """Body of POST /annotation_queues/stats."""

    queue_ids: list[str]


class QueueStatsSchema(ResponseModel):
    """How far a queue is."""

    queue_id: str
    total_items: int
    completed_items: int


class QueuesStatsRes(ResponseModel):
    """One entry per asked queue, in that order."""

    stats: list[QueueStatsSchema]


def check_transition(state: str) -> Move:
    """The check of a step to a state; raises InvalidRequest for a state that nobody can set."""
    if state not in ALLOWED:
        shown = ", ".join(f"'{name}'" for name in ALLOWED)
        raise InvalidRequest(f"Invalid annotation_state '{state[:100]}'. Must be one of: {shown}")

    def move(present: str | None) -> bool:
        if present is None:
            return True
        if present == state:
            return False
        if state == IN_PROGRESS:
            raise InvalidRequest(
                f"Cannot transition to 'in_progress' when a record already exists (current state: '{present}')"
            )
        if present in DONE:
            raise InvalidRequest(
                f"Invalid state transition from '{present}' to '{state}'. "
                "Only 'in_progress' and 'unstarted' can become 'completed' or 'skipped'"
            )
        return True

    return move


@dataclass(slots=True)
class Chosen:
    """The calls by id, in the order in which they are queued; `matched` and `has_more` where a filter chose."""

    calls: dict[str, Call] = field(default_factory=dict)
    matched: int | None = None
    has_more: bool | None = None


async def choose_calls(settings: Settings, records: Records, caller: Caller, body: AddCallsBody) -> Chosen:
    """The live calls that a request means; those that are unknown or deleted are left out.

    Raises InvalidRequest for more than the setting max_page_rows.
    """
    most, chosen = settings.max_page_rows, Chosen()
    wanted = list(dict.fromkeys(body.call_ids))
    if len(wanted) > most:
        raise InvalidRequest(f"call_ids has {len(wanted)} entries, at most {most} are allowed")

    async def read(**request: Any) -> dict[str, Call]:
        slices = records.read_calls(caller, body.project_id, **request, columns=_COLUMNS)
        return {call.id: call async for calls in slices for call in calls}

    for part in batched(wanted, _NAMED_AT_ONCE):
        found = await read(filter={"call_ids": list(part)}, limit=len(part))
        chosen.calls |= {call_id: found[call_id] for call_id in part if call_id in found}
    if body.filter is not None or body.query is not None:
        # How many calls match tells what is in them.
        caller.require(Scope.READ).open(body.project_id)
        limit = most if body.limit is None else body.limit
        if limit > most:
            raise InvalidRequest(f"limit is {limit}, at most {most} calls can be added at once")
        conditions = body.filter.model_dump(exclude_none=True) if body.filter is not None else None
        found = await read(filter=conditions, query=body.query, sort_by=_NEWEST_FIRST, limit=limit + 1)
        matched = list(found.values())[:limit]
        chosen.matched, chosen.has_more = len(matched), len(found) > limit
        chosen.calls |= {call.id: call for call in matched if call.id not in chosen.calls}
    return chosen


@router.post("/annotation_queues", response_model=QueueCreateRes)
async def create(body: QueueCreateReq, caller: Writer, store: StoreDep) -> Response:
    """Make a queue."""
    at = times.now()
    project, queue_id = caller.open(body.project_id), times.uuid7()
    name, description = await store.redaction.value(project, [body.name, body.description])
    row = QueueRow(queue_id, project, name, description, body.scorer_refs, at, caller.user, at)
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
    if row is None or row.deleted_at is not None:
        raise no_queue(queue_id)
    return answer({"queue": describe_row(QueueSchema, row, project_id=project_id)})


@router.put("/annotation_queues/{queue_id}", response_model=QueueRes)
async def update(queue_id: str, body: QueueUpdateBody, caller: Writer, store: StoreDep) -> Response:
    """Change a queue; with nothing to change it stays as it is."""
    caller = caller.require(Scope.READ)
    changes = body.model_dump(exclude={"project_id"}, exclude_none=True)
    project = caller.open(body.project_id)
    row = await store.annotation_queues.update(project, queue_id, await store.redaction.value(project, changes))
    return _changed_answer(body.project_id, queue_id, row)


@router.delete("/annotation_queues/{queue_id}", response_model=QueueRes)
async def delete(queue_id: str, project_id: ProjectParameter, caller: Deleter, store: StoreDep) -> Response:
    """Delete a queue; its items and what was labelled stay."""
    caller = caller.require(Scope.READ)
    row = await store.annotation_queues.delete(caller.open(project_id), queue_id, caller.user)
    return _changed_answer(project_id, queue_id, row)


@router.post("/annotation_queues/{queue_id}/items", response_model=AddCallsRes, response_model_exclude_none=True)
async def add_items(
    queue_id: str, body: AddCallsBody, caller: Writer, settings: SettingsDep, store: StoreDep, records: RecordsDep
) -> Response:
    """Put calls into a queue; unknown and deleted ones are passed over, each call is in a queue once."""
    project = caller.open(body.project_id)
    check_repeated("display_fields", body.display_fields)
    queues = store.annotation_queues
    if not await queues.is_live(project, queue_id):
        raise no_queue(queue_id)
    chosen, at = await choose_calls(settings, records, caller, body), times.now()
    rows = [
        ItemRow(
            id=times.uuid7(),
            project=project,
            queue_id=queue_id,
            call_id=call.id,
            call_started_at=times.parse(call.started_at) or 0,
            call_ended_at=times.parse(call.ended_at) if call.ended_at else None,
            call_op_name=call.op_name,
            call_trace_id=call.trace_id,
            display_fields=body.display_fields,
            added_by=caller.user,
            created_at=at,
            updated_at=at,
        )
        for call in chosen.calls.values()
    ]
    added = await queues.add(project, queue_id, rows)
    result: Json = {"added_count": added, "duplicates": len(rows) - added}
    if chosen.matched is not None:
        result |= {"matched": chosen.matched, "has_more": chosen.has_more}
    return answer(result)


@router.post("/annotation_queues/{queue_id}/items/query", response_model=ItemsQueryRes)
async def query_items(
    queue_id: str, body: ItemsQueryBody, caller: Reader, settings: SettingsDep, store: StoreDep
) -> Response:
    """The items of a queue (also of a deleted one) in the order they were added, unless asked otherwise.

    A position counts from 1 in the filtered and sorted items, before the page is cut out.
    """
    project, queues = caller.open(body.project_id), store.annotation_queues
    if await queues.read(project, queue_id) is None:
        raise no_queue(queue_id)
    limit, offset = page_limit(settings, not_negative(body.limit, "limit")), not_negative(body.offset, "offset") or 0
    rows = await queues.items(project, queue_id, _filter(body.filter), _order(body.sort_by), limit, offset)
    positions = range(offset + 1, offset + 1 + len(rows))
    shown = [
        _item(body.project_id, row, position if body.include_position else None)
        for row, position in zip(rows, positions, strict=True)
    ]
    return answer({"items": shown})


@router.post("/annotation_queues/{queue_id}/items/{item_id}/progress", response_model=ItemRes)
async def progress(queue_id: str, item_id: str, body: ProgressBody, caller: Annotator, store: StoreDep) -> Response:
    """Say how far the caller is with an item."""
    caller = caller.require(Scope.READ)
    project, queues = caller.open(body.project_id), store.annotation_queues
    move = check_transition(body.annotation_state)
    row = await queues.progress(project, queue_id, item_id, caller.user, body.annotation_state, move)
    if row is None:
        raise InvalidRequest(f"Queue item '{item_id[:200]}' not found in queue '{queue_id[:200]}'")
    return answer({"item": _item(body.project_id, row, None)})


def _order(sort_by: Sequence[SortBy] | None) -> list[tuple[str, bool]]:
    return [(term.field, term.direction == "desc") for term in sort_by or ()]


def _filter(asked: ItemsFilter | None) -> ItemFilter:
    if asked is None:
        return ItemFilter({})
    fields = asked.model_dump(exclude={"annotation_states"}, exclude_none=True)
    return ItemFilter(fields, asked.annotation_states or None)


async def _lines(project_id: str, rows: Sequence[QueueRow]) -> AsyncIterator[bytes]:
    for row in rows:
        yield json_lines([describe_row(QueueSchema, row, project_id=project_id)])


def _changed_answer(project_id: str, queue_id: str, row: QueueRow | None) -> Response:
    if row is None:
        raise NotFound(f"Queue {queue_id[:200]} not found or already deleted")
    return answer({"queue": describe_row(QueueSchema, row, project_id=project_id)})


def _item(project_id: str, row: ItemRow, position: int | None) -> Json:
    more = {"created_by": row.added_by, "deleted_at": None, "position_in_queue": position}
    return describe_row(ItemSchema, row, project_id=project_id, **more)
