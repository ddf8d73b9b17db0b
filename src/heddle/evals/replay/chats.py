"""The chat request that a stored call holds, in whichever form it was written.

Known are: chat completions (of heddle, of patched OpenAI SDKs in Python and TypeScript), OpenAI's responses,
Anthropic's messages, and messages of the OpenTelemetry GenAI conventions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from heddle.evals.objects import ChatRequest, Message
from heddle.evals.replay.schemas import ReplayParams
from heddle.wire import jsontext
from heddle.wire.conversation.call import answer_of
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LAZY

_FIELDS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(field.rebuild_annotation(), config=LAZY) for name, field in ReplayParams.model_fields.items()
}


def carry_fields(recorded: Json) -> Json:
    """The fields of a recorded request that can be sent again; what SDKs write for `not given` is left out."""
    found = {}
    for name, adapter in _FIELDS.items():
        value = recorded.get(name)
        if value is None or value == "NOT_GIVEN":
            continue
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError:
            continue
        found[name] = value
    return found


_OUTER = ("", "arg0", "kwargs", "body", "request", "params")
"""Where SDKs put a request inside the inputs of its call; empty: it is the inputs."""
_CONVENTION = ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages")
_KEPT = ("role", "content", "name", "tool_calls", "tool_call_id")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request that can be sent again."""

    messages: list[Message]
    model: str | None
    fields: Json
    """Parameters, tools and response format as they were recorded."""
    prompt: str | None = None
    """The stored prompt that the messages followed."""
    variables: Json = field(default_factory=dict)
    """What the places of prompts were filled with."""


def read_chat(inputs: Any, attributes: Json) -> Chat | str:
    """The chat of a call; a text that says why there is none."""
    given = inputs if isinstance(inputs, dict) else {}
    for request in (given.get(outer) if outer else given for outer in _OUTER):
        if not isinstance(request, dict):
            continue
        listed = _listed(request)
        if listed is None:
            continue
        messages = _messages(listed)
        if isinstance(messages, str):
            return messages
        system = _system(request, attributes)
        if system and messages[:1] and messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": system})
        prompt, variables = request.get("prompt"), request.get("template_vars")
        prompt = prompt if isinstance(prompt, str) and "messages" in request else None
        if not messages and prompt is None:
            return "its list of messages is empty"
        fields = carry_fields({**_parameters(attributes), **request})
        if fields.get("tool_choice") is not None and not fields.get("tools"):
            del fields["tool_choice"]
        variables = variables if isinstance(variables, dict) else {}
        return Chat(messages, _model(request, attributes), fields, prompt, variables)
    return "it holds no chat request"


def _listed(request: ChatRequest) -> list[Any] | None:
    """The messages of a request as they stand, None without any."""
    for name in ("messages", *_CONVENTION):
        value = _parsed(request.get(name))
        if isinstance(value, dict):
            value = value.get("messages")
        if isinstance(value, list):
            return value
    answered = _parsed(request.get("input"))
    if isinstance(answered, str) and ("model" in request or "instructions" in request):
        return [{"role": "user", "content": answered}]
    if isinstance(answered, dict) and isinstance(answered.get("messages"), list):
        return list(answered["messages"])
    is_list = isinstance(answered, list) and bool(answered) and all(isinstance(item, dict) for item in answered)
    return answered if is_list and all("role" in item for item in answered) else None


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return jsontext.loads_text(value)
        except ValueError:
            return value
    return value


def _messages(listed: Sequence[Any]) -> list[Message] | str:
    made = []
    for place, item in enumerate(listed):
        message = item.get("message", item) if isinstance(item, dict) else None
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES or message is None:
            return f"its message {place} has no valid role"
        sent = _from_parts(message) if isinstance(message.get("parts"), list) else _message(message)
        if isinstance(sent, str):
            return f"its message {place} {sent}"
        made += sent
    return made


def _message(message: Message) -> list[Message] | str:
    """A message in the form of chat completions, or a text that says why it has none."""
    sent = {key: message[key] for key in _KEPT if message.get(key) is not None}
    content = message.get("content")
    if isinstance(content, list):
        parts = [_part(part) for part in content]
        if any(part is None for part in parts):
            return "has a part that is neither text nor an image"
        known = [part for part in parts if part is not None]
        only_text = all(part["type"] == "text" for part in known)
        sent["content"] = "".join(part["text"] for part in known) if only_text else known
    elif content is not None and not isinstance(content, str):
        return "has content that is neither a string nor a list of parts"
    if sent.get("content") is None and not sent.get("tool_calls"):
        return "is empty" if message["role"] != "assistant" else [{**sent, "content": ""}]
    return [sent]


def _part(part: Any) -> Message | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return None
    if part.get("type") in _TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    return part if part.get("type") == "image_url" and isinstance(part.get("image_url"), dict) else None


def _from_parts(message: Message) -> list[Message] | str:
    """A message of the GenAI conventions: text, tool calls, and one message per tool response."""
    texts, calls, responses = list[str](), list[Message](), list[Message]()
    for part in message["parts"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(str(part.get("content", part.get("text", ""))))
        elif kind == "tool_call":
            function = {"name": str(part.get("name")), "arguments": _text(part.get("arguments"))}
            calls.append({"id": str(part.get("id")), "type": "function", "function": function})
        elif kind == "tool_call_response":
            shown = _text(part.get("response", part.get("result")))
            responses.append({"role": "tool", "tool_call_id": str(part.get("id")), "content": shown})
        elif kind != "reasoning":
            return f"has a part of type {kind!r}, which a chat completion cannot carry"
    made: list[Message] = []
    if texts or calls or not responses:
        made.append({"role": message["role"], "content": "".join(texts)} | ({"tool_calls": calls} if calls else {}))
    return [*made, *responses]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _system(request: ChatRequest, attributes: Json) -> str | None:
    """What stands beside the messages: Anthropic's `system`, OpenAI's `instructions`, the conventions' attribute."""
    # As a text the attribute is the name of a provider.
    of_span = _parsed(attributes.get("system"))
    for value in (request.get("system"), request.get("instructions"), of_span if isinstance(of_span, list) else None):
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list):
            texts = [item if isinstance(item, str) else _of_part(item) for item in value]
            if texts and all(isinstance(text, str) for text in texts):
                return "\n".join(str(text) for text in texts)
    return None


def _of_part(part: Any) -> str | None:
    found = part.get("text", part.get("content")) if isinstance(part, dict) else None
    return found if isinstance(found, str) else None


def _parameters(attributes: Json) -> Json:
    found = _parsed(attributes.get("model_parameters"))
    return found if isinstance(found, dict) else {}


def _model(request: ChatRequest, attributes: Json) -> str | None:
    """The model of a request; for spans the one that the conventions name."""
    places = (request, _parameters(attributes), attributes)
    return next((place["model"] for place in places if isinstance(place.get("model"), str) and place["model"]), None)


def read_answer(output: Any) -> str | None:
    """The text of what a model answered (tool calls as JSON where there is no text); None without one."""
    if isinstance(output, str) or output is None:
        return output
    found = answer_of(output)
    if found is None:
        return None
    said = ["".join(part["content"] for part in one["parts"] if part["type"] == "text") for one in found.messages]
    calls = [part for one in found.messages for part in one["parts"] if part["type"] == "tool_call"]
    return "\n".join(filter(None, said)) or (json.dumps(calls, ensure_ascii=False) if calls else None)
