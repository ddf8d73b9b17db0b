"""How many calls there are over time."""

from heddle.store.clickhouse import bound
from heddle.store.clickhouse.call_table import select
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALLS
from heddle.store.control.schema import Executor
from heddle.wire.calls import ERROR, CallsQuery, CallSums, OpCount

_LIVE = f"FROM {CALLS} FINAL WHERE project = {{project:String}} AND deleted_at = 0"
_OPS = f"""SELECT op_name, count() AS calls, countIf(status = {ERROR}) {_LIVE}
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
        return [OpCount(*row) for row in await self._clickhouse.rows(_OPS, {"project": project, "limit": limit})]

    async def sums(self, query: CallsQuery, start: int, width: int, buckets: int) -> list[CallSums]:
        """Calls and failed calls per bucket of `width` microseconds from `start` on."""
        found = [CallSums(0, 0)] * buckets
        if not buckets:
            return found
        selection = await select(self._clickhouse, self._control, query)
        columns = f"intDiv(c.started_at - {start}, {width}) AS bucket, count(), countIf(c.status = {ERROR})"
        inside = f"c.started_at >= {start} AND c.started_at < {start + width * buckets}"
        sql = selection.sql(columns, inside, order=False, group="bucket")
        for index, calls, errors in await bound.rows(self._clickhouse, sql, selection.bound):
            found[index] = CallSums(calls, errors)
        return found
