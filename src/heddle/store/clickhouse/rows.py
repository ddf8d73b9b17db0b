"""A call as a row of ClickHouse: what its start says, what its end says, and where it lies."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.store.control.call_halves import Key
from heddle.wire.calls import RUNNING, End, Start

Row = tuple[Any, ...]
"""The values of the columns `COLUMNS`."""

_HEAD = ("project", "id", "deleted_at", "inserted_at", "version")
_STARTED = (
    *("trace_id", "started_at", "parent_id", "op_name", "thread_id", "turn_id", "run_id", "run_step", "user"),
    *("display_name", "size_in", "inputs", "attributes", "otel_dump", "input_refs"),
)
_USAGE = ("model", "requests", "prompt", "completion", "total", "cache_read", "cache_creation")
_ENDED = (
    *("ended_at", "status", "run_step_end", "size_out", "output", "summary", "exception", "output_refs"),
    *(f"usage_{name}" for name in _USAGE),
)
COLUMNS = (*_HEAD, *_STARTED, *_ENDED, "files")
_IN_AT, _OUT_AT, _FILES_AT = len(_HEAD), len(_HEAD) + len(_STARTED), len(COLUMNS) - 1
_IN_FILES = ("inputs", "attributes", "otel_dump")
_NAME_AT = _STARTED.index("display_name")
_NOTHING: list[Any] = []
_NO_USAGE = (_NOTHING,) * len(_USAGE)
_NO_END = (None, RUNNING, None, 0, None, None, None, _NOTHING, *_NO_USAGE)

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
    return Part(
        (
            start.trace_id,
            start.started_at,
            start.parent_id,
            start.op_name,
            start.thread_id,
            start.turn_id,
            start.run_id,
            start.run_step,
            start.user,
            start.display_name,
            start.size,
            start.inputs,
            start.attributes,
            start.otel_dump,
            start.refs,
        ),
        start.files,
    )


def part_of_end(end: End) -> Part:
    """The columns of an end."""
    usage = tuple(zip(*{entry.model: entry for entry in end.usage}.values(), strict=True)) if end.usage else _NO_USAGE
    values = (end.ended_at, end.status, end.run_step_end, end.size, end.output, end.summary, end.exception, end.refs)
    return Part((*values, *usage), end.files)


def position_of(start: Part) -> Position:
    """Where a call with this start lies."""
    return Position(start.values[1], start.values[0])


def row(key: Key, start: Part, end: Part | None, inserted_at: int, version: int) -> Row:
    """The row of a live call."""
    ended = end or _NOT_ENDED
    return (*key, 0, inserted_at, version, *start.values, *ended.values, start.files | ended.files)


def hidden_row(key: Key, position: Position, deleted_at: int, version: int) -> Row:
    """A row that hides what lies at a position; it holds no texts."""
    start = (
        position.trace_id,
        position.started_at,
        None,
        "",
        None,
        None,
        None,
        None,
        None,
        None,
        0,
        "",
        "",
        None,
        _NOTHING,
    )
    return (*key, deleted_at, 0, version, *start, *_NO_END, {})


def stored(values: Sequence[Any]) -> tuple[Key, Stored]:
    """The call that a row of `COLUMNS` tells."""
    project, call_id, deleted_at, inserted_at, version = values[:_IN_AT]
    files: dict[str, str] = values[_FILES_AT]
    started = {name: blob for name, blob in files.items() if name in _IN_FILES}
    start = Part(tuple(values[_IN_AT:_OUT_AT]), started)
    ended = {name: blob for name, blob in files.items() if name not in _IN_FILES}
    end = Part(tuple(values[_OUT_AT:_FILES_AT]), ended) if values[_OUT_AT] is not None else None
    return (project, call_id), Stored(position_of(start), version, deleted_at, inserted_at, start, end)
