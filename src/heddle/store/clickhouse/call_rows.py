"""Fetching whole calls by row number: head columns, the JSON texts that were asked for, and what lies in files."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.store.clickhouse.bound import Bound, columns_of, rows, rows_of
from heddle.store.clickhouse.call_table import RID
from heddle.store.clickhouse.client import Clickhouse
from heddle.wire.calls import BODY, HEAD, CallRow, CallsQuery, DumpSlice

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_HEAD = ", ".join((f"{RID} AS rid", "c.size_in + c.size_out", *(f"c.{name}" for name in HEAD)))
_FILES_AT = 2 + len(HEAD)
_SLICE_ROWS = 1024
_SLICE_BYTES = 4 * 1024 * 1024
_DUMP_BYTES = 4 * 1024 * 1024
_DUMPS = 64
_SPOTS = f"{RID}, c.started_at, c.size_in + c.size_out"
ReadFile = Callable[[str], str]


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


def spots_of(client: "Client", sql: Callable[[str], str], bound: Bound) -> tuple[Spots, str]:
    """Where the selected calls are, and the id of the last; `sql` makes the statement of its columns."""
    found, last = Spots(), ""
    for rids, starts, sizes, ids in columns_of(client, sql(f"{_SPOTS}, c.id"), bound):
        found.rids.extend(rids)
        found.starts.extend(starts)
        found.sizes.extend(sizes)
        last = ids[-1] if len(ids) else last
    return found, last


def fetch(client: "Client", query: CallsQuery, spots: Spots, read_file: ReadFile | None) -> list[CallRow]:
    """The calls at some places, in that order; one that was removed meanwhile is left out.

    Without `read_file` large texts stay as the row has them.
    """
    names = [name for name in BODY if name in query.columns]
    bound = Bound()
    wanted = ", ".join([_HEAD, "c.files", *(f"c.{name}" for name in names)])
    sql = f"""SELECT {wanted} FROM calls AS c FINAL WHERE c.project = {bound.value(query.project)} AND c.deleted_at = 0
        AND c.started_at IN {bound.values(spots.starts.tolist())} AND {RID} IN {bound.values(spots.rids.tolist())}"""
    found: dict[int, CallRow] = {}
    for values in rows_of(client, sql, bound):
        row = CallRow(*values[:_FILES_AT])
        for name, value in zip(names, values[_FILES_AT + 1 :], strict=True):
            setattr(row, name, value)
        for name, blob in values[_FILES_AT].items() if read_file is not None else ():
            if name in query.columns:
                setattr(row, name, read_file(blob) if read_file is not None else None)
        found[row.rid] = row
    return [found[rid] for rid in spots.rids if rid in found]


def fill_trace_sizes(client: "Client", project: str, calls: Sequence[CallRow]) -> None:
    """Fill `trace_size` of root calls: the stored bytes of all live calls of their trace."""
    roots = [row for row in calls if row.parent_id is None]
    if not roots:
        return
    bound = Bound()
    sql = f"""SELECT c.trace_id, sum(c.size_in + c.size_out) FROM calls AS c FINAL
        WHERE c.project = {bound.value(project)} AND c.deleted_at = 0
        AND c.trace_id IN {bound.values(sorted({row.trace_id for row in roots}))} GROUP BY c.trace_id"""
    sizes = {str(trace_id): int(size) for trace_id, size in rows_of(client, sql, bound)}
    for row in roots:
        row.trace_size = sizes.get(row.trace_id, 0)


async def otel_dumps(clickhouse: Clickhouse, project: str, ids: Sequence[str], containing: str) -> DumpSlice:
    """The dumps of live calls in the order of the ids, until they hold `_DUMP_BYTES` characters."""
    found: list[tuple[str, str, str]] = []
    size = 0
    for first in range(0, len(ids), _DUMPS):
        part = ids[first : first + _DUMPS]
        dumps = await _dumps(clickhouse, project, part, containing)
        for read, call_id in enumerate(part, first + 1):
            if call_id in dumps:
                found.append((call_id, *dumps[call_id]))
                size += len(dumps[call_id][1])
                if size >= _DUMP_BYTES:
                    return DumpSlice(found, read)
    return DumpSlice(found, len(ids))


async def _dumps(
    clickhouse: Clickhouse, project: str, ids: Sequence[str], containing: str
) -> dict[str, tuple[str, str]]:
    """Trace and dump by call."""
    bound = Bound()
    listed, name = bound.values(ids), bound.value(project)
    sql = f"""SELECT c.id, c.trace_id, c.otel_dump FROM calls AS c FINAL WHERE c.project = {name} AND c.deleted_at = 0
        AND c.started_at IN (SELECT started_at FROM call_keys WHERE project = {name} AND id IN {listed})
        AND c.id IN {listed} AND c.otel_dump IS NOT NULL"""
    if containing:
        sql += f" AND position(c.otel_dump, {bound.value(containing)}) > 0"
    return {call_id: (trace_id, dump) for call_id, trace_id, dump in await rows(clickhouse, sql, bound)}
