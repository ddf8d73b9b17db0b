"""The control tables on PostgreSQL: pieces of work in threads, each in a transaction of its own.

Work is written as if nobody else wrote: PostgreSQL makes sure of that (SERIALIZABLE), and undoes what another
transaction got in the way of. Such work is run again, so it must be safe to run more than once.
"""

import asyncio
import dataclasses
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from heddle import aio
from heddle.errors import Busy, Unavailable
from heddle.settings import Settings
from heddle.store.control.repository import WriteStats, metadata
from heddle.store.data_folder import Sizes, sizes
from heddle.store.postgres.connection import (
    ANSWERED,
    Isolation,
    connect,
    explain,
    is_conflict,
    is_lost,
    is_taken,
    opened,
)
from heddle.store.postgres.migrate import current, migrate

T = TypeVar("T")

_CONFLICT_SECONDS = 15.0
"""How long work is run again and again because others get in its way."""
_LONGEST_PAUSE = 0.1
_TAKEN_TRIES = 5
"""How often work is run again that found a key taken: by then it has seen who took it, or always fails."""
_FRESH_CONNECTIONS = 2
"""How often work is run again on another connection, the first having been dead since before."""


@dataclass(slots=True)
class PostgresStats(WriteStats):
    """What was written since the start, with what had to be written again."""

    again: int = 0
    """Transactions that were undone because of others, and run again."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while they change, by any of the threads."""


class Pool:
    """As many threads as connections; `seconds` bounds each statement."""

    def __init__(self, name: str, address: str, size: int, isolation: Isolation, seconds: float) -> None:
        self.engine = connect(address, size, isolation, seconds)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"heddle-postgres-{name}")
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Do something in one of the threads; a caller that goes away does not undo it."""
        if self._is_closed:
            raise Unavailable("The server is stopping")
        return await aio.shield(asyncio.get_running_loop().run_in_executor(self._threads, work))

    def close(self) -> None:
        """Finish what waits, then close the connections."""
        self._is_closed = True
        self._threads.shutdown(wait=True)
        self.engine.dispose()


class PostgresExecutor:
    """An Executor (see control/repository.py); several may share pools and statistics."""

    def __init__(
        self, writers: Pool, readers: Pool, long_readers: Pool, stats: PostgresStats, queue_bytes: int
    ) -> None:
        self._writers = writers
        self._readers = readers
        self._long_readers = long_readers
        self._stats = stats
        self._queue_bytes = queue_bytes

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        """Run `work` in a transaction and return after its commit.

        Raises what `work` raises, Busy when too much waits, Unavailable when others kept changing the same rows, and
        when PostgreSQL does not answer (with a connection lost during the commit: the work may be stored or not).
        """
        if self._stats.waiting_bytes and self._stats.waiting_bytes + size > self._queue_bytes:
            raise Busy("Too many writes are pending; try again")
        self._count(size)
        context = copy_context()
        return await self._writers.run(lambda: self._write(lambda connection: context.run(work, connection), size))

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        """Run `work` on what is committed at its start; raises QueryTimeout and Unavailable."""
        readers = self._long_readers if is_long else self._readers
        return await readers.run(lambda: self._read(readers, work))

    def _count(self, size: int) -> None:
        with self._stats.lock:
            self._stats.waiting_bytes += size

    def _write(self, work: Callable[[sa.Connection], T], size: int) -> T:
        began = time.monotonic()
        try:
            result = self._until_committed(work)
        finally:
            self._count(-size)
        with self._stats.lock:
            self._stats.count_group(1, size, time.monotonic() - began)
        return result

    def _until_committed(self, work: Callable[[sa.Connection], T]) -> T:
        deadline = time.monotonic() + _CONFLICT_SECONDS
        tries = taken = lost = 0
        while True:
            attempt = _Attempt(self._writers.engine)
            try:
                return attempt.run(work)
            except sa.exc.SQLAlchemyError as error:
                taken += is_taken(error)
                if time.monotonic() < deadline and (is_conflict(error) or (is_taken(error) and taken <= _TAKEN_TRIES)):
                    tries += 1
                    with self._stats.lock:
                        self._stats.again += 1
                    time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.001 * 2 ** min(tries, 10))))
                elif is_lost(error) and not attempt.is_committing and lost < _FRESH_CONNECTIONS:
                    lost += 1
                else:
                    raise explain(error) or error from error

    def _read(self, readers: Pool, work: Callable[[sa.Connection], T]) -> T:
        lost = 0
        while True:
            state: dict[Any, Any] = {}
            try:
                with readers.engine.connect() as connection:
                    state = connection.info
                    state[ANSWERED] = False
                    return work(connection)
            except sa.exc.SQLAlchemyError as error:
                lost += 1
                # Work that has seen rows may have passed them on already.
                if not is_lost(error) or state.get(ANSWERED) or lost > _FRESH_CONNECTIONS:
                    raise explain(error) or error from error


class _Attempt:
    """One transaction; `is_committing` once everything was done but the commit, whose outcome may stay unknown."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.is_committing = False

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        with self._engine.connect() as connection:
            result = work(connection)
            self.is_committing = True
            connection.commit()
            return result


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
        self._address = address
        long_readers = Pool("long", address, 1, "REPEATABLE READ", seconds)
        self._pools = (writers, readers, key_readers, searchers, long_readers)
        self.schema = current()
        self.stats = PostgresStats()
        most = settings.write_queue_bytes
        self.executor = PostgresExecutor(writers, readers, long_readers, self.stats, most)
        self.keys = PostgresExecutor(writers, key_readers, long_readers, self.stats, most)
        self.spans = PostgresExecutor(writers, searchers, long_readers, self.stats, most)

    async def sizes(self) -> Sizes:
        """How much room the database and everything in the folder take."""
        database = await self.executor.read(lambda connection: int(connection.execute(_SIZE).scalar_one()))
        found = await asyncio.to_thread(sizes, self._folder / "none")
        return dataclasses.replace(found, database=database)

    async def find_damage(self) -> str:
        """Nothing: PostgreSQL reads no page whose checksum is wrong."""
        return ""

    async def compact(self) -> None:
        """Write every table anew, each locked meanwhile. Raises Unavailable where others hold one for long."""
        await asyncio.to_thread(self._compact)

    def _compact(self) -> None:
        with (
            opened(self._address, 0) as engine,
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            for table in sorted(metadata.tables):
                connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {table}")

    async def close(self) -> None:
        """Write what waits and close every connection."""
        for pool in self._pools:
            await asyncio.to_thread(pool.close)


async def open_control(settings: Settings) -> PostgresControl:
    """The database of the setting `control`, on the current schema.

    Raises ExtraMissing without the driver, Unavailable when it does not answer, HeddleError when it is newer than this
    heddle.
    """
    await asyncio.to_thread(migrate, settings.control)
    return PostgresControl(settings)


class DirectPostgres:
    """An Executor (see control/repository.py) without a server, which connects for each piece of work."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        async with self._connected() as executor:
            return await executor.write(work, size)

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        async with self._connected() as executor:
            return await executor.read(work, is_long=is_long)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[PostgresExecutor]:
        control = PostgresControl(self._settings)
        try:
            yield control.executor
        finally:
            await control.close()
