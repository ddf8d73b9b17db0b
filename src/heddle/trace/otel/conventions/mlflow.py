"""MLflow tracing: `mlflow.*`, every value as JSON text, whole request and answer bodies.

Tokens: `mlflow.chat.tokenUsage` counts cached tokens inside; MLflow adds up Anthropic's itself.
"""

from heddle.trace.otel.conventions.bodies import answered, asked
from heddle.trace.otel.conventions.openinference import PARAMETERS
from heddle.trace.otel.conventions.values import Scalar, as_object, count, fill, objects, offer, parsed, text, told
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

OPERATIONS = {
    "CHAT_MODEL": "chat",
    "LLM": "chat",
    "AGENT": "invoke_agent",
    "TOOL": "execute_tool",
    "EMBEDDING": "embeddings",
    "RETRIEVER": "retrieval",
    "RERANKER": "rerank",
    "CHAIN": "invoke_workflow",
    "WORKFLOW": "invoke_workflow",
}
_TYPE, _INPUT, _OUTPUT = "mlflow.spanType", "mlflow.spanInputs", "mlflow.spanOutputs"
_USAGE, _MODEL, _PROVIDER = "mlflow.chat.tokenUsage", "mlflow.llm.model", "mlflow.llm.provider"
_TOOLS, _SESSION = "mlflow.chat.tools", "mlflow.trace.session"
_TOKENS = tuple(
    Scalar(field, field, count)
    for field in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
)


class MLflow:
    """Attributes that begin with `mlflow.`."""

    name = "mlflow"
    keys = frozenset({_TYPE, _INPUT, _OUTPUT, _USAGE, _MODEL, _PROVIDER, _TOOLS, _SESSION, "mlflow.traceRequestId"})
    prefixes: tuple[str, ...] = ()
    shared: frozenset[str] = frozenset()

    def recognises(self, span: OtelSpan) -> bool:
        """True with any of the attributes."""
        return not self.keys.isdisjoint(span.attributes)

    def describe(self, span: OtelSpan, into: AgentSpan) -> None:
        """The span's type, model and tokens; parameters out of a model's request."""
        values = span.attributes
        offer(into, "operation_name", OPERATIONS.get(str(parsed(values.get(_TYPE)))))
        offer(into, "provider_name", text(parsed(values.get(_PROVIDER))))
        offer(into, "conversation_id", text(parsed(values.get(_SESSION))))
        fill(_TOKENS, as_object(values.get(_USAGE)), into)
        offer(into, "response_model", text(parsed(values.get(_MODEL))))
        if into.operation_name in ("chat", "embeddings"):
            body = as_object(values.get(_INPUT))
            fill(PARAMETERS, body, into)
            offer(into, "request_model", text(body.get("model")) or into.response_model)
            _answer(as_object(values.get(_OUTPUT)), into)
        elif into.operation_name == "execute_tool":
            offer(into, "tool_name", span.name)
        elif into.operation_name == "invoke_agent":
            offer(into, "agent_name", span.name)

    def messages(self, span: OtelSpan, into: AgentSpan) -> None:
        """Messages out of the bodies, or a tool's arguments and result."""
        values = span.attributes
        given, came = values.get(_INPUT), values.get(_OUTPUT)
        offer(into, "tool_definitions", told(values.get(_TOOLS)))
        if into.operation_name == "execute_tool":
            offer(into, "tool_call_arguments", told(given))
            offer(into, "tool_call_result", told(came))
        else:
            offer(into, "input_messages", asked(given) if given else None)
            offer(into, "output_messages", answered(came) if came and into.operation_name != "embeddings" else None)


def _answer(body: Json, into: AgentSpan) -> None:
    """What only the answer's body tells: its id, why it ended, reasoning tokens."""
    offer(into, "response_id", text(body.get("id")))
    reasons = [text(one.get("finish_reason")) for one in objects(body.get("choices"))]
    offer(into, "finish_reasons", [reason for reason in reasons if reason])
    usage = as_object(body.get("usage"))
    for details in ("completion_tokens_details", "output_tokens_details"):
        offer(into, "reasoning_tokens", count(as_object(usage.get(details)).get("reasoning_tokens")))
