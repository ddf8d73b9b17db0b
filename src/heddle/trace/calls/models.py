"""Requests and answers of the calls group, with the names of the interface."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from heddle.http import RequestModel, ResponseModel
from heddle.request_body import sliced
from heddle.wire.callfilter import CallConditions, OrderTerm
from heddle.wire.query import QueryBody

DISPLAY_NAME_MAX = 1024
OP_NAME_MAX = 128
Summary = dict[str, Any]


class StartedCallSchemaForInsert(RequestModel):
    """The first half of a call; id and trace_id are made when they are missing."""

    project_id: str
    id: str | None = None
    op_name: str
    display_name: str | None = None
    trace_id: str | None = None
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    started_at: datetime
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    otel_dump: dict[str, Any] | None = None
    wb_user_id: str | None = None
    wb_run_id: str | None = None
    wb_run_step: int | None = None


class EndedCallSchemaForInsert(RequestModel):
    """The second half of a call."""

    project_id: str
    id: str
    trace_id: str | None = None
    is_eval: bool | None = None
    ended_at: datetime
    started_at: datetime | None = None
    exception: str | None = None
    output: Any | None = None
    summary: Summary
    wb_run_step_end: int | None = None


class CompletedCallSchemaForInsert(RequestModel):
    """A whole call."""

    project_id: str
    id: str
    trace_id: str
    op_name: str
    started_at: datetime
    ended_at: datetime
    display_name: str | None = None
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    output: Any | None = None
    summary: Summary
    otel_dump: dict[str, Any] | None = None
    exception: str | None = None
    wb_user_id: str | None = None
    wb_run_id: str | None = None
    wb_run_step: int | None = None
    wb_run_step_end: int | None = None


class CallStartReq(RequestModel):
    """Body of /call/start."""

    start: StartedCallSchemaForInsert


class CallEndReq(RequestModel):
    """Body of /call/end."""

    end: EndedCallSchemaForInsert


class CallBatchStartMode(RequestModel):
    """A start inside a batch."""

    mode: Literal["start"]
    req: CallStartReq


class CallBatchEndMode(RequestModel):
    """An end inside a batch."""

    mode: Literal["end"]
    req: CallEndReq


class CallCreateBatchReq(RequestModel):
    """Body of /call/upsert_batch."""

    batch: Annotated[
        list[Annotated[CallBatchStartMode | CallBatchEndMode, Field(discriminator="mode")]], sliced("batch")
    ]


class CallsUpsertCompleteReq(RequestModel):
    """Body of /v2/{entity}/{project}/calls/complete."""

    batch: Annotated[list[CompletedCallSchemaForInsert], sliced("batch")]


class CallStartRes(ResponseModel):
    """The ids of a started call."""

    id: str
    trace_id: str


class CallEndRes(ResponseModel):
    """Nothing to say."""


class CallCreateBatchRes(ResponseModel):
    """One answer per item of the batch."""

    res: list[CallStartRes | CallEndRes]


class CallReadReq(RequestModel):
    """Body of /call/read."""

    project_id: str
    id: str
    include_costs: bool | None = False
    include_storage_size: bool | None = False
    include_total_storage_size: bool | None = False


class CallSchema(ResponseModel):
    """A call as it is read."""

    id: str
    project_id: str
    op_name: str
    display_name: str | None = None
    trace_id: str
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    started_at: datetime
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    ended_at: datetime | None = None
    exception: str | None = None
    output: Any | None = None
    summary: dict[str, Any] | None = None
    wb_user_id: str | None = None
    wb_username: str | None = None
    wb_run_id: str | None = None
    wb_run_step: int | None = None
    wb_run_step_end: int | None = None
    deleted_at: datetime | None = None
    expire_at: datetime | None = None
    storage_size_bytes: int | None = None
    total_storage_size_bytes: int | None = None


class CallReadRes(ResponseModel):
    """The call, or null when there is none."""

    call: CallSchema | None


class CallUpdateReq(RequestModel):
    """Body of /call/update; an empty display name clears it."""

    project_id: str
    call_id: str
    display_name: str | None = Field(default=None, max_length=DISPLAY_NAME_MAX)
    wb_user_id: str | None = None


class CallsDeleteReq(RequestModel):
    """Body of /calls/delete."""

    project_id: str
    call_ids: list[str]
    wb_user_id: str | None = None


class CallsDeleteRes(ResponseModel):
    """How many calls are hidden now: the requested ones and their descendants."""

    num_deleted: int


class CallsFilter(RequestModel, CallConditions):
    """All conditions must hold; each list is an alternative."""


class SortBy(RequestModel, OrderTerm):
    """One term of an order."""


class CallsQueryReq(RequestModel):
    """Body of /calls/stream_query."""

    project_id: str
    filter: CallsFilter | None = None
    limit: int | None = None
    offset: int | None = None
    sort_by: list[SortBy] | None = None
    query: QueryBody | None = None
    include_costs: bool | None = False
    include_feedback: bool | None = False
    include_storage_size: bool | None = False
    include_total_storage_size: bool | None = False
    include_usernames: bool | None = False
    columns: list[str] | None = None
    expand_columns: list[str] | None = None
    return_expanded_column_values: bool | None = True
    latest_only: bool | None = False


class CallsQueryStatsReq(RequestModel):
    """Body of /calls/query_stats."""

    project_id: str
    filter: CallsFilter | None = None
    query: QueryBody | None = None
    limit: int | None = None
    include_total_storage_size: bool | None = False
    expand_columns: list[str] | None = None


class CallsQueryStatsRes(ResponseModel):
    """How many calls there are, at most the limit."""

    count: int
    has_more: bool = False
    total_storage_size_bytes: int | None = None


STARTED: TypeAdapter[CallStartReq] = TypeAdapter(CallStartReq)
ENDED: TypeAdapter[CallEndReq] = TypeAdapter(CallEndReq)
BATCH: TypeAdapter[CallCreateBatchReq] = TypeAdapter(CallCreateBatchReq)
COMPLETE: TypeAdapter[CallsUpsertCompleteReq] = TypeAdapter(CallsUpsertCompleteReq)
