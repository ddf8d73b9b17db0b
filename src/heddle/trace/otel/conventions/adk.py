"""Google's Agent Development Kit: `gcp.vertex.agent.*`, requests and answers of Gemini's API as JSON text.

Tokens: `usage_metadata.prompt_token_count` counts cached tokens inside; `candidates_token_count` has the thoughts
beside, so they are added to the output.
"""

from typing import Any

from heddle.trace.otel.conventions.convention import (
    PARAMETERS,
    Convention,
    as_object,
    as_text,
    count,
    fill_from,
    objects,
    offer,
    text,
    told,
)
from heddle.trace.otel.conventions.messages import call_part, reasoning_part, result_part, text_part
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_BASE = "gcp.vertex.agent."
_REQUEST, _RESPONSE = _BASE + "llm_request", _BASE + "llm_response"
_ARGUMENTS, _RESULT = _BASE + "tool_call_args", _BASE + "tool_response"
_TOKENS = {
    "input_tokens": ("prompt_token_count",),
    "cache_read_input_tokens": ("cached_content_token_count",),
    "reasoning_tokens": ("thoughts_token_count",),
}


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """Model, settings and tokens out of the bodies where no attribute tells them."""
    values = span.attributes
    if "gen_ai.operation.name" not in values:
        is_tool = _ARGUMENTS in values or _RESULT in values
        offer(into, "operation_name", "execute_tool" if is_tool else "chat" if _REQUEST in values else None)
    if "gen_ai.usage.input_tokens" not in values and values.get(_RESPONSE):
        usage = as_object(as_object(values[_RESPONSE]).get("usage_metadata"))
        fill_from(_TOKENS, usage, into)
        said = count(usage.get("candidates_token_count"))
        offer(into, "output_tokens", said + (into.reasoning_tokens or 0) if said is not None else None)
    if "gen_ai.request.model" not in values and values.get(_REQUEST):
        body = as_object(values[_REQUEST])
        offer(into, "request_model", text(body.get("model")))
        fill_from(PARAMETERS, as_object(body.get("config")), into)


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Contents of the request and of the answer."""
    body = as_object(span.attributes.get(_REQUEST))
    config = as_object(body.get("config"))
    if system := config.get("system_instruction"):
        inner = system.get("parts", []) if isinstance(system, dict) else [{"text": system}]
        offer(into, "system_instructions", [as_text(part.get("text", part)) for part in objects(inner)])
    offer(into, "tool_definitions", told(config.get("tools") or None))
    offer(into, "input_messages", [_content(one) for one in objects(body.get("contents"))])
    answer = as_object(span.attributes.get(_RESPONSE)).get("content")
    offer(into, "output_messages", [_content(answer)] if isinstance(answer, dict) else None)


def _content(content: Json) -> Json:
    parts = [_part(part) for part in objects(content.get("parts"))]
    role = "assistant" if content.get("role") == "model" else str(content.get("role") or "user")
    answers = bool(parts) and all(part.get("type") == "tool_call_response" for part in parts)
    return {"role": "tool" if answers else role, "parts": parts}


def _part(part: Json) -> Json:
    call, came = part.get("function_call"), part.get("function_response")
    if isinstance(call, dict):
        return call_part(call.get("id"), call.get("name"), call.get("args"))
    if isinstance(came, dict):
        return result_part(came.get("id"), came.get("response"))
    said: Any = part.get("text")
    if isinstance(said, str):
        return reasoning_part(said) if part.get("thought") else text_part(said)
    return part


CONVENTION = Convention(
    "google_adk",
    {"conversation_id": (_BASE + "session_id",)},
    more=(_REQUEST, _RESPONSE),
    tool=(_ARGUMENTS, _RESULT),
    derive=_derive,
    messages=_messages,
)
