"""Threads summed over their turns."""

from collections.abc import Iterable, Sequence
from typing import Any

from heddle.wire.calls import ThreadRow

Turn = tuple[str, int, int | None]


def summed(rows: Iterable[Sequence[Any]]) -> list[ThreadRow]:
    """Threads of turns as (thread id, call id, start, end), which come by start and id; in the order of first turns."""
    turns: dict[str, list[Turn]] = {}
    for thread_id, call_id, started_at, ended_at in rows:
        turns.setdefault(thread_id, []).append((call_id, started_at, ended_at))
    return [_thread(thread_id, items) for thread_id, items in turns.items()]


def _thread(thread_id: str, turns: list[Turn]) -> ThreadRow:
    ended = [(ended_at, -index) for index, (_, _, ended_at) in enumerate(turns) if ended_at is not None]
    last_updated, index = max(ended, default=(None, 0))
    durations = [(ended_at - started_at) / 1000 for _, started_at, ended_at in turns if ended_at is not None]
    return ThreadRow(thread_id, len(turns), turns[0][1], last_updated, turns[0][0], turns[-index][0], sorted(durations))
