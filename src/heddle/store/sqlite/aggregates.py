"""Sums of calls in SQLite: by model, op, user, thread and time; bodies are read by filters only."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from heddle.store.base import CallAggregateStore
from heddle.store.query.aggregates import key_of, paths_of, reads_calls, value_of, written
from heddle.store.sqlite import blocks
from heddle.store.sqlite.blocks import BLOCK
from heddle.store.sqlite.call_table import UNFILTERED, SqliteCallTable, SqliteSelection, select
from heddle.store.sqlite.database import Readers, Session, reads
from heddle.store.sqlite.names import NameReader
from heddle.wire import times
from heddle.wire.aggregates import ALL_TIME, AggregateRow, CallAggregate, Measure
from heddle.wire.buckets import pieces
from heddle.wire.calls import ERROR, PLAIN_KIND, ModelUsage, OpActivity, ProjectActivity, UniformRun
from heddle.wire.inference import PriceChanges

_KEYS = {"op": "c.op", "user": "c.user", "model": "u.model", "thread_id": "c.thread_id"}
_KEYS |= {"name": SqliteCallTable.label, "error_group": "c.error_group"}
_NEWEST_ID = "substr(max(printf('%020d', c.started_at) || c.id), 21)"
_NUMBERED = ("op", "user", "model")
_MODEL_NAME = "(SELECT v FROM names WHERE k = u.model)"
_NAMES = 2**32
_MOST_OPS = 500
_NEWEST = 200
_OPS = """SELECT op, count(*), max(started_at) FROM calls
    WHERE project = ? AND deleted_at IS NULL AND started_at IS NOT NULL GROUP BY op ORDER BY 3 DESC"""
_LATEST = """SELECT ended_at - started_at FROM calls
    WHERE project = ? AND op IS ? AND deleted_at IS NULL AND started_at IS NOT NULL AND ended_at IS NOT NULL
    ORDER BY started_at DESC LIMIT ?"""
_KIND = """SELECT kind FROM calls WHERE project = ? AND op IS ? AND deleted_at IS NULL AND started_at IS NOT NULL
    ORDER BY started_at DESC LIMIT 1"""
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
_LATEST_INSTANT = 2**63 - 1


class CallAggregates(CallAggregateStore):
    """Sums of calls; a name of the table `names` stands for its text."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()
        super().__init__()

    @reads
    def aggregate(self, session: Session, request: CallAggregate) -> list[AggregateRow]:
        """The groups that have any call."""
        raw = session.raw
        selection = select(raw, self._names, request.query, paths_of(request))
        if selection is None:
            return []
        number = self._names.number(raw, request.query.project) or 0
        read = blocks.reader_of(raw, self._names, request)
        rows: list[AggregateRow] = []
        for run in request.runs or (ALL_TIME,):
            if read is None:
                rows += self._compute(raw, request, selection, number, run)
                continue
            found: list[AggregateRow] = []
            for part, width in blocks.parts_of(run):
                found += read(part, width) if width else self._compute(raw, request, selection, number, part)
            rows += _added(found, request.measures)
        return rows

    @reads
    def bounds(self, session: Session, project: str) -> tuple[int, int] | None:
        """The instants at which the first and the last call started, None without calls."""
        sql = """SELECT (SELECT min(started_at) FROM calls WHERE project = ?1 AND deleted_at IS NULL),
            (SELECT max(started_at) FROM calls WHERE project = ?1 AND deleted_at IS NULL)"""
        first, last = session.raw.execute(sql, (self._names.number(session.raw, project),)).fetchone()
        return None if first is None else (int(first), int(last))

    @reads
    def first_usage(self, session: Session, project: str) -> int | None:
        """When the first call that used tokens started; None where there is none."""
        number = self._names.number(session.raw, project)
        found = session.raw.execute("SELECT min(started_at) FROM usage WHERE project = ?", (number,)).fetchone()[0]
        return None if found is None else int(found)

    def _compute(
        self,
        raw: sqlite3.Connection,
        request: CallAggregate,
        selection: SqliteSelection,
        number: int,
        run: UniformRun,
    ) -> list[AggregateRow]:
        source, time = _source(request, selection, number, run)
        places = [f"({time} - {run.start}) / {run.width} + {run.first}"]
        keys, split = list(request.group_by), request.split
        combined = bool(keys) and keys[0] in _NUMBERED and split is None
        if combined:
            # One number as the key of both: SQLite sorts the rows once, and by the shortest possible record.
            places = [f"({places[0]}) * {_NAMES} + ifnull({_KEYS[keys[0]]}, 0)"]
        places += [] if split is None else [key_of(selection.table, split, _MODEL_NAME)]
        places += [_KEYS[key] for key in keys[combined:]]
        values = [(item, value_of(request, item, "u.", time, selection.table)) for item in request.measures]
        sums = [
            _NEWEST_ID if item.function == "newest" else written(item, value)
            for item, value in values
            if item.function != "values"
        ]
        names = [item.alias for item in request.measures if item.function != "values"]
        grouped = f"GROUP BY {_numbers(len(places))}"
        if not keys and split is None and run.upper - run.start <= run.width:
            grouped = ""
        rows = []
        by_place: dict[tuple[Any, ...], dict[str, Any]] = {}
        sql = f"SELECT {', '.join([*places, 'count(*)', *sums])} {source} {grouped}"
        if request.most:
            sql += f" ORDER BY {len(places) + 2 + names.index(request.order)} DESC LIMIT {request.most}"
        for row in raw.execute(sql, selection.parameters):
            place = row[: len(places)]
            if row[len(places)]:
                bucket, texts = self._place(raw, place, [*([""] if split else []), *keys], combined)
                by_place[place] = dict(zip(names, row[len(places) + 1 :], strict=True))
                by_place[place].update({item.alias: [] for item in request.measures if item.function == "values"})
                rows.append(AggregateRow(bucket, texts, by_place[place]))
        for item, value in values:
            if item.function != "values":
                continue
            every = _every(raw, request, selection, run)
            sql = f"SELECT {', '.join(places)}, {value} {source} AND {value} IS NOT NULL {every}"
            ordered = raw.execute(
                f"{sql} ORDER BY {', '.join(str(n + 1) for n in range(len(places) + 1))}", selection.parameters
            )
            for place, found in groupby(ordered, key=lambda row: row[:-1]):
                if place in by_place:
                    by_place[place][item.alias] = [float(row[-1]) for row in found]
        return rows

    def _place(
        self, raw: sqlite3.Connection, place: Sequence[Any], keys: Sequence[str], combined: bool
    ) -> tuple[int, tuple[str, ...]]:
        """The number of the bucket and the texts of the keys."""
        bucket, first = divmod(place[0], _NAMES) if combined else (place[0], 0)
        found = [first or None, *place[1:]] if combined else place[1:]
        texts = (
            self._names.text(raw, item) if key in _NUMBERED else item for key, item in zip(keys, found, strict=True)
        )
        return bucket, tuple(text or "" for text in texts)

    @reads
    def ops(self, session: Session, project: str) -> list[OpActivity]:
        """What was called, the last called first; times are those of the newest calls of each."""
        raw, found = session.raw, []
        number = self._names.number(raw, project)
        for op, calls, last in raw.execute(_OPS, (number,)).fetchmany(_MOST_OPS):
            newest = raw.execute(_LATEST, (number, op, _NEWEST)).fetchall()
            seconds = tuple(took / 1e6 for (took,) in newest)
            kind = self._names.text(raw, raw.execute(_KIND, (number, op)).fetchone()[0]) or PLAIN_KIND
            found.append(OpActivity(self._names.text(raw, op) or "", calls, last, kind, seconds))
        return found

    async def _look(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        cuts = {number: await changes(project) for number, project in (await self._with_calls()).items()}
        return await self._read(since, cuts)

    @reads
    def _with_calls(self, session: Session) -> dict[int, str]:
        raw = session.raw
        return {number: self._names.text(raw, number) or "" for (number,) in raw.execute(_WITH_CALLS).fetchall()}

    @reads
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
            for piece in pieces(since, _LATEST_INSTANT, cuts)
            for model, *sums in raw.execute(_USAGE, (number, *piece)).fetchall()
        )
        return ProjectActivity(self._names.text(raw, number) or "", calls, last, lately, errors, usage)


def _source(request: CallAggregate, selection: SqliteSelection, number: int, run: UniformRun) -> tuple[str, str]:
    """FROM and WHERE over call heads or usage rows in a range of time, and the column of the instant."""
    conditions = " AND ".join(selection.where)
    if request.of == "calls":
        # Of errors the index of failed calls has everything; by time all calls would be looked at.
        plus = "+" * ("error_group" in request.group_by)
        inside = f"{plus}c.started_at >= {run.lower} AND {plus}c.started_at < {run.upper}"
        return f"FROM {selection.source()} WHERE {inside} AND {conditions}", "c.started_at"
    inside = f"u.project = {number} AND u.started_at >= {run.lower} AND u.started_at < {run.upper}"
    inside += " AND NOT u.repeated" if request.of == "totals" else ""
    of_calls = reads_calls(request)
    if len(selection.where) == UNFILTERED and not selection.bodies:
        return (
            f"FROM usage u{' CROSS JOIN calls c ON c.rid = u.rid' if of_calls else ''} WHERE {inside}",
            "u.started_at",
        )
    if of_calls:
        join = "CROSS JOIN usage u ON u.started_at = c.started_at AND u.rid = c.rid"
        return f"FROM {selection.source()} {join} WHERE {inside} AND {conditions}", "u.started_at"
    inside += f" AND u.rid IN (SELECT c.rid FROM {selection.source()} WHERE {conditions})"
    return f"FROM usage u WHERE {inside}", "u.started_at"


def _numbers(count: int) -> str:
    """The first columns by their numbers."""
    return ", ".join(str(number + 1) for number in range(count))


def _every(raw: sqlite3.Connection, request: CallAggregate, selection: SqliteSelection, run: UniformRun) -> str:
    """The condition that leaves about as many calls as a sample may have."""
    if not request.sample:
        return ""
    inside = f"c.started_at >= {run.lower} AND c.started_at < {run.upper}"
    calls = raw.execute(selection.sql("count(*)", inside, order=False), selection.parameters).fetchone()[0]
    return f"AND (c.rid * 2654435761) % {max(1, calls // request.sample)} = 0"


def _added(rows: Sequence[AggregateRow], measures: Sequence[Measure]) -> list[AggregateRow]:
    """Sums of the same bucket and keys as one row; of the measure "min" the least."""
    found: dict[tuple[Any, ...], AggregateRow] = {}
    for row in rows:
        known = found.setdefault(row[:2], row)
        if known is not row:
            for item in measures:
                both = (known.values[item.alias], row.values[item.alias])
                known.values[item.alias] = min(both) if item.function == "min" else sum(both)
    return sorted(found.values(), key=lambda row: row.bucket)
