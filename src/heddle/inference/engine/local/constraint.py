"""Grammars: which tokens may come next, by llguidance, one matcher for each constrained request."""

from collections import OrderedDict
from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.inference.engine.base import Constraint, RequestRefused

MOST_COMPILED = 32


class Matcher:
    """The state of one grammar; before its start marker was generated everything is allowed."""

    def __init__(self, state: Any, after: tuple[int, ...]) -> None:
        self._state = state
        self._after = after
        self.active = not after

    def fill(self, words: NDArray[np.int32]) -> None:
        """Write the allowed tokens as bits: int32 [words]. Raises RequestRefused when the grammar is too complex."""
        self._state.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()

    def accept(self, tokens: Rows[int], output_count: int) -> None:
        """Take the last of `tokens`, just generated. Raises RequestRefused when the grammar cannot go on."""
        if self.active:
            self._state.consume_token(tokens[-1])
            self._check()
        elif output_count >= len(self._after) and tuple(tokens[-len(self._after) :]) == self._after:
            self.active = True

    @property
    def complete(self) -> bool:
        """Nothing can follow but the end."""
        return self.active and bool(self._state.is_stopped())

    def _check(self) -> None:
        if self._state.is_error():
            raise RequestRefused(f"the constraint failed: {self._state.get_error()}", param="structured_outputs")


class Grammars:
    """Compiles grammars for one tokenizer, which is read when the first one comes."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos: tuple[int, ...]) -> None:
        self._file = tokenizer
        self._vocab_size = vocab_size
        self._eos = eos
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    @property
    def words(self) -> int:
        """32-bit words of one mask."""
        return (self._vocab_size + 31) // 32

    def matcher(self, constraint: Constraint) -> Matcher:
        """A fresh matcher. Raises RequestRefused for a grammar that cannot be used."""
        compiled = self._compiled.pop(constraint.grammar, None) or self._compile(constraint.grammar)
        self._compiled[constraint.grammar] = compiled
        if len(self._compiled) > MOST_COMPILED:
            self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy(), constraint.after)

    def _compile(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        state = LLMatcher(self._read_tokenizer(), grammar, log_level=0)
        if state.is_error():
            raise RequestRefused(f"the constraint cannot be used: {state.get_error()}", param="structured_outputs")
        return state

    def _read_tokenizer(self) -> Any:
        if self._tokenizer is None:
            from llguidance import LLTokenizer

            self._tokenizer = LLTokenizer(
                self._file.read_text(encoding="utf-8"), n_vocab=self._vocab_size, eos_token=list(self._eos) or None
            )
        return self._tokenizer
