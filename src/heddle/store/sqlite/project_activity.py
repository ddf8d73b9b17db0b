"""What happened in each project, in sums that a list of projects shows; bodies are never read."""

import asyncio
import sqlite3
import time

from heddle.store.sqlite.call_counts import BLOCK
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire import times
from heddle.wire.calls import ERROR, ModelUsage, ProjectActivity

_WITH_CALLS = """WITH RECURSIVE found (k) AS (
        SELECT min(project) FROM calls
        UNION ALL SELECT (SELECT min(project) FROM calls WHERE project > found.k) FROM found WHERE found.k IS NOT NULL)
    SELECT k FROM found WHERE k IS NOT NULL"""
_KNOWN = "SELECT project FROM projects UNION SELECT DISTINCT project FROM object_versions WHERE deleted_at IS NULL"
_CALLS = """SELECT ifnull(sum(calls), 0), (
        SELECT started_at FROM calls WHERE project = ?1 AND started_at IS NOT NULL AND deleted_at IS NULL
        ORDER BY started_at DESC LIMIT 1)
    FROM call_blocks WHERE width = ?2 AND project = ?1"""
_LATELY = """SELECT ifnull(sum(calls), 0), ifnull(sum(calls * (status = ?)), 0) FROM call_blocks
    WHERE width = ? AND project = ? AND block >= ?"""
_USAGE = """SELECT model, sum(requests), sum(prompt), sum(completion), sum(cache_read), sum(cache_creation)
    FROM usage WHERE project = ? AND started_at >= ? AND NOT repeated GROUP BY model"""
_SHARE = 20
"""An answer is kept for so many times as long as it took, so that looking costs at most a twentieth of the time."""


class ProjectActivities:
    """The projects of the store with their sums; sums that took long are kept for a while."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()
        self._asking = asyncio.Lock()
        self._kept: list[ProjectActivity] = []
        self._good_until = 0.0

    async def all(self, since: int) -> list[ProjectActivity]:
        """Every project that holds a call or an object, or was made known; lately means since an instant."""
        async with self._asking:
            if time.monotonic() >= self._good_until:
                began = time.monotonic()
                self._kept = await self._readers.read(lambda session: self._read(session, since))
                ended = time.monotonic()
                self._good_until = ended + (ended - began) * _SHARE
        return self._kept

    def forget(self) -> None:
        """Look again when asked the next time."""
        self._good_until = 0.0

    def _read(self, session: Session, since: int) -> list[ProjectActivity]:
        raw = session.raw
        found = [self._sums(raw, int(number), since) for (number,) in raw.execute(_WITH_CALLS).fetchall()]
        seen = {activity.project for activity in found}
        known = [project for (project,) in raw.execute(_KNOWN) if project not in seen]
        return [*found, *(ProjectActivity(project, 0, None, 0, 0, ()) for project in known)]

    def _sums(self, raw: sqlite3.Connection, number: int, since: int) -> ProjectActivity:
        calls, last = raw.execute(_CALLS, (number, times.DAY)).fetchone()
        lately, errors = raw.execute(_LATELY, (ERROR, BLOCK, number, since // BLOCK)).fetchone()
        usage = tuple(
            ModelUsage(self._names.text(raw, model) or "", *sums)
            for model, *sums in raw.execute(_USAGE, (number, since)).fetchall()
        )
        return ProjectActivity(self._names.text(raw, number) or "", calls, last, lately, errors, usage)
