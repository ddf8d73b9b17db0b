"""What every scorer is, and how its scores are read."""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from heddle.wire.jsontypes import Json

Ask = Callable[[Json], Awaitable[Json]]
"""Answers the inputs of a completion with its `chat.completion`."""


class Scorer(Protocol):
    """Judges answers."""

    @property
    def name(self) -> str:
        """What it is called in the summary."""
        ...

    @property
    def ref(self) -> str:
        """The internal ref of its object; empty for one that is stored inside an evaluation."""
        ...

    @property
    def class_name(self) -> str:
        """The class of its object."""
        ...

    @property
    def needs(self) -> Sequence[str]:
        """The columns that every row must have."""
        ...

    @property
    def is_numeric(self) -> bool:
        """True when its scores hold numbers or truths."""
        ...

    def arguments(self, columns: Mapping[str, Any]) -> Json:
        """What its call shows beside the answer: names with the values (or refs) of the row's columns."""
        ...

    async def score(self, output: Any, row: Json, ask: Ask) -> Any:
        """The score of an answer: a number, a truth, or an object of these; raises HeddleError."""
        ...

    def measured(self, score: Any) -> Any:
        """The part of a score that says how good the answer is."""
        ...


def as_text(output: Any) -> str:
    """An answer as text: JSON where it is none."""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def number_of(value: Any) -> float | None:
    """The mean of the numbers and truths in a score; None when it holds none."""
    found = list(_leaves(value))
    return sum(found) / len(found) if found else None


def _leaves(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [float(value)] if is_number(value) else []


def is_number(value: Any) -> bool:
    """True for numbers and truths that a sum can take: JSON knows integers beyond every float."""
    return isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max
