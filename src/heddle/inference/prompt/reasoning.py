"""Reasoning blocks: which marks a model puts around them, and the split of its output into reasoning and answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from heddle.inference.detokenizer import overlap
from heddle.inference.structured.guidance import LLTokenizer
from heddle.inference.structured.lark import mark, name_grammar, text_up_to

if TYPE_CHECKING:
    from heddle.inference.tokenizer import Tokenizer

KNOWN_MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)

ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The texts around a reasoning block, and their token ids."""

    start: str
    end: str
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    """After these a constraint on the answer begins."""

    @property
    def token_ids(self) -> frozenset[int]:
        """Marks that are single tokens; the detokenizer must show them even where they are special tokens."""
        return frozenset(ids[0] for ids in (self.start_token_ids, self.end_token_ids) if len(ids) == 1)


@lru_cache(maxsize=4)
def detect_marks(tokenizer: Tokenizer) -> ReasoningMarks | None:
    """The marks that are tokens of their own or that the chat template mentions; None for a model without reasoning."""
    added = set(tokenizer.added_tokens.values())
    templates = "\n".join(tokenizer.chat_templates.values())
    for start, end in KNOWN_MARKS:
        if {start, end} <= added or (start in templates and end in templates):
            return ReasoningMarks(start, end, tuple(tokenizer.encode(start)), tuple(tokenizer.encode(end)))
    return None


def allow_reasoning_before(grammar: str, tokenizer: LLTokenizer, marks: ReasoningMarks) -> str:
    """A grammar (JSON form) that lets a reasoning block go before what `grammar` matches.

    For models that open the block themselves; where the prompt opened it, `Constraint.after` does this.
    """
    rules = [
        f"start: (opening thought GAP)? @{ANSWER}",
        f"opening: {mark(tokenizer, marks.start)}",
        *text_up_to(tokenizer, "thought", marks.end),
        r"GAP: /\n{0,2}/",
    ]
    return name_grammar(grammar, ANSWER, "\n".join(rules))


def finish_reasoning_before(grammar: str, tokenizer: LLTokenizer, marks: ReasoningMarks) -> str:
    """A grammar (JSON form) that wants the rest of a reasoning block, which the prompt opened, before `grammar`.

    For engines that cannot wait for the end of the block by themselves.
    """
    rules = [f"start: thought @{ANSWER}", *text_up_to(tokenizer, "thought", marks.end)]
    return name_grammar(grammar, ANSWER, "\n".join(rules))


class ReasoningSplitter:
    """Splits a growing output into reasoning and content.

    A block opens only at the very beginning (whitespace before it is dropped) and once; what comes out does not depend
    on how the text was cut into pieces.
    """

    def __init__(self, marks: ReasoningMarks, open_at_start: bool) -> None:
        """`open_at_start`: the prompt already opened the block."""
        self._marks = marks
        self._held = ""
        self._inside = open_at_start
        self._undecided = not open_at_start

    @property
    def inside(self) -> bool:
        """Whether the output so far ends inside a reasoning block."""
        return self._inside

    def push(self, text: str) -> tuple[str, str]:
        """Add text; the reasoning and the content that are certain now."""
        self._held += text
        if self._undecided:
            begin = self._held.lstrip()
            if begin.startswith(self._marks.start):
                self._held = begin[len(self._marks.start) :]
                self._inside, self._undecided = True, False
            elif not self._marks.start.startswith(begin):
                self._undecided = False
        if self._undecided:
            return "", ""
        if not self._inside:
            return "", self._take(len(self._held))
        reasoning, mark, _ = self._held.partition(self._marks.end)
        if mark:
            self._inside = False
            self._take(len(reasoning) + len(mark))
            return reasoning, self._take(len(self._held))
        return self._take(len(self._held) - overlap(self._held, self._marks.end)), ""

    def flush(self) -> tuple[str, str]:
        """What is still held back, at the end of the output."""
        rest = self._take(len(self._held))
        return (rest, "") if self._inside else ("", rest)

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken
