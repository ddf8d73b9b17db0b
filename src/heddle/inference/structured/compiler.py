"""A trial compilation of every constraint, so that what cannot work is refused before it reaches an engine."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from heddle.inference.structured.guidance import byte_tokenizer, matcher, plain
from heddle.inference.structured.values import refusal

if TYPE_CHECKING:
    from llguidance import LLTokenizer

TRIAL_TOKENS = 4

_LINE = re.compile(r"^line \d+, column \d+: ")


def checked(grammar: str, tokenizer: "LLTokenizer | None", param: str) -> str:
    """The grammar itself when it compiles and something matches it; else InvalidRequest with the compiler's reason.

    Without a tokenizer bytes take the place of tokens; grammars that name special tokens then do not compile.
    """
    reason = failure(grammar, tokenizer)
    if reason:
        # only the grammars of requests have lines that their senders know
        raise refusal(param, reason if param.endswith("grammar") else _LINE.sub("", reason))
    return grammar


@lru_cache(maxsize=64)
def failure(grammar: str, tokenizer: "LLTokenizer | None") -> str:
    """Why the grammar cannot be used; empty when it can."""
    used = tokenizer or byte_tokenizer()
    state = matcher(used, grammar)
    for generated in range(TRIAL_TOKENS):
        allowed = bytearray() if state.is_error() else _allowed(state, used.eos_tokens)
        if state.is_error():
            return plain(state.get_error())
        if not any(allowed):
            only_empty = state.is_accepting()
            return "" if generated else "only the empty text can match it" if only_empty else "no text can match it"
        state.consume_token(_first(allowed))
    return ""


def _allowed(state: Any, ends: Sequence[int]) -> bytearray:
    """The tokens that may come next, one bit each, without those that end the text."""
    mask = bytearray(state.compute_bitmask())
    for token in ends:
        mask[token // 8] &= ~(1 << token % 8)
    return mask


def _first(mask: bytearray) -> int:
    at = next(index for index, byte in enumerate(mask) if byte)
    return at * 8 + (mask[at] & -mask[at]).bit_length() - 1
