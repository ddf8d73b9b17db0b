"""The control tables' way to the SQLite file: same writer, same transaction groups, same readers."""

from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from heddle.store.sqlite.readers import Readers
from heddle.store.sqlite.writer import Writer

T = TypeVar("T")


class SqliteExecutor:
    """An Executor (see control/schema.py) over the embedded store."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        """Run `work` in the next commit group and return after the commit."""
        return await self._writer.write(lambda session: work(session.control), size)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in a reader thread."""
        return await self._readers.read(lambda session: work(session.control))
