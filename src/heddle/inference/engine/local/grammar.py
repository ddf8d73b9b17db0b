"""Grammars: which tokens may come next, by llguidance, one matcher for each constrained request."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.errors import ExtraMissing
from heddle.inference.engine.base import RequestRefused
from heddle.inference.structured.guidance import Constraint, grammar_tokenizer, make_matcher, plain_message

MOST_COMPILED = 8
"""What a grammar's matchers found out about it is kept with it, up to 50 MiB."""


class Matcher:
    """The state of one grammar; before its start marker was generated everything is allowed."""

    def __init__(self, state: Any, after: tuple[int, ...], vocabulary: "Vocabulary", renew: Callable[[], Any]) -> None:
        """`renew` gives a state that shares nothing with the other matchers of the grammar."""
        self._state = state
        self._renew: Callable[[], Any] | None = renew
        self._taken: list[int] = []
        self._after = after
        self._vocabulary = vocabulary
        self.active = not after

    def fill(self, words: NDArray[np.int32]) -> None:
        """Write the allowed tokens as bits: int32 [words]. Raises RequestRefused when the grammar is too complex."""
        self._state.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._state.is_error() and self._begin_anew():
            self._state.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        if (words & self._vocabulary.special_words).any() and not self._state.is_stopped():
            self._drop_false_marks(words)

    def accept(self, tokens: Rows[int], output_count: int) -> None:
        """Take the last of `tokens`, just generated. Raises RequestRefused when the grammar cannot go on."""
        if self.active:
            self._taken.append(tokens[-1])
            self._state.consume_token(tokens[-1])
            if self._state.is_error():
                self._begin_anew()
            self._check()
        elif output_count >= len(self._after) and tuple(tokens[-len(self._after) :]) == self._after:
            self.active = True

    def _begin_anew(self) -> bool:
        """Take the same tokens with a state of its own, once: others of the grammar may have used up its states."""
        renew, self._renew = self._renew, None
        if renew is None:
            return False
        self._state = renew()
        self._state.consume_tokens(self._taken)
        return True

    def _drop_false_marks(self, words: NDArray[np.int32]) -> None:
        """Where a grammar wants the letters of a special token's text, the library proposes that token and then does
        not take it: spell the text with ordinary tokens."""
        for token in self._vocabulary.special:
            if words[token // 32] >> (token % 32) & 1 and not self._state.validate_tokens([token]):
                words.view(np.uint32)[token // 32] &= ~np.uint32(1 << token % 32)
        if words.any():
            return
        text = bytes(self._state.compute_ff_bytes()).decode("utf-8", "ignore")
        for token in self._vocabulary.tokenizer.greedy_tokenize(text)[:1]:
            if self._state.validate_tokens([token]):
                words.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    @property
    def complete(self) -> bool:
        """Nothing can follow but the end."""
        return self.active and bool(self._state.is_stopped())

    def _check(self) -> None:
        if self._state.is_error():
            raise RequestRefused(
                f"the constraint failed: {plain_message(self._state.get_error())}", param="structured_outputs"
            )


class Vocabulary:
    """The tokenizer as llguidance sees it, and its special tokens."""

    def __init__(self, file: Path, vocab_size: int, eos: tuple[int, ...]) -> None:
        self.tokenizer = grammar_tokenizer(file, vocab_size, eos)
        self.special = [token for token in range(vocab_size) if self.tokenizer.is_special_token(token)]
        bits = np.zeros((vocab_size + 31) // 32 * 32, dtype=np.uint8)
        bits[self.special] = 1
        self.special_words = np.packbits(bits, bitorder="little").view(np.int32)


class Grammars:
    """Compiles grammars for one tokenizer, which is read when the first one comes."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos: tuple[int, ...]) -> None:
        self._file = tokenizer
        self._vocab_size = vocab_size
        self._eos = eos
        self._vocabulary: Vocabulary | None = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    @property
    def words(self) -> int:
        """32-bit words of one mask."""
        return (self._vocab_size + 31) // 32

    def matcher(self, constraint: Constraint) -> Matcher:
        """A fresh matcher. Raises RequestRefused for a grammar that cannot be used."""
        if self._vocabulary is None:
            try:
                self._vocabulary = Vocabulary(self._file, self._vocab_size, self._eos)
            except (OSError, ValueError, ExtraMissing) as error:
                reason = f"constraints do not work with this model's tokenizer: {error}"
                raise RequestRefused(reason, param="structured_outputs") from error
        vocabulary, grammar = self._vocabulary, constraint.grammar

        def make_state(compiled: Any = None) -> Any:
            compiled = self._compiled[grammar] = compiled or self._compile(grammar, vocabulary)
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()

        return Matcher(make_state(self._compiled.pop(grammar, None)), constraint.after, vocabulary, make_state)

    @staticmethod
    def _compile(grammar: str, vocabulary: Vocabulary) -> Any:
        state = make_matcher(vocabulary.tokenizer, grammar)
        if state.is_error():
            reason = plain_message(state.get_error())
            raise RequestRefused(f"the constraint cannot be used: {reason}", param="structured_outputs")
        return state
