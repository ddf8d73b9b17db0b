"""The prompts of recorded conversations, written exactly as a chat completion writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from heddle.errors import HeddleError
from heddle.inference.prompt.messages import ChatMessage, template_messages
from heddle.inference.prompt.template import build_prompt
from heddle.inference.tokenizer import Tokenizer, read_json
from heddle.inference.tools.formats import Tool
from heddle.wire.jsontypes import Json

T = TypeVar("T")
_MESSAGES = TypeAdapter(list[ChatMessage])
_TOOLS = TypeAdapter(list[Tool])


class TrajectoryRenderer:
    """Messages to token ids for a trainer; reads no weights."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size`: of the model, which may be another one than the tokenizer's."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @classmethod
    def load(cls, folder: Path) -> "TrajectoryRenderer":
        """The renderer of a Hugging Face model folder; raises Unavailable when it has no usable tokenizer."""
        tokenizer = Tokenizer.load(folder)
        config = read_json(folder / "config.json")
        stated = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
        return cls(tokenizer, stated or tokenizer.vocab_size)

    def render(self, messages: Sequence[Json], tools: Sequence[Json] | None, *, generation_prompt: bool) -> list[int]:
        """The ids of a conversation; raises ValueError with the place and the reason for what cannot be rendered."""
        read = _valid(_MESSAGES, messages, "messages")
        shown = _valid(_TOOLS, tools, "tools") if tools else []
        try:
            prompt = build_prompt(
                self.tokenizer,
                template_messages(read),
                tools=[tool.model_dump(exclude_unset=True) for tool in shown],
                add_generation_prompt=generation_prompt,
            )
        except HeddleError as error:
            raise ValueError(error.reason) from error
        return list(prompt.token_ids)

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone, without a template."""
        return self.tokenizer.encode(text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        return [self.tokenizer.token_text(token_id) for token_id in ids]

    def token_id(self, token: str) -> int | None:
        """The id of a token that logprobs name: a vocabulary entry, or a text that is exactly one token."""
        if token.startswith("token_id:") and token[9:].isascii() and token[9:].isdecimal():
            named = token[9:].lstrip("0") or "0"
            return int(named) if len(named) < 19 and int(named) < self.vocab_size else None
        known = self.tokenizer.token_id(token)
        if known is not None:
            return known
        ids = self.tokenizer.encode(token)
        return ids[0] if len(ids) == 1 else None


def _valid(adapter: TypeAdapter[T], value: object, name: str) -> T:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, (name, *first['loc'])))}: {first['msg']}") from error
