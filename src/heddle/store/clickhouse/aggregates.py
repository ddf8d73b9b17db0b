"""Sums of calls in ClickHouse: by model, op, user, thread and time; bodies are read by filters only."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from heddle.store.base import CallAggregateStore
from heddle.store.clickhouse.call_table import HAS_USAGE, IS_SPAN, LABEL, ClickhouseSelection, select
from heddle.store.clickhouse.client import Clickhouse, Client, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.usage_repeats import EACH_MODEL, around, counted, outer_spans, reported
from heddle.store.control.objects import object_versions
from heddle.store.control.projects import projects
from heddle.store.control.repository import Executor
from heddle.store.query.aggregates import key_of, paths_of, value_of, written
from heddle.wire import times
from heddle.wire.aggregates import ALL_TIME, MODEL, AggregateRow, CallAggregate
from heddle.wire.calls import ERROR, ModelUsage, OpActivity, ProjectActivity
from heddle.wire.inference import PriceChanges

_KEYS = {
    "op": "c.op_name",
    "user": "ifNull(c.user, '')",
    "model": "toString(model)",
    "thread_id": "ifNull(c.thread_id, '')",
    "name": LABEL,
    "error_group": "ifNull(c.error_group, '')",
}
_MOST_OPS = 500
_NEWEST = 200
_FIRST_CALLS = 200
"""Of so many calls the first one is found that has the usage that its row holds."""
_SUMS = "sum(requests), sum(prompt), sum(completion), sum(cache_read), sum(cache_creation), min(c.started_at)"
"""The sums of `ModelUsage`, over rows of `EACH_MODEL`."""
_OPS = f"""SELECT c.op_name, count(), max(c.started_at) AS last, argMax(c.kind, c.started_at),
    groupArraySortedIf({_NEWEST})((-c.started_at, assumeNotNull(c.ended_at) - c.started_at),
        c.ended_at IS NOT NULL)
    FROM {CALLS} AS c FINAL WHERE c.project = {{project:String}} AND c.deleted_at = 0
    GROUP BY c.op_name ORDER BY last DESC LIMIT {_MOST_OPS}"""
_BLOCK = 600 * times.SECOND
_CALLS = f"""SELECT project, countIf(deleted_at = 0), maxOrNullIf(started_at, deleted_at = 0),
    countIf(deleted_at = 0 AND started_at >= {{since:Int64}}),
    countIf(deleted_at = 0 AND started_at >= {{since:Int64}} AND status = {ERROR})
    FROM {CALLS} FINAL GROUP BY project"""


class CallAggregates(CallAggregateStore):
    """Sums of calls."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self._clickhouse = clickhouse
        self._control = control
        super().__init__()

    async def aggregate(self, request: CallAggregate) -> list[AggregateRow]:
        """The groups that have any call, by bucket."""
        selection = await select(self._clickhouse, self._control, request.query, paths_of(request))
        every = await self._every(request, selection) if request.sample else 1
        keys, sql = len(request.group_by) + (request.split is not None), _sql(request, selection, every)
        names = [item.alias for item in request.measures]
        rows = await self._clickhouse.rows(sql, selection.bound.parameters)
        return [
            AggregateRow(row[0], tuple(row[1 : keys + 1]), dict(zip(names, row[keys + 1 :], strict=True)))
            for row in sorted(rows, key=lambda row: row[0])
        ]

    async def _every(self, request: CallAggregate, selection: ClickhouseSelection) -> int:
        """Of how many calls one is looked at."""
        sql = selection.sql("count()", _inside(request), order=False)
        found = await self._clickhouse.rows(sql, selection.bound.parameters)
        return max(1, int(found[0][0]) // request.sample)

    async def bounds(self, project: str) -> tuple[int, int] | None:
        """The instants at which the first and the last call started, None without calls."""
        sql = f"""SELECT min(started_at), max(started_at) FROM {CALLS} FINAL
            WHERE project = {{project:String}} AND deleted_at = 0 HAVING count() > 0"""
        found = await self._clickhouse.rows(sql, {"project": project})
        return (found[0][0], found[0][1]) if found else None

    async def first_usage(self, project: str) -> int | None:
        """When the first call that used tokens started; None where there is none."""
        sql = f"""SELECT c.started_at, c.id, c.trace_id, {IS_SPAN} FROM {CALLS} AS c FINAL
            WHERE c.project = {{project:String}} AND c.deleted_at = 0 AND {HAS_USAGE}
            ORDER BY c.started_at LIMIT {_FIRST_CALLS}"""

        def work(client: Client) -> int | None:
            found = rows_of(client, sql, {"project": project})
            outer = outer_spans(client, project, {row[2] for row in found if row[3]})
            own = next((row[0] for row in found if not (row[3] and row[1] in outer)), None)
            return found[0][0] if own is None and found else own

        return await self._clickhouse.read(work)

    async def ops(self, project: str) -> list[OpActivity]:
        """What was called, the last called first; times are those of the newest calls of each."""
        return [
            OpActivity(op, calls, last, kind, tuple(took / 1e6 for _, took in newest))
            for op, calls, last, kind, newest in await self._clickhouse.rows(_OPS, {"project": project})
        ]

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


def _inside(request: CallAggregate) -> str:
    runs = request.runs or (ALL_TIME,)
    return f"c.started_at >= {runs[0].lower} AND c.started_at < {runs[-1].upper}"


def _sql(request: CallAggregate, selection: ClickhouseSelection, every: int) -> str:
    """The bucket, the keys and the measures of each group; those of different runs are kept apart."""
    runs = request.runs or (ALL_TIME,)
    columns = [f"intDiv(c.started_at - {runs[0].start}, {runs[0].width}) + {runs[0].first} AS bucket"]
    split = request.split
    keys = [] if split is None else [key_of(selection.table, split, _KEYS[MODEL])]
    keys += [_KEYS[key] for key in request.group_by]
    group = ["bucket", *(f"k{number}" for number in range(len(keys)))]
    if len(runs) > 1:
        place = f"indexOf({_array(run.lower for run in runs)}, {_piece(run.lower for run in runs)})"
        starts, widths, firsts = (
            _array(values) for values in zip(*((r.start, r.width, r.first) for r in runs), strict=True)
        )
        columns = [f"intDiv(c.started_at - {starts}[{place}], {widths}[{place}]) + {firsts}[{place}] AS bucket"]
        group.append(place)
    columns += [f"{key} AS k{number}" for number, key in enumerate(keys)]
    for item in request.measures:
        value = value_of(request, item, "", "c.started_at", selection.table)
        ordered = f"arraySort(groupArrayIf(toFloat64({value}), isNotNull({value}) AND cityHash64(c.id) % {every} = 0))"
        given = {"values": ordered, "newest": "argMax(c.id, (c.started_at, c.id))"}
        columns.append(given.get(item.function) or written(item, value))
    inside, joins = _inside(request), ""
    if request.of != "calls":
        within = around(f"project = {selection.bound.value(request.query.project)}", runs[0].lower, runs[-1].upper)
        inside += f" AND {(counted if request.of == 'totals' else reported)(within)}"
        joins = EACH_MODEL
    sql = selection.sql(", ".join(columns), inside, order=False, group=", ".join(group), joins=joins)
    names = [item.alias for item in request.measures]
    last = f" ORDER BY {len(columns) - len(names) + names.index(request.order) + 1} DESC" if request.most else ""
    return f"{sql}{last} LIMIT {request.most}" if request.most else sql


def _array(values: Iterable[int]) -> str:
    return f"CAST([{', '.join(map(str, values))}] AS Array(Int64))"


def _piece(edges: Iterable[int]) -> str:
    """The expression that tells the pieces of time apart that begin at instants; `edges` are not empty."""
    return f"roundDown(c.started_at, {_array(edges)})"


def _usage_sql(group: Sequence[str], since: int, cuts: Sequence[int]) -> str:
    own = f"project IN {listed(group)}"
    return f"""SELECT c.project, model, {_SUMS} FROM {CALLS} AS c FINAL {EACH_MODEL}
        WHERE c.{own} AND c.deleted_at = 0 AND c.started_at >= {since} AND {counted(around(own, since))}
        GROUP BY c.project, model, {_piece([since, *cuts])}"""


def _known(connection: sa.Connection) -> set[str]:
    named = sa.select(object_versions.c.project).where(object_versions.c.deleted_at.is_(None)).distinct()
    return set(connection.scalars(sa.select(projects.c.project).union(named)))
