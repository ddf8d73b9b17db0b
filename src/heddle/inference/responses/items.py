"""Items of the Responses interface: what comes in, its normal form, and the chat messages that it stands for."""

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from heddle.errors import InvalidRequest
from heddle.inference.chat.fields import Part
from heddle.inference.prompt.messages import MEDIA_TYPES, ChatMessage, ContentPart, FunctionCall, MessageToolCall
from heddle.inference.prompt.opaque_reasoning import ReasoningDecoder
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LAZY

MOST_ITEMS = 10_000
_INPUT = 0x8000
"""Where the numbers of input items begin."""
_KEY, _DIGITS = 32, 4
MOST_REASONING_BYTES = 1 << 24
"""Of all opaque reasoning of a request."""


ItemId = Annotated[str, Field(pattern=r"^[!-~]{1,256}$")]


class ItemPart(Part):
    """An item or a part of one; what else it carries has no effect."""

    model_config = ConfigDict(strict=True, extra="ignore")


class MessageItem(ItemPart):
    """A message of any role."""

    type: Literal["message"] = "message"
    id: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    status: str | None = None


class FunctionCallItem(ItemPart):
    """A call that the model made."""

    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    status: str | None = None


class FunctionCallOutputItem(ItemPart):
    """What a function returned."""

    type: Literal["function_call_output"]
    id: ItemId | None = None
    call_id: str = Field(min_length=1)
    output: str | list[ContentPart]
    status: str | None = None


class ReasoningText(ItemPart):
    """A piece of reasoning or of its summary."""

    type: Literal["summary_text", "reasoning_text", "text", "output_text"]
    text: str


class ReasoningItem(ItemPart):
    """Reasoning of an earlier answer, as text or as the opaque text that it came with."""

    type: Literal["reasoning"]
    id: ItemId | None = None
    summary: list[ReasoningText] = Field(default_factory=list)
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class ItemReference(ItemPart):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] | None = None
    id: str


ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _kind(value: Any) -> str:
    """The type of an item; clients leave it out of messages and references."""
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if given is not None:
        return str(given)
    return "item_reference" if isinstance(value, dict) and "role" not in value and "id" in value else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind),
]
ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem], config=LAZY)


def check_types(items: Any, at: str = "input") -> None:
    """Raise InvalidRequest for the first item, or part of one, of a type that cannot be done here."""
    if not isinstance(items, list):
        return
    if len(items) > MOST_ITEMS:
        raise InvalidRequest(f"{at} has {len(items)} items; at most {MOST_ITEMS} are allowed", param=at)
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        kind = _kind(item)
        if kind not in ITEM_TYPES:
            known = ", ".join(ITEM_TYPES)
            place = f"{at}.{number}.type"
            raise InvalidRequest(
                f"{place}: items of type '{kind[:100]}' are not supported; expected one of {known}", param=place
            )
        for key in ("content", "output"):
            parts = item.get(key)
            for index, part in enumerate(parts if isinstance(parts, list) else ()):
                named = part.get("type") if isinstance(part, dict) else None
                if isinstance(named, str) and named in MEDIA_TYPES:
                    place = f"{at}.{number}.{key}.{index}"
                    raise InvalidRequest(
                        f"{place}: '{named}' requires a multimodal model; this model only reads text", param=place
                    )


def new_key() -> str:
    """What the ids of a response and of its items have in common."""
    return uuid.uuid4().hex


def output_id(prefix: str, key: str, number: int) -> str:
    """The id of an output item."""
    return f"{prefix}_{key}{number:0{_DIGITS}x}"


def is_made_here(prefix: str, name: str) -> bool:
    """True for what may be the id of a stored response or conversation; nothing else needs to be looked for."""
    key = name.removeprefix(f"{prefix}_")
    return key != name and len(key) == _KEY and all(c in "0123456789abcdef" for c in key)


def key_of(item_id: str) -> str | None:
    """The key inside the id of an item that was made here."""
    key = item_id.rpartition("_")[2]
    return key[:_KEY] if len(key) == _KEY + _DIGITS and all(c in "0123456789abcdef" for c in key) else None


_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def normal_items(items: Sequence[InputItem], key: str) -> list[Json]:
    """Items as they are stored and listed: with ids, and contents as lists of parts."""
    return [
        _normal(item, item.id or output_id(_PREFIXES[_kind(item)], key, _INPUT + n)) for n, item in enumerate(items)
    ]


def _normal(item: InputItem, item_id: str) -> Json:
    plain: Json = {"id": item_id, **item.model_dump(exclude_none=True, exclude={"id"})}
    plain["status"] = plain.get("status") or "completed"
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        parts = [ContentPart(type=kind, text=item.content)] if isinstance(item.content, str) else item.content
        plain["content"] = [_normal_part(part, kind) for part in parts]
    elif isinstance(item, FunctionCallOutputItem) and not isinstance(item.output, str):
        plain["output"] = [{"type": "input_text", "text": part.text or ""} for part in item.output]
    return plain


def _normal_part(part: ContentPart, kind: str) -> Json:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    text = part.text if part.text is not None else part.thinking
    plain: Json = {"type": kind if part.type == "text" else part.type, "text": text}
    if plain["type"] == "output_text":
        plain |= {"annotations": [], "logprobs": []}
    return plain


class MessageBuilder:
    """Turns items into chat messages: reasoning, text and calls of one turn become one message of the assistant."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.places: list[str] = []
        """Where each message stands in the request."""
        self._turn: ChatMessage | None = None
        self._thoughts: list[str] = []
        """What the turn's reasoning goes on with."""
        self._opaque = ReasoningDecoder(MOST_REASONING_BYTES)

    def add_message(self, role: str, content: str, place: str) -> None:
        """A message that is no item, such as the instructions."""
        self._append(ChatMessage(role=role, content=content), place)

    def add(self, items: Sequence[InputItem], at: str) -> None:
        """Items in order; `at` is where the first stands, followed by a number."""
        for number, item in enumerate(items):
            self._add(item, f"{at}.{number}")
        self._end_thoughts()

    def _add(self, item: InputItem, place: str) -> None:
        if isinstance(item, ReasoningItem):
            turn = self._turn
            if turn is None or turn.content is not None or turn.tool_calls:
                self._begin_turn(place)
            self._thoughts.append(self._reasoning_text(item, place))
        elif isinstance(item, FunctionCallItem):
            turn = self._turn or self._begin_turn(place)
            call = FunctionCall(name=item.name, arguments=item.arguments)
            turn.tool_calls = [*(turn.tool_calls or ()), MessageToolCall(id=item.call_id, function=call)]
        elif isinstance(item, FunctionCallOutputItem):
            self._append(ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id), place)
        elif isinstance(item, MessageItem) and item.role == "assistant":
            turn = self._turn
            if turn is None or turn.content is not None or turn.tool_calls:
                turn = self._begin_turn(place)
            turn.content = item.content
        elif isinstance(item, MessageItem):
            self._append(ChatMessage(role=item.role, content=item.content), place)

    def _begin_turn(self, place: str) -> ChatMessage:
        turn = ChatMessage(role="assistant")
        self._append(turn, place)
        self._turn = turn
        return turn

    def _end_thoughts(self) -> None:
        if self._turn is not None and self._thoughts:
            self._turn.reasoning = "".join((self._turn.reasoning or "", *self._thoughts))
        self._thoughts = []

    def _append(self, message: ChatMessage, place: str) -> None:
        self._end_thoughts()
        self.messages.append(message)
        self.places.append(place)
        self._turn = None

    def _reasoning_text(self, item: ReasoningItem, place: str) -> str:
        if item.content:
            return "\n".join(part.text for part in item.content)
        if item.encrypted_content:
            at = f"{place}.encrypted_content"
            text = self._opaque.decode(item.encrypted_content, at)
            if text is None:
                raise InvalidRequest(f"{at} was not created by this server", param=at)
            return text
        return "\n\n".join(part.text for part in item.summary)
