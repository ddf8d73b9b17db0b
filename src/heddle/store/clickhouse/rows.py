"""A call as a row of ClickHouse: what its start says, what its end says, and where it lies."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from heddle.store.control.call_halves import Key
from heddle.wire import calls
from heddle.wire.calls import RUNNING, End, Start, Usage

Row = tuple[Any, ...]
"""The values of the columns `COLUMNS`."""

_HEAD = ("project", "id", "deleted_at", "inserted_at", "version")
_START = [column for column in calls.COLUMNS if not column.of_end and column.name != "id"]
_END = [column for column in calls.COLUMNS if column.of_end]
_of_start, _of_end = (attrgetter(*(column.name for column in part)) for part in (_START, _END))
_STARTED = (*(column.name for column in _START), "size_in", "input_refs")
_ENDED = (*(column.name for column in _END), "size_out", "output_refs", *(f"usage_{name}" for name in Usage._fields))
COLUMNS = (*_HEAD, *_STARTED, *_ENDED, "files")
_IN_AT, _OUT_AT, _FILES_AT = len(_HEAD), len(_HEAD) + len(_STARTED), len(COLUMNS) - 1
_TRACE_AT, _STARTED_AT, _NAME_AT = map(_STARTED.index, ("trace_id", "started_at", "display_name"))
_ENDED_AT = _OUT_AT + _ENDED.index("ended_at")
_NOTHING: list[Any] = []
_NO_USAGE = (_NOTHING,) * len(Usage._fields)
_NO_END = (*(RUNNING if column.name == "status" else None for column in _END), 0, _NOTHING, *_NO_USAGE)
_NO_START = (*("" if column.is_required else None for column in _START), 0, _NOTHING)

_RUNNING_RANK, _ENDED_RANK, _DELETED_RANK = 0, 1, 2
_RANK_BITS = 56
_CLOCK = (1 << _RANK_BITS) - 1
MOVED = -1
"""`deleted_at` of the row at a position that the call has left."""


@dataclass(frozen=True, slots=True)
class Part:
    """One half as values of its columns, and its large fields that lie in files."""

    values: tuple[Any, ...]
    files: dict[str, str]

    def named(self, display_name: str) -> "Part":
        """A start with another display name."""
        return Part((*self.values[:_NAME_AT], display_name, *self.values[_NAME_AT + 1 :]), self.files)


_NOT_ENDED = Part(_NO_END, {})


@dataclass(frozen=True, slots=True)
class Position:
    """Where a row lies: rows of one position replace each other (a trace decides about the shard)."""

    started_at: int
    trace_id: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A row that is stored."""

    position: Position
    version: int
    deleted_at: int
    inserted_at: int
    start: Part
    end: Part | None


class Versions:
    """Numbers of rows: what is known of a call decides, then when the writing began.

    Rows that hide others are numbered as they are made, so that whoever began to write there before loses.
    """

    def __init__(self) -> None:
        self._last = 0

    def reserve(self, count: int) -> int:
        """The first of as many instants (microseconds) in a row that are nobody else's in this process."""
        first = max(self._last + 1, time.time_ns() // 1000)
        self._last = first + count - 1
        return first

    def of_move(self, above: int) -> int:
        """The version of the row at a position that a call has left, above one that was read."""
        return max(_ENDED_RANK << _RANK_BITS | self.reserve(1), above + 1)

    def of_deletion(self) -> int:
        """The version of a deletion: nothing replaces it."""
        return _DELETED_RANK << _RANK_BITS | self.reserve(1)


def version_of(has_ended: bool, number: int, above: int) -> int:
    """The version of a call that runs or has ended, whose writing began at an instant, above one that was read."""
    return max((_ENDED_RANK if has_ended else _RUNNING_RANK) << _RANK_BITS | number, above + 1)


def written_at(found: Stored) -> int:
    """The instant (microseconds) at which the writing of a row began."""
    return found.version & _CLOCK


def was_left(found: Iterable[Stored], position: Position, number: int) -> bool:
    """True where a call has left a position since the instant at which the writing began."""
    return any(row.deleted_at == MOVED and row.position == position and written_at(row) > number for row in found)


def part_of_start(start: Start) -> Part:
    """The columns of a start."""
    return Part((*_of_start(start), start.size, start.refs), start.files)


def part_of_end(end: End) -> Part:
    """The columns of an end."""
    usage = tuple(zip(*{entry.model: entry for entry in end.usage}.values(), strict=True)) if end.usage else _NO_USAGE
    return Part((*_of_end(end), end.size, end.refs, *usage), end.files)


def position_of(start: Part) -> Position:
    """Where a call with this start lies."""
    return Position(start.values[_STARTED_AT], start.values[_TRACE_AT])


def row(key: Key, start: Part, end: Part | None, inserted_at: int, version: int) -> Row:
    """The row of a live call."""
    ended = end or _NOT_ENDED
    return (*key, 0, inserted_at, version, *start.values, *ended.values, start.files | ended.files)


def hidden_row(key: Key, position: Position, deleted_at: int, version: int) -> Row:
    """A row that hides what lies at a position; it holds no texts."""
    start = list(_NO_START)
    start[_TRACE_AT], start[_STARTED_AT] = position.trace_id, position.started_at
    return (*key, deleted_at, 0, version, *start, *_NO_END, {})


def stored(values: Sequence[Any]) -> tuple[Key, Stored]:
    """The call that a row of `COLUMNS` tells."""
    project, call_id, deleted_at, inserted_at, version = values[:_IN_AT]
    files: dict[str, str] = values[_FILES_AT]
    started = {name: blob for name, blob in files.items() if name in calls.BODY_IN}
    start = Part(tuple(values[_IN_AT:_OUT_AT]), started)
    ended = {name: blob for name, blob in files.items() if name not in calls.BODY_IN}
    end = Part(tuple(values[_OUT_AT:_FILES_AT]), ended) if values[_ENDED_AT] is not None else None
    return (project, call_id), Stored(position_of(start), version, deleted_at, inserted_at, start, end)
