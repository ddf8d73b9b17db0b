"""Requests and answers of the annotation queue routes, with the names of the interface."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from heddle.http import RequestModel, ResponseModel
from heddle.wire.callfilter import CallConditions, OrderTerm
from heddle.wire.query import QueryBody

State = Literal["unstarted", "in_progress", "completed", "skipped"]


class SortBy(RequestModel, OrderTerm):
    """One term of an order."""


class QueueCreateReq(RequestModel):
    """Body of POST /annotation_queues; `scorer_refs` name what annotators fill in and are not looked up."""

    project_id: str
    name: str
    description: str = ""
    scorer_refs: list[str]
    wb_user_id: str | None = None


class QueueCreateRes(ResponseModel):
    """The id of the new queue."""

    id: str


class QueuesQueryReq(RequestModel):
    """Body of POST /annotation_queues/query; `name` is a part of the name in any case."""

    project_id: str
    name: str | None = None
    sort_by: list[SortBy] | None = None
    limit: int | None = None
    offset: int | None = None


class QueueUpdateBody(RequestModel):
    """Body of PUT /annotation_queues/{queue_id}; what is null stays."""

    project_id: str
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


class AddCallsBody(RequestModel):
    """Body of POST /annotation_queues/{queue_id}/items.

    Calls are named by `call_ids` in their order, and, beyond the published interface, chosen by `filter` and `query`
    as in /calls/stream_query: newest first, at most `limit` of them.
    """

    project_id: str
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


class ItemsQueryBody(RequestModel):
    """Body of POST /annotation_queues/{queue_id}/items/query."""

    project_id: str
    filter: ItemsFilter | None = None
    sort_by: list[SortBy] | None = None
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


class ProgressBody(RequestModel):
    """Body of POST .../items/{item_id}/progress."""

    project_id: str
    annotation_state: str


class ItemRes(ResponseModel):
    """The item."""

    item: ItemSchema


class QueuesStatsReq(RequestModel):
    """Body of POST /annotation_queues/stats."""

    project_id: str
    queue_ids: list[str]


class QueueStatsSchema(ResponseModel):
    """How far a queue is."""

    queue_id: str
    total_items: int
    completed_items: int


class QueuesStatsRes(ResponseModel):
    """One entry per asked queue, in that order."""

    stats: list[QueueStatsSchema]
