"""Messages of content blocks as chat messages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from heddle.errors import InvalidRequest
from heddle.inference.prompt.messages import ChatMessage, ContentPart, FunctionCall, MessageToolCall
from heddle.inference.prompt.opaque_reasoning import ReasoningDecoder
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LAZY, LazyModel

MOST_THOUGHT_BYTES = 1 << 22
"""Of all thoughts that the signatures of a request hold."""


class ContentBlock(LazyModel):
    """One block of any type; which fields it needs is checked where it is read."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Json | None = None
    tool_use_id: str | None = None
    content: str | list[Json] | None = None
    """Blocks of its own, which are read where they may stand."""
    is_error: bool | None = None
    source: Any = None
    title: str | None = None
    cache_control: Any = None


class InputMessage(LazyModel):
    """One message of the request."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


@dataclass(slots=True)
class Conversation:
    """The chat messages, where each stands in the body, and what of the body says nothing to the model."""

    messages: list[ChatMessage] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    is_prefilled: bool = False
    """The last message is the beginning of the answer."""
    _names: dict[str, str] = field(default_factory=dict)
    """The functions of calls by their ids."""
    _thoughts: list[str] = field(default_factory=list)
    """Of the last message."""
    _signatures: ReasoningDecoder = field(default_factory=lambda: ReasoningDecoder(MOST_THOUGHT_BYTES))

    def add(self, message: ChatMessage, place: str) -> None:
        """Append a message; texts of one role after another are one message."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == message.role and message.role != "tool":
            # In place: a message may have as many blocks as a body has room for.
            content, calls = _parts(last), last.tool_calls or []
            content.extend(_parts(message))
            calls.extend(message.tool_calls or ())
            last.content, last.tool_calls = content, calls or None
            self._thoughts += filter(None, (message.reasoning,))
            return
        self.join_thoughts()
        self.messages.append(message)
        self.places.append(place)
        self._thoughts = [message.reasoning] if message.reasoning else []

    def join_thoughts(self) -> None:
        """Give the last message its thoughts, of which each message that it was joined of may have some."""
        if self._thoughts:
            self.messages[-1].reasoning = "\n".join(self._thoughts)

    def ignore(self, name: str) -> None:
        """Note a key without effect, once."""
        if name not in self.ignored:
            self.ignored.append(name)

    def read(self, message: InputMessage, at: str) -> None:
        """Take a message; InvalidRequest naming the block that the model cannot read."""
        content = message.content
        blocks = [ContentBlock(type="text", text=content)] if isinstance(content, str) else content
        if message.role == "assistant":
            self._read_assistant(blocks, at)
        elif message.role == "user":
            self._read_user(blocks, at)
        else:
            # templates know a system prompt at the beginning only
            said = "\n".join(self.texts(content, f"{at}.content"))
            text = f"<system-reminder>\n{said}\n</system-reminder>"
            self.add(ChatMessage(role="user", content=[_part(text)]), at)

    def texts(self, content: str | list[ContentBlock], at: str) -> list[str]:
        """The texts of a content that may hold nothing else than text and documents."""
        if isinstance(content, str):
            return [content] if content else []
        found = [self._text(block, f"{at}.{index}") for index, block in enumerate(content)]
        return [text for text in found if text]

    def _inner_texts(self, block: ContentBlock, at: str) -> list[str]:
        return self.texts(_read_blocks(block.content or "", f"{at}.content"), f"{at}.content")

    def _read_user(self, content: list[ContentBlock], at: str) -> None:
        for index, block in enumerate(content):
            place = f"{at}.content.{index}"
            if block.type == "tool_result":
                self.add(self._tool_result(block, place), place)
            else:
                self.add(ChatMessage(role="user", content=[_part(self._text(block, place))]), at)

    def _tool_result(self, block: ContentBlock, at: str) -> ChatMessage:
        call_id = _need(block.tool_use_id, f"{at}.tool_use_id")
        self._note_cache(block)
        text = "\n".join(self._inner_texts(block, at))
        if block.is_error and "error" not in text[:32].lower():
            text = f"Error: {text}"
        return ChatMessage(role="tool", content=text, tool_call_id=call_id, name=self._names.get(call_id))

    def _read_assistant(self, content: list[ContentBlock], at: str) -> None:
        texts: list[ContentPart] = []
        thoughts: list[str] = []
        calls: list[MessageToolCall] = []
        for index, block in enumerate(content):
            place = f"{at}.content.{index}"
            match block.type:
                case "thinking":
                    shown = _need(block.thinking, f"{place}.thinking")
                    # What was not shown stands in the signature, so that the model gets it back.
                    thought = shown or self._signatures.decode(block.signature or "", f"{place}.signature")
                    thoughts += filter(None, (thought,))
                case "redacted_thinking":
                    self.ignore("redacted_thinking")
                case "tool_use":
                    calls.append(self._call(block, place))
                case _:
                    texts.append(_part(self._text(block, place)))
        message = ChatMessage(role="assistant", content=texts or None, tool_calls=calls or None)
        message.reasoning = "\n".join(thoughts) or None
        self.add(message, at)

    def _call(self, block: ContentBlock, at: str) -> MessageToolCall:
        name, call_id = _need(block.name or None, f"{at}.name"), _need(block.id, f"{at}.id")
        self._note_cache(block)
        self._names[call_id] = name
        try:
            function = FunctionCall(name=name, arguments=block.input or {})
        except ValidationError as error:  # a text that no encoding can hold
            raise InvalidRequest(f"{at}.name: {error.errors()[0]['msg']}", param=f"{at}.name") from None
        return MessageToolCall(id=call_id, function=function)

    def _text(self, block: ContentBlock, at: str) -> str:
        self._note_cache(block)
        if block.type == "text":
            return _need(block.text, f"{at}.text")
        if block.type == "document":
            return self._document(block, at)
        if block.type == "search_result":
            source = block.source if isinstance(block.source, str) else ""
            parts = [block.title or "", source, *self._inner_texts(block, at)]
            return "\n".join(filter(None, parts))
        if block.type == "image":
            raise InvalidRequest(
                f"{at}: a block of type 'image' requires a multimodal model; this model only reads text", param=at
            )
        known = "text, document, search_result, tool_use, tool_result, thinking or redacted_thinking"
        raise InvalidRequest(
            f"{at}: a block of type '{block.type}' is not allowed here; expected one of {known}", param=at
        )

    def _document(self, block: ContentBlock, at: str) -> str:
        source = block.source if isinstance(block.source, dict) else {}
        texts: Iterable[str] = ()
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            texts = (source["data"],)
        elif source.get("type") == "content":
            content = source.get("content")
            place = f"{at}.source.content"
            texts = self.texts(_read_blocks(content, place), place)
        else:
            raise InvalidRequest(
                f"{at}: a document of type '{source.get('type')}' requires a multimodal model; this model "
                "only reads text",
                param=at,
            )
        context = (block.model_extra or {}).get("context")
        return "\n".join(filter(None, (block.title, context if isinstance(context, str) else None, *texts)))

    def _note_cache(self, block: ContentBlock) -> None:
        if block.cache_control is not None:
            self.ignore("cache_control")


def _parts(message: ChatMessage) -> list[ContentPart]:
    content = message.content
    if content is None:
        return []
    return [_part(content)] if isinstance(content, str) else content


def _part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


BILLING = "x-anthropic-billing-header:"
"""What Claude Code writes into the first block of its system prompt; it is for no model."""


def read_conversation(messages: Sequence[InputMessage], system: str | list[ContentBlock] | None) -> Conversation:
    """The chat messages of a request; InvalidRequest naming the block that the model cannot read."""
    found = Conversation()
    if system:
        texts = [text for text in found.texts(system, "system") if not text.startswith(BILLING)]
        if texts:
            found.add(ChatMessage(role="system", content=[_part(text) for text in texts]), "system")
    for index, message in enumerate(messages):
        found.read(message, f"messages.{index}")
    found.join_thoughts()
    last = found.messages[-1] if messages and found.messages else None
    found.is_prefilled = last is not None and last.role == "assistant"
    return found


def _read_blocks(content: Any, at: str) -> str | list[ContentBlock]:
    if isinstance(content, str):
        return content
    try:
        return _BLOCKS.validate_python(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, (at, *found["loc"])))
        raise InvalidRequest(f"{place}: {found['msg']}", param=place) from None


_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock], config=LAZY)


def _need(value: str | None, at: str) -> str:
    if value is None:
        raise InvalidRequest(f"{at}: Field required", param=at)
    return value
