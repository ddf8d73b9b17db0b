"""The messages of a chat request: their shape on the wire, and the plain dicts that templates read.

Eight kinds come in: developer, system, user, assistant, tool, function, messages with a role of the client's own, and
generic ones. One model takes them all; keys that it does not know reach the template untouched.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from heddle.errors import InvalidRequest
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel

TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of content parts that are text, and the key that holds it."""

MEDIA_TYPES = frozenset((
    "image", "image_url", "image_pil", "image_embeds", "input_image", "audio", "audio_url", "audio_embeds",
    "input_audio", "video", "video_url", "file", "input_file",
))  # fmt: skip

NOT_JSON = "not_json"
"""The argument that holds the text of a call's arguments where that is no JSON object."""


class ContentPart(LazyModel):
    """One part of a message's content; a bare string is a text part."""

    model_config = ConfigDict(extra="allow")
    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_string(cls, value: Any) -> Any:
        return {"type": "text", "text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        key = TEXT_KEYS.get(self.type)
        if key is not None and getattr(self, key) is None:
            raise ValueError(f"a content part of type '{self.type}' requires '{key}'")
        return self


class FunctionCall(LazyModel):
    """A function's name and its arguments: JSON text, or the object itself."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1)
    arguments: str | Json | None = None


class MessageToolCall(LazyModel):
    """One call that an earlier answer made."""

    model_config = ConfigDict(extra="allow")
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(LazyModel):
    """One message of the request, of any role."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1)
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    """Deprecated form of one tool call."""
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """Alias of `reasoning`."""


TemplateMessage: TypeAlias = dict[str, Any]
"""A message as a template reads it: `role`, `content` as a list of texts, calls with arguments as objects."""


def template_messages(messages: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """The messages as templates know them; InvalidRequest for content that is not text.

    `content` is a list of texts, one per part (none for null); arguments of tool calls are objects.
    """
    return [_template_message(message, f"messages.{index}") for index, message in enumerate(messages)]


def content_texts(message: TemplateMessage) -> list[str]:
    """The texts of a template message's content, one per part."""
    content = message.get("content")
    return [content] if isinstance(content, str) else list(content or ())


def message_text(message: TemplateMessage) -> str:
    """The content of a template message as one text: parts joined by newlines."""
    return "\n".join(content_texts(message))


def _template_message(message: ChatMessage, at: str) -> TemplateMessage:
    plain: TemplateMessage = dict(message.model_extra or {})
    plain |= {"role": message.role, "content": _texts(message, at)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if reasoning is not None:
        plain["reasoning"] = plain["reasoning_content"] = reasoning
    calls = [
        {"id": call.id, "type": "function", "function": _function(call.function)} for call in message.tool_calls or ()
    ]
    if message.function_call is not None and not calls:
        calls = [{"type": "function", "function": _function(message.function_call)}]
    if calls:
        plain["tool_calls"] = calls
    return plain


def _texts(message: ChatMessage, at: str) -> list[str]:
    if message.content is None or message.content == []:
        return [message.refusal] if message.refusal else []
    if isinstance(message.content, str):
        return [message.content]
    return [_part_text(part, f"{at}.content.{index}") for index, part in enumerate(message.content)]


def _part_text(part: ContentPart, at: str) -> str:
    key = TEXT_KEYS.get(part.type)
    if key is not None:
        text: str = getattr(part, key)
        return text
    if part.type in MEDIA_TYPES:
        raise InvalidRequest(
            f"{at}: a content part of type '{part.type}' requires a multimodal model; this model only reads text",
            param=at,
        )
    known = ", ".join(f"'{name}'" for name in TEXT_KEYS)
    raise InvalidRequest(f"{at}: unknown content part type '{part.type}'; expected one of {known}", param=at)


def _function(call: FunctionCall) -> Json:
    return {"name": call.name, "arguments": _arguments(call.arguments)}


def _arguments(arguments: str | Json | None) -> Json:
    """An object in any case: an agent whose model once wrote something else goes on with that in its history."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {NOT_JSON: arguments}
