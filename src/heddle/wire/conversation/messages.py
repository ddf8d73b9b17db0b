"""Messages of any library as `{"role", "parts", "name"?, "finish_reason"?}`, the form of the GenAI conventions.

They are read out of requests to models and answers: bodies of any provider, and the results of libraries around them.
"""

from collections.abc import Callable, Iterable
from typing import Any

from heddle.wire.conversation.parts import (
    CALLS,
    RESULTS,
    TEXTS,
    THOUGHTS,
    as_list,
    as_object,
    as_text,
    blocks_of,
    call_of,
    call_part,
    first_of,
    has_results,
    named_result,
    objects,
    parse_json,
    parts_of,
    reasoning_part,
    refusal_part,
    result_part,
    text_part,
)
from heddle.wire.jsontypes import Json

KNOWN_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
ROLES = {
    **dict.fromkeys(("human", "HumanMessage", "HumanMessageChunk", "ChatMessage"), "user"),
    **dict.fromkeys(("ai", "model", "bot", "AIMessage", "AIMessageChunk"), "assistant"),
    **dict.fromkeys(("developer", "SystemMessage", "SystemMessageChunk"), "system"),
    **dict.fromkeys(("function", "ToolMessage", "ToolMessageChunk", "FunctionMessage"), "tool"),
}
"""Other names of roles, among them the classes of LangChain's messages."""
_MAX_LEVELS = 6


def text_message(role: str, content: Any) -> Json:
    """A message of one text; anything but text is written as JSON."""
    return {"role": role, "parts": [text_part(as_text(content))]}


def messages_of(value: Any, role: str) -> list[Json]:
    """The messages in a list, in one message, or in a plain text (then of `role`); JSON text of these as well."""
    value = flatten_batches(parse_json(value))
    if value is None or value == "" or value == {} or value == []:
        return []
    if isinstance(value, list) and not objects(value):
        return [] if _are_reprs(value) else [text_message(role, value)]
    if isinstance(value, list):
        return [message(item, role) for item in objects(value)]
    if isinstance(value, dict):
        return [message(value, role)]
    return [text_message(role, value)]


def flatten_batches(value: Any) -> Any:
    """The items of lists within a list, as LangChain's batches of requests; pairs of role and text become messages."""
    for _ in range(_MAX_LEVELS):
        if not isinstance(value, list) or not any(isinstance(item, list) for item in value):
            break
        if all(_is_pair(item) for item in value):
            return [{"role": role, "content": content} for role, content in value]
        if not all(isinstance(item, list) for item in value):
            break
        value = [inner for item in value for inner in item]
    return value


def _are_reprs(items: list[Any]) -> bool:
    """True for messages of LlamaIndex as Python writes them, which nothing can read."""
    return all(isinstance(item, str) and item.startswith("ChatMessage(role=") for item in items)


def _is_pair(item: Any) -> bool:
    is_pair = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
    return is_pair and (item[0] in KNOWN_ROLES or item[0] in ROLES)


def is_message(value: Any) -> bool:
    """True for what looks like a message, or like an item of the Responses API."""
    if not isinstance(value, dict):
        return False
    value = unwrap(value)
    kind = value.get("type")
    if isinstance(value.get("role"), str):
        return any(name in value for name in ("content", "parts", "blocks", "tool_calls", "function_call"))
    if not isinstance(kind, str):
        return False
    return ("content" in value and (kind == "message" or kind in ROLES or kind in KNOWN_ROLES)) or is_item(kind)


def is_item(kind: str) -> bool:
    """True for the type of an item of the Responses API that is no message."""
    return kind in ("function_call", "function_call_output", "reasoning") or (
        kind.endswith("_call") and kind != "tool_call"
    )


def unwrap(value: Json) -> Json:
    """A message without what LangChain's ways of writing objects put around it."""
    inner = value.get("kwargs")
    if "lc" in value and isinstance(inner, dict):
        named = value.get("id")
        kind = named[-1] if isinstance(named, list) and named and isinstance(named[-1], str) else "ai"
        return {**inner, "type": ROLES.get(kind, inner.get("type") or kind)}
    inner = value.get("data")
    if isinstance(inner, dict) and "content" in inner and "content" not in value:
        return {**inner, "type": value.get("type", inner.get("type"))}
    inner = value.get("message")
    if isinstance(inner, dict) and "role" in inner and "role" not in value and "content" not in value:
        return inner
    return value


def message(value: Json, role: str = "user") -> Json:
    """One message of any library; `role` where it names none."""
    outer = value
    value = unwrap(value)
    kind = value.get("type")
    if "role" not in value and isinstance(kind, str) and "content_type" not in value:
        if kind in CALLS or kind in RESULTS or kind in THOUGHTS:
            # The Responses API has calls, results and thoughts beside messages, not inside.
            who = "tool" if kind in RESULTS else "assistant"
            return {"role": who, "parts": parts_of([value])}
        if kind.endswith("_call"):
            return {"role": "assistant", "parts": [_own_tool(value, kind)]}
        if kind in TEXTS and "content" not in value:
            return {"role": role, "parts": parts_of([value])}
    named = _role(value, role)
    found: Json = {"role": "assistant" if named == "thinking" else named, "parts": _message_parts(value, named)}
    name = value.get("name")
    reason = first_of(value, ("finish_reason",)) or as_object(value.get("response_metadata")).get("finish_reason")
    # The entries of `choices` have it beside their message.
    reason = reason or first_of(outer, ("finish_reason",))
    if isinstance(name, str) and name and named != "tool":
        found["name"] = name
    if isinstance(reason, str) and reason:
        found["finish_reason"] = reason
    return found


def _own_tool(item: Json, kind: str) -> Json:
    """A tool that the provider runs itself (`web_search_call`, ...)."""
    rest = {key: value for key, value in item.items() if key not in ("type", "id", "status")}
    return call_part(item.get("id"), kind.removesuffix("_call"), rest)


def _role(value: Json, role: str) -> str:
    kind, given = value.get("type"), value.get("role")
    if isinstance(given, dict):
        given = given.get("value")
    if not given:
        is_named = isinstance(kind, str) and (kind in ROLES or kind in KNOWN_ROLES)
        given = kind if is_named else role
    named = str(given)
    # Some libraries write `unknown` for the chunks of a stream, others the class of the role.
    named = role if named == "unknown" else named.removeprefix("MessageRole.")
    if named not in KNOWN_ROLES and named.lower() in KNOWN_ROLES:
        named = named.lower()
    return ROLES.get(named, named)


def _message_parts(value: Json, role: str) -> list[Json]:
    given = value.get("parts")
    content = parse_json(given) if given is not None else first_of(value, ("content", "text", "blocks"))
    call_id = value.get("tool_call_id") or (value.get("id") if role == "tool" else None)
    blocks = blocks_of(content)
    # LiteLLM puts the id beside parts of text.
    is_result = given is None or value.get("tool_call_id")
    if role == "tool" and is_result and not (isinstance(blocks, list) and has_results(blocks)):
        return [named_result(result_part(call_id, content), value)]
    more = as_object(value.get("additional_kwargs"))
    thought = value.get("reasoning_content") or value.get("reasoning") or more.get("reasoning_content")
    found = [reasoning_part(thought)] if isinstance(thought, str) and thought else []
    if role == "thinking":
        return [reasoning_part(as_text(content))]
    found += parts_of(content)
    found += _calls_beside(value, more, found)
    if isinstance(legacy := value.get("function_call"), dict):
        found.append(call_part(None, legacy.get("name"), legacy.get("arguments")))
    if isinstance(refusal := value.get("refusal"), str) and refusal:
        found.append(refusal_part(refusal))
    if isinstance(sound := value.get("audio"), dict):
        found.append({"type": "audio", "audio": sound})
    return found


def _calls_beside(value: Json, more: Json, inside: Iterable[Json]) -> list[Json]:
    """The entries of `tool_calls` that the content does not hold as blocks."""
    known = {str(part.get("id")) for part in inside if part.get("type") == "tool_call" and part.get("id")}
    listed = objects(parse_json(value.get("tool_calls"))) or objects(more.get("tool_calls"))
    return [call for call in map(call_of, listed) if str(call.get("id")) not in known]


def join_system_texts(messages: Iterable[Json]) -> list[str]:
    """The texts of the system messages."""
    return [
        part["content"]
        for one in messages
        if one["role"] == "system"
        for part in one["parts"]
        if part.get("type") == "text"
    ]


def join_thoughts(messages: Iterable[Json]) -> str | None:
    """What the model thought in these messages, None when nothing is told."""
    found = [part["content"] for one in messages for part in one["parts"] if part.get("type") == "reasoning"]
    return "\n".join(content for content in found if content) or None


def join_calls(messages: list[Json]) -> list[Json]:
    """Thoughts that stand in a message of their own go to the front of the assistant's next message."""
    return join_messages(messages, _only_thoughts)


def join_messages(messages: Iterable[Json], goes_on: Callable[[Json], bool]) -> list[Json]:
    """Messages of the assistant of which one goes on in the next as one message."""
    found: list[Json] = []
    for one in messages:
        before = found[-1] if found else None
        if before and before["role"] == one["role"] == "assistant" and goes_on(before):
            found[-1] = {**before, **one, "parts": before["parts"] + one["parts"]}
        else:
            found.append(one)
    return found


def _only_thoughts(one: Json) -> bool:
    return all(part.get("type") == "reasoning" for part in one["parts"])


SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction")
_GIVEN = ("messages", "contents", "new_message", "input", "prompt")
_MOST_WRAPPERS = 4


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


def is_end(answer: Any) -> bool:
    """True for what a conditional edge of LangGraph answers at the end of its graph, which nobody said."""
    return isinstance(answer, str) and answer in ("__end__", '"__end__"')


def read_answer(body: Any) -> list[Json]:
    """The messages of an answer of any provider or library; else the body as the assistant's text."""
    if is_end(body):
        return []
    found = read_choices(body)
    if found is not None:
        return [one for choice in found for one in choice]
    body = parse_json(body)
    if not isinstance(body, dict) or isinstance(body.get("content"), (str, list)):
        return messages_of(body, "assistant")
    return [text_message("assistant", as_text(body))] if body else []


def read_choices(body: Any, levels: int = _MOST_WRAPPERS) -> list[list[Json]] | None:
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
    if is_event(body):
        return [[_candidate(body)]]
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


def is_event(body: Json) -> bool:
    """True for an event of Google's Agent Development Kit: a candidate of Gemini's by itself."""
    return isinstance(content := body.get("content"), dict) and isinstance(content.get("parts"), list)


def read_result(body: Json) -> Json | None:
    """The answer that the Vercel AI SDK reports: text, thoughts, tool calls or an object; None for anything else."""
    calls = objects(as_list(first_of(body, ("toolCalls",))))
    made = body.get("object")
    said, thought = body.get("text"), first_of(body, ("reasoning", "reasoningText"))
    if not (calls or "finishReason" in body or "toolCalls" in body):
        return None
    parts = [reasoning_part(thought)] if isinstance(thought, str) and thought else []
    parts += parts_of(thought) if isinstance(thought, list) else []
    parts += [text_part(as_text(said))] if said and isinstance(said, str | dict | list) else []
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
