"""What happened in each project, in sums that a list of projects shows; bodies are never read."""

import sqlite3
from collections.abc import Mapping, Sequence

from heddle.store.kept import Kept
from heddle.store.sqlite.call_counts import BLOCK
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire import times
from heddle.wire.buckets import pieces
from heddle.wire.calls import ERROR, ModelUsage, ProjectActivity
from heddle.wire.inference import PriceChanges

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
_USAGE = """SELECT model, sum(requests), sum(prompt), sum(completion), sum(cache_read), sum(cache_creation),
    min(started_at) FROM usage WHERE project = ? AND started_at >= ? AND started_at < ? AND NOT repeated
    GROUP BY model"""
_LATEST = 2**63 - 1


class ProjectActivities:
    """The projects of the store with their sums; sums that took long are kept for a while."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()
        self._kept: Kept[list[ProjectActivity]] = Kept()

    async def all(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        """Every project that holds a call or an object, or was made known; lately means since an instant."""
        return await self._kept.get(lambda: self._look(since, changes))

    def forget(self) -> None:
        """Look again when asked the next time."""
        self._kept.forget()

    async def _look(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        busy = await self._readers.read(self._with_calls)
        cuts = {number: await changes(project) for number, project in busy.items()}
        return await self._readers.read(lambda session: self._read(session, since, cuts))

    def _with_calls(self, session: Session) -> dict[int, str]:
        raw = session.raw
        return {number: self._names.text(raw, number) or "" for (number,) in raw.execute(_WITH_CALLS).fetchall()}

    def _read(self, session: Session, since: int, cuts: Mapping[int, Sequence[int]]) -> list[ProjectActivity]:
        raw = session.raw
        found = [self._sums(raw, number, since, between) for number, between in cuts.items()]
        seen = {activity.project for activity in found}
        known = [project for (project,) in raw.execute(_KNOWN) if project not in seen]
        return [*found, *(ProjectActivity(project, 0, None, 0, 0, ()) for project in known)]

    def _sums(self, raw: sqlite3.Connection, number: int, since: int, cuts: Sequence[int]) -> ProjectActivity:
        calls, last = raw.execute(_CALLS, (number, times.DAY)).fetchone()
        lately, errors = raw.execute(_LATELY, (ERROR, BLOCK, number, since // BLOCK)).fetchone()
        usage = tuple(
            ModelUsage(self._names.text(raw, model) or "", *sums)
            for piece in pieces(since, _LATEST, cuts)
            for model, *sums in raw.execute(_USAGE, (number, *piece)).fetchall()
        )
        return ProjectActivity(self._names.text(raw, number) or "", calls, last, lately, errors, usage)
