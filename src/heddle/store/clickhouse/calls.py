"""The verbs of calls on ClickHouse: how they are read; what writes them is in `call_writes`."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from heddle.store.clickhouse.assembly import at_spots, find_spots
from heddle.store.clickhouse.call_table import IS_SPAN, RID, USAGE, ClickhouseSelection, select, usage_of
from heddle.store.clickhouse.call_writes import CallWrites
from heddle.store.clickhouse.client import Bound, Clickhouse, Client, columns_of, rows_of
from heddle.store.clickhouse.schema import CALLS, listed, quoted
from heddle.store.clickhouse.usage_repeats import outer_spans
from heddle.store.control import pending_calls
from heddle.store.control.repository import Executor
from heddle.store.query.calls import Position, sum_turns
from heddle.wire import jsontext
from heddle.wire.calls import (
    BODY,
    HEAD,
    CallRow,
    CallsQuery,
    Contents,
    DumpSlice,
    End,
    Filter,
    SearchProgress,
    Start,
    ThreadRow,
    UsageRow,
)

_HEAD = ", ".join((f"{RID} AS rid", "c.size_in + c.size_out", *(f"c.{name}" for name in HEAD)))
_FILES_AT = 2 + len(HEAD)
_SLICE_ROWS = 1024
_SLICE_BYTES = 4 * 1024 * 1024
_DUMP_BYTES = 4 * 1024 * 1024
_DUMPS = 64
_SPARE_ROWS = 100
_SPOTS = f"{RID}, c.started_at, c.size_in + c.size_out"
_PARTS = "active AND database = currentDatabase() AND table IN ('calls', 'calls_local')"
_UNMADE = f"""SELECT sum(rows) FROM system.parts WHERE {_PARTS} AND name IN (
    SELECT arrayJoin(parts_to_do_names) FROM system.mutations WHERE database = currentDatabase() AND NOT is_done
    AND command LIKE '%words%')"""
"""The calls of parts whose words ClickHouse is still to make."""
ReadFile = Callable[[str], str]
_USER_PATHS = (("user",), ("user_id",), ("user.id",), ("user", "id"))
_USER = " OR ".join(
    f"JSONExtractString(attributes, {', '.join(map(quoted, path))}) = {{name:String}}" for path in _USER_PATHS
)
_FOUND = {
    "call": "id = {name:String}",
    "trace": "trace_id = {name:String}",
    "thread": "thread_id = {name:String}",
    "user": f"(user = {{name:String}} OR {_USER})",
    "project": "{name:String} = ''",
}
"""How the calls of a subject are found."""


def _is_of(start: Start, kind: str, name: str) -> bool:
    """The same for a start that waits."""
    if kind != "user":
        return kind == "project" or name == {"trace": start.trace_id, "thread": start.thread_id}[kind]
    attributes = jsontext.loads(start.attributes.encode()) if start.attributes else {}
    said: list[Any] = [start.user]
    for path in _USER_PATHS:
        value: Any = attributes
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        said.append(value)
    return name in said


@dataclass(slots=True)
class Spots:
    """Where calls are, in the order of a query: row numbers, starts and sizes."""

    rids: "array[int]" = field(default_factory=lambda: array("q"))
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def slices(self) -> Iterator["Spots"]:
        """The same in parts whose calls fit into little memory."""
        first, size = 0, 0
        for index, bytes_of in enumerate(self.sizes):
            if index > first and (size + bytes_of > _SLICE_BYTES or index - first == _SLICE_ROWS):
                yield self._part(first, index)
                first, size = index, 0
            size += bytes_of
        if len(self.rids) > first:
            yield self._part(first, len(self.rids))

    def _part(self, first: int, stop: int) -> "Spots":
        return Spots(self.rids[first:stop], self.starts[first:stop], self.sizes[first:stop])


def spots_of(client: Client, sql: Callable[[str], str], bound: Bound) -> tuple[Spots, str]:
    """Where the selected calls are, and the id of the last; `sql` makes the statement of its columns."""
    found, last = Spots(), ""
    for rids, starts, sizes, ids in columns_of(client, sql(f"{_SPOTS}, c.id"), bound):
        found.rids.extend(rids)
        found.starts.extend(starts)
        found.sizes.extend(sizes)
        last = ids[-1] if len(ids) else last
    return found, last


def find_near(client: Client, selection: ClickhouseSelection, behind: str, count: int) -> str:
    """The condition that holds for the first rows of an order by time, where so many calls may well be among these.

    Empty where they are not. ClickHouse finds the newest rows by their key alone, but looks into every part to tell
    which are stale; so it is told how far to look. A call has one row or two before parts are merged, and roots are one
    call in ten or so.
    """
    if not selection.is_walked:
        return ""
    operator, direction = (">=", "DESC") if selection.keyset == "<" else ("<=", "ASC")
    rows = count * (2 if selection.table.query.filter == Filter() else 20) + _SPARE_ROWS
    inside = " AND ".join(filter(None, [selection.where[0], behind]))
    starts = f"SELECT c.started_at AS s FROM calls AS c WHERE {inside} ORDER BY c.started_at {direction}"
    sql = f"{selection.head()}SELECT min(s), max(s), count() FROM ({starts} LIMIT {rows})"
    first, last, found = rows_of(client, sql, selection.bound.parameters)[0]
    edge = f"c.started_at {operator} {first if direction == 'DESC' else last}"
    return " AND ".join(filter(None, [behind, edge])) if found == rows else ""


def fetch(client: Client, query: CallsQuery, spots: Spots, read_file: ReadFile | None) -> list[CallRow]:
    """The calls at some places, in that order; one that was removed meanwhile is left out.

    Without `read_file` large texts stay as the row has them.
    """
    names = [name for name in BODY if name in query.columns]
    bound = Bound()
    wanted = ", ".join([_HEAD, "c.files", *(f"c.{name}" for name in names)])
    # Of the sorting key alone, which all rows of a call share: the others' bodies are not read.
    sql = f"""SELECT {wanted} FROM calls AS c FINAL PREWHERE c.project = {bound.value(query.project)}
        AND c.started_at IN {bound.values(spots.starts.tolist())} AND {RID} IN {bound.values(spots.rids.tolist())}
        WHERE c.deleted_at = 0"""
    found: dict[int, CallRow] = {}
    for values in rows_of(client, sql, bound.parameters):
        row = CallRow(*values[:_FILES_AT])
        for name, value in zip(names, values[_FILES_AT + 1 :], strict=True):
            setattr(row, name, value)
        for name, blob in values[_FILES_AT].items() if read_file is not None else ():
            if name in query.columns:
                setattr(row, name, read_file(blob) if read_file is not None else None)
        found[row.rid] = row
    return [found[rid] for rid in spots.rids if rid in found]


def fill_trace_sizes(client: Client, project: str, calls: Sequence[CallRow]) -> None:
    """Fill `trace_size` of root calls: the stored bytes of all live calls of their trace."""
    roots = [row for row in calls if row.parent_id is None]
    if not roots:
        return
    bound = Bound()
    sql = f"""SELECT c.trace_id, sum(c.size_in + c.size_out) FROM calls AS c FINAL
        WHERE c.project = {bound.value(project)} AND c.deleted_at = 0
        AND c.trace_id IN {bound.values(sorted({row.trace_id for row in roots}))} GROUP BY c.trace_id"""
    sizes = {str(trace_id): int(size) for trace_id, size in rows_of(client, sql, bound.parameters)}
    for row in roots:
        row.trace_size = sizes.get(row.trace_id, 0)


_FIRST_PAGE = 256
_NEXT_PAGE = 8192


class CallReads:
    """Calls are selected by number first, and read in slices afterwards."""

    def __init__(self, clickhouse: Clickhouse, control: Executor, read_file: Callable[[str], str]) -> None:
        self._clickhouse = clickhouse
        self._control = control
        self._read_file = read_file

    async def find(self, project: str, kind: str, name: str, limit: int | None = None) -> list[str]:
        most = "" if limit is None else f" LIMIT {limit}"
        query = f"SELECT DISTINCT id FROM {CALLS} WHERE project = {{project:String}} AND {_FOUND[kind]}{most}"
        found = await self._clickhouse.rows(query, {"project": project, "name": name})

        def waits(half: Start | End) -> bool:
            return half.id == name if kind == "call" else isinstance(half, Start) and _is_of(half, kind, name)

        waiting = await self._control.read(lambda connection: pending_calls.find_waiting(connection, project, waits))
        return list(dict.fromkeys([*(row[0] for row in found), *waiting]))

    async def find_deleted(self, project: str, ids: Sequence[str]) -> set[str]:
        spots = await find_spots(self._clickhouse, ((project, call_id) for call_id in ids))
        if not spots:
            return set()
        query = f"SELECT DISTINCT id FROM {CALLS} FINAL WHERE {at_spots(spots)} AND deleted_at > 0"
        return {row[0] for row in await self._clickhouse.rows(query)}

    async def children(self, project: str, ids: Sequence[str]) -> list[str]:
        above = set(ids)
        query = f"SELECT DISTINCT id FROM {CALLS} WHERE project = {{project:String}} AND parent_id IN {listed(ids)}"
        found = await self._clickhouse.rows(query, {"project": project})

        def is_below(half: Start | End) -> bool:
            return isinstance(half, Start) and half.parent_id in above

        waiting = await self._control.read(lambda connection: pending_calls.find_waiting(connection, project, is_below))
        return list(dict.fromkeys([*(row[0] for row in found), *waiting]))

    async def content(self, project: str, ids: Sequence[str]) -> Contents:
        query = f"""SELECT trace_id, mapValues(files), thread_id, inputs, attributes, output, summary FROM {CALLS}
            WHERE project = {{project:String}} AND id IN {listed(ids)}"""
        rows = [tuple(row) for row in await self._clickhouse.rows(query, {"project": project})]

        def work(connection: sa.Connection) -> list[Start | End]:
            waiting = pending_calls.read_halves(connection, ((project, call_id) for call_id in ids))
            return [one.half for one in waiting.values()]

        found = Contents()
        for half in await self._control.read(work):
            if isinstance(half, Start):
                rows.append((half.trace_id, list(half.files.values()), half.thread_id, half.inputs, half.attributes))
            else:
                rows.append((None, list(half.files.values()), half.output, half.summary))
        for trace, blobs, *texts in rows:
            found.traces.update((trace,) if trace else ())
            found.texts += [text for text in texts if text]
            found.texts += [await asyncio.to_thread(self._read_file, blob) for blob in blobs]
        return found

    async def exists(self, project: str, call_id: str) -> bool:
        def waits(connection: sa.Connection) -> bool:
            return pending_calls.has_half(connection, project, call_id)

        bound = Bound()
        sql = f"SELECT 1 FROM call_keys WHERE project = {bound.value(project)} AND id = {bound.value(call_id)} LIMIT 1"
        return bool(await self._clickhouse.rows(sql, bound.parameters)) or await self._control.read(waits)

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
        behind = selection.behind(position)
        window = "" if size is None else f" LIMIT {size}"
        window += f" OFFSET {offset}" if offset else ""

        def read(client: Client, extra: str) -> tuple[Spots, str]:
            return spots_of(client, lambda columns: selection.sql(columns, extra) + window, selection.bound)

        def work(client: Client) -> tuple[Spots, str]:
            if size is not None and (near := find_near(client, selection, behind, size + offset)):
                found = read(client, near)
                if len(found[0].rids) == size:
                    return found
            return read(client, behind)

        return await self._clickhouse.read(work)

    async def _rows(self, query: CallsQuery, spots: Spots) -> list[CallRow]:
        def work(client: Client) -> list[CallRow]:
            found = fetch(client, query, spots, None if query.shortened else self._read_file)
            if query.trace_sizes:
                fill_trace_sizes(client, query.project, found)
            return found

        return await self._clickhouse.read(work)

    async def _select(self, query: CallsQuery) -> ClickhouseSelection:
        return await select(self._clickhouse, self._control, query)

    async def count(self, query: CallsQuery) -> int:
        selection = await self._select(query)
        if query.limit is None:
            return await self._number(selection, selection.sql("count()", order=False))
        inner = selection.sql("1", order=False) + f" LIMIT {query.limit}"
        return await self._number(selection, f"SELECT count() FROM ({inner})")

    async def bytes_of(self, query: CallsQuery) -> int:
        selection = await self._select(query)
        return await self._number(selection, selection.sql("sum(c.size_in + c.size_out)", order=False))

    async def storage_size(self, project: str) -> int:
        return await self.bytes_of(CallsQuery(project))

    async def _number(self, selection: ClickhouseSelection, sql: str) -> int:
        return int((await self._clickhouse.rows(sql, selection.bound.parameters))[0][0])

    async def otel_dumps(self, project: str, ids: Sequence[str], containing: str = "") -> DumpSlice:
        found: list[tuple[str, str, str]] = []
        size = 0
        for first in range(0, len(ids), _DUMPS):
            part = ids[first : first + _DUMPS]
            dumps = await self._dumps(project, part, containing)
            for read, call_id in enumerate(part, first + 1):
                if call_id in dumps:
                    found.append((call_id, *dumps[call_id]))
                    size += len(dumps[call_id][1])
                    if size >= _DUMP_BYTES:
                        return DumpSlice(found, read)
        return DumpSlice(found, len(ids))

    async def _dumps(self, project: str, ids: Sequence[str], containing: str) -> dict[str, tuple[str, str]]:
        """Trace and dump by call."""
        bound = Bound()
        listed, name = bound.values(ids), bound.value(project)
        sql = f"""SELECT c.id, c.trace_id, c.otel_dump FROM calls AS c FINAL
            WHERE c.project = {name} AND c.deleted_at = 0
            AND c.started_at IN (SELECT started_at FROM call_keys WHERE project = {name} AND id IN {listed})
            AND c.id IN {listed} AND c.otel_dump IS NOT NULL"""
        if containing:
            sql += f" AND position(c.otel_dump, {bound.value(containing)}) > 0"
        found = await self._clickhouse.rows(sql, bound.parameters)
        return {call_id: (trace_id, dump) for call_id, trace_id, dump in found}

    async def search_progress(self, project: str) -> SearchProgress:  # noqa: ARG002  # ClickHouse counts by parts
        found = await self._clickhouse.rows(_UNMADE)
        total = await self._clickhouse.rows(f"SELECT sum(rows) FROM system.parts WHERE {_PARTS}")
        left, all_of_them = int(found[0][0] or 0), int(total[0][0] or 0)
        return SearchProgress(min(left, all_of_them), all_of_them)

    async def traces_of(self, project: str, ids: Sequence[str]) -> list[str]:
        if not ids:
            return []
        selection = await self._select(CallsQuery(project, Filter(call_ids=tuple(ids))))
        found = await self._clickhouse.rows(
            selection.sql("DISTINCT c.trace_id", order=False), selection.bound.parameters
        )
        return [str(row[0]) for row in found]

    async def usage(self, query: CallsQuery) -> list[UsageRow]:
        selection = await self._select(query)
        head = f"c.id, c.parent_id, c.ended_at IS NOT NULL, c.started_at, c.trace_id, {IS_SPAN}"
        limit = "" if query.limit is None else f" LIMIT {query.limit}"
        found = await self._clickhouse.rows(selection.sql(f"{head}, {USAGE}") + limit, selection.bound.parameters)
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
        bound = Bound()
        sql = f"""SELECT c.thread_id, c.id, c.started_at, c.ended_at FROM calls AS c FINAL
            WHERE c.project = {bound.value(project)} AND c.deleted_at = 0
            AND c.thread_id != '' AND c.turn_id = c.id"""
        sql += f" AND c.thread_id IN {bound.values(thread_ids)}" if thread_ids else ""
        sql += f" AND c.started_at > {bound.value(after)}" if after is not None else ""
        sql += f" AND c.started_at < {bound.value(before)}" if before is not None else ""
        return sum_turns(await self._clickhouse.rows(f"{sql} ORDER BY c.started_at, c.id", bound.parameters))


class Calls(CallWrites, CallReads):
    """`CallStore` in ClickHouse; halves of calls wait in the control tables."""

    def __init__(
        self, clickhouse: Clickhouse, control: Executor, queue_bytes: int, read_file: Callable[[str], str]
    ) -> None:
        CallWrites.__init__(self, clickhouse, control, queue_bytes)
        CallReads.__init__(self, clickhouse, control, read_file)
