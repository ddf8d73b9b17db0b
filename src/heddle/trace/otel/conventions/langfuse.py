"""The langfuse SDK: `langfuse.observation.*`.

Tokens: `usage_details` is one count per kind, each priced by itself, so `input` has cached tokens beside: all counts
whose names begin with `input` are added up for the input, likewise for the output.
"""

from heddle.trace.otel.conventions.bodies import answered, asked
from heddle.trace.otel.conventions.openinference import PARAMETERS
from heddle.trace.otel.conventions.values import as_object, count, fill, offer, text, told
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
_SESSION = "langfuse.session.id"


class Langfuse:
    """Attributes that begin with `langfuse.observation.`."""

    name = "langfuse"
    keys = frozenset({_TYPE, _INPUT, _OUTPUT, _MODEL, _SETTINGS, _USAGE, _SESSION})
    prefixes: tuple[str, ...] = ()
    shared = frozenset({"session.id"})

    def recognises(self, span: OtelSpan) -> bool:
        """True with any of the attributes."""
        return not self.keys.isdisjoint(span.attributes)

    def describe(self, span: OtelSpan, into: AgentSpan) -> None:
        """The observation's type, model, settings and tokens."""
        values = span.attributes
        offer(into, "operation_name", OPERATIONS.get(str(values.get(_TYPE))))
        offer(into, "conversation_id", text(values.get(_SESSION)))
        offer(into, "request_model", text(values.get(_MODEL)))
        fill(PARAMETERS, as_object(values.get(_SETTINGS)), into)
        _tokens(as_object(values.get(_USAGE)), into)
        if into.operation_name == "execute_tool":
            offer(into, "tool_name", span.name)
        elif into.operation_name == "invoke_agent":
            offer(into, "agent_name", span.name)

    def messages(self, span: OtelSpan, into: AgentSpan) -> None:
        """Input and output as messages, or as a tool's arguments and result."""
        given, came = span.attributes.get(_INPUT), span.attributes.get(_OUTPUT)
        if into.operation_name == "execute_tool":
            offer(into, "tool_call_arguments", told(given))
            offer(into, "tool_call_result", told(came))
        else:
            offer(into, "input_messages", asked(given) if given else None)
            offer(into, "output_messages", answered(came) if came else None)


def _tokens(usage: Json, into: AgentSpan) -> None:
    counts = {key: found for key, value in usage.items() if (found := count(value)) is not None}
    if not counts:
        return
    given = [number for key, number in counts.items() if key.startswith(("input", "prompt_tokens", "cache"))]
    came = [number for key, number in counts.items() if key.startswith(("output", "completion_tokens"))]
    offer(into, "input_tokens", sum(given) if given else None)
    offer(into, "output_tokens", sum(came) if came else None)
    for name, field in (
        ("input_cached_tokens", "cache_read_input_tokens"),
        ("input_cache_read", "cache_read_input_tokens"),
        ("cache_read_input_tokens", "cache_read_input_tokens"),
        ("input_cache_creation", "cache_creation_input_tokens"),
        ("cache_creation_input_tokens", "cache_creation_input_tokens"),
        ("output_reasoning_tokens", "reasoning_tokens"),
        ("output_reasoning", "reasoning_tokens"),
    ):
        offer(into, field, counts.get(name))
