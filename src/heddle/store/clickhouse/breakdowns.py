"""Tokens by model and by who used them, and what each op did."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from heddle.store.clickhouse.call_table import HAS_USAGE, IS_SPAN
from heddle.store.clickhouse.client import Clickhouse, Row, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.usage_repeats import EACH_MODEL, around, counted, outer_spans
from heddle.wire import jsontext
from heddle.wire.calls import ERROR, OpActivity, UsageSum

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
