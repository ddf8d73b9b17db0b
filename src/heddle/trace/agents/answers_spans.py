"""Spans and groups of spans as answers show them, declared for the OpenAPI description."""

from datetime import datetime
from typing import Literal

from heddle.http import ResponseModel

StatusCode = Literal["UNSET", "OK", "ERROR"]
SpanKind = Literal["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
CustomSource = Literal["custom_attrs_string", "custom_attrs_int", "custom_attrs_float", "custom_attrs_bool"]
CustomType = Literal["string", "int", "float", "bool"]


class NormalizedMessage(ResponseModel):
    """One message; content is text, or the parts of the message as JSON text."""

    role: str
    content: str
    finish_reason: str


class AgentSpanSchema(ResponseModel):
    """One span; texts that it does not say are empty, numbers null."""

    project_id: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    span_name: str | None
    span_kind: SpanKind | None
    started_at: datetime | None
    ended_at: datetime | None
    status_code: StatusCode | None
    status_message: str | None
    operation_name: str | None
    provider_name: str | None
    agent_name: str | None
    agent_id: str | None
    agent_description: str | None
    agent_version: str | None
    eval_run_id: str | None
    eval_predict_and_score_call_id: str | None
    eval_kind: str | None
    eval_row_digest: str | None
    eval_example_id: str | None
    eval_trial_index: int | None
    eval_evaluation_name: str | None
    request_model: str | None
    response_model: str | None
    response_id: str | None
    input_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cache_creation_input_tokens: int | None
    cache_read_input_tokens: int | None
    input_cost_usd: float | None
    output_cost_usd: float | None
    cache_read_cost_usd: float | None
    cache_creation_cost_usd: float | None
    total_cost_usd: float | None
    reasoning_content: str | None
    conversation_id: str | None
    conversation_name: str | None
    tool_name: str | None
    tool_type: str | None
    tool_call_id: str | None
    tool_description: str | None
    tool_definitions: str | None
    finish_reasons: list[str]
    error_type: str | None
    request_temperature: float | None
    request_max_tokens: int | None
    request_top_p: float | None
    request_frequency_penalty: float | None
    request_presence_penalty: float | None
    request_seed: int | None
    request_stop_sequences: list[str]
    request_choice_count: int | None
    output_type: str | None
    input_messages: list[NormalizedMessage]
    output_messages: list[NormalizedMessage]
    system_instructions: list[str]
    tool_call_arguments: str | None
    tool_call_result: str | None
    compaction_summary: str | None
    compaction_items_before: int | None
    compaction_items_after: int | None
    content_refs: list[str]
    artifact_refs: list[str]
    object_refs: list[str]
    custom_attrs_string: dict[str, str]
    custom_attrs_int: dict[str, int]
    custom_attrs_float: dict[str, float]
    custom_attrs_bool: dict[str, bool]
    server_address: str | None
    server_port: int | None
    wb_user_id: str | None
    wb_run_id: str | None
    wb_run_step: int | None
    wb_run_step_end: int | None
    raw_span_dump: str | None


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
