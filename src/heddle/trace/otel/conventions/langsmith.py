"""LangSmith, and LangChain by way of it."""

from heddle.trace.otel.conventions.convention import OPERATIONS, Convention, offer, to_count
from heddle.trace.otel.span import OtelSpan
from heddle.wire.conversation.values import as_object
from heddle.wire.spans import AgentSpan

_KIND, _METADATA = "langsmith.span.kind", "langsmith.metadata."
_AGENT, _USAGE = _METADATA + "lc_agent_name", _METADATA + "usage_metadata"
_SESSIONS = ("session_id", "thread_id", "conversation_id")


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The operation by the kind, cached and reasoning tokens; the outermost step of an agent has the agent's name."""
    values = span.attributes
    if values.get(_AGENT) == span.name and values.get(_KIND) == "chain":
        offer(into, "operation_name", "invoke_agent")
        offer(into, "agent_name", span.name)
    offer(into, "operation_name", OPERATIONS.get(str(values.get(_KIND))))
    if into.operation_name == "execute_tool":
        offer(into, "tool_name", span.name)
    usage = as_object(values.get(_USAGE))
    given, came = as_object(usage.get("input_token_details")), as_object(usage.get("output_token_details"))
    offer(into, "cache_read_input_tokens", to_count(given.get("cache_read")))
    offer(into, "cache_creation_input_tokens", to_count(given.get("cache_creation")))
    offer(into, "reasoning_tokens", to_count(came.get("reasoning")))


LANGSMITH = Convention(
    "langsmith",
    {"conversation_id": tuple(_METADATA + name for name in _SESSIONS)},
    more=(_KIND, _AGENT, _USAGE, "langsmith.span.tags", "langsmith.trace.name", "langsmith.trace.session_name"),
    marks=frozenset({_KIND}),
    context={
        "user": (_METADATA + "user_id", _METADATA + "userId"),
        "tags": ("langsmith.span.tags",),
        "metadata": (_METADATA,),
    },
    tool=("gen_ai.prompt", "gen_ai.completion"),
    derive=_derive,
)
"""The langsmith SDK over OpenTelemetry: `langsmith.*` beside a few GenAI names.

`gen_ai.prompt` and `gen_ai.completion` are the inputs and outputs of a run as JSON text, those of LangChain's models
with its own messages and generations. `gen_ai.operation.name` is the kind of the run, not an operation.

Tokens: `usage_metadata` counts cached tokens inside.
"""
