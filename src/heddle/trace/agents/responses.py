"""Answers of the agents reads, declared for the OpenAPI description."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from pydantic import Field, create_model

from heddle.http.routing import ResponseModel
from heddle.store.control.agents.fields import COSTS
from heddle.wire.spans import AgentSpan

StatusCode = Literal["UNSET", "OK", "ERROR"]
SpanKind = Literal["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
CustomSource = Literal["custom_attrs_string", "custom_attrs_int", "custom_attrs_float", "custom_attrs_bool"]
CustomType = Literal["string", "int", "float", "bool"]


class NormalizedMessage(ResponseModel):
    """One message; content is text, or the parts of the message as JSON text."""

    role: str
    content: str
    finish_reason: str


def _span_fields() -> dict[str, Any]:
    """The fields of `AgentSpan` and its costs; all of them are always there."""
    given: dict[str, Any] = get_type_hints(AgentSpan) | {
        "span_name": str | None,
        "span_kind": SpanKind | None,
        "status_code": StatusCode | None,
        **dict.fromkeys(("started_at", "ended_at"), datetime | None),
        **dict.fromkeys(("input_messages", "output_messages"), list[NormalizedMessage]),
    }
    names = [name for name in given if name not in ("project", "started_at", "ended_at")]
    for behind, more in (("span_kind", ("started_at", "ended_at")), ("cache_read_input_tokens", COSTS)):
        place = names.index(behind) + 1
        names[place:place] = more
    return {"project_id": (str, ...), **{name: (given.get(name, float | None), ...) for name in names}}


if TYPE_CHECKING:
    AgentSpanSchema = ResponseModel
else:
    AgentSpanSchema = create_model(
        "AgentSpanSchema",
        __base__=ResponseModel,
        __module__=__name__,
        __doc__="One span; texts that it does not say are empty, numbers null.",
        **_span_fields(),
    )


class AgentConversationMessagePreview(ResponseModel):
    """The beginning of a message."""

    role: Literal["user_message", "assistant_message"]
    text: str


class AgentSpanGroupDistributionBin(ResponseModel):
    """How many numbers lie in one range."""

    index: int
    min: float
    max: float
    count: int


class AgentSpanGroupDistributionValue(ResponseModel):
    """How often one value occurs."""

    value: str
    count: int


class AgentSpanGroupDistributionItem(ResponseModel):
    """The values of one custom attribute in a group."""

    alias: str
    source: CustomSource
    key: str
    value_type: CustomType
    total_count: int
    present_count: int
    missing_count: int
    other_count: int
    bins: list[AgentSpanGroupDistributionBin]
    values: list[AgentSpanGroupDistributionValue]


class AgentSpanGroupRow(ResponseModel):
    """One group; tokens and costs leave out what spans only repeat of those below them."""

    group_keys: dict[str, bool | float | int | str | None]
    span_count: int
    invocation_count: int
    conversation_count: int
    total_input_tokens: int
    total_cache_creation_input_tokens: int
    total_cache_read_input_tokens: int
    total_output_tokens: int
    total_reasoning_tokens: int
    total_duration_ms: int
    error_count: int
    total_cost_usd: float | None
    total_input_cost_usd: float | None
    total_output_cost_usd: float | None
    agent_names: list[str]
    agent_versions: list[str]
    provider_names: list[str]
    request_models: list[str]
    conversation_names: list[str]
    first_seen: datetime | None
    last_seen: datetime | None
    first_message: AgentConversationMessagePreview | None
    last_message: AgentConversationMessagePreview | None
    metrics: dict[str, bool | datetime | float | int | str | None]
    distributions: dict[str, AgentSpanGroupDistributionItem]


class AgentSpansQueryRes(ResponseModel):
    """Spans, or groups when `group_by` was given, and how many there are before limit and offset."""

    spans: list[AgentSpanSchema]
    groups: list[AgentSpanGroupRow]
    total_count: int


class AgentSchema(ResponseModel):
    """One agent, summed over its spans."""

    project_id: str
    agent_name: str
    invocation_count: int
    span_count: int
    total_input_tokens: int
    total_output_tokens: int
    total_duration_ms: int
    error_count: int
    first_seen: datetime | None
    last_seen: datetime | None
    total_cost_usd: float | None = None


class AgentVersionSchema(AgentSchema):
    """One version of an agent."""

    agent_version: str


class AgentsQueryRes(ResponseModel):
    """The agents of a page, and how many there are."""

    agents: list[AgentSchema]
    total_count: int


class AgentVersionsQueryRes(ResponseModel):
    """The versions of a page, and how many there are."""

    versions: list[AgentVersionSchema]
    total_count: int


class AgentCustomAttrSchemaItem(ResponseModel):
    """One custom attribute, and how many spans have it."""

    source: CustomSource
    key: str
    value_type: CustomType
    span_count: int


class AgentCustomAttrsSchemaRes(ResponseModel):
    """The custom attributes of a page; those of most spans first."""

    attributes: list[AgentCustomAttrSchemaItem]
    limit: int
    offset: int
    has_more: bool


class AgentSpanStatsColumn(ResponseModel):
    """One column of the rows of a chart."""

    name: str
    role: Literal["time", "bucket", "group", "metric"]
    value_type: Literal["datetime", "number", "boolean", "string"]
    metric: str | None = None
    aggregation: str | None = None


class AgentSpanStatsRes(ResponseModel):
    """Rows for a chart."""

    start: datetime
    end: datetime
    granularity: int | None
    timezone: str
    bucket_type: Literal["time", "number"]
    columns: list[AgentSpanStatsColumn]
    rows: list[dict[str, datetime | str | int | float | bool | None]]


class AgentSearchMatchedMessage(ResponseModel):
    """One message that was found."""

    span_id: str
    trace_id: str
    role: str
    content_preview: str
    content_digest: str
    started_at: datetime


class AgentSearchConversationResult(ResponseModel):
    """The messages that were found in one conversation."""

    conversation_id: str
    conversation_name: str
    agent_name: str
    matched_messages: list[AgentSearchMatchedMessage]
    last_activity: datetime


class AgentSearchRes(ResponseModel):
    """Conversations with messages that were found; `x_search_complete` is false when spans were left unread."""

    results: list[AgentSearchConversationResult]
    total_conversations: int
    x_spans_searched: int
    x_search_complete: bool


class AgentChatUserMessage(ResponseModel):
    """What a user said."""

    text: str
    content_refs: list[str]


class AgentChatAssistantMessage(ResponseModel):
    """What a model answered, and what it took."""

    text: str
    model: str | None
    reasoning_content: str | None
    reasoning_tokens: int | None
    input_tokens: int | None
    output_tokens: int | None
    input_cost_usd: float | None
    output_cost_usd: float | None
    total_cost_usd: float | None
    duration_ms: int | None
    status: StatusCode | None
    content_refs: list[str]


class AgentChatToolCall(ResponseModel):
    """A tool that ran, or that a model asked for."""

    tool_name: str | None
    tool_arguments: str | None
    tool_result: str | None
    duration_ms: int | None
    status: StatusCode | None
    content_refs: list[str]


class AgentChatAgentStart(ResponseModel):
    """An agent that begins."""

    model: str | None
    system_instructions: str | None
    tool_definitions: str | None
    status: StatusCode | None


class AgentChatContextCompacted(ResponseModel):
    """A context that was made shorter."""

    compaction_summary: str | None
    compaction_items_before: int | None
    compaction_items_after: int | None


class AgentChatAgentHandoff(ResponseModel):
    """One agent hands over to another; no exporter tells of it yet."""


class AgentChatMessage(ResponseModel):
    """One event of a chat view: the payload named by `type` is set, the others are null."""

    type: Literal["user_message", "assistant_message", "tool_call", "agent_handoff", "agent_start", "context_compacted"]
    span_id: str | None
    agent_name: str | None
    agent_version: str | None
    status_code: StatusCode | None
    status_message: str | None
    error_type: str | None
    started_at: datetime | None
    user_message: AgentChatUserMessage | None
    assistant_message: AgentChatAssistantMessage | None
    tool_call: AgentChatToolCall | None
    agent_start: AgentChatAgentStart | None
    agent_handoff: AgentChatAgentHandoff | None
    context_compacted: AgentChatContextCompacted | None
    feedback: list[dict[str, Any]] | None


class AgentTraceChatRes(ResponseModel):
    """The chat view of one trace."""

    trace_id: str
    root_span_name: str | None = None
    agent_name: str | None = None
    agent_version: str | None = None
    status_code: StatusCode | None = None
    provider: str | None = None
    wb_user_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    total_duration_ms: int | None = None
    total_input_tokens: int
    total_output_tokens: int
    total_reasoning_tokens: int
    total_cache_creation_input_tokens: int
    total_cache_read_input_tokens: int
    total_cost_usd: float | None = None
    feedback: list[dict[str, Any]] | None = None
    messages: list[AgentChatMessage]


class AgentConversationChatRes(ResponseModel):
    """The chat views of a page of turns, oldest first."""

    conversation_id: str
    total_turns: int
    has_more: bool
    limit: int
    offset: int
    total_cost_usd: float | None = None
    feedback: list[dict[str, Any]] | None = None
    turns: list[AgentTraceChatRes]


class AgentConversationSpan(ResponseModel):
    """One span of a conversation."""

    operation_name: str
    trace_id: str
    span_id: str
    status: StatusCode
    duration_ms: int


class AgentConversationSpanRating(ResponseModel):
    """One rating of a turn or a conversation."""

    name: str
    value: float
    reason: str | None = None
    confidence: float | None = None


class AgentConversationSpanFeedback(ResponseModel):
    """Tags and ratings of a turn (`trace_id`) or, without one, of the conversation."""

    trace_id: str | None
    feedback_type: Literal["wandb.agent_user_feedback", "wandb.agent_monitor"]
    tags: list[str] = Field(default_factory=list)
    ratings: list[AgentConversationSpanRating] = Field(default_factory=list)


class AgentConversationSpans(ResponseModel):
    """The spans of one conversation and what was said about it."""

    conversation_id: str
    spans: list[AgentConversationSpan]
    spans_feedback: list[AgentConversationSpanFeedback]


class AgentConversationSpansRes(ResponseModel):
    """One entry per asked conversation, in order."""

    conversations: list[AgentConversationSpans]
