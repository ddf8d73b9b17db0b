"""A project over time: counts and latencies in equal buckets; bodies are never read."""

import sqlite3
from collections.abc import Sequence

from heddle.store.sqlite.call_counts import WIDTHS
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire.buckets import percentile_of
from heddle.wire.calls import ERROR
from heddle.wire.overview import CallCounts, ProjectOverview, TimeSpan

_SAMPLE = 20_000
_RANGE = "project = ? AND started_at >= ? AND started_at < ? AND deleted_at IS NULL"
_COUNTS = f"""SELECT (started_at - ?) / ? AS bucket, count(*), ifnull(sum(status = ?), 0) FROM calls
    WHERE {_RANGE} GROUP BY bucket"""
_BLOCK_COUNTS = """SELECT (block * ?1 - ?2) / ?3 AS bucket, sum(calls), ifnull(sum(calls * (status = ?4)), 0)
    FROM call_blocks WHERE width = ?1 AND project = ?5 AND block >= ?6 AND block < ?7 GROUP BY bucket"""
_ROOTS = f"SELECT count(*) FROM calls WHERE {_RANGE} AND parent_id IS NULL"
_LATENCIES = f"""SELECT (started_at - ?) / ?, (ended_at - started_at) / 1e6 AS seconds FROM calls
    WHERE {_RANGE} AND parent_id IS NULL AND ended_at IS NOT NULL AND (rid * 2654435761) % ? = 0
    ORDER BY seconds"""
_FIRST = """SELECT started_at FROM calls WHERE project = ? AND started_at IS NOT NULL AND deleted_at IS NULL
    ORDER BY started_at LIMIT 1"""


class Overviews:
    """Counts of one project; latencies beyond 20,000 root calls are those of a sample."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def first_started_at(self, project: str) -> int | None:
        """When the first call of a project (internal id) started; None without any."""

        def work(raw: sqlite3.Connection) -> int | None:
            row = raw.execute(_FIRST, (self._names.number(raw, project),)).fetchone()
            return None if row is None else int(row[0])

        return await self._readers.read(lambda session: work(session.raw))

    async def read(self, project: str, span: TimeSpan) -> ProjectOverview:
        """The calls of a project (internal id) in a span."""
        return await self._readers.read(lambda session: self._read(session.raw, project, span))

    def _read(self, raw: sqlite3.Connection, project: str, span: TimeSpan) -> ProjectOverview:
        number = self._names.number(raw, project)
        place = (span.start, span.width)
        inside = (number, span.start, span.end)
        counted = self._counted(raw, number, span)
        roots = int(raw.execute(_ROOTS, inside).fetchone()[0])
        by_bucket: dict[int, list[float]] = {}
        every = max(1, roots // _SAMPLE)
        sampled = raw.execute(_LATENCIES, (*place, *inside, every)).fetchall()
        for bucket, seconds in sampled:
            by_bucket.setdefault(bucket, []).append(seconds)
        counts = [_counts(bucket, calls, errors, by_bucket.get(bucket, ())) for bucket, calls, errors in counted]
        calls, errors = sum(row[1] for row in counted), sum(row[2] for row in counted)
        whole = _counts(0, calls, errors, [seconds for _, seconds in sampled])
        return ProjectOverview(counts, whole)

    def _counted(self, raw: sqlite3.Connection, number: int | None, span: TimeSpan) -> list[tuple[int, int, int]]:
        """Calls and errors per bucket: of whole blocks as they are counted already, of the rest one by one."""
        block = next((one for one in reversed(WIDTHS) if span.start % one == 0 and span.width % one == 0), 0)
        whole = (span.end - span.start) // block * block if block else 0
        first = span.start // (block or 1)
        blocks = (block, span.start, span.width, ERROR, number, first, first + whole // (block or 1))
        rest = (span.start, span.width, ERROR, number, span.start + whole, span.end)
        sums: dict[int, tuple[int, int]] = {}
        for sql, parameters in ((_BLOCK_COUNTS, blocks), (_COUNTS, rest)):
            for bucket, calls, errors in raw.execute(sql, parameters):
                before = sums.get(bucket, (0, 0))
                sums[bucket] = (before[0] + calls, before[1] + errors)
        return [(bucket, *both) for bucket, both in sorted(sums.items()) if both[0]]


def _counts(bucket: int, calls: int, errors: int, ordered: Sequence[float]) -> CallCounts:
    return CallCounts(bucket, calls, errors, percentile_of(ordered, 50), percentile_of(ordered, 95))
