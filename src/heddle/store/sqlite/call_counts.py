"""How many calls there are over time: counted by blocks of ten minutes and by days in each transaction that writes.

SQLite's triggers would keep the counts as well, but triple the time of an insert: even an empty one costs a journal of
its own for every row.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from heddle.store.sqlite.call_table import select
from heddle.store.sqlite.connection import Readers, Session
from heddle.store.sqlite.names import NameReader
from heddle.wire import times
from heddle.wire.calls import ERROR, STATUS_WORDS, CallsQuery, CallSums, Filter, OpCount
from heddle.wire.query import Compare, Field, In, Literal, Operation

BLOCK = 600 * times.SECOND
WIDTHS = (BLOCK, times.DAY)
_KEY = "project, (started_at - (started_at < 0) * ({0} - 1)) / {0}, op, parent_id IS NULL, status"
_COUNTED = "started_at IS NOT NULL AND deleted_at IS NULL"
_ADD = """INSERT INTO call_blocks VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET calls = calls + excluded.calls"""
STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS call_blocks (
        width INTEGER NOT NULL, project INTEGER NOT NULL, block INTEGER NOT NULL, op INTEGER NOT NULL,
        root INTEGER NOT NULL, status INTEGER NOT NULL, calls INTEGER NOT NULL,
        PRIMARY KEY (width, project, block, op, root, status)) WITHOUT ROWID""",
    *(
        f"""INSERT OR REPLACE INTO call_blocks SELECT {width}, {_KEY.format(width)}, count(*)
            FROM calls WHERE {_COUNTED} GROUP BY 2, 3, 4, 5, 6"""
        for width in WIDTHS
    ),
    """CREATE INDEX IF NOT EXISTS calls_latency
        ON calls (project, ((ended_at - started_at - 999 * (ended_at < started_at)) / 1000))
        WHERE ended_at IS NOT NULL AND deleted_at IS NULL""",
    f"""CREATE INDEX IF NOT EXISTS calls_failed ON calls (project, started_at)
        WHERE status = {ERROR} AND deleted_at IS NULL""",
)
"""The schema: the blocks, what keeps them, and the indexes by which the slowest and the failed calls are found."""

Bounds = tuple[int, int]
Counts = Counter[tuple[int, ...]]


def counts_of(raw: sqlite3.Connection, rids: Iterable[int]) -> Counts:
    """What the calls of some row numbers add to the blocks."""
    numbers = ",".join(map(str, rids))
    if not numbers:
        return Counter()
    columns = "project, started_at, op, parent_id IS NULL, status"
    return counts_of_new(raw.execute(f"SELECT {columns} FROM calls WHERE rid IN ({numbers}) AND {_COUNTED}"))


def counts_of_new(calls: Iterable[tuple[int, int, int, int, int]]) -> Counts:
    """What calls add by their project, start, op, whether they are roots, and status."""
    blocks = Counter((project, start // BLOCK, op, root, status) for project, start, op, root, status in calls)
    found: Counts = Counter()
    for (project, block, *rest), count in blocks.items():
        found[BLOCK, project, block, *rest] = count
        found[times.DAY, project, block * BLOCK // times.DAY, *rest] += count
    return found


def count_change(raw: sqlite3.Connection, before: Counts, after: Counts) -> None:
    """Bring the blocks from what calls added to them before a write to what they add after it."""
    after.subtract(before)
    raw.executemany(_ADD, [(*key, calls) for key, calls in after.items() if calls])


class CallCounts:
    """Counts of calls for people to look at."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def bounds(self, project: str) -> Bounds | None:
        """The instants at which the first and the last call started, None without calls."""

        def work(session: Session) -> Bounds | None:
            number = self._names.number(session.raw, project)
            sql = """SELECT (SELECT min(started_at) FROM calls WHERE project = ?1 AND deleted_at IS NULL),
                (SELECT max(started_at) FROM calls WHERE project = ?1 AND deleted_at IS NULL)"""
            first, last = session.raw.execute(sql, (number,)).fetchone()
            return None if first is None else (int(first), int(last))

        return await self._readers.read(work)

    async def ops(self, project: str, limit: int) -> list[OpCount]:
        """The ops that were called, the most called first."""

        def work(session: Session) -> list[OpCount]:
            number = self._names.number(session.raw, project)
            sql = f"""SELECT op, sum(calls), sum(calls * (status = {ERROR})) FROM call_blocks
                WHERE width = ? AND project = ? GROUP BY op HAVING sum(calls) > 0 ORDER BY 2 DESC LIMIT ?"""
            rows = session.raw.execute(sql, (times.DAY, number, limit)).fetchall()
            return [OpCount(self._names.text(session.raw, op) or "", calls, errors) for op, calls, errors in rows]

        return await self._readers.read(work)

    async def sums(self, query: CallsQuery, start: int, width: int, buckets: int) -> list[CallSums]:
        """Calls and failed calls per bucket of `width` microseconds from `start` on.

        Blocks answer where nothing but ops, roots and states is chosen and buckets are whole blocks; else calls are
        read.
        """
        edges = [start + width * index for index in range(buckets + 1)]
        fitting = [size for size in WIDTHS if start % size == 0 and width % size == 0]

        def work(session: Session) -> list[CallSums]:
            if fitting and _plain(query):
                return self._from_blocks(session, query, fitting[-1], start, width, buckets)
            return list(self._from_calls(session, query, edges))

        return await self._readers.read(work)

    def _from_blocks(
        self, session: Session, query: CallsQuery, size: int, start: int, width: int, buckets: int
    ) -> list[CallSums]:
        found = [CallSums(0, 0)] * buckets
        number = self._names.number(session.raw, query.project)
        where = "width = ? AND project = ? AND block >= ? AND block < ?"
        parameters = (size, number, start // size, (start + width * buckets) // size)
        if query.filter.roots_only:
            where += " AND root = 1"
        if query.query is not None:
            where += f" AND status IN ({', '.join(map(str, _statuses(query.query) or []))})"
        if query.filter.op_names:
            ops = ", ".join(map(str, self._names.numbers(session.raw, query.filter.op_names)))
            where += f" AND op IN ({ops})"
        sql = f"""SELECT (block - {start // size}) / {width // size}, sum(calls), sum(calls * (status = {ERROR}))
            FROM call_blocks WHERE {where} GROUP BY 1"""
        for index, calls, errors in session.raw.execute(sql, parameters):
            found[index] = CallSums(calls, errors)
        return found

    def _from_calls(self, session: Session, query: CallsQuery, edges: Sequence[int]) -> Iterator[CallSums]:
        selection = select(session.raw, self._names, query)
        if selection is None:
            yield from [CallSums(0, 0)] * (len(edges) - 1)
            return
        columns = f"count(*), ifnull(sum(c.status = {ERROR}), 0)"
        for lower, upper in pairwise(edges):
            sql = selection.sql(columns, f"c.started_at >= {lower} AND c.started_at < {upper}", order=False)
            calls, errors = session.raw.execute(sql, selection.parameters).fetchone()
            yield CallSums(calls, errors)


def _plain(query: CallsQuery) -> bool:
    chosen = replace(query.filter, op_names=None, roots_only=False)
    return query.cost is None and chosen == Filter() and (query.query is None or _statuses(query.query) is not None)


def _statuses(operation: Operation) -> list[int] | None:
    """The states that a query asks for where it asks for nothing else."""
    match operation:
        case Compare("eq", Field("summary.weave.status"), Literal(value)):
            words = [value]
        case In(Field("summary.weave.status"), items) if all(isinstance(item, Literal) for item in items):
            words = [item.value for item in items if isinstance(item, Literal)]
        case _:
            return None
    return [STATUS_WORDS.index(word) for word in words if isinstance(word, str) and word in STATUS_WORDS]
