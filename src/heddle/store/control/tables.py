"""Tables: immutable lists of rows, each row kept once per project under its digest."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.errors import NotFound
from heddle.store.control.schema import Executor, metadata
from heddle.wire import times
from heddle.wire.rowsort import SortKey, order
from heddle.wire.tableedit import Piece

_CHUNK = 500
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
T = TypeVar("T")

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

table_items = sa.Table(
    "table_items",
    metadata,
    sa.Column("table_number", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("position", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("row_digest", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
_rows, _tables, _items = table_rows.c, tables.c, table_items.c


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
        size = sum(map(len, rows.values())) + 100 * len(row_digests)

        def work(connection: sa.Connection) -> int | None:
            _insert_rows(connection, project, rows)
            is_complete = all(row_digest in rows for row_digest in row_digests)
            number = _insert_table(connection, project, digest, len(row_digests), is_complete)
            if number is not None:
                items = (
                    {"table_number": number, "position": place, "row_digest": row}
                    for place, row in enumerate(row_digests)
                )
                _insert_items(connection, items)
            return None if is_complete else number

        unsure = await self._executor.write(work, size)
        if unsure is not None:
            await self._note_completeness(unsure)

    async def count(self, project: str, digest: str) -> int | None:
        """How many rows a table has; None for an unknown table."""
        query = sa.select(_tables.row_count).where(_one(project, digest))
        return await self._executor.read(lambda connection: connection.execute(query).scalar_one_or_none())

    async def digests_at(self, project: str, digest: str, positions: Collection[int]) -> dict[int, str]:
        """Row digests of a table by position."""

        def work(connection: sa.Connection) -> dict[int, str]:
            found: dict[int, str] = {}
            for part in _chunks(sorted(positions)):
                query = sa.select(_items.position, _items.row_digest).select_from(_joined())
                wanted = query.where(_one(project, digest), _items.position.in_(part))
                found.update((row.position, row.row_digest) for row in connection.execute(wanted))
            return found

        return await self._executor.read(work)

    async def derive(self, project: str, base: str, pieces: Sequence[Piece], rows: Mapping[str, str]) -> str:
        """Store the table made of stretches of a base table and of new row digests; returns its digest.

        Rows of the base are neither read nor hashed again. Raises NotFound for an unknown base.
        """
        base_table, digest = await self._executor.read(lambda connection: _digest_of(connection, project, base, pieces))

        def work(connection: sa.Connection) -> None:
            _insert_rows(connection, project, rows)
            count = sum(piece.count for piece in pieces)
            number = _insert_table(connection, project, digest, count, bool(base_table.is_complete))
            if number is not None:
                _insert_pieces(connection, number, base_table.number, pieces)

        await self._executor.write(work, sum(map(len, rows.values())) + 100 * len(pieces))
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
            table = connection.execute(sa.select(tables).where(_one(project, digest))).first()
            if table is None:
                return []
            if sort:
                return _sorted_page(connection, project, table.number, set(row_digests), sort, limit, offset)
            query = _row_query(project, table.number).order_by(_items.position)
            if not row_digests and table.is_complete:
                end = table.row_count if limit is None else offset + limit
                query = query.where(_items.position >= offset, _items.position < end)
            else:
                if row_digests:
                    query = query.where(_items.row_digest.in_(row_digests))
                query = query.limit(-1 if limit is None else limit).offset(offset)
            return [TableRow(*row) for row in connection.execute(query)]

        return await self._executor.read(work)

    async def stats(self, project: str, digests: Collection[str], with_size: bool) -> list[TableStats]:
        """Counts (and bytes) of the known ones of some tables, in the order asked for."""

        def work(connection: sa.Connection) -> list[TableStats]:
            found = {}
            for part in _chunks(list(dict.fromkeys(digests))):
                query = sa.select(_tables.number, _tables.digest, _tables.row_count)
                for row in connection.execute(query.where(_tables.project == project, _tables.digest.in_(part))):
                    size = _size(connection, project, row.number) if with_size else None
                    found[row.digest] = TableStats(row.digest, row.row_count, size)
            return [found[digest] for digest in digests if digest in found]

        return await self._executor.read(work)

    async def row_values(self, project: str, row_digests: Collection[str]) -> dict[str, str]:
        """JSON text of rows by digest; what is unknown is left out."""

        def work(connection: sa.Connection) -> dict[str, str]:
            found: dict[str, str] = {}
            for part in _chunks(sorted(row_digests)):
                query = sa.select(_rows.digest, _rows.val).where(_rows.project == project, _rows.digest.in_(part))
                found.update((row.digest, row.val) for row in connection.execute(query))
            return found

        return await self._executor.read(work)

    async def total_size(self, project: str) -> int:
        """The bytes of all rows of the project, each counted once."""
        query = sa.select(sa.func.coalesce(sa.func.sum(_rows.size), 0)).where(_rows.project == project)
        return await self._executor.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def _note_completeness(self, number: int) -> None:
        """Find out, without holding up other writes, whether every row of a new table is stored."""
        stored = sa.and_(_rows.project == _tables.project, _rows.digest == _items.row_digest)
        query = sa.select(_items.position).select_from(_joined().outerjoin(table_rows, stored))
        missing = query.where(_tables.number == number, _rows.number.is_(None)).limit(1)
        if await self._executor.read(lambda connection: connection.execute(missing).first()) is None:
            change = tables.update().where(_tables.number == number).values(is_complete=1)
            await self._executor.write(lambda connection: connection.execute(change).rowcount)


def _one(project: str, digest: str) -> sa.ColumnElement[bool]:
    return sa.and_(_tables.project == project, _tables.digest == digest)


def _joined() -> sa.Join:
    return tables.join(table_items, _items.table_number == _tables.number)


def _row_query(project: str, number: int) -> sa.Select[Any]:
    joined = table_items.join(table_rows, sa.and_(_rows.project == project, _rows.digest == _items.row_digest))
    query = sa.select(_items.position, _items.row_digest, _rows.val).select_from(joined)
    return query.where(_items.table_number == number)


def _size(connection: sa.Connection, project: str, number: int) -> int:
    joined = table_items.join(table_rows, sa.and_(_rows.project == project, _rows.digest == _items.row_digest))
    total = sa.select(sa.func.coalesce(sa.func.sum(_rows.size), 0)).select_from(joined)
    return int(connection.execute(total.where(_items.table_number == number)).scalar_one())


def _sorted_page(
    connection: sa.Connection,
    project: str,
    number: int,
    wanted: set[str],
    sort: Sequence[SortKey],
    limit: int | None,
    offset: int,
) -> list[TableRow]:
    """Sort keys of all rows are held in memory, the rows themselves only for the page."""
    query = _row_query(project, number).order_by(_items.position)
    rows = connection.execution_options(yield_per=1000).execute(query)
    ranked = order(
        ((row.position, orjson.loads(row.val)) for row in rows if not wanted or row.row_digest in wanted), sort
    )
    page = ranked[offset : None if limit is None else offset + limit]
    found: dict[int, TableRow] = {}
    for part in _chunks(page):
        chosen = _row_query(project, number).where(_items.position.in_(part))
        found.update((row.position, TableRow(*row)) for row in connection.execute(chosen))
    return [found[position] for position in page]


def _digest_of(connection: sa.Connection, project: str, base: str, pieces: Sequence[Piece]) -> tuple[Any, str]:
    """The base table and the digest of the table that the pieces make."""
    table = connection.execute(sa.select(tables).where(_one(project, base))).first()
    if table is None:
        raise NotFound(f"Table {base[:100]} not found")
    state = hashlib.sha256()
    for piece in pieces:
        state.update("".join(piece.added).encode())
        if piece.stop > piece.start:
            inside = sa.and_(_items.position >= piece.start, _items.position < piece.stop)
            query = sa.select(_items.row_digest).where(_items.table_number == table.number, inside)
            found = connection.execution_options(yield_per=1000).execute(query.order_by(_items.position))
            for part in found.scalars().partitions():
                state.update("".join(part).encode())
    return table, state.hexdigest()


def _insert_rows(connection: sa.Connection, project: str, rows: Mapping[str, str]) -> None:
    insert = _insert(connection, table_rows, ["project", "digest"])
    every = (
        {"project": project, "digest": digest, "size": len(val.encode()), "val": val} for digest, val in rows.items()
    )
    for part in _chunks(every):
        connection.execute(insert, part)


def _insert_table(connection: sa.Connection, project: str, digest: str, count: int, is_complete: bool) -> int | None:
    """The number of the new table, None when it is there already."""
    if connection.execute(sa.select(_tables.number).where(_one(project, digest))).first() is not None:
        return None
    row = {"project": project, "digest": digest, "row_count": count, "is_complete": int(is_complete)}
    result = connection.execute(tables.insert().values(**row, created_at=times.now()))
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def _insert_items(connection: sa.Connection, items: Iterable[dict[str, Any]]) -> None:
    for part in _chunks(items, 5000):
        connection.execute(table_items.insert(), part)


def _insert_pieces(connection: sa.Connection, number: int, base: int, pieces: Sequence[Piece]) -> None:
    position = 0
    for piece in pieces:
        added = (
            {"table_number": number, "position": place, "row_digest": row}
            for place, row in enumerate(piece.added, position)
        )
        _insert_items(connection, added)
        position += len(piece.added)
        if piece.stop > piece.start:
            inside = sa.and_(_items.position >= piece.start, _items.position < piece.stop)
            shifted = sa.select(sa.literal(number), _items.position + (position - piece.start), _items.row_digest)
            chosen = shifted.where(_items.table_number == base, inside)
            connection.execute(table_items.insert().from_select(["table_number", "position", "row_digest"], chosen))
            position += piece.stop - piece.start


def _insert(connection: sa.Connection, table: sa.Table, identity: list[str]) -> Any:
    """An insert that passes over what is there already."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing(index_elements=identity)


def _chunks(items: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
