"""Messages of every library in the one form of the GenAI conventions: `{"role", "parts", "finish_reason"?}`.

Arguments and results of tools that are JSON text of an object or a list are given as that; an unknown kind of part is
kept as it came. Also whole bodies of requests to models and of their answers, as some libraries record them.
"""

from collections.abc import Iterable
from typing import Any

from heddle.trace.otel.conventions.convention import as_text, objects, parsed
from heddle.wire.jsontypes import Json

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}
_TEXTS = ("text", "input_text", "output_text")
_THOUGHTS = ("reasoning", "thinking")
_CALLS = ("tool_call", "tool_use", "tool-call", "function_call", "server_tool_use")
_CONVERSE = frozenset(("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video"))
_RESULTS = ("tool_call_response", "tool_result", "tool-result", "function_call_output", "tool-error")


def text_part(content: str) -> Json:
    """Plain text."""
    return {"type": "text", "content": content}


def reasoning_part(content: str) -> Json:
    """What the model thought."""
    return {"type": "reasoning", "content": content}


def call_part(call_id: Any, name: Any, arguments: Any) -> Json:
    """A tool that the model wants called."""
    part = {"type": "tool_call", "id": call_id, "name": name, "arguments": parsed(arguments)}
    return {key: value for key, value in part.items() if value is not None}


def result_part(call_id: Any, response: Any) -> Json:
    """What a tool answered."""
    part = {"type": "tool_call_response", "id": call_id, "response": parsed(response)}
    return {key: value for key, value in part.items() if value is not None}


def simple(role: str, content: Any) -> Json:
    """A message of one text; anything but text is written as JSON."""
    return {"role": role, "parts": [text_part(as_text(content))]}


def messages_of(value: Any, role: str) -> list[Json]:
    """The messages in a list, in one message, or in a plain text (then of `role`); JSON text of these as well."""
    value = parsed(value)
    if value is None or value == "":
        return []
    if isinstance(value, list) and value and not objects(value):
        return [simple(role, value)]
    if isinstance(value, list):
        return [message(item, role) for item in objects(value)]
    if isinstance(value, dict):
        return [message(value, role)]
    return [simple(role, value)]


def message(value: Json, role: str = "user") -> Json:
    """One message of any library; `role` where it names none."""
    kind = value.get("type")
    if "role" not in value and (kind in _CALLS or kind in _RESULTS or kind in _THOUGHTS):
        # The Responses API has calls, results and thoughts beside messages, not inside.
        who = "tool" if kind in _RESULTS else "assistant"
        return {"role": who, "parts": parts_of([value])}
    named = str(value.get("role") or (kind if isinstance(kind, str) and kind in ROLES else role))
    # Some libraries write this for the chunks of a stream.
    named = role if named == "unknown" else ROLES.get(named, named)
    found: Json = {"role": "assistant" if named == "thinking" else named, "parts": _parts(value, named)}
    name, reason = value.get("name"), value.get("finish_reason")
    if isinstance(name, str) and name and named != "tool":
        found["name"] = name
    if isinstance(reason, str) and reason:
        found["finish_reason"] = reason
    return found


def _parts(value: Json, role: str) -> list[Json]:
    given = value.get("parts")
    content = parsed(given) if given is not None else value.get("content")
    answered = value.get("tool_call_id") or (value.get("id") if role == "tool" else None)
    blocks = _blocks(content)
    if role == "tool" and given is None and not (isinstance(blocks, list) and _answers(blocks)):
        return [result_part(answered, content)]
    thought = value.get("reasoning_content") or value.get("reasoning")
    found = [reasoning_part(thought)] if isinstance(thought, str) and thought else []
    if role == "thinking":
        return [reasoning_part(as_text(content))]
    found += parts_of(content)
    found += [_call(call) for call in objects(parsed(value.get("tool_calls")))]
    if isinstance(legacy := value.get("function_call"), dict):
        found.append(call_part(None, legacy.get("name"), legacy.get("arguments")))
    if isinstance(refusal := value.get("refusal"), str) and refusal:
        found.append(text_part(refusal))
    return found


def _answers(content: list[Any]) -> bool:
    return any(part.get("type") in _RESULTS or "toolResult" in part for part in objects(content))


def _call(call: Json) -> Json:
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    arguments = inner.get("arguments", inner.get("args", inner.get("input")))
    return call_part(call.get("id") or call.get("toolCallId"), inner.get("name") or inner.get("toolName"), arguments)


def parts_of(content: Any) -> list[Json]:
    """The content of a message, whatever it is, as parts."""
    content = _blocks(content)
    if content is None or content == "" or content == []:
        return []
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return [text_part(as_text(content))]
    return [found for block in content for found in _part(block)]


def _blocks(content: Any) -> Any:
    # A text may be the JSON of a list of blocks (OpenLLMetry writes Anthropic's contents so), or an answer in JSON.
    if isinstance(content, str) and content[:2] == "[{":
        found = parsed(content)
        if isinstance(found, list) and all(isinstance(block, dict) and _is_block(block) for block in found):
            return found
    return content


def _is_block(block: Json) -> bool:
    return "type" in block or (len(block) == 1 and not _CONVERSE.isdisjoint(block))


def _part(block: Any) -> Iterable[Json]:
    if not isinstance(block, dict):
        return [text_part(as_text(block))] if block not in (None, "") else []
    kind = str(block.get("type") or block.get("kind") or "")
    if kind in _TEXTS or (not kind and "text" in block):
        return [text_part(as_text(block.get("content", block.get("text", ""))))]
    if kind in _THOUGHTS:
        return [reasoning_part(_thought(block))]
    if kind in _CALLS:
        return [_tool_call(block)]
    if kind in _RESULTS:
        return [_tool_result(block)]
    return [block if kind else _of_converse(block)]


def _of_converse(block: Json) -> Json:
    """A block of Amazon's Converse API, whose only key says what it is."""
    if isinstance(call := block.get("toolUse"), dict):
        return call_part(call.get("toolUseId"), call.get("name"), call.get("input"))
    if isinstance(came := block.get("toolResult"), dict):
        return result_part(came.get("toolUseId"), came.get("content"))
    if isinstance(thought := block.get("reasoningContent"), dict):
        told = thought.get("reasoningText")
        return reasoning_part(as_text(told.get("text", "") if isinstance(told, dict) else thought))
    return block


def _tool_call(block: Json) -> Json:
    arguments = block.get("arguments", block.get("input", block.get("args")))
    call_id = block.get("call_id") or block.get("id") or block.get("toolCallId")
    return call_part(call_id, block.get("name") or block.get("toolName"), arguments)


def _tool_result(block: Json) -> Json:
    call_id = next((block[key] for key in ("tool_use_id", "call_id", "id", "toolCallId") if block.get(key)), None)
    response = next((block[key] for key in ("response", "result", "output", "content") if key in block), None)
    if isinstance(response, dict) and set(response) == {"type", "value"}:
        response = response["value"]  # the Vercel AI SDK says of its results whether they are text or JSON
    return result_part(call_id, response)


def _thought(block: Json) -> str:
    content = block.get("content") or block.get("thinking") or block.get("text") or block.get("summary") or ""
    content = _blocks(content)
    if isinstance(content, list):
        return "\n".join(as_text(item.get("text", item)) for item in objects(content))
    return as_text(content)


def system_texts(messages: Iterable[Json]) -> list[str]:
    """The texts of the system messages."""
    return [
        part["content"]
        for one in messages
        if one["role"] == "system"
        for part in one["parts"]
        if part.get("type") == "text"
    ]


def thoughts(messages: Iterable[Json]) -> str | None:
    """What the model thought in these messages, None when nothing is told."""
    found = [part["content"] for one in messages for part in one["parts"] if part.get("type") == "reasoning"]
    return "\n".join(content for content in found if content) or None


def joined(messages: list[Json]) -> list[Json]:
    """Thoughts that stand in a message of their own go to the front of the assistant's next message."""
    found: list[Json] = []
    for one in messages:
        before = found[-1] if found else None
        if before and before["role"] == one["role"] == "assistant" and _only_thoughts(before):
            found[-1] = {**before, **one, "parts": before["parts"] + one["parts"]}
        else:
            found.append(one)
    return found


def _only_thoughts(one: Json) -> bool:
    return all(part.get("type") == "reasoning" for part in one["parts"])


def asked(body: Any) -> list[Json]:
    """The messages of a request: chat completions, Responses or Anthropic's; else the body as a user's text."""
    body = parsed(body)
    if not isinstance(body, dict):
        return messages_of(body, "user")
    given = next((body[key] for key in ("messages", "input", "prompt") if body.get(key) is not None), None)
    if given is None:
        return messages_of(body, "user") if "role" in body else [simple("user", body)]
    system = next((body[key] for key in ("system", "instructions") if body.get(key)), None)
    first = [message({"role": "system", "content": system})] if system is not None else []
    return first + messages_of(given, "user")


def answered(body: Any) -> list[Json]:
    """The messages of an answer: chat completions, Responses or Anthropic's; else the body as the assistant's text."""
    body = parsed(body)
    if not isinstance(body, dict):
        return messages_of(body, "assistant")
    if isinstance(body.get("choices"), list):
        return [_chosen(one) for one in objects(body["choices"])]
    if isinstance(body.get("output"), list):
        return joined(messages_of(body["output"], "assistant"))
    if isinstance(body.get("messages"), list):
        return messages_of(body["messages"], "assistant")
    if "role" in body or body.get("type") == "message":
        reason = body.get("finish_reason") or body.get("stop_reason")
        return [message({**body, "finish_reason": reason}, "assistant")]
    return [simple("assistant", as_text(body))]


def _chosen(choice: Json) -> Json:
    inner = choice.get("message", choice.get("delta"))
    if not isinstance(inner, dict):
        inner = {"content": choice.get("text", "")}
    return message({**inner, "finish_reason": choice.get("finish_reason")}, "assistant")
