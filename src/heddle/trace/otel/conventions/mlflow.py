"""MLflow tracing: `mlflow.*`, every value as JSON text, whole request and answer bodies.

Tokens: `mlflow.chat.tokenUsage` counts cached tokens inside; MLflow adds up Anthropic's itself.
"""

from heddle.trace.otel.conventions.convention import (
    PARAMETERS,
    Convention,
    as_object,
    count,
    fill_from,
    objects,
    offer,
    offer_name,
    parsed,
    text,
    told,
)
from heddle.trace.otel.conventions.messages import answered, asked
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
_TOKENS = {
    field: (field,)
    for field in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
}


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type, model and tokens; parameters out of a model's request."""
    values = span.attributes
    offer(into, "operation_name", OPERATIONS.get(str(parsed(values.get(_TYPE)))))
    for field, key in (("provider_name", _PROVIDER), ("conversation_id", _SESSION), ("response_model", _MODEL)):
        offer(into, field, text(parsed(values.get(key))))
    fill_from(_TOKENS, as_object(values.get(_USAGE)), into)
    if into.operation_name in ("chat", "embeddings"):
        body = as_object(values.get(_INPUT))
        fill_from(PARAMETERS, body, into)
        offer(into, "request_model", text(body.get("model")) or into.response_model)
        _answer(as_object(values.get(_OUTPUT)), into)
    offer_name(into, span.name)


def _answer(body: Json, into: AgentSpan) -> None:
    """What only the answer's body tells: its id, why it ended, reasoning tokens."""
    offer(into, "response_id", text(body.get("id")))
    reasons = [text(one.get("finish_reason")) for one in objects(body.get("choices"))]
    offer(into, "finish_reasons", [reason for reason in reasons if reason])
    usage = as_object(body.get("usage"))
    for details in ("completion_tokens_details", "output_tokens_details"):
        offer(into, "reasoning_tokens", count(as_object(usage.get(details)).get("reasoning_tokens")))


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Messages out of the bodies."""
    given, came = span.attributes.get(_INPUT), span.attributes.get(_OUTPUT)
    offer(into, "tool_definitions", told(span.attributes.get(_TOOLS)))
    offer(into, "input_messages", asked(given) if given else None)
    offer(into, "output_messages", answered(came) if came and into.operation_name != "embeddings" else None)


CONVENTION = Convention(
    "mlflow",
    {},
    more=(_TYPE, _USAGE, _MODEL, _PROVIDER, _TOOLS, _SESSION, "mlflow.traceRequestId"),
    tool=(_INPUT, _OUTPUT),
    derive=_derive,
    messages=_messages,
)
