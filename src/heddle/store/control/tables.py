"""Tables: immutable lists of row digests, kept in chunks; each row is kept once per project under its digest."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import NotFound
from heddle.store.control.schema import Executor
from heddle.store.control.table_chunks import (
    CHUNK_ROWS,
    Place,
    chunk_digests,
    counted,
    digests_of_pieces,
    find,
    one,
    parts,
    places,
    row_columns,
    row_sizes,
    row_values,
    stored,
    stretch,
    table_columns,
    tables,
    total_bytes,
)
from heddle.store.control.table_order import CHUNKS_AT_A_TIME, Orders
from heddle.store.control.table_writes import SLICE_ROWS, NewTable
from heddle.wire.rowsort import SortKey, order
from heddle.wire.tableedit import Piece


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table: its place in the whole table, and its JSON text."""

    position: int
    digest: str
    val: str


@dataclass(frozen=True, slots=True)
class TableStats:
    """How many rows a table has, and their bytes where asked for."""

    digest: str
    count: int
    size: int | None


class Tables:
    """The verbs of tables. Project ids are internal."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._orders = Orders(executor)

    async def create(self, project: str, digest: str, row_digests: Sequence[str], rows: Mapping[str, str]) -> None:
        """Store a table and what is new of its rows (JSON text by digest); rows that are nowhere may come later."""
        is_complete = all(row_digest in rows for row_digest in row_digests)

        async def slices() -> AsyncIterator[Sequence[str]]:
            for first in range(0, len(row_digests), SLICE_ROWS):
                yield row_digests[first : first + SLICE_ROWS]

        number = await NewTable(self._executor, project, is_complete, rows).store(slices(), digest)
        if number is not None and not is_complete:
            await self._note_completeness(project, number, len(row_digests))

    async def count(self, project: str, digest: str) -> int | None:
        """How many rows a table has; None for an unknown table."""
        query = sa.select(table_columns.row_count).where(one(project, digest))
        return await self._executor.read(lambda connection: connection.execute(query).scalar_one_or_none())

    async def digests_at(self, project: str, digest: str, positions: Collection[int]) -> dict[int, str]:
        """Row digests of a table by position."""

        def work(connection: sa.Connection) -> dict[int, str]:
            table = find(connection, project, digest)
            return dict(places(connection, table.number, positions)) if table else {}

        return await self._executor.read(work)

    async def derive(self, project: str, base: str, pieces: Sequence[Piece], rows: Mapping[str, str]) -> str:
        """Store the table made of stretches of a base table and of new row digests; returns its digest.

        Rows of the base are neither read nor hashed again, and only a part of the digests is held at a time.
        Raises NotFound for an unknown base.
        """
        base_table = await self._executor.read(lambda connection: find(connection, project, base))
        if base_table is None:
            raise NotFound(f"Table {base[:100]} not found")
        count = sum(piece.count for piece in pieces)

        async def slices() -> AsyncIterator[Sequence[str]]:
            for first in range(0, count, SLICE_ROWS):

                def work(connection: sa.Connection, first: int = first) -> list[str]:
                    parts = digests_of_pieces(connection, base_table.number, pieces, first, first + SLICE_ROWS)
                    return [digest for part in parts for digest in part]

                yield await self._executor.read(work)

        new = NewTable(self._executor, project, bool(base_table.is_complete), rows)
        await new.store(slices())
        return new.digest

    async def query(
        self,
        project: str,
        digest: str,
        *,
        row_digests: Collection[str] = (),
        sort: Sequence[SortKey] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> list[TableRow]:
        """Rows in table order, or sorted by paths inside them; an unknown table has none."""
        pages = self.pages(project, digest, row_digests=row_digests, sort=sort, limit=limit, offset=offset)
        return [row async for page in pages for row in page]

    async def pages(
        self,
        project: str,
        digest: str,
        *,
        row_digests: Collection[str] = (),
        sort: Sequence[SortKey] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> AsyncIterator[list[TableRow]]:
        """The same in slices, so that any number of rows is read with flat memory."""
        table = await self._executor.read(lambda connection: find(connection, project, digest))
        if table is None:
            return
        end = table.row_count if limit is None else min(offset + limit, table.row_count)
        wanted = frozenset(row_digests)
        if sort and not wanted:
            ordered = await self._orders.of(project, table.number, table.row_count, sort, bool(table.is_complete))
            for first in range(offset, min(end, len(ordered)), CHUNK_ROWS):
                chosen = ordered[first : min(first + CHUNK_ROWS, end)]
                yield await self._rows(project, partial(places, number=table.number, positions=chosen))
        elif sort:
            found = await self._executor.read(lambda c: _sorted(c, project, table.number, wanted, sort)[offset:end])
            for first in range(0, len(found), CHUNK_ROWS):
                part = found[first : first + CHUNK_ROWS]
                yield await self._rows(project, lambda _, part=part: part)  # type: ignore[misc]
        elif table.is_complete and not wanted:
            for first in range(offset, end, CHUNK_ROWS):
                stop = min(first + CHUNK_ROWS, end)
                yield await self._rows(project, partial(stretch, table=table, start=first, end=stop))
        else:
            async for page in self._stored_pages(project, table, wanted, limit, offset):
                yield page

    async def _stored_pages(
        self, project: str, table: Any, wanted: frozenset[str], limit: int | None, offset: int
    ) -> AsyncIterator[list[TableRow]]:
        """Those rows of a table that are stored (and wanted, if any are named), a few chunks at a time."""
        skipped, left = offset, limit
        for first in range(0, -(-table.row_count // CHUNK_ROWS), CHUNKS_AT_A_TIME):
            if left == 0:
                return

            def work(connection: sa.Connection, first: int = first) -> list[Place]:
                last = first + CHUNKS_AT_A_TIME
                return list(_present(connection, project, table.number, wanted, first, last))

            found = await self._executor.read(work)
            chosen = found[skipped : None if left is None else skipped + left]
            skipped = max(skipped - len(found), 0)
            left = None if left is None else left - len(chosen)
            for start in range(0, len(chosen), CHUNK_ROWS):
                part = chosen[start : start + CHUNK_ROWS]
                yield await self._rows(project, lambda _, part=part: part)  # type: ignore[misc]

    async def _rows(self, project: str, which: Callable[[sa.Connection], list[Place]]) -> list[TableRow]:
        """The rows at some places."""

        def work(connection: sa.Connection) -> list[TableRow]:
            found = which(connection)
            values = row_values(connection, project, {row_digest for _, row_digest in found})
            return [TableRow(position, row_digest, values[row_digest]) for position, row_digest in found]

        return await self._executor.read(work)

    async def stats(self, project: str, digests: Collection[str], with_size: bool) -> list[TableStats]:
        """Counts (and bytes) of the known ones of some tables, in the order asked for."""

        def work(connection: sa.Connection) -> list[TableStats]:
            found = {}
            for part in parts(dict.fromkeys(digests)):
                query = sa.select(table_columns.number, table_columns.digest, table_columns.row_count)
                for row in connection.execute(
                    query.where(table_columns.project == project, table_columns.digest.in_(part))
                ):
                    size = _size(connection, project, row.number) if with_size else None
                    found[row.digest] = TableStats(row.digest, row.row_count, size)
            return [found[digest] for digest in digests if digest in found]

        return await self._executor.read(work)

    async def row_values(self, project: str, row_digests: Collection[str]) -> dict[str, str]:
        """JSON text of rows by digest; what is unknown is left out."""
        return await self._executor.read(lambda connection: row_values(connection, project, row_digests))

    async def total_size(self, project: str) -> int:
        """The bytes of all rows of the project, each counted once."""
        query = sa.select(sa.func.coalesce(sa.func.sum(row_columns.size), 0)).where(row_columns.project == project)
        return await self._executor.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def _note_completeness(self, project: str, number: int, count: int) -> None:
        """Find out, without holding up other reads and writes, whether every row of a new table is stored."""
        for first in range(0, -(-count // CHUNK_ROWS), CHUNKS_AT_A_TIME):

            def is_complete(connection: sa.Connection, first: int = first) -> bool:
                chunks = chunk_digests(connection, number, first, first + CHUNKS_AT_A_TIME)
                parts = (set(part) for _, part in chunks)
                return all(counted(connection, project, part) == len(part) for part in parts)

            if not await self._executor.read(is_complete):
                return
        change = tables.update().where(table_columns.number == number).values(is_complete=1)
        await self._executor.write(lambda connection: connection.execute(change).rowcount)


def _present(
    connection: sa.Connection,
    project: str,
    number: int,
    wanted: frozenset[str],
    first_chunk: int = 0,
    end_chunk: int | None = None,
) -> Iterator[Place]:
    """The rows that are stored (and wanted, if any are named), by position."""
    known = stored(connection, project, wanted)
    for first, part in chunk_digests(connection, number, first_chunk, end_chunk):
        present = known if wanted else stored(connection, project, set(part))
        yield from ((position, digest) for position, digest in enumerate(part, first) if digest in present)


def _sorted(
    connection: sa.Connection, project: str, number: int, wanted: frozenset[str], sort: Sequence[SortKey]
) -> list[Place]:
    """The wanted rows in order."""
    values = {digest: orjson.loads(val) for digest, val in row_values(connection, project, wanted).items()}
    names = dict(_present(connection, project, number, wanted))
    return [(position, names[position]) for position in order(((p, values[d]) for p, d in names.items()), sort)]


def _size(connection: sa.Connection, project: str, number: int) -> int:
    total = 0
    for _, part in chunk_digests(connection, number):
        distinct = set(part)
        if len(distinct) == len(part):
            total += total_bytes(connection, project, part)
        else:
            sizes = row_sizes(connection, project, distinct)
            total += sum(sizes.get(digest, 0) for digest in part)
    return total
