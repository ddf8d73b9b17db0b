"""The OpenTelemetry GenAI semantic conventions, old and new shapes.

Old: `gen_ai.system`, `gen_ai.prompt` and `gen_ai.completion` as one JSON text, `gen_ai.usage.prompt_tokens`, messages
as span events (`gen_ai.user.message`, `gen_ai.choice`, `gen_ai.content.prompt`). New: `gen_ai.provider.name`,
`gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions` as attributes (JSON text or
structured) or on the event `gen_ai.client.inference.operation.details`.

Tokens: `gen_ai.usage.input_tokens` counts cached tokens inside, by the conventions and by what the OpenTelemetry, the
Anthropic and the OpenLLMetry libraries send. `gen_ai.aggregated_usage.*` of pydantic-ai's agent spans is the sum of the
spans below it and is therefore not counted again: it stays a custom attribute.
"""

from collections.abc import Iterable
from typing import Any

from heddle.trace.otel.conventions.convention import Convention, Fields, as_text, branch, fill_from, offer, parsed, told
from heddle.trace.otel.conventions.messages import message, messages_of
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

FIELDS: Fields = {
    "operation_name": ("gen_ai.operation.name",),
    "provider_name": ("gen_ai.provider.name", "gen_ai.system"),
    "agent_name": ("gen_ai.agent.name",),
    "agent_id": ("gen_ai.agent.id",),
    "agent_description": ("gen_ai.agent.description",),
    "agent_version": ("gen_ai.agent.version",),
    "conversation_id": ("gen_ai.conversation.id",),
    "conversation_name": ("gen_ai.conversation.name",),
    "request_model": ("gen_ai.request.model",),
    "response_model": ("gen_ai.response.model",),
    "response_id": ("gen_ai.response.id",),
    "finish_reasons": ("gen_ai.response.finish_reasons",),
    "output_type": ("gen_ai.output.type",),
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "reasoning_tokens": (
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning_tokens",
        "gen_ai.usage.output_tokens.reasoning",
        "gen_ai.usage.details.reasoning_tokens",
    ),
    "cache_read_input_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_tokens.cached",
        "gen_ai.usage.details.cache_read_tokens",
        "gen_ai.usage.details.cache_read_input_tokens",
        "gen_ai.usage.details.cached_tokens",
    ),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "gen_ai.usage.details.cache_creation_input_tokens",
        "gen_ai.usage.details.cache_write_tokens",
    ),
    "tool_name": ("gen_ai.tool.name",),
    "tool_type": ("gen_ai.tool.type",),
    "tool_call_id": ("gen_ai.tool.call.id",),
    "tool_description": ("gen_ai.tool.description",),
    "request_temperature": ("gen_ai.request.temperature",),
    "request_max_tokens": ("gen_ai.request.max_tokens",),
    "request_top_p": ("gen_ai.request.top_p",),
    "request_frequency_penalty": ("gen_ai.request.frequency_penalty",),
    "request_presence_penalty": ("gen_ai.request.presence_penalty",),
    "request_seed": ("gen_ai.request.seed", "gen_ai.openai.request.seed"),
    "request_stop_sequences": ("gen_ai.request.stop_sequences",),
    "request_choice_count": ("gen_ai.request.choice.count",),
    "server_address": ("server.address",),
    "server_port": ("server.port",),
}
OPERATIONS = frozenset(
    {
        "chat",
        "create_agent",
        "embeddings",
        "execute_tool",
        "generate_content",
        "invoke_agent",
        "invoke_workflow",
        "retrieval",
        "text_completion",
    }
)
INPUT, OUTPUT, SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
TOOLS, ARGUMENTS, RESULT = "gen_ai.tool.definitions", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
DETAILS = "gen_ai.client.inference.operation.details"
MESSAGES = (INPUT, OUTPUT, SYSTEM, TOOLS, ARGUMENTS, RESULT, "gen_ai.prompt", "gen_ai.completion")
_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "assistant",
    "gen_ai.content.prompt": "user",
    "gen_ai.content.completion": "assistant",
    DETAILS: "",
}


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    for event in span.events:
        if event.name == DETAILS:
            fill_from(FIELDS, event.attributes, into)
        elif event.name in _EVENTS and into.operation_name is None:
            into.operation_name = "chat"
    if into.operation_name is None:
        into.operation_name = _operation(span, into)


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Messages of the attributes, else of the span's events."""
    read_attributes(span.attributes, into)
    for event in span.events:
        if event.name == DETAILS:
            read_attributes(event.attributes, into)
    if span.events:
        found = ({"event.name": event.name, **event.attributes} for event in span.events if event.name in _EVENTS)
        read_events(found, into)
        if into.operation_name == "execute_tool":
            _tool_of_events(into)


def _operation(span: OtelSpan, into: AgentSpan) -> str | None:
    """What a span of the first years does, which does not say it: by its name, by what it is about."""
    first = span.name.split(" ", 1)[0]
    if first in OPERATIONS:
        return first
    if into.tool_name is not None:
        return "execute_tool"
    return "chat" if into.request_model is not None or into.response_model is not None else None


def read_attributes(values: Json, into: AgentSpan) -> None:
    """Set messages, tools, arguments and results from the attributes of a span or of an event."""
    asked = values.get(INPUT, values.get("gen_ai.prompt"))
    answered = values.get(OUTPUT, values.get("gen_ai.completion"))
    if asked is not None:
        offer(into, "input_messages", messages_of(asked, "user"))
    if answered is not None:
        offer(into, "output_messages", messages_of(answered, "assistant"))
    offer(into, "system_instructions", instructions(values.get(SYSTEM)))
    for key, field in ((TOOLS, "tool_definitions"), (ARGUMENTS, "tool_call_arguments"), (RESULT, "tool_call_result")):
        if (value := values.get(key, branch(values, key + ".") if field != "tool_definitions" else None)) is not None:
            offer(into, field, told(value))


def instructions(value: Any) -> list[str]:
    """System instructions as texts: out of parts, of a text or of their JSON."""
    value = parsed(value)
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        value = [value]
    found = []
    for part in value:
        content = part.get("content", part.get("text", part)) if isinstance(part, dict) else part
        found.append(as_text(content))
    return found


def read_events(events: Iterable[Json], into: AgentSpan) -> None:
    """Messages out of event records, each with `event.name`; what a choice holds is an answer, all else was asked."""
    asked: list[Json] = []
    answered: list[Json] = []
    for event in events:
        name = str(event.get("event.name", ""))
        role = _EVENTS.get(name)
        if not role:
            continue
        if name == "gen_ai.content.prompt":
            asked += messages_of(event.get("gen_ai.prompt"), role)
        elif name == "gen_ai.content.completion":
            answered += messages_of(event.get("gen_ai.completion"), role)
        elif name == "gen_ai.choice":
            answered.append(_choice(event))
        else:
            asked.append(message({**event, "content": _content(event)}, role))
    offer(into, "input_messages", asked)
    offer(into, "output_messages", answered)


def _tool_of_events(into: AgentSpan) -> None:
    """What a tool was given and gave, where only the messages of its span tell (Strands)."""
    for field, messages in (("tool_call_arguments", into.input_messages), ("tool_call_result", into.output_messages)):
        parts = [part for one in messages for part in one["parts"]]
        if parts:
            held = (parts[0][key] for key in ("arguments", "response", "content") if key in parts[0])
            offer(into, field, told(next(held, None)))


def _choice(event: Json) -> Json:
    inner = parsed(event.get("message", branch(event, "message.")))
    if not isinstance(inner, dict):
        inner = {"content": inner if inner is not None else _content(event)}
    tools = {"tool_calls": event["tool_calls"]} if "tool_calls" in event else {}
    reason = {"finish_reason": event["finish_reason"]} if "finish_reason" in event else {}
    return message({**tools, **inner, **reason}, "assistant")


def _content(event: Json) -> Any:
    content = event.get("content")
    return content if content is not None else branch(event, "content.")


CONVENTION = Convention(
    "genai",
    FIELDS,
    more=MESSAGES,
    shared=frozenset({"server.address", "server.port"}),
    events=frozenset(_EVENTS),
    derive=_derive,
    messages=_messages,
)
