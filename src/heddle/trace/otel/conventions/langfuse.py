"""The langfuse SDK: `langfuse.observation.*`.

Tokens: `usage_details` is one count per kind, each priced by itself, so `input` has cached tokens beside: all counts
whose names begin with `input` are added up for the input, likewise for the output.
"""

from heddle.trace.otel.conventions.convention import (
    PARAMETERS,
    Convention,
    as_object,
    count,
    fill_from,
    offer,
    offer_name,
)
from heddle.trace.otel.conventions.messages import answered, asked
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

OPERATIONS = {
    "generation": "chat",
    "embedding": "embeddings",
    "tool": "execute_tool",
    "agent": "invoke_agent",
    "retriever": "retrieval",
    "chain": "invoke_workflow",
    "guardrail": "guardrail",
    "evaluator": "evaluator",
}
_BASE = "langfuse.observation."
_TYPE, _INPUT, _OUTPUT = _BASE + "type", _BASE + "input", _BASE + "output"
_MODEL, _SETTINGS, _USAGE = _BASE + "model.name", _BASE + "model.parameters", _BASE + "usage_details"
_DETAILS = {
    "cache_read_input_tokens": ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens"),
    "cache_creation_input_tokens": ("input_cache_creation", "cache_creation_input_tokens"),
    "reasoning_tokens": ("output_reasoning_tokens", "output_reasoning"),
}


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The observation's type, settings and tokens; its name is the tool's or the agent's."""
    values = span.attributes
    offer(into, "operation_name", OPERATIONS.get(str(values.get(_TYPE))))
    fill_from(PARAMETERS, as_object(values.get(_SETTINGS)), into)
    _tokens(as_object(values.get(_USAGE)), into)
    offer_name(into, span.name)


def _tokens(usage: Json, into: AgentSpan) -> None:
    counts = {key: found for key, value in usage.items() if (found := count(value)) is not None}
    if not counts:
        return
    given = [number for key, number in counts.items() if key.startswith(("input", "prompt_tokens", "cache"))]
    came = [number for key, number in counts.items() if key.startswith(("output", "completion_tokens"))]
    offer(into, "input_tokens", sum(given) if given else None)
    offer(into, "output_tokens", sum(came) if came else None)
    fill_from(_DETAILS, counts, into)


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Input and output as messages."""
    given, came = span.attributes.get(_INPUT), span.attributes.get(_OUTPUT)
    offer(into, "input_messages", asked(given) if given else None)
    offer(into, "output_messages", answered(came) if came else None)


CONVENTION = Convention(
    "langfuse",
    {"conversation_id": ("langfuse.session.id",), "request_model": (_MODEL,)},
    more=(_TYPE, _SETTINGS, _USAGE),
    shared=frozenset({"session.id"}),
    tool=(_INPUT, _OUTPUT),
    derive=_derive,
    messages=_messages,
)
