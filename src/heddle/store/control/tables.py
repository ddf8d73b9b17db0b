"""Tables: immutable lists of row digests, kept in chunks; each row is kept once per project under its digest."""

import asyncio
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.errors import NotFound
from heddle.store.control.schema import Executor
from heddle.store.control.table_chunks import (
    CHUNK_ROWS,
    Place,
    chunk_digests,
    counted,
    packed,
    parts,
    row_columns,
    row_sizes,
    row_values,
    stretch,
    stretch_chunks,
    table_chunks,
    table_columns,
    table_rows,
    tables,
)
from heddle.wire import times
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

    async def create(self, project: str, digest: str, row_digests: Sequence[str], rows: Mapping[str, str]) -> None:
        """Store a table and what is new of its rows (JSON text by digest); rows that are nowhere may come later."""
        chunks = await asyncio.to_thread(packed, row_digests)
        is_complete = rows.keys() >= set(row_digests)

        def work(connection: sa.Connection) -> int | None:
            _insert_rows(connection, project, rows)
            return _insert_table(connection, project, digest, len(row_digests), is_complete, chunks)

        number = await self._executor.write(work, _size_of(rows, chunks))
        if number is not None and not is_complete:
            await self._note_completeness(project, number)

    async def count(self, project: str, digest: str) -> int | None:
        """How many rows a table has; None for an unknown table."""
        query = sa.select(table_columns.row_count).where(_one(project, digest))
        return await self._executor.read(lambda connection: connection.execute(query).scalar_one_or_none())

    async def digests_at(self, project: str, digest: str, positions: Collection[int]) -> dict[int, str]:
        """Row digests of a table by position."""

        def work(connection: sa.Connection) -> dict[int, str]:
            table = _find(connection, project, digest)
            found: dict[int, str] = {}
            for number in sorted({position // CHUNK_ROWS for position in positions}) if table else ():
                for first, part in chunk_digests(connection, table.number, number, number + 1):
                    inside = [position for position in positions if position // CHUNK_ROWS == number]
                    found.update((position, part[position - first]) for position in inside)
            return found

        return await self._executor.read(work)

    async def derive(self, project: str, base: str, pieces: Sequence[Piece], rows: Mapping[str, str]) -> str:
        """Store the table made of stretches of a base table and of new row digests; returns its digest.

        Rows of the base are neither read nor hashed again. Raises NotFound for an unknown base.
        """
        base_table, digest, chunks = await self._executor.read(
            lambda connection: _derived(connection, project, base, pieces)
        )
        count = sum(piece.count for piece in pieces)

        def work(connection: sa.Connection) -> None:
            _insert_rows(connection, project, rows)
            _insert_table(connection, project, digest, count, bool(base_table.is_complete), chunks)

        await self._executor.write(work, _size_of(rows, chunks))
        return digest

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

        def work(connection: sa.Connection) -> list[TableRow]:
            table = _find(connection, project, digest)
            if table is None:
                return []
            end = None if limit is None else offset + limit
            if sort:
                places = _sorted(connection, project, table.number, frozenset(row_digests), sort)[offset:end]
            elif table.is_complete and not row_digests:
                places = stretch(connection, table, offset, end)
            else:
                places = list(islice(_present(connection, project, table.number, frozenset(row_digests)), offset, end))
            values = row_values(connection, project, {row_digest for _, row_digest in places})
            return [TableRow(position, row_digest, values[row_digest]) for position, row_digest in places]

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

    async def _note_completeness(self, project: str, number: int) -> None:
        """Find out, without holding up other writes, whether every row of a new table is stored."""

        def is_complete(connection: sa.Connection) -> bool:
            parts = (set(part) for _, part in chunk_digests(connection, number))
            return all(counted(connection, project, part)[0] == len(part) for part in parts)

        if await self._executor.read(is_complete):
            change = tables.update().where(table_columns.number == number).values(is_complete=1)
            await self._executor.write(lambda connection: connection.execute(change).rowcount)


def _one(project: str, digest: str) -> sa.ColumnElement[bool]:
    return sa.and_(table_columns.project == project, table_columns.digest == digest)


def _find(connection: sa.Connection, project: str, digest: str) -> Any:
    return connection.execute(sa.select(tables).where(_one(project, digest))).first()


def _present(connection: sa.Connection, project: str, number: int, wanted: frozenset[str]) -> Iterator[Place]:
    """The rows that are stored (and wanted, if any are named), by position."""
    known = row_sizes(connection, project, wanted).keys()
    for first, part in chunk_digests(connection, number):
        present = known if wanted else row_sizes(connection, project, set(part)).keys()
        yield from ((position, digest) for position, digest in enumerate(part, first) if digest in present)


def _sorted(
    connection: sa.Connection, project: str, number: int, wanted: frozenset[str], sort: Sequence[SortKey]
) -> list[Place]:
    """Sort keys of all rows are held in memory, the rows themselves a chunk at a time."""
    names: dict[int, str] = {}

    def rows() -> Iterator[tuple[int, Any]]:
        for first, part in chunk_digests(connection, number):
            chosen = {digest for digest in part if not wanted or digest in wanted}
            values = {digest: orjson.loads(val) for digest, val in row_values(connection, project, chosen).items()}
            for position, digest in enumerate(part, first):
                if digest in values:
                    names[position] = digest
                    yield position, values[digest]

    return [(position, names[position]) for position in order(rows(), sort)]


def _size(connection: sa.Connection, project: str, number: int) -> int:
    total = 0
    for _, part in chunk_digests(connection, number):
        if len(set(part)) == len(part):
            total += counted(connection, project, part)[1]
        else:
            sizes = row_sizes(connection, project, set(part))
            total += sum(sizes.get(digest, 0) for digest in part)
    return total


def _derived(connection: sa.Connection, project: str, base: str, pieces: Sequence[Piece]) -> tuple[Any, str, list[str]]:
    """The base table; digest and chunks of the table that the pieces make."""
    table = _find(connection, project, base)
    if table is None:
        raise NotFound(f"Table {base[:100]} not found")
    state = hashlib.sha256()

    def hashed() -> Iterator[str]:
        for piece in pieces:
            added = [list(piece.added)] if piece.added else []
            for part in chain(added, stretch_chunks(connection, table.number, piece.start, piece.stop)):
                state.update("".join(part).encode())
                yield from part

    chunks = packed(hashed())
    return table, state.hexdigest(), chunks


def _size_of(rows: Mapping[str, str], chunks: Sequence[str]) -> int:
    return sum(map(len, rows.values())) + sum(map(len, chunks)) + 100 * len(rows)


def _insert_rows(connection: sa.Connection, project: str, rows: Mapping[str, str]) -> None:
    insert = _insert(connection, table_rows, ["project", "digest"])
    every = (
        {"project": project, "digest": digest, "size": len(val.encode()), "val": val} for digest, val in rows.items()
    )
    for part in parts(every):
        connection.execute(insert, part)


def _insert_table(
    connection: sa.Connection, project: str, digest: str, count: int, is_complete: bool, chunks: Sequence[str]
) -> int | None:
    """The number of the new table, None when it is there already."""
    if _find(connection, project, digest) is not None:
        return None
    row = {"project": project, "digest": digest, "row_count": count, "is_complete": int(is_complete)}
    result = connection.execute(tables.insert().values(**row, created_at=times.now()))
    assert result.inserted_primary_key is not None
    number = int(result.inserted_primary_key[0])
    every = ({"table_number": number, "chunk": chunk, "row_digests": text} for chunk, text in enumerate(chunks))
    for part in parts(every):
        connection.execute(table_chunks.insert(), part)
    return number


def _insert(connection: sa.Connection, table: sa.Table, identity: list[str]) -> Any:
    """An insert that passes over what is there already."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing(index_elements=identity)
