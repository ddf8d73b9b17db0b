"""Tables in an archive: the rows of a project once each, and every table as its row digests in chunks."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from heddle.store.base import Store
from heddle.store.control.table_chunks import chunk_digests, find, table_columns

ROWS, TABLES = "table_rows", "table_chunks"
_PAGE = 500
_UNFINISHED = "unfinished:"


class StoredTable(NamedTuple):
    """A table as it is listed."""

    number: int
    digest: str
    row_count: int


async def stored_tables(store: Store, project: str) -> AsyncIterator[StoredTable]:
    """The whole tables of a project, as they were made."""
    last = -1
    while True:
        wanted = sa.select(table_columns.number, table_columns.digest, table_columns.row_count)
        whole = sa.not_(table_columns.digest.startswith(_UNFINISHED))
        wanted = wanted.where(table_columns.project == project, table_columns.number > last, whole)
        page = wanted.order_by(table_columns.number).limit(_PAGE)
        found = await store.control.read(lambda c, page=page: [StoredTable(*row) for row in c.execute(page)])  # type: ignore[misc]
        for table in found:
            yield table
            last = table.number
        if len(found) < _PAGE:
            return


async def chunks(store: Store, table: StoredTable) -> AsyncIterator[tuple[int, list[str]]]:
    """Number and row digests of each chunk of a table."""
    chunk = 0
    while True:
        found = await store.control.read(lambda c, n=chunk: list(chunk_digests(c, table.number, n, n + 1)))  # type: ignore[misc]
        if not found:
            return
        yield chunk, found[0][1]
        chunk += 1


@dataclass(slots=True)
class Gathered:
    """A table whose chunks are read from an archive one after the other."""

    project: str
    digest: str
    row_count: int
    row_digests: list[str]

    @property
    def is_whole(self) -> bool:
        """True when every chunk has come."""
        return len(self.row_digests) >= self.row_count


def to_record(project: str, table: StoredTable, chunk: int, row_digests: Sequence[str]) -> dict[str, Any]:
    """One chunk of a table as a record."""
    named = {"project": project, "digest": table.digest, "row_count": table.row_count, "chunk": chunk}
    return named | {"row_digests": list(row_digests)}


def row_record(project: str, digest: str, text: str) -> dict[str, Any]:
    """One row as a record."""
    return {"project": project, "digest": digest, "val": text}


async def is_stored(store: Store, project: str, digest: str) -> bool:
    """True when the project has the table."""
    return await store.control.read(lambda connection: find(connection, project, digest)) is not None
