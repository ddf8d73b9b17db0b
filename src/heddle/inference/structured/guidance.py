"""llguidance, which compiles grammars: its limits, tokenizers, messages, and a trial compilation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from heddle.errors import ExtraMissing, InvalidRequest
from heddle.extras import install_command

if TYPE_CHECKING:
    from llguidance import LLTokenizer as LLTokenizer
else:
    LLTokenizer = Any


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must look like."""

    grammar: str
    """The llguidance grammar in its JSON form: `{"grammars": [{"lark_grammar": ...}]}`."""
    after: tuple[int, ...] = ()
    """Token ids (the end of a reasoning block) that must be generated before the constraint begins; empty = at once."""


MAX_REASON = 300
MAX_GRAMMAR_SYMBOLS = 200_000
MAX_LEXER_STATES = 50_000

_POSITION = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


def make_matcher(tokenizer: "LLTokenizer", grammar: str) -> Any:
    """A matcher of a grammar within the limits; `is_error()` tells whether it could be compiled."""
    library = llguidance()
    limits = library.LLParserLimits(
        max_grammar_size=MAX_GRAMMAR_SYMBOLS, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
    )
    return library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def refusal(param: str, reason: object) -> InvalidRequest:
    """The 400 that names the field of the request."""
    return InvalidRequest(f"{param}: {reason}", param=param)


def shorten(text: str, length: int = 120) -> str:
    """The text, cut in its middle when it is longer."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[-length // 2 :]}"


def plain_message(message: str) -> str:
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
    return shorten(text or "it cannot be compiled", MAX_REASON)


def llguidance() -> ModuleType:
    """The library; it belongs to the extra."""
    try:
        return import_module("llguidance")
    except ImportError:
        raise ExtraMissing(f"structured outputs require llguidance: {install_command('inference')}") from None


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


TRIAL_TOKENS = 4

_LINE = re.compile(r"^line \d+, column \d+: ")


def check_grammar(grammar: str, tokenizer: "LLTokenizer | None", param: str) -> str:
    """The grammar itself when it compiles and something matches it; else InvalidRequest with the compiler's reason.

    Without a tokenizer bytes take the place of tokens; grammars that name special tokens then do not compile.
    """
    reason = find_failure(grammar, tokenizer)
    if reason:
        # only the grammars of requests have lines that their senders know
        raise refusal(param, reason if param.endswith("grammar") else _LINE.sub("", reason))
    return grammar


@lru_cache(maxsize=64)
def find_failure(grammar: str, tokenizer: "LLTokenizer | None") -> str:
    """Why the grammar cannot be used; empty when it can."""
    used = tokenizer or byte_tokenizer()
    state = make_matcher(used, grammar)
    for generated in range(TRIAL_TOKENS):
        allowed = bytearray() if state.is_error() else bytearray(state.compute_bitmask())
        for token in used.eos_tokens if allowed else ():
            allowed[token // 8] &= ~(1 << token % 8)
        if state.is_error():
            return plain_message(state.get_error())
        if not any(allowed):
            only_empty = state.is_accepting()
            return "" if generated else "only the empty text can match it" if only_empty else "no text can match it"
        at = next(index for index, byte in enumerate(allowed) if byte)
        state.consume_token(at * 8 + (allowed[at] & -allowed[at]).bit_length() - 1)
    return ""
