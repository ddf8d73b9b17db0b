"""Spans named by the OpenTelemetry GenAI semantic conventions, and what weave and OpenLLMetry write besides."""

from collections.abc import Iterable
from typing import Any

from heddle.trace.otel.conventions.convention import (
    OPERATIONS,
    Convention,
    Fields,
    fill_from,
    nest_attributes,
    offer,
    offer_name,
    to_json_text,
    to_text,
)
from heddle.trace.otel.span import OtelSpan
from heddle.wire.conversation.messages import join_calls, message, messages_of, read_answer, read_request, text_message
from heddle.wire.conversation.parts import arguments_of, as_object, as_text, objects, parse_json
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
        "gen_ai.usage.thinking_tokens",
    ),
    "cache_read_input_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_tokens.cached",
        "gen_ai.usage.cached_tokens",
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
    "tool_call_id": ("gen_ai.tool.call.id", "gen_ai.tool.call_id"),
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
_GENAI_OPERATIONS = frozenset(
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
_OTHER_NAMES = {
    **dict.fromkeys(("embed", "embedding", "aembedding"), "embeddings"),
    **dict.fromkeys(
        ("acompletion", "responses", "aresponses", "anthropic_messages", "aanthropic_messages"),
        "chat",
    ),
    **dict.fromkeys(("agenerate_content", "generate_content_stream", "agenerate_content_stream"), "generate_content"),
    "atext_completion": "text_completion",
}
"""What Langtrace and LiteLLM, which names its own functions, call requests to models."""
_KNOWN = _GENAI_OPERATIONS | _OTHER_NAMES.keys()
_OF_A_REQUEST = ("gen_ai.content.prompt", "gen_ai.content.completion")
_COPIED = ({"gen_ai.request.model"}, {"gen_ai.request.model", "gen_ai.conversation.id"})
"""What proxies copy to each span of a request, also to those that ask no model."""
INPUT, OUTPUT, SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
OFFERED = "gen_ai.request.tools"
TOOLS, ARGUMENTS, RESULT = "gen_ai.tool.definitions", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
DETAILS = "gen_ai.client.inference.operation.details"
MESSAGES = (INPUT, OUTPUT, SYSTEM, TOOLS, OFFERED, ARGUMENTS, RESULT, "gen_ai.prompt", "gen_ai.completion")
EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "assistant",
    "gen_ai.content.prompt": "user",
    "gen_ai.content.completion": "assistant",
    DETAILS: "",
}
"""Events of which messages are read, and whose; those with details name roles themselves."""
_USAGE = "gen_ai.usage"
"""The event in which Ax has tokens."""

_PROXIED = "metadata.user_api_key_hash"


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    for event in span.events:
        if event.name in (DETAILS, _USAGE):
            fill_from(FIELDS, event.attributes, into)
        elif event.name in EVENTS and into.operation_name is None:
            into.operation_name = "chat" if into.tool_name is None else "execute_tool"
        elif event.name in _OF_A_REQUEST and into.operation_name not in _KNOWN:
            # NeMo Guardrails names the task that asks.
            into.operation_name = "chat"
    if into.operation_name is None:
        into.operation_name = _operation(span, into)
    else:
        into.operation_name = _OTHER_NAMES.get(into.operation_name, into.operation_name)
    if _PROXIED in span.attributes and into.request_model:
        # The proxy of LiteLLM answers in the name by which it was asked, which has no price.
        into.response_model = into.request_model


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Messages of the attributes, else of the span's events."""
    read_attributes(span.attributes, into)
    for event in span.events:
        if event.name == DETAILS:
            read_attributes(event.attributes, into)
    if span.events:
        found = ({"event.name": event.name, **event.attributes} for event in span.events if event.name in EVENTS)
        read_events(found, into)
        if into.operation_name == "execute_tool":
            _tool_of_events(into)


def _operation(span: OtelSpan, into: AgentSpan) -> str | None:
    """What a span of the first years does, which does not say it: by its name, by what it is about."""
    first = span.name.split(" ", 1)[0]
    if first in _GENAI_OPERATIONS:
        return first
    if into.tool_name is not None:
        return "execute_tool"
    if into.request_model is None and into.response_model is None:
        return None
    return None if GENAI.keys.intersection(span.attributes) in _COPIED else "chat"


def read_attributes(values: Json, into: AgentSpan) -> None:
    """Set messages, tools, arguments and results from the attributes of a span or of an event."""
    asked = values.get(INPUT, values.get("gen_ai.prompt"))
    answered = values.get(OUTPUT, values.get("gen_ai.completion"))
    if asked is not None:
        offer(into, "input_messages", read_request(asked))
    if answered is not None:
        offer(into, "output_messages", read_answer(answered))
    offer(into, "system_instructions", instructions(values.get(SYSTEM)))
    offer(into, "tool_definitions", to_json_text(values.get(TOOLS, values.get(OFFERED))))
    for key, field in ((ARGUMENTS, "tool_call_arguments"), (RESULT, "tool_call_result")):
        offer(into, field, to_json_text(values.get(key, nest_attributes(values, key + "."))))


def instructions(value: Any) -> list[str]:
    """System instructions as texts: out of parts, of a text or of their JSON."""
    value = parse_json(value)
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
        role = EVENTS.get(name)
        if not role:
            continue
        if name == "gen_ai.content.prompt":
            asked += messages_of(event.get("gen_ai.prompt", event.get("content")), role)
        elif name == "gen_ai.content.completion":
            answered += messages_of(event.get("gen_ai.completion", event.get("content")), role)
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
            offer(into, field, to_json_text(next(held, None)))


def _choice(event: Json) -> Json:
    inner = parse_json(event.get("message", nest_attributes(event, "message.")))
    if not isinstance(inner, dict):
        inner = {"content": inner if inner is not None else _content(event)}
    tools = {"tool_calls": event["tool_calls"]} if "tool_calls" in event else {}
    reason = {"finish_reason": event["finish_reason"]} if "finish_reason" in event else {}
    return message({**tools, **inner, **reason}, "assistant")


def _content(event: Json) -> Any:
    content = event.get("content")
    return content if content is not None else nest_attributes(event, "content.")


GENAI = Convention(
    "genai",
    FIELDS,
    more=MESSAGES,
    shared=frozenset({"server.address", "server.port"}),
    events=frozenset(EVENTS),
    context={"user": ("litellm.metadata.user_api_key_end_user_id",)},
    derive=_derive,
    messages=_messages,
)
"""The OpenTelemetry GenAI semantic conventions, old and new shapes.

Old: `gen_ai.system`, `gen_ai.prompt` and `gen_ai.completion` as one JSON text, `gen_ai.usage.prompt_tokens`, messages
as span events (`gen_ai.user.message`, `gen_ai.choice`, `gen_ai.content.prompt`). New: `gen_ai.provider.name`,
`gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions` as attributes (JSON text or
structured) or on the event `gen_ai.client.inference.operation.details`.

Tokens: `gen_ai.usage.input_tokens` counts cached tokens inside, by the conventions and by what the OpenTelemetry, the
Anthropic and the OpenLLMetry libraries send. `gen_ai.aggregated_usage.*` of pydantic-ai's agent spans is the sum of the
spans below it and is therefore not counted again: it stays a custom attribute.
"""


_ALIASES = {
    field: tuple(
        "weave." + name.removeprefix("gen_ai.")
        for name in names
        if name.startswith("gen_ai.") and ".details." not in name
    )
    for field, names in FIELDS.items()
}
_WEAVE_MESSAGES = {"weave." + key.removeprefix("gen_ai."): key for key in MESSAGES}
_WEAVE_FIELDS: Fields = {
    **_ALIASES,
    "eval_run_id": ("weave.eval.run_id",),
    "eval_predict_and_score_call_id": ("weave.eval.predict_and_score_call_id",),
    "eval_kind": ("weave.eval.kind",),
    "eval_row_digest": ("weave.eval.row_digest",),
    "eval_example_id": ("weave.eval.example_id",),
    "eval_trial_index": ("weave.eval.trial_index",),
    "eval_evaluation_name": ("weave.eval.evaluation_name",),
    "compaction_summary": ("weave.compaction.summary",),
    "compaction_items_before": ("weave.compaction.items_before",),
    "compaction_items_after": ("weave.compaction.items_after",),
    "content_refs": ("weave.content_refs",),
    "artifact_refs": ("weave.artifact_refs",),
    "object_refs": ("weave.object_refs",),
    "error_type": ("weave.error.type",),
    "server_address": ("weave.server.address",),
    "server_port": ("weave.server.port",),
}


def _messages_of_weave(span: OtelSpan, into: AgentSpan) -> None:
    """Messages and tools under their weave names."""
    offer(into, "reasoning_content", to_text(span.attributes.get("weave.reasoning_content")))
    found = {_WEAVE_MESSAGES[key]: value for key, value in span.attributes.items() if key in _WEAVE_MESSAGES}
    if found:
        read_attributes(found, into)


WEAVE = Convention(
    "weave", _WEAVE_FIELDS, more=(*_WEAVE_MESSAGES, "weave.reasoning_content"), messages=_messages_of_weave
)
"""What the weave SDK's own tracers write besides the GenAI conventions: `weave.*`.

Evaluation context (`weave.eval.*`), references to stored content, compaction of a conversation's history, and every
GenAI name also with `weave.` in the place of `gen_ai.`. `weave.parent_call.*`, which names the call that a span belongs
below, is left among the custom attributes: the index of spans finds it there.

Tokens: as the GenAI conventions have them.
"""


_TYPES = {"completion": "text_completion", "embedding": "embeddings"}
_PROPERTIES = "traceloop.association.properties."
_FIRST_ROLE = "gen_ai.prompt.0.role"
_FUNCTIONS = ("llm.request.functions.", "gen_ai.request.functions.")
_INPUT, _OUTPUT = "traceloop.entity.input", "traceloop.entity.output"
_TOOL, _ARGUMENTS = "tool.name", "tool.arguments"


def _derive_openllmetry(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, the entity's name, the provider as the conventions spell it."""
    values = span.attributes
    offer(into, "operation_name", _operation_of_openllmetry(values))
    system = values.get("gen_ai.system")
    if isinstance(system, str) and system != system.lower():
        offer(into, "provider_name", system.lower())
    offer_name(into, to_text(values.get(_TOOL, values.get("traceloop.entity.name"))))


def _messages_of_openllmetry(span: OtelSpan, into: AgentSpan) -> None:
    """Numbered messages and functions, and what went into an entity and came out."""
    values = span.attributes
    offer(into, "input_messages", _numbered(values, "gen_ai.prompt.", "user"))
    offer(into, "output_messages", join_calls(_numbered(values, "gen_ai.completion.", "assistant")))
    for prefix in _FUNCTIONS:
        if tools := objects(nest_attributes(values, prefix)):
            offer(into, "tool_definitions", as_text([{key: parse_json(one[key]) for key in one} for one in tools]))
    given, came = values.get(_INPUT), values.get(_OUTPUT)
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_arguments", to_json_text(_bare(given if given is not None else values.get(_ARGUMENTS))))
        offer(into, "tool_call_result", to_json_text(_bare(came)))
        return
    # LlamaIndex's models have messages beside the step that they are.
    if given and INPUT not in values and arguments_of(parse_json(given)) != {}:
        offer(into, "input_messages", [text_message("user", _said(given))])
    if came and OUTPUT not in values:
        offer(into, "output_messages", [text_message("assistant", _said(came))])


def _numbered(attributes: Json, prefix: str, role: str) -> list[Json]:
    """Messages that stand at numbered keys below a prefix, such as `gen_ai.prompt.0.content`."""
    return [message(one, role) for one in objects(nest_attributes(attributes, prefix))]


def _said(value: Any) -> Any:
    """What an agent was given or gave: a text out of its JSON text or out of a single argument, else as it came."""
    told = arguments_of(parse_json(value))
    return told if isinstance(told, str) else value


def _bare(value: Any) -> Any:
    """What a tool was given or gave: without the record that decorators and LangChain's callbacks keep it in."""
    record = as_object(value)
    if "kwargs" in record and "args" in record:
        return arguments_of(record)
    if "input_str" in record:
        given = record.get("inputs")
        return record["input_str"] if given is None else given
    if record.keys() != {"output", "kwargs"}:
        return value
    came = record["output"]
    # A message of LangChain, as its own serialisation writes it.
    return came["kwargs"].get("content") if isinstance(came, dict) and isinstance(came.get("kwargs"), dict) else came


def _operation_of_openllmetry(values: Json) -> str | None:
    asked_for = to_text(values.get("llm.request.type"))
    if asked_for is None:
        # The step of LlamaIndex that calls a tool is a task as all of its steps.
        kind = "tool" if _TOOL in values else str(values.get("traceloop.span.kind"))
        return "chat" if _FIRST_ROLE in values else OPERATIONS.get(kind)
    # Anthropic's chats are called completions.
    return "chat" if _FIRST_ROLE in values and asked_for == "completion" else _TYPES.get(asked_for, asked_for)


OPENLLMETRY = Convention(
    "openllmetry",
    {
        "conversation_id": (
            *(_PROPERTIES + name for name in ("session_id", "thread_id", "conversation_id")),
            *("respan.threads.thread_identifier", "respan.sessions.session_identifier"),
        ),
        "finish_reasons": ("gen_ai.completion.0.finish_reason",),
    },
    more=(
        "traceloop.span.kind",
        "traceloop.entity.name",
        "llm.request.type",
        "gen_ai.prompt.0.content",
        "gen_ai.completion.0.content",
        "gen_ai.completion.0.role",
        _FIRST_ROLE,
        _INPUT,
        _OUTPUT,
        "llm.usage.total_tokens",
        "gen_ai.usage.total_tokens",
    ),
    prefixes=("gen_ai.prompt.", "gen_ai.completion.", *_FUNCTIONS),
    context={
        "user": (
            *(_PROPERTIES + name for name in ("user_id", "userId", "user")),
            *("gen_ai.user", "llm.user", "respan.customer_params.customer_identifier"),
        ),
        "metadata": (_PROPERTIES, "respan.metadata."),
    },
    derive=_derive_openllmetry,
    messages=_messages_of_openllmetry,
)
"""OpenLLMetry (Traceloop): workflows and tasks, and the shape its model instrumentations had until 2025. Respan's SDK
is built on it, and names threads and customers itself.

Its newer model spans follow the GenAI conventions. The older ones number their messages (`gen_ai.prompt.0.content`,
`gen_ai.completion.0.tool_calls.0.name`), tell the operation by `llm.request.type` and the tools by
`llm.request.functions.N`. `traceloop.span.kind`, `traceloop.entity.*` and `traceloop.association.properties.*` are
written by its decorators.

Tokens: inside, also for Anthropic, whose three counts the library adds up.
"""
