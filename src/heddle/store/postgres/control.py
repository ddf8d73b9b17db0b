"""The control tables on PostgreSQL: the pools of one server, and the executors over them."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from heddle.settings import Settings
from heddle.store.postgres.executor import Pool, PostgresExecutor, WriteStats
from heddle.store.postgres.migrate import current, migrate
from heddle.store.sizes import Sizes, sizes

T = TypeVar("T")

_WRITERS = 4
_CONTROL_READERS = 4
_KEY_READERS = 2
_SIZE = sa.select(sa.func.pg_database_size(sa.func.current_database()))


class PostgresControl:
    """One database; `keys` and `spans` have readers of their own."""

    def __init__(self, settings: Settings) -> None:
        address, seconds = settings.control, settings.query_timeout
        writers = Pool("writer", address, _WRITERS, "SERIALIZABLE", seconds)
        readers = Pool("reader", address, _CONTROL_READERS, "REPEATABLE READ", seconds)
        # Summing up spans may take seconds: small look-ups have connections of their own, and keys, which every
        # caller needs, some that nothing else can occupy.
        key_readers = Pool("keys", address, _KEY_READERS, "REPEATABLE READ", seconds)
        searchers = Pool("search", address, settings.readers, "REPEATABLE READ", seconds)
        self._folder = Path(settings.data)
        self._pools = (writers, readers, key_readers, searchers)
        self.schema = current()
        self.figures = WriteStats()
        self.executor = PostgresExecutor(writers, readers, self.figures, settings.write_queue_bytes)
        self.keys = PostgresExecutor(writers, key_readers, self.figures, settings.write_queue_bytes)
        self.spans = PostgresExecutor(writers, searchers, self.figures, settings.write_queue_bytes)

    async def sizes(self) -> Sizes:
        """How much room the database and everything in the folder take."""
        database = await self.executor.read(lambda connection: int(connection.execute(_SIZE).scalar_one()))
        found = await asyncio.to_thread(sizes, self._folder / "none")
        return dataclasses.replace(found, database=database)

    async def close(self) -> None:
        """Write what waits and close every connection."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for pool in self._pools:
            pool.close()


async def open_control(settings: Settings) -> PostgresControl:
    """The database of the setting `control`, on the current schema.

    Raises ExtraMissing without the driver, Unavailable when it does not answer, HeddleError when it is newer than this
    heddle.
    """
    await asyncio.to_thread(migrate, settings.control)
    return PostgresControl(settings)


class DirectPostgres:
    """An Executor (see control/schema.py) without a server, which connects for each piece of work."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        """Run `work` in a transaction."""
        control = PostgresControl(self._settings)
        try:
            return await control.executor.write(work, size)
        finally:
            await control.close()

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` on what is committed."""
        control = PostgresControl(self._settings)
        try:
            return await control.executor.read(work)
        finally:
            await control.close()
