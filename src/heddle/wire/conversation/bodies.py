"""Requests to models and their answers: bodies of any provider, and the results of libraries around them."""

from typing import Any

from heddle.wire.conversation.messages import (
    flatten_batches,
    is_message,
    join_calls,
    message,
    messages_of,
    text_message,
)
from heddle.wire.conversation.parts import (
    as_list,
    as_object,
    as_text,
    call_part,
    first_of,
    objects,
    parse_json,
    parts_of,
    reasoning_part,
    text_part,
)
from heddle.wire.jsontypes import Json

SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction")
_GIVEN = ("messages", "contents", "input", "prompt")
_MAX_LEVELS = 4


def read_request(body: Any) -> list[Json]:
    """The messages of a request: chat completions, Responses, Anthropic's, Gemini's; else the body as a user's text."""
    body = parse_json(body)
    if not isinstance(body, dict):
        return messages_of(body, "user")
    given = first_of(body, _GIVEN)
    if given is None:
        return messages_of(body, "user") if "role" in body else [text_message("user", body)] if body else []
    return system_of(body) + messages_of(given, "user")


def is_serialised_request(body: Any) -> bool:
    """True for messages as LangChain serialises its objects, or as Python writes those of LlamaIndex."""
    body = parse_json(body)
    listed = flatten_batches(body.get("messages") if isinstance(body, dict) else body)
    return isinstance(listed, list) and any(_is_serialised(item) for item in listed)


def _is_serialised(item: Any) -> bool:
    return "lc" in item if isinstance(item, dict) else isinstance(item, str) and item.startswith("ChatMessage(role=")


def system_of(body: Json) -> list[Json]:
    """What a request says beside its messages, as a system message; empty without any."""
    value = next((body[name] for name in SYSTEM if body.get(name)), None)
    if value is None:
        value = first_of(as_object(body.get("config")), ("system_instruction", "systemInstruction"))
    if value is None or value == "":
        return []
    content = value.get("parts", value) if isinstance(value, dict) else value
    return [message({"role": "system", "content": content})]


def read_answer(body: Any) -> list[Json]:
    """The messages of an answer of any provider or library; else the body as the assistant's text."""
    found = read_choices(body)
    if found is not None:
        return [one for choice in found for one in choice]
    body = parse_json(body)
    if not isinstance(body, dict) or isinstance(body.get("content"), (str, list)):
        return messages_of(body, "assistant")
    return [text_message("assistant", as_text(body))] if body else []


def read_choices(body: Any, levels: int = _MAX_LEVELS) -> list[list[Json]] | None:
    """The alternatives of an answer, each a list of messages; None for what is no answer of a known form."""
    body = flatten_batches(parse_json(body))
    if isinstance(body, list) and any(is_message(item) for item in body):
        return [join_calls(messages_of(body, "assistant"))]
    if isinstance(body, list) and body and all(isinstance(item, dict) and "update" in item for item in body):
        body = body[-1]  # what a step of LangGraph changes
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("choices"), list):
        return [[_chosen(one)] for one in objects(body["choices"])]
    if isinstance(body.get("candidates"), list):
        return [[_candidate(one)] for one in objects(body["candidates"])]
    if isinstance(body.get("generations"), list):
        return [[_generated(one)] for one in objects(flatten_batches(body["generations"]))]
    if isinstance(body.get("output"), list) and any(is_message(item) for item in body["output"]):
        return [join_calls(messages_of(body["output"], "assistant"))]
    if isinstance(body.get("messages"), list) and any(is_message(item) for item in flatten_batches(body["messages"])):
        told = messages_of(body["messages"], "assistant")
        # CrewAI tells the answer of a task beside the messages that led to it.
        beside = body.get("raw") if told[-1]["role"] == "user" else None
        return [[*told, text_message("assistant", beside)] if isinstance(beside, str) and beside else told]
    if "role" in body or body.get("type") == "message" or is_message(body):
        reason = body.get("finish_reason") or body.get("stop_reason")
        return [[message({**body, "finish_reason": reason} if reason else body, "assistant")]]
    if isinstance(inner := as_object(body.get("output")).get("message"), dict):
        # Amazon's Converse API.
        return [[message({**inner, "finish_reason": body.get("stopReason")}, "assistant")]]
    if (result := read_result(body)) is not None:
        return [[result]]
    for name in ("outputs", "output", "message", "update"):
        if levels and isinstance(body.get(name), (dict, list)):
            found = read_choices(body[name], levels - 1)
            if found is not None:
                return found
    return None


def read_result(body: Json) -> Json | None:
    """The answer that the Vercel AI SDK reports: text, thoughts, tool calls or an object; None for anything else."""
    calls = objects(as_list(first_of(body, ("toolCalls",))))
    made = body.get("object")
    said, thought = body.get("text"), first_of(body, ("reasoning", "reasoningText"))
    if not (calls or "finishReason" in body or "toolCalls" in body):
        return None
    parts = [reasoning_part(thought)] if isinstance(thought, str) and thought else []
    parts += parts_of(thought) if isinstance(thought, list) else []
    parts += [text_part(said)] if isinstance(said, str) and said else []
    parts += [text_part(as_text(made))] if made is not None and not isinstance(made, bool) else []
    for call in calls:
        parts.append(call_part(call.get("toolCallId"), call.get("toolName"), first_of(call, ("input", "args"))))
    found: Json = {"role": "assistant", "parts": parts}
    reason = body.get("finishReason")
    return {**found, "finish_reason": reason} if isinstance(reason, str) and reason else found


def _chosen(choice: Json) -> Json:
    inner = choice.get("message", choice.get("delta"))
    if not isinstance(inner, dict):
        inner = {"content": choice.get("text", "")}
    return message({**inner, "finish_reason": choice.get("finish_reason")}, "assistant")


def _candidate(candidate: Json) -> Json:
    content = candidate.get("content")
    reason = first_of(candidate, ("finish_reason", "finishReason"))
    inner = content if isinstance(content, dict) else {"content": content}
    return message({**inner, "finish_reason": reason}, "assistant")


def _generated(generation: Json) -> Json:
    """A generation of LangChain: the message, where it was a chat, else its text."""
    inner = generation.get("message")
    found = message(inner if isinstance(inner, dict) else {"content": generation.get("text", "")}, "assistant")
    reason = as_object(generation.get("generation_info")).get("finish_reason")
    return {**found, "finish_reason": reason} if isinstance(reason, str) and reason else found
