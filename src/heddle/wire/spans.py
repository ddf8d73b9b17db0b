"""A span of an agent or a model, with what the conventions of its exporter say in one form.

Names and types are those of the agents reads (`AgentSpanSchema`); the OpenTelemetry GenAI semantic conventions name
most of them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from heddle.wire.jsontypes import Json

MODEL_OPERATIONS = ("chat", "text_completion", "generate_content", "embeddings")
"""Operations that use tokens themselves; others repeat what the spans below them used. Of two spans with such
operations one directly within the other the outer counts: a library and what it is built on both report one request."""

INPUTS = (
    "ai.prompt",
    "gen_ai.prompt",
    "input.value",
    "mlflow.spanInputs",
    "gen_ai.input.messages",
    "pydantic_ai.all_messages",
    "traceloop.entity.input",
    "gcp.vertex.agent.tool_call_args",
    "gcp.vertex.agent.llm_request",
    "input",
    "inputs",
)
"""Attributes that hold what a span was given; the first with a value counts."""
OUTPUT = (
    "ai.response",
    "gen_ai.completion",
    "output.value",
    "gen_ai.output.messages",
    "mlflow.spanOutputs",
    "final_result",
    "gen_ai.content.completion",
    "traceloop.entity.output",
    "gcp.vertex.agent.tool_response",
    "gcp.vertex.agent.llm_response",
    "output",
    "outputs",
)
"""Those of what it gave."""
SHARED_ATTRIBUTES = (*INPUTS, *OUTPUT)
"""What a call may hold as its inputs or output, so that its span need not. Names may be added, never taken away."""


@dataclass(slots=True)
class AgentSpan:
    """One span as the agents reads show it. Instants are microseconds, ids lower-case hex, the project internal.

    Messages are in the form of the GenAI conventions: `{"role", "parts": [{"type": "text", "content"} |
    {"type": "tool_call", "id", "name", "arguments"} | {"type": "tool_call_response", "id", "response"} |
    {"type": "reasoning", "content"} ...], "finish_reason"?}`, whatever convention they came in.
    """

    project: str
    trace_id: str
    span_id: str
    started_at: int
    ended_at: int
    parent_span_id: str | None = None
    span_name: str = ""
    span_kind: str = "UNSPECIFIED"
    status_code: str = "UNSET"
    status_message: str | None = None
    operation_name: str | None = None
    """chat, text_completion, embeddings, execute_tool, invoke_agent, create_agent, invoke_workflow, ..."""
    provider_name: str | None = None
    agent_name: str | None = None
    agent_id: str | None = None
    agent_description: str | None = None
    agent_version: str | None = None
    eval_run_id: str | None = None
    eval_predict_and_score_call_id: str | None = None
    eval_kind: str | None = None
    eval_row_digest: str | None = None
    eval_example_id: str | None = None
    eval_trial_index: int | None = None
    eval_evaluation_name: str | None = None
    request_model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    reasoning_content: str | None = None
    conversation_id: str | None = None
    conversation_name: str | None = None
    tool_name: str | None = None
    tool_type: str | None = None
    tool_call_id: str | None = None
    tool_description: str | None = None
    tool_definitions: str | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error_type: str | None = None
    request_temperature: float | None = None
    request_max_tokens: int | None = None
    request_top_p: float | None = None
    request_frequency_penalty: float | None = None
    request_presence_penalty: float | None = None
    request_seed: int | None = None
    request_stop_sequences: list[str] = field(default_factory=list)
    request_choice_count: int | None = None
    output_type: str | None = None
    input_messages: list[Json] = field(default_factory=list)
    output_messages: list[Json] = field(default_factory=list)
    system_instructions: list[str] = field(default_factory=list)
    tool_call_arguments: str | None = None
    tool_call_result: str | None = None
    compaction_summary: str | None = None
    compaction_items_before: int | None = None
    compaction_items_after: int | None = None
    content_refs: list[str] = field(default_factory=list)
    artifact_refs: list[str] = field(default_factory=list)
    object_refs: list[str] = field(default_factory=list)
    custom_attrs_string: dict[str, str] = field(default_factory=dict)
    custom_attrs_int: dict[str, int] = field(default_factory=dict)
    custom_attrs_float: dict[str, float] = field(default_factory=dict)
    custom_attrs_bool: dict[str, bool] = field(default_factory=dict)
    server_address: str | None = None
    server_port: int | None = None
    wb_user_id: str | None = None
    wb_run_id: str | None = None
    wb_run_step: int | None = None
    wb_run_step_end: int | None = None
    raw_span_dump: str | None = None


class SpanReader(Protocol):
    """Reads the agent span, messages included, out of a call's parsed `otel_dump`; the project is internal."""

    def __call__(self, project: str, stored: Json, /) -> AgentSpan:
        """The agent span of any span."""


class StoredRecord(NamedTuple):
    """What a log record (or the span itself) says of a span or a session.

    `owner` is the trace, or the session, that it belongs to; `span_id` the span within the trace, empty for sessions.
    `id` tells the records of one owner apart; `at` is in nanoseconds, `content` JSON text.
    """

    project: str
    owner: str
    span_id: str
    id: str
    at: int
    user: str
    content: str
