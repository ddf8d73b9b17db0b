"""Messages of any library as `{"role", "parts", "name"?, "finish_reason"?}`, the form of the GenAI conventions."""

from collections.abc import Callable, Iterable
from typing import Any

from heddle.wire.conversation.parts import (
    CALLS,
    RESULTS,
    TEXTS,
    THOUGHTS,
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
    if role == "tool" and given is None and not (isinstance(blocks, list) and has_results(blocks)):
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
