"""Edits of a table as arithmetic on positions: which stretches of the base remain, and which rows come between."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from heddle.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Edit:
    """One step: pop the row at `index`, or put `row` (a digest) there; an append has index None."""

    kind: Literal["append", "pop", "insert"]
    index: int | None = None
    row: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Added row digests, followed by the base rows from `start` up to, not including, `stop`."""

    added: tuple[str, ...]
    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many rows it has."""
        return len(self.added) + self.stop - self.start


def apply(count: int, edits: Sequence[Edit]) -> tuple[list[Piece], list[str | int]]:
    """The pieces of the edited table, and per edit the digest that was added or popped.

    `count` is the length of the base; a popped row of the base is told by its position there.
    Raises InvalidRequest for an index out of range.
    """
    # A row of the base is its position, a new one the negative of its number among the added, from 1.
    rows = array("q", range(count))
    added: list[str] = []
    touched: list[str | int] = []
    for edit in edits:
        if edit.kind == "pop":
            token = rows.pop(_checked(edit.index, len(rows) - 1))
            touched.append(token if token >= 0 else added[-token - 1])
            continue
        added.append(edit.row)
        touched.append(edit.row)
        rows.insert(len(rows) if edit.kind == "append" else _checked(edit.index, len(rows)), -len(added))
    return _pieces(rows, added), touched


def _checked(index: int | None, highest: int) -> int:
    if index is None or not 0 <= index <= highest:
        raise InvalidRequest(f"Index out of range: {index} is not between 0 and {highest}")
    return index


def _pieces(rows: Sequence[int], added: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    place, total = 0, len(rows)
    while place < total:
        first = place
        while place < total and rows[place] < 0:
            place += 1
        new = tuple(added[-token - 1] for token in rows[first:place])
        if place == total:
            return [*pieces, Piece(new, 0, 0)]
        start = rows[place]
        first = place
        while place < total and rows[place] == start + place - first:
            place += 1
        pieces.append(Piece(new, start, start + place - first))
    return pieces
