"""Storing a table of any length: its digests arrive in slices, and a long one is written in several transactions."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence

import sqlalchemy as sa

from heddle.store.control.row_texts import RowTexts
from heddle.store.control.schema import Executor
from heddle.store.control.table_chunks import CHUNK_ROWS, find, packed, table_chunks, table_columns, tables
from heddle.wire import times
from heddle.wire.batched import batched

SLICE_ROWS = 50 * CHUNK_ROWS
"""How many row digests are held at a time; shorter tables are written in one transaction."""
_UNFINISHED = "unfinished:"
"""What the digest of a table begins with while its chunks are being written; no request can name it."""
_OLD = times.DAY


class NewTable:
    """One table that is being stored, with what is new of its rows."""

    def __init__(
        self, executor: Executor, row_texts: RowTexts, project: str, is_complete: bool, rows: Mapping[str, str]
    ) -> None:
        self._executor = executor
        self._row_texts = row_texts
        self._project = project
        self._is_complete = is_complete
        self._rows = rows
        self._state = hashlib.sha256()
        self._chunks = self._count = 0
        self._number: int | None = None

    @property
    def digest(self) -> str:
        """The digest of what arrived so far."""
        return self._state.hexdigest()

    async def store(self, slices: AsyncIterator[Sequence[str]], digest: str | None = None) -> int | None:
        """Write the table whose row digests arrive in slices of SLICE_ROWS; its number, None when it was there already.

        `digest` spares the hashing where it is known.
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
        return int(result.inserted_primary_key[0])

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
