"""Tables as rows and chunks of row digests: the schema, and what is read from it."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa

from heddle.store.control.schema import metadata

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
row_columns, table_columns, chunk_columns = table_rows.c, tables.c, table_chunks.c


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


def stretch(connection: sa.Connection, table: Any, start: int, end: int | None) -> list[Place]:
    """The rows from `start` up to `end` by position."""
    end = table.row_count if end is None else min(end, table.row_count)
    found: list[Place] = []
    if start < end:
        for first, part in chunk_digests(connection, table.number, start // CHUNK_ROWS, (end - 1) // CHUNK_ROWS + 1):
            low = max(start - first, 0)
            found.extend(enumerate(part[low : end - first], first + low))
    return found


def stretch_chunks(connection: sa.Connection, number: int, start: int, stop: int) -> Iterator[list[str]]:
    """The row digests from `start` up to `stop`, a chunk at a time."""
    if start < stop:
        for first, part in chunk_digests(connection, number, start // CHUNK_ROWS, (stop - 1) // CHUNK_ROWS + 1):
            yield part[max(start - first, 0) : stop - first]


def packed(row_digests: Iterable[str]) -> list[str]:
    return [orjson.dumps(part).decode() for part in parts(row_digests, CHUNK_ROWS)]


def row_values(connection: sa.Connection, project: str, row_digests: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts(sorted(row_digests)):
        query = sa.select(row_columns.digest, row_columns.val).where(
            row_columns.project == project, row_columns.digest.in_(part)
        )
        found.update((row.digest, row.val) for row in connection.execute(query))
    return found


def row_sizes(connection: sa.Connection, project: str, row_digests: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts(sorted(row_digests)):
        query = sa.select(row_columns.digest, row_columns.size).where(
            row_columns.project == project, row_columns.digest.in_(part)
        )
        found.update((row.digest, row.size) for row in connection.execute(query))
    return found


def counted(connection: sa.Connection, project: str, row_digests: Collection[str]) -> tuple[int, int]:
    """How many of some distinct rows are stored, and their bytes together."""
    count = total = 0
    for part in parts(sorted(row_digests)):
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(row_columns.size), 0))
        found = connection.execute(query.where(row_columns.project == project, row_columns.digest.in_(part))).one()
        count, total = count + found[0], total + int(found[1])
    return count, total


def parts(items: Iterable[T], size: int = 500) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
