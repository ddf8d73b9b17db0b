"""Sums of calls in SQLite: by model, op, user, thread and time; bodies are read by filters only."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from heddle.store.base import CallStatsStore, ProjectActivityStore, Quantiles
from heddle.store.sqlite.call_counts import BLOCK, WIDTHS
from heddle.store.sqlite.call_table import PRICED, UNFILTERED, SqliteSelection, select, set_price
from heddle.store.sqlite.connection import Readers, Session
from heddle.store.sqlite.names import NameReader
from heddle.wire import times
from heddle.wire.buckets import percentile_of, pieces
from heddle.wire.calls import (
    ERROR,
    CallsQuery,
    MetricRow,
    ModelUsage,
    OpActivity,
    ProjectActivity,
    UniformRun,
    UsageSum,
)
from heddle.wire.inference import CostOf, PriceChanges
from heddle.wire.overview import CallCounts, ProjectOverview, TimeSpan
from heddle.wire.query import Scalar
from heddle.wire.threads import ThreadStats

USAGE_METRICS = {
    "input_tokens": "u.prompt",
    "output_tokens": "u.completion",
    "total_tokens": "u.total",
    "cache_read_input_tokens": "u.cache_read",
    "cache_creation_input_tokens": "u.cache_creation",
}
CALL_METRICS = {
    "latency_ms": "(c.ended_at - c.started_at) / 1000.0",
    "call_count": "1",
    "error_count": "(c.status = 1)",
}
_AGGREGATES = (
    "count(*), ifnull(sum({0}), 0), min({0}), max({0}), ifnull(sum({0} = 1), 0), ifnull(sum({0} = 0), 0), count({0})"
)
_AGGREGATE_COUNT = 7
_MODELS = 2**32
Parameters = dict[str, Scalar]


class CallStats(CallStatsStore):
    """The metrics of `USAGE_METRICS` and `CALL_METRICS`."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def _read(
        self,
        query: CallsQuery,
        runs: Sequence[UniformRun],
        metrics: Sequence[str],
        quantiles: Sequence[str],
        by_model: bool,
    ) -> tuple[list[MetricRow], Quantiles]:
        return await self._readers.read(
            lambda session: self._read_in(session, query, runs, metrics, quantiles, by_model)
        )

    def _read_in(
        self,
        session: Session,
        query: CallsQuery,
        runs: Sequence[UniformRun],
        metrics: Sequence[str],
        quantiles: Sequence[str],
        by_model: bool,
    ) -> tuple[list[MetricRow], Quantiles]:
        rows: list[MetricRow] = []
        values: Quantiles = {}
        selection = select(session.raw, self._names, query)
        if selection is None:
            return rows, values
        number = self._names.number(session.raw, query.project) or 0
        for run in runs:
            source, time, parameters = _source(by_model, selection, number, run)
            bucket = f"({time} - {run.start}) / {run.width} + {run.first}"
            columns = USAGE_METRICS if by_model else CALL_METRICS
            # One number as the key of both: SQLite sorts the rows once, and by the shortest possible record.
            key = f"({bucket}) * {_MODELS} + {'u.model' if by_model else '0'}"
            figures = ", ".join(_AGGREGATES.format(columns[metric]) for metric in metrics)
            for both, *numbers in session.raw.execute(f"SELECT {key}, {figures} {source} GROUP BY 1", parameters):
                index, model = divmod(both, _MODELS)
                name = self._names.text(session.raw, model or None) or ""
                for place, metric in enumerate(metrics):
                    first = place * _AGGREGATE_COUNT
                    rows.append(MetricRow(index, name, metric, *numbers[first : first + _AGGREGATE_COUNT]))
            for metric in quantiles:
                column = columns[metric]
                key = f"{bucket}, {'u.model' if by_model else 'NULL'}"
                sql = f"SELECT {key}, {column} AS value {source} AND {column} IS NOT NULL ORDER BY 1, 2, 3"
                for index, name, value in self._values(session.raw, sql, parameters):
                    values.setdefault((index, name, metric), []).append(value)
        return rows, values

    def _values(self, raw: sqlite3.Connection, sql: str, parameters: Parameters) -> Iterator[tuple[int, str, float]]:
        for index, model, value in raw.execute(sql, parameters):
            yield index, self._names.text(raw, model) or "", float(value)


def _source(
    by_model: bool, selection: SqliteSelection, number: int, run: UniformRun
) -> tuple[str, str, dict[str, Scalar]]:
    """FROM and WHERE over usage rows or call heads in a range of time, the column of the instant, the parameters."""
    conditions = " AND ".join(selection.where)
    if not by_model:
        inside = f"c.started_at >= {run.lower} AND c.started_at < {run.upper}"
        source = f"FROM {selection.source()} WHERE {inside} AND {conditions}"
        return source, "c.started_at", selection.parameters
    source = f"FROM usage u WHERE u.project = {number} AND u.started_at >= {run.lower} AND u.started_at < {run.upper}"
    if len(selection.where) == UNFILTERED:
        return source, "u.started_at", {}
    source += f" AND u.rid IN (SELECT c.rid FROM {selection.source()} WHERE {conditions})"
    return source, "u.started_at", selection.parameters


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


_SAMPLE = 20_000
_IN_SPAN = "project = ? AND started_at >= ? AND started_at < ? AND deleted_at IS NULL"
_COUNTS = f"""SELECT (started_at - ?) / ? AS bucket, count(*), ifnull(sum(status = ?), 0) FROM calls
    WHERE {_IN_SPAN} GROUP BY bucket"""
_BLOCK_COUNTS = """SELECT (block * ?1 - ?2) / ?3 AS bucket, sum(calls), ifnull(sum(calls * (status = ?4)), 0)
    FROM call_blocks WHERE width = ?1 AND project = ?5 AND block >= ?6 AND block < ?7 GROUP BY bucket"""
_ROOTS = f"SELECT count(*) FROM calls WHERE {_IN_SPAN} AND parent_id IS NULL"
_LATENCIES = f"""SELECT (started_at - ?) / ?, (ended_at - started_at) / 1e6 AS seconds FROM calls
    WHERE {_IN_SPAN} AND parent_id IS NULL AND ended_at IS NOT NULL AND (rid * 2654435761) % ? = 0
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


class ProjectActivities(ProjectActivityStore):
    """Sums of projects."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()
        super().__init__()

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
            for piece in pieces(since, _LATEST_INSTANT, cuts)
            for model, *sums in raw.execute(_USAGE, (number, *piece)).fetchall()
        )
        return ProjectActivity(self._names.text(raw, number) or "", calls, last, lately, errors, usage)


_LIVE = "c.project = ? AND c.thread_id IN ({marks}) AND c.deleted_at IS NULL AND c.started_at IS NOT NULL"
_THREAD_USAGE = f"""SELECT c.thread_id, sum(ifnull(u.total, u.prompt + u.completion)),
    sum(call_cost({PRICED}))
    FROM calls c JOIN usage u ON u.project = c.project AND u.started_at = c.started_at AND u.rid = c.rid
    JOIN names n ON n.k = u.model WHERE {_LIVE} AND NOT u.repeated GROUP BY c.thread_id"""
_ERRORS = f"""SELECT c.thread_id, count(*) FROM calls c WHERE {_LIVE} AND c.turn_id = c.id AND c.status = {ERROR}
    GROUP BY c.thread_id"""


class ThreadSums:
    """Reads figures of threads."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def figures(self, project: str, thread_ids: Sequence[str], price: CostOf) -> list[ThreadStats]:
        """The figures of the named threads, in that order."""

        def work(session: Session) -> list[ThreadStats]:
            raw = session.raw
            set_price(raw, price)
            key = (self._names.number(raw, project), *thread_ids)
            marks = ", ".join("?" * len(thread_ids))
            usage = {row[0]: row[1:] for row in raw.execute(_THREAD_USAGE.format(marks=marks), key)}
            errors = dict(raw.execute(_ERRORS.format(marks=marks), key).fetchall())
            sums = ((name, *usage.get(name, (0, None))) for name in thread_ids)
            return [ThreadStats(name, tokens, cost, errors.get(name, 0)) for name, tokens, cost in sums]

        return await self._readers.read(work)
