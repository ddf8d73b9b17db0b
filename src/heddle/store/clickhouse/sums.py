"""Sums of calls in ClickHouse: by model, op, user, thread and time; bodies are read by filters only."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from heddle.store.base import CallStatsStore, ProjectActivityStore, Quantiles
from heddle.store.clickhouse.call_table import HAS_USAGE, IS_SPAN, USAGE, ClickhouseSelection, select, usage_of
from heddle.store.clickhouse.client import Clickhouse, Row, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.usage_repeats import EACH_MODEL, around, counted, outer_spans, reported, summed_up
from heddle.store.control.object_rows import object_versions
from heddle.store.control.projects import projects
from heddle.store.control.schema import Executor
from heddle.wire import jsontext, times
from heddle.wire.calls import (
    ERROR,
    CallsQuery,
    CallSums,
    MetricRow,
    ModelUsage,
    OpActivity,
    OpCount,
    ProjectActivity,
    UniformRun,
    Usage,
    UsageSum,
)
from heddle.wire.inference import CostOf, PriceChanges, cost_of_tokens, sum_of_costs
from heddle.wire.overview import CallCounts as Counts
from heddle.wire.overview import ProjectOverview, TimeSpan
from heddle.wire.threads import ThreadStats

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_MOST_OPS = 500
_NEWEST = 200
_FIRST_CALLS = 200
"""Of so many calls the first one is found that has the usage that its row holds."""
_NAMES = {"op": "c.op_name", "user": "ifNull(c.user, '')"}
SUMS = "sum(requests), sum(prompt), sum(completion), sum(cache_read), sum(cache_creation), min(c.started_at)"
"""The sums of `ModelUsage`, over rows of `EACH_MODEL`."""
_OPS = f"""SELECT c.op_name, count(), max(c.started_at) AS last,
    groupArraySortedIf({_NEWEST})((-c.started_at, c.status, assumeNotNull(c.ended_at) - c.started_at),
        c.ended_at IS NOT NULL)
    FROM {CALLS} AS c FINAL WHERE c.project = {{project:String}} AND c.deleted_at = 0
    GROUP BY c.op_name ORDER BY last DESC LIMIT {_MOST_OPS}"""


def piece(edges: Iterable[int]) -> str:
    """The expression that tells the pieces of time apart that begin at instants; `edges` are not empty."""
    return f"roundDown(c.started_at, CAST([{', '.join(map(str, edges))}] AS Array(Int64)))"


class Breakdowns:
    """Sums of a project by model, op and user."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def first_usage(self, project: str) -> int | None:
        """When the first call that used tokens started; None where there is none."""
        sql = f"""SELECT c.started_at, c.id, c.trace_id, {IS_SPAN} FROM {CALLS} AS c FINAL
            WHERE c.project = {{project:String}} AND c.deleted_at = 0 AND {HAS_USAGE}
            ORDER BY c.started_at LIMIT {_FIRST_CALLS}"""

        def work(client: "Client") -> int | None:
            found = rows_of(client, sql, {"project": project})
            outer = outer_spans(client, project, {row[2] for row in found if row[3]})
            own = next((row[0] for row in found if not (row[3] and row[1] in outer)), None)
            return found[0][0] if own is None and found else own

        return await self._clickhouse.read(work)

    async def usage(
        self, project: str, by: str, lower: int, upper: int, shift: int, width: int, cuts: Sequence[int] = ()
    ) -> list[UsageSum]:
        """Tokens per bucket of `width` microseconds from `shift`, per model and, with `by` "op" or "user", per name."""
        edges = [lower, *(cut for cut in sorted(cuts) if lower < cut < upper)]
        own = "project = {project:String}"
        sql = f"""SELECT intDiv(c.started_at - {shift}, {width}) AS bucket, {_NAMES.get(by, "''")} AS name, model,
            count(), {SUMS} FROM {CALLS} AS c FINAL {EACH_MODEL}
            WHERE c.{own} AND c.deleted_at = 0 AND c.started_at >= {lower} AND c.started_at < {upper}
            AND {counted(around(own, lower, upper))} GROUP BY bucket, name, model, {piece(edges)}"""
        return [UsageSum(*row) for row in await self._clickhouse.rows(sql, {"project": project})]

    async def ops(self, project: str) -> list[OpActivity]:
        """What was called, the last called first; times and errors are those of the newest calls of each."""
        return await self._clickhouse.read(lambda client: _ops(client, project))


def _ops(client: "Client", project: str) -> list[OpActivity]:
    rows = rows_of(client, _OPS, {"project": project})
    kinds = _kinds(client, project, rows)
    found = []
    for op, calls, last, newest in rows:
        seconds = tuple(took / 1e6 for _, _, took in newest)
        errors = sum(status == ERROR for _, status, _ in newest)
        found.append(OpActivity(op, calls, last, kinds.get(op), errors, seconds))
    return found


def _kinds(client: "Client", project: str, ops: Sequence[Row]) -> dict[str, str | None]:
    """What the newest call of each op says it is; one that used tokens and says nothing is one of a model."""
    if not ops:
        return {}
    sql = f"""SELECT c.op_name, c.attributes, {HAS_USAGE}, {IS_SPAN}, c.trace_id, c.id
        FROM {CALLS} AS c FINAL WHERE c.project = {{project:String}} AND c.deleted_at = 0
        AND c.started_at IN {listed(op[2] for op in ops)}
        AND (c.op_name, c.started_at) IN {listed((op[0], op[2]) for op in ops)} LIMIT 1 BY c.op_name"""
    rows = rows_of(client, sql, {"project": project})
    said = {row[0]: _said(row[1]) for row in rows}
    spending = [row for row in rows if row[2] and said[row[0]] is None]
    outer = outer_spans(client, project, [row[4] for row in spending if row[3]])
    said.update({row[0]: "llm" for row in spending if not (row[3] and row[5] in outer)})
    return said


def _said(attributes: str) -> str | None:
    kind = member(attributes, "weave", "kind")
    return kind if isinstance(kind, str) else None


def member(text: str, *path: str) -> Any:
    """The value at a path of names in a JSON text; None where there is none."""
    value = jsontext.loads(text.encode())
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


_LIVE = f"FROM {CALLS} FINAL WHERE project = {{project:String}} AND deleted_at = 0"
_OP_COUNTS = f"""SELECT op_name, count() AS calls, countIf(status = {ERROR}) {_LIVE}
    GROUP BY op_name ORDER BY calls DESC LIMIT {{limit:Int64}}"""


class CallCounts:
    """Counts of calls for people to look at."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self._clickhouse = clickhouse
        self._control = control

    async def bounds(self, project: str) -> tuple[int, int] | None:
        """The instants at which the first and the last call started, None without calls."""
        sql = f"SELECT min(started_at), max(started_at) {_LIVE} HAVING count() > 0"
        found = await self._clickhouse.rows(sql, {"project": project})
        return (found[0][0], found[0][1]) if found else None

    async def ops(self, project: str, limit: int) -> list[OpCount]:
        """The ops that were called, the most called first."""
        found = await self._clickhouse.rows(_OP_COUNTS, {"project": project, "limit": limit})
        return [OpCount(*row) for row in found]

    async def sums(self, query: CallsQuery, start: int, width: int, buckets: int) -> list[CallSums]:
        """Calls and failed calls per bucket of `width` microseconds from `start` on."""
        found = [CallSums(0, 0)] * buckets
        if not buckets:
            return found
        selection = await select(self._clickhouse, self._control, query)
        columns = f"intDiv(c.started_at - {start}, {width}) AS bucket, count(), countIf(c.status = {ERROR})"
        inside = f"c.started_at >= {start} AND c.started_at < {start + width * buckets}"
        sql = selection.sql(columns, inside, order=False, group="bucket")
        for index, calls, errors in await self._clickhouse.rows(sql, selection.bound.parameters):
            found[index] = CallSums(calls, errors)
        return found


USAGE_METRICS = {
    "input_tokens": "prompt",
    "output_tokens": "completion",
    "total_tokens": "total",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_creation",
}
CALL_METRICS = {
    "latency_ms": "(c.ended_at - c.started_at) / 1000.0",
    "call_count": "1",
    "error_count": f"(c.status = {ERROR})",
}
_AGGREGATES = (
    "ifNull(sum({0}), 0), minOrNull({0}), maxOrNull({0}), countIf(ifNull({0} = 1, 0)), countIf(ifNull({0} = 0, 0)), "
    "count({0})"
)
_AGGREGATE_COUNT = 6


class CallStats(CallStatsStore):
    """The metrics of `USAGE_METRICS` and `CALL_METRICS`."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self._clickhouse = clickhouse
        self._control = control

    async def _read(
        self,
        query: CallsQuery,
        runs: Sequence[UniformRun],
        metrics: Sequence[str],
        quantiles: Sequence[str],
        by_model: bool,
    ) -> tuple[list[MetricRow], Quantiles]:
        rows: list[MetricRow] = []
        values: Quantiles = {}
        selection = await select(self._clickhouse, self._control, query)
        for run in runs:
            sql = _sql(selection, query.project, run, metrics, quantiles, by_model)
            for row in await self._clickhouse.rows(sql, selection.bound.parameters):
                rows.extend(_metric_rows(row, metrics))
                for name, ordered in zip(quantiles, row[len(row) - len(quantiles) :], strict=True):
                    if ordered:
                        values[row[0], row[1], name] = [float(value) for value in ordered]
        return rows, values


def _sql(
    selection: ClickhouseSelection,
    project: str,
    run: UniformRun,
    metrics: Sequence[str],
    quantiles: Sequence[str],
    by_model: bool,
) -> str:
    """The figures of the buckets of one run, then the values in order of the metrics in `quantiles`."""
    figures = USAGE_METRICS if by_model else CALL_METRICS
    model = "toString(model)" if by_model else "''"
    bucket = f"intDiv(c.started_at - {run.start}, {run.width}) + {run.first}"
    columns = [f"{bucket} AS bucket", f"{model} AS name", "count()"]
    columns += [_AGGREGATES.format(figures[metric]) for metric in metrics]
    columns += [f"arraySort(groupArray({figures[metric]}))" for metric in quantiles]
    inside = f"c.started_at >= {run.lower} AND c.started_at < {run.upper}"
    if by_model:
        inside += f" AND {reported(around(f'project = {selection.bound.value(project)}', run.lower, run.upper))}"
    joins = EACH_MODEL if by_model else ""
    return selection.sql(", ".join(columns), inside, order=False, group="bucket, name", joins=joins)


def _metric_rows(row: Row, metrics: Sequence[str]) -> Iterator[MetricRow]:
    index, model, calls, *numbers = row
    for place, metric in enumerate(metrics):
        first = place * _AGGREGATE_COUNT
        yield MetricRow(index, model, metric, calls, *numbers[first : first + _AGGREGATE_COUNT])


_SAMPLE = 20_000
_FIRST = f"""SELECT started_at FROM {CALLS} FINAL WHERE project = {{project:String}} AND deleted_at = 0
    ORDER BY started_at LIMIT 1"""
_INSIDE = (
    "c.project = {project:String} AND c.started_at >= {start:Int64} AND c.started_at < {end:Int64} AND c.deleted_at = 0"
)
_ENDED_ROOTS = "c.parent_id IS NULL AND c.ended_at IS NOT NULL"
_COUNTS = f"""SELECT grouping(bucket) AS one, intDiv(c.started_at - {{start:Int64}}, {{width:Int64}}) AS bucket,
    count(), countIf(c.status = {ERROR}), countIf({_ENDED_ROOTS} AND cityHash64(c.id) % every = 0) AS known,
    quantilesExactInclusiveIf(0.5, 0.95)(
        (assumeNotNull(c.ended_at) - c.started_at) / 1e6, {_ENDED_ROOTS} AND cityHash64(c.id) % every = 0) AS seconds
    FROM {CALLS} AS c FINAL WHERE {_INSIDE} GROUP BY GROUPING SETS ((bucket), ()) ORDER BY one, bucket"""
_EVERY = f"""WITH (SELECT greatest(1, intDiv(countIf(c.parent_id IS NULL), {_SAMPLE})) FROM {CALLS} AS c FINAL
    WHERE {_INSIDE}) AS every """


class Overviews:
    """Counts of one project; latencies beyond 20,000 root calls are those of a sample."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def first_started_at(self, project: str) -> int | None:
        """When the first call of a project (internal id) started; None without any."""
        found = await self._clickhouse.rows(_FIRST, {"project": project})
        return found[0][0] if found else None

    async def read(self, project: str, span: TimeSpan) -> ProjectOverview:
        """The calls of a project (internal id) in a span."""
        parameters = {"project": project, "start": span.start, "end": span.end, "width": span.width}
        counts, whole = [], Counts(0, 0, 0, None, None)
        for is_whole, bucket, calls, errors, known, seconds in await self._clickhouse.rows(
            _EVERY + _COUNTS, parameters
        ):
            row = Counts(bucket, calls, errors, *(seconds if known else (None, None)))
            if is_whole:
                whole = row._replace(bucket=0)
            else:
                counts.append(row)
        return ProjectOverview(counts, whole)


_BLOCK = 600 * times.SECOND
_CALLS = f"""SELECT project, countIf(deleted_at = 0), maxOrNullIf(started_at, deleted_at = 0),
    countIf(deleted_at = 0 AND started_at >= {{since:Int64}}),
    countIf(deleted_at = 0 AND started_at >= {{since:Int64}} AND status = {ERROR})
    FROM {CALLS} FINAL GROUP BY project"""


class ProjectActivities(ProjectActivityStore):
    """Sums of projects."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self._clickhouse = clickhouse
        self._control = control
        super().__init__()

    async def _look(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        # Whole blocks of ten minutes, as the embedded store counts them.
        rows = await self._clickhouse.rows(_CALLS, {"since": since // _BLOCK * _BLOCK})
        usage = await self._usage([row[0] for row in rows], since, changes)
        found = [
            ProjectActivity(project, calls, last, lately, errors, tuple(usage.get(project, ())))
            for project, calls, last, lately, errors in rows
        ]
        seen = {activity.project for activity in found}
        known = sorted(await self._control.read(_known) - seen)
        return [*found, *(ProjectActivity(project, 0, None, 0, 0, ()) for project in known)]

    async def _usage(self, names: Iterable[str], since: int, changes: PriceChanges) -> dict[str, list[ModelUsage]]:
        """What projects used since an instant; those whose prices change at the same times are read at once."""
        alike: dict[tuple[int, ...], list[str]] = {}
        for project in names:
            alike.setdefault(tuple(cut for cut in await changes(project) if cut > since), []).append(project)
        found: dict[str, list[ModelUsage]] = {}
        for cuts, group in alike.items():
            for project, *sums in await self._clickhouse.rows(_usage_sql(group, since, cuts)):
                found.setdefault(project, []).append(ModelUsage(*sums))
        return found


def _usage_sql(group: Sequence[str], since: int, cuts: Sequence[int]) -> str:
    own = f"project IN {listed(group)}"
    return f"""SELECT c.project, model, {SUMS} FROM {CALLS} AS c FINAL {EACH_MODEL}
        WHERE c.{own} AND c.deleted_at = 0 AND c.started_at >= {since} AND {counted(around(own, since))}
        GROUP BY c.project, model, {piece([since, *cuts])}"""


def _known(connection: sa.Connection) -> set[str]:
    named = sa.select(object_versions.c.project).where(object_versions.c.deleted_at.is_(None)).distinct()
    return set(connection.scalars(sa.select(projects.c.project).union(named)))


_OF_THREADS = f"""FROM {CALLS} AS c FINAL
    WHERE c.project = {{project:String}} AND c.deleted_at = 0 AND c.thread_id IN {{threads}}"""
_USED = f"""SELECT c.thread_id, c.id, c.started_at, c.trace_id, {IS_SPAN},
    {USAGE} {_OF_THREADS} AND {HAS_USAGE}"""
_ERRORS = f"""SELECT c.thread_id, count() {_OF_THREADS}
    AND c.turn_id = c.id AND c.status = {ERROR} GROUP BY c.thread_id"""

Used = tuple[int, Usage]
"""When a call started, and what it used of one model."""


class ThreadSums:
    """Reads figures of threads."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def figures(self, project: str, thread_ids: Sequence[str], price: CostOf) -> list[ThreadStats]:
        """The figures of the named threads, in that order."""
        if not thread_ids:
            return []

        def work(client: "Client") -> list[ThreadStats]:
            used = _used(client, project, thread_ids)
            failed = rows_of(client, _ERRORS.replace("{threads}", listed(thread_ids)), {"project": project})
            errors: dict[str, int] = dict(failed)
            return [_figures(name, used.get(name, []), price, errors.get(name, 0)) for name in thread_ids]

        return await self._clickhouse.read(work)


def _used(client: "Client", project: str, thread_ids: Sequence[str]) -> dict[str, list[Used]]:
    """What totals count of each thread."""
    rows = rows_of(client, _USED.replace("{threads}", listed(thread_ids)), {"project": project})
    repeated = summed_up(client, project, [(row[1], row[2]) for row in rows])
    outer = outer_spans(client, project, {row[3] for row in rows if row[4]})
    found: dict[str, list[Used]] = {}
    for thread_id, call_id, started_at, _, is_span, *usage in rows:
        if call_id not in repeated and not (is_span and call_id in outer):
            found.setdefault(thread_id, []).extend((started_at, entry) for entry in usage_of(usage))
    return found


def _figures(thread_id: str, used: Sequence[Used], price: CostOf, errors: int) -> ThreadStats:
    tokens = sum(use.prompt + use.completion if use.total is None else use.total for _, use in used)
    dollars = sum_of_costs(cost_of_tokens(price, use, at) for at, use in used)
    return ThreadStats(thread_id, tokens, dollars, errors)
