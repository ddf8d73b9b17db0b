"""The tables of tables: which there are, the chunks of their row digests, and stretches of those; and their rows.

Rows are JSON texts, each kept once per project under its digest, and never changed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Protocol

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from heddle.errors import NotFound
from heddle.store.control.repository import Repository, dialect_insert, metadata
from heddle.wire.batched import batched
from heddle.wire.table_rows import Piece

_PART = 1000
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

CHUNK_ROWS = 1000
Place = tuple[int, str]

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
table_columns, chunk_columns = tables.c, table_chunks.c


def chunk_digests(
    connection: sa.Connection, number: int, first_chunk: int = 0, end_chunk: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Position of its first row, and row digests, of each chunk."""
    query = sa.select(chunk_columns.chunk, chunk_columns.row_digests).where(chunk_columns.table_number == number)
    query = query.where(chunk_columns.chunk >= first_chunk).order_by(chunk_columns.chunk)
    if end_chunk is not None:
        query = query.where(chunk_columns.chunk < end_chunk)
    for row in connection.execution_options(yield_per=8).execute(query):
        yield row.chunk * CHUNK_ROWS, orjson.loads(row.row_digests)


def one(project: str, digest: str) -> sa.ColumnElement[bool]:
    """The condition for one table."""
    return sa.and_(table_columns.project == project, table_columns.digest == digest)


def find(connection: sa.Connection, project: str, digest: str) -> Any:
    """The row of a table, None for an unknown one."""
    return connection.execute(sa.select(tables).where(one(project, digest))).first()


def require(connection: sa.Connection, project: str, digest: str) -> Any:
    """The row of a table; raises NotFound for an unknown one."""
    found = find(connection, project, digest)
    if found is None:
        raise NotFound(f"Table {digest[:100]} not found")
    return found


def places(connection: sa.Connection, number: int, positions: Iterable[int]) -> list[Place]:
    """Some positions of a table with their row digests, in the order asked for."""
    by_chunk: dict[int, list[int]] = {}
    wanted = list(positions)
    for position in wanted:
        by_chunk.setdefault(position // CHUNK_ROWS, []).append(position)
    found: dict[int, str] = {}
    for chunk in sorted(by_chunk):
        for first, part in chunk_digests(connection, number, chunk, chunk + 1):
            found.update((position, part[position - first]) for position in by_chunk[chunk])
    return [(position, found[position]) for position in wanted]


def stretch(connection: sa.Connection, number: int, start: int, end: int) -> list[Place]:
    """The rows from `start` up to `end` by position; at least one."""
    found: list[Place] = []
    for first, part in chunk_digests(connection, number, start // CHUNK_ROWS, (end - 1) // CHUNK_ROWS + 1):
        low = max(start - first, 0)
        found.extend(enumerate(part[low : end - first], first + low))
    return found


def stretch_chunks(connection: sa.Connection, number: int, start: int, stop: int) -> Iterator[list[str]]:
    """The row digests from `start` up to `stop` (at least one), a chunk at a time."""
    for first, part in chunk_digests(connection, number, start // CHUNK_ROWS, (stop - 1) // CHUNK_ROWS + 1):
        yield part[max(start - first, 0) : stop - first]


def packed(row_digests: Iterable[str]) -> Iterator[str]:
    """The texts of the chunks that hold some row digests in order."""
    return (orjson.dumps(part).decode() for part in batched(row_digests, CHUNK_ROWS))


def digests_of_pieces(
    connection: sa.Connection, number: int, pieces: Iterable[Piece], start: int, stop: int
) -> Iterator[list[str]]:
    """Row digests from `start` up to `stop` of the table that pieces of a base table make."""
    place = 0
    for piece in pieces:
        added = len(piece.added)
        if place < stop and start < place + added:
            yield list(piece.added[max(start - place, 0) : stop - place])
        place += added
        first, last = piece.start + max(start - place, 0), min(piece.start + stop - place, piece.stop)
        if place < stop and first < last:
            yield from stretch_chunks(connection, number, first, last)
        place += piece.stop - piece.start
        if place >= stop:
            return


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
_c = table_rows.c


class RowTexts(Protocol):
    """Where the texts of rows are kept. Project ids are internal, sizes bytes of UTF-8.

    Any number of digests may be asked for at a time; those that are unknown are left out.
    """

    async def put(self, project: str, rows: Mapping[str, str]) -> Callable[[sa.Connection], None]:
        """Take rows (text by digest) to be kept; those that are there already are passed over.

        They are durable once the work that is returned was done in a transaction of the control database that has
        been committed; until then they may be seen or not. The work may be done more than once.
        """

    async def texts(self, project: str, digests: Collection[str]) -> dict[str, str]:
        """The texts by digest."""

    async def sizes(self, project: str, digests: Collection[str]) -> dict[str, int]:
        """The sizes by digest."""

    async def stored(self, project: str, digests: Collection[str]) -> set[str]:
        """Which of the rows are there."""

    async def purge(self, project: str, digests: Collection[str] | None) -> int:
        """Remove rows for good, all of the project where none are named; returns how many."""

    async def total_size(self, project: str) -> int:
        """The sizes of all rows of the project, each counted once."""


class Texts(FunctionElement[str]):
    """The texts of a JSON list as rows: one parameter instead of hundreds."""

    name = "texts"
    inherit_cache = True


@compiles(Texts, "sqlite")
def _texts_sqlite(element: Texts, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **options)})"


@compiles(Texts, "postgresql")
def _texts_postgresql(element: Texts, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_array_elements_text(({compiler.process(element.clauses, **options)})::json)"


_WANTED = Texts(sa.bindparam("digests", type_=sa.Text())).table_valued("value")
# An outer join, for the planner must look the rows up one by one: it knows nothing of how few are wanted.
_FOUND = _WANTED.outerjoin(table_rows, sa.and_(_c.project == sa.bindparam("project"), _c.digest == _WANTED.c.value))
_VALUES = sa.select(_c.digest, _c.val).select_from(_FOUND)
_SIZES = sa.select(_c.digest, _c.size).select_from(_FOUND)
_STORED = sa.select(_c.digest).select_from(_FOUND)


class ControlRowTexts(Repository):
    """RowTexts in the control database."""

    async def put(self, project: str, rows: Mapping[str, str]) -> Callable[[sa.Connection], None]:
        """Nothing yet: the work stores the rows, in the transaction that needs them."""
        return lambda connection: _insert(connection, project, rows)

    async def texts(self, project: str, digests: Collection[str]) -> dict[str, str]:
        return await self._executor.read(lambda connection: dict(_pairs(connection, _VALUES, project, digests)))

    async def sizes(self, project: str, digests: Collection[str]) -> dict[str, int]:
        return await self._executor.read(lambda connection: dict(_pairs(connection, _SIZES, project, digests)))

    async def stored(self, project: str, digests: Collection[str]) -> set[str]:
        return await self._executor.read(
            lambda connection: {row.digest for row in _pairs(connection, _STORED, project, digests)}
        )

    async def purge(self, project: str, digests: Collection[str] | None) -> int:
        total = 0
        for part in batched(digests, _PART) if digests is not None else repeat(None):
            mine = sa.select(_c.number).where(_c.project == project)
            mine = mine.limit(_PART) if part is None else mine.where(_c.digest.in_(part))
            removed = await self._execute(sa.delete(table_rows).where(_c.number.in_(mine)))
            total += removed
            if part is None and not removed:
                break
        return total

    async def total_size(self, project: str) -> int:
        return int(await self._scalar(sa.select(sa.func.sum(_c.size)).where(_c.project == project)) or 0)


def _insert(connection: sa.Connection, project: str, rows: Mapping[str, str]) -> None:
    insert = dialect_insert(connection, table_rows).on_conflict_do_nothing(index_elements=["project", "digest"])
    every = (
        {"project": project, "digest": digest, "size": len(val.encode()), "val": val} for digest, val in rows.items()
    )
    for part in batched(every):
        connection.execute(insert, part)


def _pairs(connection: sa.Connection, query: sa.Select[Any], project: str, digests: Iterable[str]) -> Iterator[Any]:
    for part in batched(digests, _PART):
        for row in connection.execute(query, {"project": project, "digests": orjson.dumps(part).decode()}):
            if row[0] is not None:
                yield row
