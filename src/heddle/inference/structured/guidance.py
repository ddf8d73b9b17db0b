"""llguidance, which compiles grammars: its limits, tokenizers as it wants them, and its messages for people."""

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from heddle.errors import ExtraMissing

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_REASON = 300
MAX_GRAMMAR_SYMBOLS = 200_000
MAX_LEXER_STATES = 50_000

_POSITION = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


def matcher(tokenizer: "LLTokenizer", grammar: str) -> Any:
    """A matcher of a grammar within the limits; `is_error()` tells whether it could be compiled."""
    library = llguidance()
    limits = library.LLParserLimits(
        max_grammar_size=MAX_GRAMMAR_SYMBOLS, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
    )
    return library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def shortened(text: str, length: int = 120) -> str:
    """The text, cut in its middle when it is longer."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[-length // 2 :]}"


def plain(message: str) -> str:
    """The compiler's message on one line, without excerpts of source and of its own state, at most 300 characters."""
    lines = [line.strip() for line in message.replace("<state>", "\n<state>").splitlines()]
    if "<state>" in lines:
        lines = lines[: lines.index("<state>")] or ["the grammar is too complex"]
    details = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if not lines or lines[0] in ("NoExtension", "NoExtensionBias"):
        return "no text can match it"
    lines[0] = _POSITION.sub(r"line \1, column \2: ", lines[0]).replace("failed to compile JSON schema: ", "")
    first = lines[0].rstrip(":")
    text = ": ".join([first.removesuffix("regex parse error").rstrip(": "), *details]).strip(": ")
    return shortened(text or "it cannot be compiled", MAX_REASON)


def llguidance() -> ModuleType:
    """The library; it belongs to the extra."""
    try:
        return import_module("llguidance")
    except ImportError:
        raise ExtraMissing("structured outputs need llguidance: pip install 'heddle[inference]'") from None


def grammar_tokenizer(file: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> "LLTokenizer":
    """A `tokenizer.json` as the library wants it, for masks over `vocab_size` tokens; takes up to a second."""
    text = file.read_text(encoding="utf-8")
    made: LLTokenizer = llguidance().LLTokenizer(
        text, n_vocab=vocab_size or None, eos_token=list(eos_token_ids) or None
    )
    return made


@lru_cache(maxsize=1)
def byte_tokenizer() -> "LLTokenizer":
    """A vocabulary of the 256 bytes and an end token (256)."""
    library = llguidance()
    made: LLTokenizer = library.LLTokenizer(library.TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=256, slices=[])
    return made


class _Bytes:
    """What the library asks of a tokenizer."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
