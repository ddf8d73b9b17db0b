"""Tables: immutable lists of row digests, kept in chunks; each row is kept once per project under its digest."""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.errors import NotFound
from heddle.store.control.schema import Executor, metadata
from heddle.wire import times
from heddle.wire.rowsort import SortKey, order
from heddle.wire.tableedit import Piece

CHUNK_ROWS = 1000
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
T = TypeVar("T")
Place = tuple[int, str]

table_rows = sa.Table(
    "table_rows",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("val", sa.Text, nullable=False),
    sa.UniqueConstraint("project", "digest", name="table_rows_identity"),
)

tables = sa.Table(
    "tables",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("is_complete", sa.Integer, nullable=False, comment="1: every row is stored, so position is rank"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("project", "digest", name="tables_identity"),
)

table_chunks = sa.Table(
    "table_chunks",
    metadata,
    sa.Column("table_number", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("chunk", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("row_digests", sa.Text, nullable=False, comment="a JSON list of CHUNK_ROWS digests, fewer in the last"),
)
_rows, _tables, _chunks = table_rows.c, tables.c, table_chunks.c


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
        chunks = await asyncio.to_thread(_packed, row_digests)
        is_complete = rows.keys() >= set(row_digests)

        def work(connection: sa.Connection) -> int | None:
            _insert_rows(connection, project, rows)
            return _insert_table(connection, project, digest, len(row_digests), is_complete, chunks)

        number = await self._executor.write(work, _size_of(rows, chunks))
        if number is not None and not is_complete:
            await self._note_completeness(project, number)

    async def count(self, project: str, digest: str) -> int | None:
        """How many rows a table has; None for an unknown table."""
        query = sa.select(_tables.row_count).where(_one(project, digest))
        return await self._executor.read(lambda connection: connection.execute(query).scalar_one_or_none())

    async def digests_at(self, project: str, digest: str, positions: Collection[int]) -> dict[int, str]:
        """Row digests of a table by position."""

        def work(connection: sa.Connection) -> dict[int, str]:
            table = _find(connection, project, digest)
            found: dict[int, str] = {}
            for number in sorted({position // CHUNK_ROWS for position in positions}) if table else ():
                for first, part in _digests(connection, table.number, number, number + 1):
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
                places = _stretch(connection, table, offset, end)
            else:
                places = list(islice(_present(connection, project, table.number, frozenset(row_digests)), offset, end))
            values = _values(connection, project, {row_digest for _, row_digest in places})
            return [TableRow(position, row_digest, values[row_digest]) for position, row_digest in places]

        return await self._executor.read(work)

    async def stats(self, project: str, digests: Collection[str], with_size: bool) -> list[TableStats]:
        """Counts (and bytes) of the known ones of some tables, in the order asked for."""

        def work(connection: sa.Connection) -> list[TableStats]:
            found = {}
            for part in _parts(dict.fromkeys(digests)):
                query = sa.select(_tables.number, _tables.digest, _tables.row_count)
                for row in connection.execute(query.where(_tables.project == project, _tables.digest.in_(part))):
                    size = _size(connection, project, row.number) if with_size else None
                    found[row.digest] = TableStats(row.digest, row.row_count, size)
            return [found[digest] for digest in digests if digest in found]

        return await self._executor.read(work)

    async def row_values(self, project: str, row_digests: Collection[str]) -> dict[str, str]:
        """JSON text of rows by digest; what is unknown is left out."""
        return await self._executor.read(lambda connection: _values(connection, project, row_digests))

    async def total_size(self, project: str) -> int:
        """The bytes of all rows of the project, each counted once."""
        query = sa.select(sa.func.coalesce(sa.func.sum(_rows.size), 0)).where(_rows.project == project)
        return await self._executor.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def _note_completeness(self, project: str, number: int) -> None:
        """Find out, without holding up other writes, whether every row of a new table is stored."""

        def is_complete(connection: sa.Connection) -> bool:
            parts = (set(part) for _, part in _digests(connection, number))
            return all(_counted(connection, project, part)[0] == len(part) for part in parts)

        if await self._executor.read(is_complete):
            change = tables.update().where(_tables.number == number).values(is_complete=1)
            await self._executor.write(lambda connection: connection.execute(change).rowcount)


def _one(project: str, digest: str) -> sa.ColumnElement[bool]:
    return sa.and_(_tables.project == project, _tables.digest == digest)


def _find(connection: sa.Connection, project: str, digest: str) -> Any:
    return connection.execute(sa.select(tables).where(_one(project, digest))).first()


def _digests(
    connection: sa.Connection, number: int, first_chunk: int = 0, end_chunk: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Position of its first row, and row digests, of each chunk."""
    query = sa.select(_chunks.chunk, _chunks.row_digests).where(_chunks.table_number == number)
    query = query.where(_chunks.chunk >= first_chunk).order_by(_chunks.chunk)
    if end_chunk is not None:
        query = query.where(_chunks.chunk < end_chunk)
    for row in connection.execution_options(yield_per=8).execute(query):
        yield row.chunk * CHUNK_ROWS, orjson.loads(row.row_digests)


def _stretch(connection: sa.Connection, table: Any, start: int, end: int | None) -> list[Place]:
    """The rows from `start` up to `end` by position."""
    end = table.row_count if end is None else min(end, table.row_count)
    found: list[Place] = []
    if start < end:
        for first, part in _digests(connection, table.number, start // CHUNK_ROWS, (end - 1) // CHUNK_ROWS + 1):
            low = max(start - first, 0)
            found.extend(enumerate(part[low : end - first], first + low))
    return found


def _present(connection: sa.Connection, project: str, number: int, wanted: frozenset[str]) -> Iterator[Place]:
    """The rows that are stored (and wanted, if any are named), by position."""
    known = _sizes(connection, project, wanted).keys()
    for first, part in _digests(connection, number):
        present = known if wanted else _sizes(connection, project, set(part)).keys()
        yield from ((position, digest) for position, digest in enumerate(part, first) if digest in present)


def _sorted(
    connection: sa.Connection, project: str, number: int, wanted: frozenset[str], sort: Sequence[SortKey]
) -> list[Place]:
    """Sort keys of all rows are held in memory, the rows themselves a chunk at a time."""
    names: dict[int, str] = {}

    def rows() -> Iterator[tuple[int, Any]]:
        for first, part in _digests(connection, number):
            chosen = {digest for digest in part if not wanted or digest in wanted}
            values = {digest: orjson.loads(val) for digest, val in _values(connection, project, chosen).items()}
            for position, digest in enumerate(part, first):
                if digest in values:
                    names[position] = digest
                    yield position, values[digest]

    return [(position, names[position]) for position in order(rows(), sort)]


def _values(connection: sa.Connection, project: str, row_digests: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _parts(sorted(row_digests)):
        query = sa.select(_rows.digest, _rows.val).where(_rows.project == project, _rows.digest.in_(part))
        found.update((row.digest, row.val) for row in connection.execute(query))
    return found


def _sizes(connection: sa.Connection, project: str, row_digests: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in _parts(sorted(row_digests)):
        query = sa.select(_rows.digest, _rows.size).where(_rows.project == project, _rows.digest.in_(part))
        found.update((row.digest, row.size) for row in connection.execute(query))
    return found


def _size(connection: sa.Connection, project: str, number: int) -> int:
    total = 0
    for _, part in _digests(connection, number):
        if len(set(part)) == len(part):
            total += _counted(connection, project, part)[1]
        else:
            sizes = _sizes(connection, project, set(part))
            total += sum(sizes.get(digest, 0) for digest in part)
    return total


def _counted(connection: sa.Connection, project: str, row_digests: Collection[str]) -> tuple[int, int]:
    """How many of some distinct rows are stored, and their bytes together."""
    count = total = 0
    for part in _parts(sorted(row_digests)):
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_rows.size), 0))
        found = connection.execute(query.where(_rows.project == project, _rows.digest.in_(part))).one()
        count, total = count + found[0], total + int(found[1])
    return count, total


def _derived(connection: sa.Connection, project: str, base: str, pieces: Sequence[Piece]) -> tuple[Any, str, list[str]]:
    """The base table; digest and chunks of the table that the pieces make."""
    table = _find(connection, project, base)
    if table is None:
        raise NotFound(f"Table {base[:100]} not found")
    state = hashlib.sha256()

    def hashed() -> Iterator[str]:
        for piece in pieces:
            stretches = [list(piece.added)] if piece.added else []
            for part in chain(stretches, _stretches(connection, table.number, piece.start, piece.stop)):
                state.update("".join(part).encode())
                yield from part

    chunks = _packed(hashed())
    return table, state.hexdigest(), chunks


def _stretches(connection: sa.Connection, number: int, start: int, stop: int) -> Iterator[list[str]]:
    """The row digests from `start` up to `stop`, a chunk at a time."""
    if start < stop:
        for first, part in _digests(connection, number, start // CHUNK_ROWS, (stop - 1) // CHUNK_ROWS + 1):
            yield part[max(start - first, 0) : stop - first]


def _packed(row_digests: Iterable[str]) -> list[str]:
    return [orjson.dumps(part).decode() for part in _parts(row_digests, CHUNK_ROWS)]


def _size_of(rows: Mapping[str, str], chunks: Sequence[str]) -> int:
    return sum(map(len, rows.values())) + sum(map(len, chunks)) + 100 * len(rows)


def _insert_rows(connection: sa.Connection, project: str, rows: Mapping[str, str]) -> None:
    insert = _insert(connection, table_rows, ["project", "digest"])
    every = (
        {"project": project, "digest": digest, "size": len(val.encode()), "val": val} for digest, val in rows.items()
    )
    for part in _parts(every):
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
    for part in _parts(every):
        connection.execute(table_chunks.insert(), part)
    return number


def _insert(connection: sa.Connection, table: sa.Table, identity: list[str]) -> Any:
    """An insert that passes over what is there already."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing(index_elements=identity)


def _parts(items: Iterable[T], size: int = 500) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
