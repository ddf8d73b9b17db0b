"""Google's frameworks and agents: the Agent Development Kit, Genkit, and Gemini CLI."""

from heddle.trace.otel.conventions.convention import (
    PARAMETERS,
    Convention,
    fill_from,
    offer,
    offer_details,
    offer_name,
    to_count,
    to_json_text,
    to_text,
)
from heddle.trace.otel.span import OtelSpan
from heddle.wire.conversation.messages import read_request
from heddle.wire.conversation.parts import (
    as_object,
    as_text,
    call_part,
    objects,
    part_of,
    parts_of,
    reasoning_part,
    result_part,
)
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


def _derive_adk(span: OtelSpan, into: AgentSpan) -> None:
    """Model, settings and tokens out of the bodies where no attribute tells them."""
    values = span.attributes
    if "gen_ai.operation.name" not in values:
        is_tool = _ARGUMENTS in values or _RESULT in values
        offer(into, "operation_name", "execute_tool" if is_tool else "chat" if _REQUEST in values else None)
    if "gen_ai.usage.input_tokens" not in values and values.get(_RESPONSE):
        usage = as_object(as_object(values[_RESPONSE]).get("usage_metadata"))
        fill_from(_TOKENS, usage, into)
        said = to_count(usage.get("candidates_token_count"))
        offer(into, "output_tokens", said + (into.reasoning_tokens or 0) if said is not None else None)
    if "gen_ai.request.model" not in values and values.get(_REQUEST):
        body = as_object(values[_REQUEST])
        offer(into, "request_model", to_text(body.get("model")))
        fill_from(PARAMETERS, as_object(body.get("config")), into)


def _messages_adk(span: OtelSpan, into: AgentSpan) -> None:
    """Contents of the request and of the answer."""
    body = as_object(span.attributes.get(_REQUEST))
    config = as_object(body.get("config"))
    if system := config.get("system_instruction"):
        inner = system.get("parts", []) if isinstance(system, dict) else [{"text": system}]
        offer(into, "system_instructions", [as_text(part.get("text", part)) for part in objects(inner)])
    offer(into, "tool_definitions", to_json_text(config.get("tools") or None))
    offer(into, "input_messages", [_content(one) for one in objects(body.get("contents"))])
    answer = as_object(span.attributes.get(_RESPONSE)).get("content")
    offer(into, "output_messages", [_content(answer)] if isinstance(answer, dict) else None)


def _content(content: Json) -> Json:
    parts = parts_of(objects(content.get("parts")))
    role = "assistant" if content.get("role") == "model" else str(content.get("role") or "user")
    answers = bool(parts) and all(part.get("type") == "tool_call_response" for part in parts)
    return {"role": "tool" if answers else role, "parts": parts}


ADK = Convention(
    "google_adk",
    {"conversation_id": (_BASE + "session_id",)},
    more=(_REQUEST, _RESPONSE),
    tool=(_ARGUMENTS, _RESULT),
    derive=_derive_adk,
    messages=_messages_adk,
)
"""Google's Agent Development Kit: `gcp.vertex.agent.*`, requests and answers of Gemini's API as JSON text.

Tokens: `usage_metadata.prompt_token_count` counts cached tokens inside; `candidates_token_count` has the thoughts
beside, so they are added to the output.
"""


_GIVEN, _CAME, _TYPE, _KIND, _NAME = (
    f"genkit:{name}" for name in ("input", "output", "type", "metadata:subtype", "name")
)
_ACTIONS = {
    **dict.fromkeys(("model", "background-model"), "chat"),
    **dict.fromkeys(("flow", "prompt", "executable-prompt"), "invoke_workflow"),
    "agent": "invoke_agent",
    "embedder": "embeddings",
    "evaluator": "evaluator",
    "reranker": "rerank",
    "retriever": "retrieval",
    "tool": "execute_tool",
}
_CONFIG = {
    "request_temperature": ("temperature",),
    "request_max_tokens": ("maxOutputTokens",),
    "request_top_p": ("topP",),
    "request_stop_sequences": ("stopSequences",),
}
_USAGE = {
    "input_tokens": ("inputTokens",),
    "output_tokens": ("outputTokens",),
    "cache_read_input_tokens": ("cachedContentTokens",),
    "reasoning_tokens": ("thoughtsTokens",),
}


def _derive_genkit(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, names, settings, and the tokens of a request to a model."""
    values = span.attributes
    name = to_text(values.get(_NAME)) or span.name
    if values.get(_TYPE) == "util" and name == "generate":
        offer(into, "operation_name", "agent_step")
    offer(into, "operation_name", _ACTIONS.get(str(values.get(_KIND))))
    offer_name(into, name)
    if into.operation_name not in ("chat", "embeddings"):
        return
    provider, _, model = name.partition("/")
    offer(into, "provider_name", provider if model else None)
    offer(into, "request_model", model or name)
    answer = as_object(values.get(_CAME))
    usage, raw = as_object(answer.get("usage")), as_object(answer.get("raw"))
    offer(into, "response_model", to_text(raw.get("model", raw.get("modelVersion"))))
    offer(into, "finish_reasons", [reason] if (reason := to_text(answer.get("finishReason"))) else None)
    fill_from(_CONFIG, as_object(as_object(values.get(_GIVEN)).get("config")), into)
    fill_from(_USAGE, usage, into)
    summed = sum(getattr(into, field) or 0 for field in ("input_tokens", "output_tokens", "reasoning_tokens"))
    if into.output_tokens is not None and usage.get("totalTokens") == summed:
        into.output_tokens += into.reasoning_tokens or 0
    # The body of OpenAI has what Genkit's own usage leaves out.
    offer_details(into, as_object(raw.get("usage")))


def _messages_genkit(span: OtelSpan, into: AgentSpan) -> None:
    """What models, and the loop around them, were asked, offered and answered."""
    if into.operation_name not in ("chat", "agent_step"):
        return
    asked, answered = (as_object(span.attributes.get(name)) for name in (_GIVEN, _CAME))
    offer(into, "input_messages", [_genkit_message(one) for one in objects(asked.get("messages"))])
    offer(into, "tool_definitions", to_json_text(objects(asked.get("tools")) or None))
    if isinstance(said := answered.get("message"), dict):
        offer(into, "output_messages", [_genkit_message(said)])


def _genkit_message(message: Json) -> Json:
    role = str(message.get("role") or "user")
    parts = [_genkit_part(part) for part in objects(message.get("content"))]
    return {"role": "assistant" if role == "model" else role, "parts": parts}


def _genkit_part(part: Json) -> Json:
    call, came = part.get("toolRequest"), part.get("toolResponse")
    if isinstance(call, dict):
        return call_part(call.get("ref"), call.get("name"), call.get("input"))
    if isinstance(came, dict):
        return result_part(came.get("ref"), came.get("output"))
    if isinstance(thought := part.get("reasoning"), str):
        return reasoning_part(thought)
    if isinstance(media := part.get("media"), dict):
        return {"type": "image_url", "image_url": {"url": str(media.get("url", ""))}}
    return part_of(part)


GENKIT = Convention(
    "genkit",
    {"conversation_id": ("genkit:metadata:agent:sessionId",)},
    more=(_TYPE, _KIND, _NAME, "genkit:key", "genkit:path", "genkit:isRoot", "genkit:state"),
    tool=(_GIVEN, _CAME),
    derive=_derive_genkit,
    messages=_messages_genkit,
)
"""Genkit: `genkit:*`, inputs and outputs of every action as JSON text.

`generate` is the loop around a request to a model and its tools; it repeats the messages and the usage of its requests.

Tokens: on requests alone, `usage.inputTokens` with cached tokens inside. Gemini's thoughts stand beside the output and
are added where the total says so.
"""


_CLI_ASKED, _CLI_ANSWERED, _CLI_REQUEST = "gen_ai.input.messages", "gen_ai.output.messages", "gemini_cli.api_request"
_CLI_OPERATIONS = {
    "llm_call": "chat",
    "tool_call": "execute_tool",
    "agent_call": "invoke_agent",
    "user_prompt": "invoke_workflow",
    "system_prompt": "invoke_workflow",
    "schedule_tool_calls": "agent_step",
}


def _derive_gemini_cli(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, by the name that it has there."""
    offer(into, "operation_name", _CLI_OPERATIONS.get(str(span.attributes.get("gen_ai.operation.name"))))


def _messages_gemini_cli(span: OtelSpan, into: AgentSpan) -> None:
    """What a tool was given and gave; what a model was asked, where only an event tells it."""
    given, came = (as_object(span.attributes.get(name)) for name in (_CLI_ASKED, _CLI_ANSWERED))
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_arguments", to_json_text(given.get("args")))
        parts = objects(as_object(came.get("response")).get("responseParts"))
        responses = [as_object(part.get("functionResponse")).get("response") for part in parts]
        offer(into, "tool_call_result", to_json_text(responses[0] if len(responses) == 1 else responses or None))
    elif into.operation_name == "chat" and _CLI_ASKED not in span.attributes:
        asked = (event.attributes.get("request_text") for event in span.events if event.name == _CLI_REQUEST)
        offer(into, "input_messages", read_request(next(asked, None)))


GEMINI_CLI = Convention(
    "gemini_cli",
    {},
    scopes=("gemini-cli",),
    derive=_derive_gemini_cli,
    messages=_messages_gemini_cli,
)
"""Gemini CLI: GenAI names with operations of its own; messages are contents of Gemini's API, as JSON text.

Tokens: on the spans of requests where its setting `traces` is on, else on log records of their own; of the answer
without thoughts, and cached tokens are not told.
"""
