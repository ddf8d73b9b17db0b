"""The tables of tables: which there are, the chunks of their row digests, and stretches of those."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.store.control.repository import metadata
from heddle.wire.batched import batched
from heddle.wire.table_rows import Piece

CHUNK_ROWS = 1000
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
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
