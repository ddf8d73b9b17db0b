"""Tokens by model and by who used them, and what each op did; bodies are never read."""

import sqlite3
from collections.abc import Sequence

from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire.buckets import pieces
from heddle.wire.calls import ERROR, OpActivity, UsageSum

_MOST_OPS = 500
_NEWEST = 200
_SUMS = """u.model, count(*), sum(u.requests), sum(u.prompt), sum(u.completion), sum(u.cache_read),
    sum(u.cache_creation), min(u.started_at) FROM usage u"""
_RANGE = "WHERE u.project = ? AND u.started_at >= ? AND u.started_at < ? AND NOT u.repeated"
_GROUPS = {"op": "c.op", "user": "c.user"}
_OPS = """SELECT op, count(*), max(started_at) FROM calls
    WHERE project = ? AND deleted_at IS NULL AND started_at IS NOT NULL GROUP BY op ORDER BY 3 DESC"""
_LATEST = """SELECT status, ended_at - started_at FROM calls
    WHERE project = ? AND op IS ? AND deleted_at IS NULL AND started_at IS NOT NULL AND ended_at IS NOT NULL
    ORDER BY started_at DESC LIMIT ?"""
_NATURE = """SELECT CASE WHEN json_valid(b.attributes) THEN json_extract(b.attributes, '$.weave.kind') END,
    EXISTS (SELECT 1 FROM usage u WHERE u.project = c.project AND u.started_at = c.started_at AND u.rid = c.rid)
    FROM calls c LEFT JOIN body_in b ON b.rid = c.rid
    WHERE c.project = ? AND c.op IS ? AND c.deleted_at IS NULL AND c.started_at IS NOT NULL
    ORDER BY c.started_at DESC LIMIT 1"""


class Breakdowns:
    """Sums of a project by model, op and user."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def first_usage(self, project: str) -> int | None:
        """When the first call that used tokens started; None where there is none."""
        sql = "SELECT min(started_at) FROM usage WHERE project = ?"

        def read(session: Session) -> int | None:
            found = session.raw.execute(sql, (self._names.number(session.raw, project),)).fetchone()[0]
            return None if found is None else int(found)

        return await self._readers.read(read)

    async def usage(
        self, project: str, by: str, lower: int, upper: int, shift: int, width: int, cuts: Sequence[int] = ()
    ) -> list[UsageSum]:
        """Tokens per bucket of `width` microseconds from `shift`, per model and, with `by` "op" or "user", per name."""

        def read(session: Session) -> list[UsageSum]:
            # A query for each piece reads no more rows than one for all, and compares none of them with cuts.
            found = (
                self._usage(session.raw, project, by, piece, (shift, width)) for piece in pieces(lower, upper, cuts)
            )
            return [row for rows in found for row in rows]

        return await self._readers.read(read)

    async def ops(self, project: str) -> list[OpActivity]:
        """What was called, the last called first; times and errors are those of the newest calls of each."""
        return await self._readers.read(lambda session: self._ops(session.raw, project))

    def _usage(
        self, raw: sqlite3.Connection, project: str, by: str, limits: tuple[int, int], buckets: tuple[int, int]
    ) -> list[UsageSum]:
        group = _GROUPS.get(by, "NULL")
        join = " CROSS JOIN calls c ON c.rid = u.rid" if by in _GROUPS else ""
        sql = f"SELECT (u.started_at - ?) / ?, {group}, {_SUMS}{join} {_RANGE} GROUP BY 1, 2, 3"
        number = self._names.number(raw, project)
        rows = raw.execute(sql, (*buckets, number, *limits)).fetchall()
        text = self._names.text
        return [
            UsageSum(bucket, text(raw, name) or "", text(raw, model) or "", *sums)
            for bucket, name, model, *sums in rows
        ]

    def _ops(self, raw: sqlite3.Connection, project: str) -> list[OpActivity]:
        number = self._names.number(raw, project)
        found = []
        for op, calls, last in raw.execute(_OPS, (number,)).fetchmany(_MOST_OPS):
            newest = raw.execute(_LATEST, (number, op, _NEWEST)).fetchall()
            seconds = tuple(took / 1e6 for _, took in newest)
            errors = sum(status == ERROR for status, _ in newest)
            said, spends = raw.execute(_NATURE, (number, op)).fetchone()
            kind = said if isinstance(said, str) else "llm" if spends else None
            found.append(OpActivity(self._names.text(raw, op) or "", calls, last, kind, errors, seconds))
        return found
