"""Google's Agent Development Kit: `gcp.vertex.agent.*`, requests and answers of Gemini's API as JSON text.

Tokens: `usage_metadata.prompt_token_count` counts cached tokens inside; `candidates_token_count` has the thoughts
beside, so they are added to the output.
"""

from typing import Any

from heddle.trace.otel.conventions.parts import call_part, reasoning_part, result_part, text_part
from heddle.trace.otel.conventions.values import (
    Scalar,
    as_object,
    as_text,
    count,
    fill,
    number,
    objects,
    offer,
    text,
    told,
    whole,
)
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_BASE = "gcp.vertex.agent."
_REQUEST, _RESPONSE = _BASE + "llm_request", _BASE + "llm_response"
_ARGUMENTS, _RESULT = _BASE + "tool_call_args", _BASE + "tool_response"
SCALARS = (Scalar(_BASE + "session_id", "conversation_id", text),)
_SETTINGS = (
    Scalar("temperature", "request_temperature", number),
    Scalar("top_p", "request_top_p", number),
    Scalar("max_output_tokens", "request_max_tokens", count),
    Scalar("seed", "request_seed", whole),
)
_TOKENS = (
    Scalar("prompt_token_count", "input_tokens", count),
    Scalar("cached_content_token_count", "cache_read_input_tokens", count),
    Scalar("thoughts_token_count", "reasoning_tokens", count),
)


class GoogleADK:
    """Attributes that begin with `gcp.vertex.agent.`."""

    name = "google_adk"
    keys = frozenset({_REQUEST, _RESPONSE, _ARGUMENTS, _RESULT, *(row.key for row in SCALARS)})
    prefixes: tuple[str, ...] = ()
    shared: frozenset[str] = frozenset()

    def recognises(self, span: OtelSpan) -> bool:
        """True with any of the attributes."""
        return not self.keys.isdisjoint(span.attributes)

    def describe(self, span: OtelSpan, into: AgentSpan) -> None:
        """The session; model, settings and tokens out of the bodies where no attribute tells them."""
        values = span.attributes
        fill(SCALARS, values, into)
        if "gen_ai.operation.name" not in values:
            offer(into, "operation_name", _operation(values))
        if "gen_ai.usage.input_tokens" not in values and values.get(_RESPONSE):
            usage = as_object(as_object(values[_RESPONSE]).get("usage_metadata"))
            fill(_TOKENS, usage, into)
            said = count(usage.get("candidates_token_count"))
            offer(into, "output_tokens", said + (into.reasoning_tokens or 0) if said is not None else None)
        if "gen_ai.request.model" not in values and values.get(_REQUEST):
            body = as_object(values[_REQUEST])
            offer(into, "request_model", text(body.get("model")))
            fill(_SETTINGS, as_object(body.get("config")), into)

    def messages(self, span: OtelSpan, into: AgentSpan) -> None:
        """Contents of the request and of the answer; a tool's arguments and result."""
        values = span.attributes
        if into.operation_name == "execute_tool":
            for key, field in ((_ARGUMENTS, "tool_call_arguments"), (_RESULT, "tool_call_result")):
                offer(into, field, told(values.get(key)))
            return
        body = as_object(values.get(_REQUEST))
        config = as_object(body.get("config"))
        if system := config.get("system_instruction"):
            inner = system.get("parts", []) if isinstance(system, dict) else [{"text": system}]
            offer(into, "system_instructions", [as_text(part.get("text", part)) for part in objects(inner)])
        offer(into, "tool_definitions", told(config.get("tools") or None))
        offer(into, "input_messages", [_content(one) for one in objects(body.get("contents"))])
        answer = as_object(values.get(_RESPONSE)).get("content")
        offer(into, "output_messages", [_content(answer)] if isinstance(answer, dict) else None)


def _operation(values: Json) -> str | None:
    if _ARGUMENTS in values or _RESULT in values:
        return "execute_tool"
    return "chat" if _REQUEST in values else None


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
