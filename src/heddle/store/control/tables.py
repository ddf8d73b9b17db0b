"""Tables: immutable lists of row digests, kept in chunks; each row is kept once per project under its digest."""

import asyncio
import hashlib
import uuid
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import orjson
import sqlalchemy as sa

from heddle.store.control.redaction import Redaction
from heddle.store.control.repository import Executor, reads
from heddle.store.control.table_rows import (
    CHUNK_ROWS,
    Place,
    RowTexts,
    chunk_digests,
    digests_of_pieces,
    find,
    one,
    packed,
    places,
    require,
    stretch,
    table_chunks,
    table_columns,
    tables,
)
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.table_rows import Piece, Sorter, SortKey, sort_rows

Positions = Sequence[int]
_OrderKey = tuple[int, tuple[SortKey, ...]]
CHUNKS_AT_A_TIME = 25
"""How much of a table one piece of reading covers, so that others come in between."""
_KEPT_BYTES = 64 * 1024 * 1024


class Orders:
    """Positions in order, for tables whose rows are all stored: those never change."""

    def __init__(self, executor: Executor, row_texts: RowTexts) -> None:
        self._executor = executor
        self._row_texts = row_texts
        self._kept: OrderedDict[_OrderKey, array[int]] = OrderedDict()
        self._bytes = 0
        self._locks: WeakValueDictionary[_OrderKey, asyncio.Lock] = WeakValueDictionary()

    async def of(self, project: str, number: int, count: int, sort: Sequence[SortKey], is_complete: bool) -> Positions:
        """The positions of the stored rows of a table in order."""
        key = (number, tuple(sort))
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
            found = await self._sorted(project, number, count, sort)
            if is_complete:
                self._keep(key, found)
            return found

    async def _sorted(self, project: str, number: int, count: int, sort: Sequence[SortKey]) -> "array[int]":
        """A few chunks at a time, so that other reads come in between and none reaches its deadline."""
        sorter = Sorter(sort)
        for first in range(0, -(-count // CHUNK_ROWS), CHUNKS_AT_A_TIME):
            last = first + CHUNKS_AT_A_TIME
            chunks = await self._executor.read(lambda c, f=first, n=last: list(chunk_digests(c, number, f, n)))  # type: ignore[misc]
            for start, part in chunks:
                values = await self._row_texts.texts(project, set(part))
                await asyncio.to_thread(_add, sorter, start, part, values)
        return await asyncio.to_thread(sorter.positions)

    def _keep(self, key: _OrderKey, positions: "array[int]") -> None:
        self._kept[key] = positions
        self._bytes += positions.itemsize * len(positions)
        while self._bytes > _KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.itemsize * len(dropped)


def _add(sorter: Sorter, start: int, digests: Sequence[str], values: Mapping[str, str]) -> None:
    for position, digest in enumerate(digests, start):
        value = values.get(digest)
        if value is not None:
            sorter.add(position, orjson.loads(value))


SLICE_ROWS = 50 * CHUNK_ROWS
"""How many row digests are held at a time; shorter tables are written in one transaction."""
_UNFINISHED = "unfinished:"
"""What the digest of a table begins with while its chunks are being written; no request can name it."""
_OLD = times.DAY


class NewTable:
    """One table that is being stored, with what is new of its rows; `base` is the digest of what it is made of."""

    def __init__(
        self,
        executor: Executor,
        row_texts: RowTexts,
        project: str,
        is_complete: bool,
        rows: Mapping[str, str],
        base: str | None = None,
    ) -> None:
        self._executor = executor
        self._row_texts = row_texts
        self._project = project
        self._is_complete = is_complete
        self._rows = rows
        self._base = base
        self._state = hashlib.sha256()
        self._chunks = self._count = 0
        self._number: int | None = None

    @property
    def digest(self) -> str:
        """The digest of what arrived so far."""
        return self._state.hexdigest()

    async def store(self, slices: AsyncIterator[Sequence[str]], digest: str | None = None) -> int | None:
        """Write the table whose row digests arrive in slices of SLICE_ROWS; its number, None when it was there already.

        `digest` spares the hashing where it is known. Raises NotFound where the base is gone by now.
        """
        held: list[str] | None = None
        async for part in slices:
            if held is not None:
                await self._append(held)
            held = await asyncio.to_thread(self._packed, part, digest is None)
            self._count += len(part)
        return await self._finish(held or [], digest or self.digest)

    def _packed(self, part: Sequence[str], hashed: bool) -> list[str]:
        if hashed:
            for piece in batched(part, CHUNK_ROWS):
                self._state.update("".join(piece).encode())
        return list(packed(part))

    async def _append(self, chunks: list[str]) -> None:
        """Write a slice of a table that is not to be seen yet."""

        def work(connection: sa.Connection) -> int:
            number = self._number
            if number is None:
                _sweep(connection)
                number = self._insert(connection, f"{_UNFINISHED}{uuid.uuid4().hex}")
            self._insert_chunks(connection, number, chunks)
            return number

        self._number = await self._executor.write(work, sum(map(len, chunks)))
        self._chunks += len(chunks)

    async def _finish(self, chunks: list[str], digest: str) -> int | None:
        """Write the rows and the last slice, and let the table be seen."""
        keep_rows = await self._row_texts.put(self._project, self._rows)

        def work(connection: sa.Connection) -> int | None:
            if self._base is not None:
                require(connection, self._project, self._base)
            keep_rows(connection)
            if find(connection, self._project, digest) is not None:
                _drop(connection, [self._number] if self._number is not None else [])
                return None
            number = self._number
            if number is None:
                number = self._insert(connection, digest)
            else:
                change = {"digest": digest, "row_count": self._count, "created_at": times.now()}
                connection.execute(tables.update().where(table_columns.number == number).values(**change))
            self._insert_chunks(connection, number, chunks)
            return number

        size = sum(map(len, self._rows.values())) + sum(map(len, chunks)) + 100 * len(self._rows)
        return await self._executor.write(work, size)

    def _insert(self, connection: sa.Connection, digest: str) -> int:
        row = {"project": self._project, "digest": digest, "row_count": self._count}
        row |= {"is_complete": int(self._is_complete), "created_at": times.now()}
        result = connection.execute(tables.insert().values(**row))
        assert result.inserted_primary_key is not None
        number = int(result.inserted_primary_key[0])
        # SQLite gives out the number of a table that went again, and its chunks could stay in earlier versions.
        connection.execute(table_chunks.delete().where(table_chunks.c.table_number == number))
        return number

    def _insert_chunks(self, connection: sa.Connection, number: int, chunks: Sequence[str]) -> None:
        if chunks:
            every = enumerate(chunks, self._chunks)
            values = [{"table_number": number, "chunk": chunk, "row_digests": text} for chunk, text in every]
            connection.execute(table_chunks.insert(), values)


def _sweep(connection: sa.Connection) -> None:
    """Remove tables that a crash left unfinished: nobody has written to them for a day."""
    old = sa.and_(
        table_columns.digest >= _UNFINISHED,
        table_columns.digest < _UNFINISHED + "~",
        table_columns.created_at < times.now() - _OLD,
    )
    _drop(connection, connection.execute(sa.select(table_columns.number).where(old)).scalars().all())


def _drop(connection: sa.Connection, numbers: Sequence[int]) -> None:
    for number in numbers:
        connection.execute(table_chunks.delete().where(table_chunks.c.table_number == number))
        connection.execute(tables.delete().where(table_columns.number == number))


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

    def __init__(self, executor: Executor, row_texts: RowTexts, redaction: Redaction | None = None) -> None:
        self._executor = executor
        self._row_texts = row_texts
        self._redaction = redaction or Redaction(executor)
        self._orders = Orders(executor, row_texts)

    async def create(self, project: str, digest: str, row_digests: Sequence[str], rows: Mapping[str, str]) -> None:
        """Store a table and what is new of its rows (JSON text by digest); rows that are nowhere may come later."""
        is_complete = all(row_digest in rows for row_digest in row_digests)
        rows = await self._redacted(project, rows)

        async def slices() -> AsyncIterator[Sequence[str]]:
            for first in range(0, len(row_digests), SLICE_ROWS):
                yield row_digests[first : first + SLICE_ROWS]

        new = NewTable(self._executor, self._row_texts, project, is_complete, rows)
        number = await new.store(slices(), digest)
        if number is not None and not is_complete:
            await self._note_completeness(project, number, len(row_digests))

    async def purge_rows(self, project: str, digests: Collection[str] | None) -> int:
        """Remove rows for good, all of the project where none are named; returns how many."""
        return await self._row_texts.purge(project, digests)

    async def _redacted(self, project: str, rows: Mapping[str, str]) -> dict[str, str]:
        return dict(zip(rows, await self._redaction.texts(project, "row", list(rows.values())), strict=True))

    async def count(self, project: str, digest: str) -> int | None:
        """How many rows a table has; None for an unknown table."""
        query = sa.select(table_columns.row_count).where(one(project, digest))
        return await self._executor.read(lambda connection: connection.execute(query).scalar_one_or_none())

    @reads
    def digests_at(
        self, connection: sa.Connection, project: str, digest: str, positions: Collection[int]
    ) -> dict[int, str]:
        """Row digests of a table by position."""
        table = find(connection, project, digest)
        return dict(places(connection, table.number, positions)) if table else {}

    async def derive(self, project: str, base: str, pieces: Sequence[Piece], rows: Mapping[str, str]) -> str:
        """Store the table made of stretches of a base table and of new row digests; returns its digest.

        Rows of the base are neither read nor hashed again, and only a part of the digests is held at a time.
        Raises NotFound for an unknown base.
        """
        base_table = await self._executor.read(lambda connection: require(connection, project, base))
        count = sum(piece.count for piece in pieces)
        rows = await self._redacted(project, rows)

        async def slices() -> AsyncIterator[Sequence[str]]:
            for first in range(0, count, SLICE_ROWS):

                def work(connection: sa.Connection, first: int = first) -> list[str]:
                    # Its number may be another table's once it is gone.
                    number = require(connection, project, base).number
                    parts = digests_of_pieces(connection, number, pieces, first, first + SLICE_ROWS)
                    return [digest for part in parts for digest in part]

                yield await self._executor.read(work)

        new = NewTable(self._executor, self._row_texts, project, bool(base_table.is_complete), rows, base)
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
                found = await self._executor.read(lambda c, part=chosen: places(c, table.number, part))  # type: ignore[misc]
                yield await self._rows(project, found)
        elif sort:
            found = (await self._sorted(project, table.number, wanted, sort))[offset:end]
            for first in range(0, len(found), CHUNK_ROWS):
                yield await self._rows(project, found[first : first + CHUNK_ROWS])
        elif table.is_complete and not wanted:
            for first in range(offset, end, CHUNK_ROWS):
                stop = min(first + CHUNK_ROWS, end)
                found = await self._executor.read(lambda c, f=first, s=stop: stretch(c, table.number, f, s))  # type: ignore[misc]
                yield await self._rows(project, found)
        else:
            async for page in self._stored_pages(project, table, wanted, limit, offset):
                yield page

    async def _stored_pages(
        self, project: str, table: Any, wanted: frozenset[str], limit: int | None, offset: int
    ) -> AsyncIterator[list[TableRow]]:
        """Those rows of a table that are stored (and wanted, if any are named), a few chunks at a time."""
        skipped, left = offset, limit
        known = await self._row_texts.stored(project, wanted)
        for first in range(0, -(-table.row_count // CHUNK_ROWS), CHUNKS_AT_A_TIME):
            if left == 0:
                return
            every = await self._places(table.number, first, first + CHUNKS_AT_A_TIME)
            present = known if wanted else await self._row_texts.stored(project, {digest for _, digest in every})
            found = [place for place in every if place[1] in present]
            chosen = found[skipped : None if left is None else skipped + left]
            skipped = max(skipped - len(found), 0)
            left = None if left is None else left - len(chosen)
            for start in range(0, len(chosen), CHUNK_ROWS):
                yield await self._rows(project, chosen[start : start + CHUNK_ROWS])

    @reads
    def _places(
        self, connection: sa.Connection, number: int, first_chunk: int = 0, end_chunk: int | None = None
    ) -> list[Place]:
        """Every place of some chunks."""
        chunks = chunk_digests(connection, number, first_chunk, end_chunk)
        return [place for first, part in chunks for place in enumerate(part, first)]

    async def _rows(self, project: str, found: Sequence[Place]) -> list[TableRow]:
        """The rows at some places."""
        texts = await self._row_texts.texts(project, {row_digest for _, row_digest in found})
        return [TableRow(position, row_digest, texts[row_digest]) for position, row_digest in found]

    async def _sorted(self, project: str, number: int, wanted: frozenset[str], sort: Sequence[SortKey]) -> list[Place]:
        """The wanted rows in order."""
        texts = await self._row_texts.texts(project, wanted)

        def chosen(connection: sa.Connection) -> list[Place]:
            chunks = chunk_digests(connection, number)
            return [place for first, part in chunks for place in enumerate(part, first) if place[1] in texts]

        def ordered(names: Mapping[int, str]) -> list[Place]:
            values = {digest: orjson.loads(text) for digest, text in texts.items()}
            return [(place, names[place]) for place in sort_rows(((p, values[d]) for p, d in names.items()), sort)]

        return await asyncio.to_thread(ordered, dict(await self._executor.read(chosen)))

    async def stats(self, project: str, digests: Collection[str], with_size: bool) -> list[TableStats]:
        """Counts (and bytes) of the known ones of some tables, in the order asked for."""

        def work(connection: sa.Connection) -> list[Any]:
            query = sa.select(table_columns.number, table_columns.digest, table_columns.row_count)
            query = query.where(table_columns.project == project)
            chosen = (query.where(table_columns.digest.in_(part)) for part in batched(dict.fromkeys(digests)))
            return [row for selected in chosen for row in connection.execute(selected)]

        found = {}
        for row in await self._executor.read(work):
            size = await self._size(project, row.number, row.row_count) if with_size else None
            found[row.digest] = TableStats(row.digest, row.row_count, size)
        return [found[digest] for digest in digests if digest in found]

    async def _size(self, project: str, number: int, count: int) -> int:
        total = 0
        for first in range(0, -(-count // CHUNK_ROWS), CHUNKS_AT_A_TIME):
            row_digests = [digest for _, digest in await self._places(number, first, first + CHUNKS_AT_A_TIME)]
            sizes = await self._row_texts.sizes(project, set(row_digests))
            total += sum(sizes.get(digest, 0) for digest in row_digests)
        return total

    async def put_rows(self, project: str, rows: Mapping[str, str]) -> None:
        """Store rows (JSON text by digest) that tables made later may name."""
        rows = await self._redacted(project, rows)
        await self._executor.write(await self._row_texts.put(project, rows), sum(map(len, rows.values())))

    async def row_values(self, project: str, row_digests: Collection[str]) -> dict[str, str]:
        """JSON text of rows by digest; what is unknown is left out."""
        return await self._row_texts.texts(project, row_digests)

    async def total_size(self, project: str) -> int:
        """The bytes of all rows of the project, each counted once."""
        return await self._row_texts.total_size(project)

    async def _note_completeness(self, project: str, number: int, count: int) -> None:
        """Find out, without holding up other reads and writes, whether every row of a new table is stored."""
        for first in range(0, -(-count // CHUNK_ROWS), CHUNKS_AT_A_TIME):
            wanted = {digest for _, digest in await self._places(number, first, first + CHUNKS_AT_A_TIME)}
            if len(await self._row_texts.stored(project, wanted)) < len(wanted):
                return
        change = tables.update().where(table_columns.number == number).values(is_complete=1)
        await self._executor.write(lambda connection: connection.execute(change).rowcount)
