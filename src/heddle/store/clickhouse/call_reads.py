"""The reading verbs of calls on ClickHouse."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from heddle.store.clickhouse import call_rows
from heddle.store.clickhouse.bound import Bound, rows
from heddle.store.clickhouse.call_rows import Spots
from heddle.store.clickhouse.call_table import IS_SPAN, USAGE, ClickhouseSelection, select, usage_of
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.usage_repeats import outer_spans
from heddle.store.control import call_halves
from heddle.store.control.schema import Executor
from heddle.store.query.calls import Position
from heddle.store.turns import summed
from heddle.wire.calls import CallRow, CallsQuery, DumpSlice, Filter, ThreadRow, UsageRow

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_FIRST_PAGE = 256
_NEXT_PAGE = 8192


class CallReads:
    """Calls are selected by number first, and read in slices afterwards."""

    def __init__(self, clickhouse: Clickhouse, control: Executor, read_file: Callable[[str], str]) -> None:
        self._clickhouse = clickhouse
        self._control = control
        self._read_file = read_file

    async def exists(self, project: str, call_id: str) -> bool:
        """True when a live or hidden half of the call is stored."""

        def waits(connection: sa.Connection) -> bool:
            return call_halves.waits(connection, project, call_id)

        bound = Bound()
        sql = f"SELECT 1 FROM call_keys WHERE project = {bound.value(project)} AND id = {bound.value(call_id)} LIMIT 1"
        return bool(await rows(self._clickhouse, sql, bound)) or await self._control.read(waits)

    async def stream(self, query: CallsQuery) -> AsyncIterator[list[CallRow]]:
        """The selected calls in slices; the query is checked before the first slice (InvalidField is raised there).

        Row numbers come first (in pages when the order allows it), bodies afterwards, so that memory stays flat.
        """
        selection = await self._select(query)
        remaining, offset, page_size = query.limit, query.offset, _FIRST_PAGE
        position: Position | None = None
        while remaining != 0:
            size = remaining if remaining is not None else None
            if selection.keyset:
                size = page_size if size is None else min(page_size, size)
            spots, last = await self._page(selection, size, offset, position)
            for part in spots.slices():
                yield await self._rows(query, part)
            if not selection.keyset or len(spots.rids) != size:
                break
            position, offset, page_size = (spots.starts[-1], last), 0, _NEXT_PAGE
            remaining = None if remaining is None else remaining - len(spots.rids)

    async def _page(
        self, selection: ClickhouseSelection, size: int | None, offset: int, position: Position | None
    ) -> tuple[Spots, str]:
        """Where the calls of the next page are, and the id of the last of them."""
        extra = selection.behind(position)
        window = "" if size is None else f" LIMIT {size}"
        window += f" OFFSET {offset}" if offset else ""

        def work(client: "Client") -> tuple[Spots, str]:
            return call_rows.spots_of(client, lambda columns: selection.sql(columns, extra) + window, selection.bound)

        return await self._clickhouse.read(work)

    async def _rows(self, query: CallsQuery, spots: Spots) -> list[CallRow]:
        def work(client: "Client") -> list[CallRow]:
            found = call_rows.fetch(client, query, spots, None if query.shortened else self._read_file)
            if query.trace_sizes:
                call_rows.fill_trace_sizes(client, query.project, found)
            return found

        return await self._clickhouse.read(work)

    async def _select(self, query: CallsQuery) -> ClickhouseSelection:
        return await select(self._clickhouse, self._control, query)

    async def count(self, query: CallsQuery) -> int:
        """How many calls are selected, at most `limit`."""
        selection = await self._select(query)
        if query.limit is None:
            return await self._number(selection, selection.sql("count()", order=False))
        inner = selection.sql("1", order=False) + f" LIMIT {query.limit}"
        return await self._number(selection, f"SELECT count() FROM ({inner})")

    async def bytes_of(self, query: CallsQuery) -> int:
        """The stored JSON bytes of the selected calls."""
        selection = await self._select(query)
        return await self._number(selection, selection.sql("sum(c.size_in + c.size_out)", order=False))

    async def storage_size(self, project: str) -> int:
        """The stored JSON bytes of all live calls of a project."""
        return await self.bytes_of(CallsQuery(project))

    async def _number(self, selection: ClickhouseSelection, sql: str) -> int:
        return int((await rows(self._clickhouse, sql, selection.bound))[0][0])

    async def otel_dumps(self, project: str, ids: Sequence[str], containing: str = "") -> DumpSlice:
        """The dumps of live calls in the order of the ids, as many as fit one slice of memory; at least one is read."""
        return await call_rows.otel_dumps(self._clickhouse, project, ids, containing)

    async def traces_of(self, project: str, ids: Sequence[str]) -> list[str]:
        """The traces that the calls belong to."""
        if not ids:
            return []
        selection = await self._select(CallsQuery(project, Filter(call_ids=tuple(ids))))
        found = await rows(self._clickhouse, selection.sql("DISTINCT c.trace_id", order=False), selection.bound)
        return [str(row[0]) for row in found]

    async def usage(self, query: CallsQuery) -> list[UsageRow]:
        """The usage of the selected calls, in the default order."""
        selection = await self._select(query)
        head = f"c.id, c.parent_id, c.ended_at IS NOT NULL, c.started_at, c.trace_id, {IS_SPAN}"
        limit = "" if query.limit is None else f" LIMIT {query.limit}"
        found = await rows(self._clickhouse, selection.sql(f"{head}, {USAGE}") + limit, selection.bound)
        spans = {row[4] for row in found if row[5] and row[6]}
        outer = await self._clickhouse.read(lambda client: outer_spans(client, query.project, spans))
        # Children share the text of their parent's id: a trace may have very many.
        parents: dict[str | None, str | None] = {}
        return [
            UsageRow(
                row[0],
                parents.setdefault(row[1], row[1]),
                bool(row[2]),
                row[3],
                [] if row[5] and row[0] in outer else usage_of(row[6:]),
            )
            for row in found
        ]

    async def threads(
        self, project: str, thread_ids: Sequence[str] | None, after: int | None, before: int | None
    ) -> list[ThreadRow]:
        """Threads with their turn calls summed, in the order in which their first turns started."""
        bound = Bound()
        sql = f"""SELECT c.thread_id, c.id, c.started_at, c.ended_at FROM calls AS c FINAL
            WHERE c.project = {bound.value(project)} AND c.deleted_at = 0
            AND c.thread_id != '' AND c.turn_id = c.id"""
        sql += f" AND c.thread_id IN {bound.values(thread_ids)}" if thread_ids else ""
        sql += f" AND c.started_at > {bound.value(after)}" if after is not None else ""
        sql += f" AND c.started_at < {bound.value(before)}" if before is not None else ""
        return summed(await rows(self._clickhouse, f"{sql} ORDER BY c.started_at, c.id", bound))
