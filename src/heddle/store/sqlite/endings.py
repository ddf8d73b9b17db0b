"""The outbox of calls that ended, for monitors."""

import sqlite3
from collections.abc import Collection, Iterable

from heddle.store.sqlite.names import Names
from heddle.wire.calls import End, Ending, Start

_ADD = """INSERT INTO call_endings (project, call) SELECT project, id FROM calls
    WHERE project = ? AND id = ? AND ended_at IS NOT NULL AND started_at IS NOT NULL AND deleted_at IS NULL"""
ENDINGS_TABLE = """CREATE TABLE IF NOT EXISTS call_endings (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, project INTEGER NOT NULL, call TEXT NOT NULL,
    is_taken INTEGER NOT NULL DEFAULT 0)"""


class Endings:
    """The outbox; only projects in `watched` (internal ids) are written to it."""

    def __init__(self, names: Names) -> None:
        self.watched: frozenset[str] = frozenset()
        self._names = names

    def concerns(self, starts: Iterable[Start], ends: Iterable[End]) -> bool:
        """True when these halves may end a call of a watched project."""
        watched = self.watched
        return bool(watched) and any(half.project in watched for part in (starts, ends) for half in part)

    def note(self, raw: sqlite3.Connection, starts: Iterable[Start], ends: Iterable[End]) -> None:
        """Add the calls that are whole now; runs behind their writing, in the same transaction."""
        keys = dict.fromkeys((half.project, half.id) for part in (starts, ends) for half in part)
        rows = [(self._names.number(raw, project), call) for project, call in keys if project in self.watched]
        raw.executemany(_ADD, rows)

    @staticmethod
    def take(raw: sqlite3.Connection, limit: int, skipping: Collection[str]) -> list[Ending]:
        """The oldest endings of one project as a batch; the same again until it is dropped, whatever is added."""
        known = "FROM call_endings e JOIN names n ON n.k = e.project"
        marks = ", ".join("?" * len(skipping))
        oldest = f"SELECT e.project {known} WHERE n.v NOT IN ({marks}) ORDER BY e.seq LIMIT 1"
        found = raw.execute(oldest, tuple(skipping)).fetchone()
        if found is None:
            return []
        taken = f"SELECT e.seq, n.v, e.call {known} WHERE e.project = ? AND e.is_taken ORDER BY e.seq"
        batch = raw.execute(taken, found).fetchall()
        if not batch:
            part = "SELECT seq FROM call_endings WHERE project = ? ORDER BY seq LIMIT ?"
            raw.execute(f"UPDATE call_endings SET is_taken = 1 WHERE seq IN ({part})", (*found, limit))
            batch = raw.execute(taken, found).fetchall()
        return [Ending(*row) for row in batch]
