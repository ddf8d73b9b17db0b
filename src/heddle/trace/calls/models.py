"""Requests and answers of the calls group, with the names of the interface."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from heddle.http.routing import ProjectReq, RequestModel, ResponseModel, check_in_slices
from heddle.wire.calls import MAX_SORT_TERMS, CallConditions, OrderTerm
from heddle.wire.lazy_model import LazyModel
from heddle.wire.query import QueryBody

DISPLAY_NAME_MAX = 1024
OP_NAME_MAX = 128
Summary = dict[str, Any]


class StartFields(LazyModel):
    """What a call may say from its start on."""

    display_name: str | None = None
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    wb_user_id: str | None = None
    wb_run_id: str | None = None
    wb_run_step: int | None = None


class EndFields(LazyModel):
    """What a call may say from its end on."""

    exception: str | None = None
    output: Any | None = None
    wb_run_step_end: int | None = None


class StartedCallSchemaForInsert(ProjectReq, StartFields):
    """The first half of a call; id and trace_id are made when they are missing."""

    id: str | None = None
    op_name: str
    trace_id: str | None = None
    started_at: datetime
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    otel_dump: dict[str, Any] | None = None


class EndedCallSchemaForInsert(ProjectReq, EndFields):
    """The second half of a call."""

    id: str
    trace_id: str | None = None
    is_eval: bool | None = None
    ended_at: datetime
    started_at: datetime | None = None
    summary: Summary


class CompletedCallSchemaForInsert(ProjectReq, StartFields, EndFields):
    """A whole call."""

    id: str
    trace_id: str
    op_name: str
    started_at: datetime
    ended_at: datetime
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    summary: Summary
    otel_dump: dict[str, Any] | None = None


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
        list[Annotated[CallBatchStartMode | CallBatchEndMode, Field(discriminator="mode")]], check_in_slices("batch")
    ]


class CallsUpsertCompleteReq(RequestModel):
    """Body of /v2/{entity}/{project}/calls/complete."""

    batch: Annotated[list[CompletedCallSchemaForInsert], check_in_slices("batch")]


class CallStartRes(ResponseModel):
    """The ids of a started call."""

    id: str
    trace_id: str


class CallEndRes(ResponseModel):
    """Nothing to say."""


class CallCreateBatchRes(ResponseModel):
    """One answer per item of the batch."""

    res: list[CallStartRes | CallEndRes]


class CallReadReq(ProjectReq):
    """Body of /call/read."""

    id: str
    include_costs: bool | None = False
    include_storage_size: bool | None = False
    include_total_storage_size: bool | None = False
    include_conversation: bool | None = False


class ConversationMessage(ResponseModel):
    """A message in the form of the OpenTelemetry GenAI conventions.

    Parts: `text`, `reasoning` and `refusal` with `content`; `tool_call` with `id`, `name`, `arguments`;
    `tool_call_response` with `id` and `response`, a list of parts; `uri`, `blob` and `file` with a `modality`; `data`
    with any JSON as `content`.
    """

    role: str
    parts: list[dict[str, Any]]
    name: str | None = None
    finish_reason: str | None = None


class ConversationChoice(ResponseModel):
    """One of the alternatives that a model answered; `logprobs` as chat completions have them."""

    messages: list[ConversationMessage]
    finish_reason: str = ""
    logprobs: list[Any] | None = None


class CallConversation(ResponseModel):
    """What was said, what was answered, and the offered tools (as chat completions have them).

    Without `is_chat` the call went to no model: inputs and output stand in the place of messages.
    """

    is_chat: bool
    messages: list[ConversationMessage]
    choices: list[ConversationChoice]
    tools: list[dict[str, Any]]


class CallSchema(ResponseModel, StartFields, EndFields):
    """A call as it is read; `conversation` where it is asked for."""

    id: str
    project_id: str
    op_name: str
    trace_id: str
    started_at: datetime
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    ended_at: datetime | None = None
    summary: dict[str, Any] | None = None
    wb_username: str | None = None
    deleted_at: datetime | None = None
    expire_at: datetime | None = None
    storage_size_bytes: int | None = None
    total_storage_size_bytes: int | None = None
    conversation: CallConversation | None = None


class CallReadRes(ResponseModel):
    """The call, or null when there is none."""

    call: CallSchema | None


class CallUpdateReq(ProjectReq):
    """Body of /call/update; an empty display name clears it."""

    call_id: str
    display_name: str | None = Field(default=None, max_length=DISPLAY_NAME_MAX)
    wb_user_id: str | None = None


class CallsDeleteReq(ProjectReq):
    """Body of /calls/delete."""

    call_ids: list[str]
    wb_user_id: str | None = None


class CallsDeleteRes(ResponseModel):
    """How many calls are hidden now: the requested ones and their descendants."""

    num_deleted: int


class CallsFilter(RequestModel, CallConditions):
    """All conditions must hold; each list is an alternative."""


class SortBy(RequestModel, OrderTerm):
    """One term of an order."""


class PageReq(ProjectReq):
    """A request for a page of a list, in an order."""

    limit: int | None = None
    offset: int | None = None
    sort_by: list[SortBy] | None = Field(default=None, max_length=MAX_SORT_TERMS)


class CallsQueryReq(PageReq):
    """Body of /calls/stream_query."""

    filter: CallsFilter | None = None
    query: QueryBody | None = None
    include_costs: bool | None = False
    include_feedback: bool | None = False
    include_storage_size: bool | None = False
    include_total_storage_size: bool | None = False
    include_usernames: bool | None = False
    include_conversation: bool | None = False
    columns: list[str] | None = None
    expand_columns: list[str] | None = None
    return_expanded_column_values: bool | None = True
    latest_only: bool | None = False


class CallsQueryStatsReq(ProjectReq):
    """Body of /calls/query_stats."""

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
