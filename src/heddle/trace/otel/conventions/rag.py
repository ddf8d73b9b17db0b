"""Frameworks for retrieval-augmented generation: Haystack, and LlamaIndex."""

from typing import Any

from heddle.trace.otel.conventions.convention import (
    Convention,
    fill_from,
    object_below,
    offer,
    offer_details,
    to_json_text,
    to_text,
)
from heddle.trace.otel.span import OtelSpan
from heddle.wire.conversation.messages import messages_of, text_message
from heddle.wire.conversation.parts import (
    as_list,
    as_object,
    as_text,
    call_part,
    first_of,
    objects,
    parse_json,
    part_of,
    reasoning_part,
    result_part,
)
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_HAYSTACK, _COMPONENT = "haystack.", "haystack.component.type"
_HAYSTACK_SPANS = {
    "haystack.pipeline.run": "invoke_workflow",
    "haystack.async_pipeline.run": "invoke_workflow",
    "haystack.agent.run": "invoke_agent",
    "haystack.agent.step": "agent_step",
    "haystack.agent.step.llm": "chat",
    "haystack.agent.step.tool": "execute_tool",
}
_COMPONENTS = {"Generator": "chat", "Embedder": "embeddings", "Retriever": "retrieval", "Ranker": "rerank"}
"""The ends of the names of classes."""
_HAYSTACK_STEPS = tuple(
    (f"{_HAYSTACK}{name}.input", f"{_HAYSTACK}{name}.output") for name in ("agent.step.llm", "agent", "component")
)
_HAYSTACK_TOOL = ("haystack.agent.step.tool.input", "haystack.agent.step.tool.output")
_OPENAI_USAGE = {"input_tokens": ("prompt_tokens",), "output_tokens": ("completion_tokens",)}


def _derive_haystack(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, and what the answer of a model says of its model and tokens."""
    kind = str(span.attributes.get(_COMPONENT, ""))
    found = (operation for end, operation in _COMPONENTS.items() if kind.endswith(end))
    offer(into, "operation_name", _HAYSTACK_SPANS.get(span.name) or next(found, None))
    if into.operation_name not in ("chat", "embeddings"):
        return
    _, answer = _haystack_values(span)
    replies = objects(answer.get("replies")) or [answer]
    meta = replies[0].get("meta")
    about = as_object(meta[0] if isinstance(meta, list) and meta else meta)
    offer(into, "response_model", to_text(about.get("model")))
    offer(into, "finish_reasons", [reason] if (reason := to_text(about.get("finish_reason"))) else None)
    usage = as_object(about.get("usage"))
    fill_from(_OPENAI_USAGE, usage, into)
    offer_details(into, usage)


def _messages_haystack(span: OtelSpan, into: AgentSpan) -> None:
    """What models and agents were asked, offered and answered."""
    if into.operation_name not in ("chat", "invoke_agent"):
        return
    asked, answer = _haystack_values(span)
    given, came = asked.get("messages", asked.get("prompt")), answer.get("replies", answer.get("last_message"))
    offer(into, "input_messages", _haystack_messages(given, "user"))
    offer(into, "output_messages", _haystack_messages(came, "assistant"))
    offer(
        into, "tool_definitions", to_json_text([tool.get("data", tool) for tool in objects(asked.get("tools"))] or None)
    )


def _haystack_values(span: OtelSpan) -> tuple[Json, Json]:
    given, came = (first_of(span.attributes, [pair[end] for pair in _HAYSTACK_STEPS]) for end in (0, 1))
    return as_object(given), as_object(came)


def _haystack_messages(value: Any, role: str) -> list[Json]:
    found = []
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str):
            found.append(text_message(role, one))
        elif isinstance(one, dict):
            parts = [_haystack_part(part) for part in objects(one.get("content"))]
            found.append({"role": str(one.get("role") or role), "parts": parts})
    return found


def _haystack_part(part: Json) -> Json:
    call, came, thought = (as_object(part.get(name)) for name in ("tool_call", "tool_call_result", "reasoning"))
    if call:
        return call_part(call.get("id"), call.get("tool_name"), call.get("arguments"))
    if came:
        return result_part(as_object(came.get("origin")).get("id"), came.get("result"))
    if thought:
        return reasoning_part(as_text(thought.get("reasoning_text")))
    return part_of(part)


HAYSTACK = Convention(
    "haystack",
    {"tool_name": ("haystack.tool.name",), "tool_description": ("haystack.tool.description",)},
    more=(_COMPONENT, "haystack.agent.max_steps", "haystack.agent.step"),
    context={"display_name": ("haystack.component.name",)},
    tool=_HAYSTACK_TOOL,
    steps=(("haystack.pipeline.input_data", "haystack.pipeline.output_data"), *_HAYSTACK_STEPS),
    derive=_derive_haystack,
    messages=_messages_haystack,
)
"""Haystack's own spans: `haystack.*`, inputs and outputs as JSON text where `HAYSTACK_CONTENT_TRACING_ENABLED` is set.

Tokens: the usage of the provider in the metadata of a model's replies, cached tokens inside.
"""


_LLAMA_ASKED, _LLAMA_ANSWERED = "LLMChatStartEvent", "LLMChatEndEvent"


def _derive_llama_index(span: OtelSpan, into: AgentSpan) -> None:
    """A request to a model, by its events."""
    told = {event.name: event.attributes for event in span.events}
    if _LLAMA_ASKED not in told:
        return
    offer(into, "operation_name", "chat")
    settings = object_below(told[_LLAMA_ASKED], "model_dict")
    offer(into, "request_model", to_text(settings.get("model_name", settings.get("model"))))
    answer = object_below(told.get(_LLAMA_ANSWERED, {}), "response")
    raw = as_object(answer.get("raw"))
    usage = as_object(raw.get("usage"))
    offer(into, "response_model", to_text(raw.get("model")))
    fill_from(_OPENAI_USAGE, usage, into)
    fill_from(_OPENAI_USAGE, as_object(answer.get("additional_kwargs")), into)
    offer_details(into, usage)


def _messages_llama_index(span: OtelSpan, into: AgentSpan) -> None:
    """What a model was asked, offered and answered."""
    for event in span.events:
        if event.name == _LLAMA_ASKED:
            given = objects(as_list(event.attributes.get("messages")))
            offer(into, "input_messages", [one for told in given for one in _llama_index_messages(told)])
            offered = as_list(object_below(event.attributes, "additional_kwargs").get("tools"))
            offer(into, "tool_definitions", to_json_text(offered or None))
        elif event.name == _LLAMA_ANSWERED:
            said = as_object(object_below(event.attributes, "response").get("message"))
            offer(into, "output_messages", messages_of(_parsed(said), "assistant"))


def _parsed(said: Json) -> Json:
    return {name: parse_json(value) for name, value in said.items()}


def _llama_index_messages(told: Json) -> list[Json]:
    if told.get("role") != "tool":
        return messages_of(told, "user")
    texts = [as_text(block.get("text", block)) for block in objects(told.get("blocks"))]
    call_id = as_object(told.get("additional_kwargs")).get("tool_call_id")
    return [{"role": "tool", "parts": [result_part(call_id, "\n".join(texts))]}]


LLAMA_INDEX = Convention(
    "llama_index",
    {},
    events=frozenset((_LLAMA_ASKED, _LLAMA_ANSWERED)),
    derive=_derive_llama_index,
    messages=_messages_llama_index,
)
"""LlamaIndex's own spans: requests to models as two events; its steps have Python objects as cut texts.

Tokens: the usage of the provider in the answer, cached tokens inside.
"""
