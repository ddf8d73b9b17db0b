"""Calls written to SQLite and to ClickHouse alike, so that what is read from both can be compared."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from heddle import settings
from heddle.store.clickhouse.call_writes import CallWrites
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.store import migrate
from heddle.store.control.repository import Executor
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteControl, SqliteStore, open_file
from heddle.wire.calls import End, Start
from heddle.wire.spans import AgentSpan
from tests.support.clickhouse import clickhouse_process

QUEUE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class TwoStores:
    """Both stores, over one control database; `writes` are the writing verbs of calls on ClickHouse at `address`."""

    address: str
    sqlite: SqliteStore
    clickhouse: Clickhouse
    control: Executor
    writes: CallWrites

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        """Write halves of calls to both."""
        await self.sqlite.calls.write(starts, ends, agents)
        await self.writes.write(starts, ends, agents)

    async def rename(self, project: str, call_id: str, display_name: str) -> None:
        """Rename a call in both."""
        await self.sqlite.calls.rename(project, call_id, display_name)
        await self.writes.rename(project, call_id, display_name)

    async def delete(self, project: str, ids: Sequence[str], user: str = "ada") -> tuple[int, int]:
        """Delete calls from both; returns what both say."""
        return await self.sqlite.calls.delete(project, ids, user), await self.writes.delete(project, ids, user)

    async def purge_older(self, project: str, before: int) -> tuple[int, int]:
        """Remove old calls from both; returns what both say."""
        removed = await self.sqlite.calls.purge_older(project, before)
        return removed, await self.writes.purge_older(project, before)


@asynccontextmanager
async def opened(folder: Path, address: str | None = None) -> AsyncIterator[TwoStores]:
    """Both stores, with the files of SQLite in a folder and a new database of ClickHouse where none is named."""
    loaded = settings.load({"data": str(folder)}, {})
    path = folder / DATABASE
    session = open_file(loaded, path)
    control = SqliteControl(loaded, path, session)
    sqlite = SqliteStore(loaded, control, session)
    address = address or clickhouse_process().new_database()
    clickhouse = Clickhouse(address, 4, 30)
    try:
        await migrate(clickhouse, clickhouse.place, control.executor)
        writes = CallWrites(clickhouse, control.executor, QUEUE_BYTES)
        yield TwoStores(address, sqlite, clickhouse, control.executor, writes)
        await writes.close()
    finally:
        await asyncio.to_thread(clickhouse.close)
        await sqlite.close()


def in_both(folder: Path, work: Callable[[TwoStores], Awaitable[None]]) -> None:
    """Run with both stores."""

    async def run() -> None:
        async with opened(folder) as stores:
            await work(stores)

    asyncio.run(run())
