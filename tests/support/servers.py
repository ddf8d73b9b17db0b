"""The control tables as two servers see them: one database, two owners of leases."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from heddle.settings import Settings
from heddle.store.base import ControlGroups
from heddle.store.control.repository import Executor
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.postgres.control import open_control
from heddle.store.sqlite.database import Session
from heddle.store.sqlite.store import SqliteControl, open_file
from tests.support.postgres import PostgresServer, programs

KINDS = ("sqlite", "postgresql")


class Two:
    """Two servers over one database of a kind."""

    def __init__(self, kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
        self._kind = kind
        self._folder = folder
        self._request = request

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[ControlGroups, ControlGroups]]:
        """Both servers; each has pools of its own on PostgreSQL, and they share the one writer of SQLite."""
        if self._kind == "sqlite":
            settings = Settings(data=str(self._folder))
            session: Session = open_file(settings, self._folder / "control.db")
            control = SqliteControl(settings, self._folder / "control.db", session)
            try:
                yield _groups(control.executor), _groups(control.executor)
            finally:
                await control.close()
            return
        server: PostgresServer = self._request.getfixturevalue("postgres")
        settings = Settings(data=str(self._folder), control=server.new_database())
        one, other = await open_control(settings), await open_control(settings)
        try:
            yield _groups(one.executor), _groups(other.executor)
        finally:
            await one.close()
            await other.close()


def _groups(executor: Executor) -> ControlGroups:
    return ControlGroups(executor, executor, executor, ControlRowTexts(executor), is_shared=True)


@pytest.fixture(params=KINDS)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Two:
    """Two servers, on SQLite and on PostgreSQL."""
    if request.param != "sqlite" and programs() is None:
        pytest.skip("no PostgreSQL is installed: apt-get install postgresql")
    return Two(request.param, tmp_path, request)


async def end_leases(server: ControlGroups, table: sa.Table) -> None:
    """Let every lease of a table have ended, as those of a server that was killed a while ago."""
    change = table.update().values(lease_until=1)
    await server.leases._executor.write(lambda connection: connection.execute(change).rowcount)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Poll until a condition holds; fails after a while."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)
