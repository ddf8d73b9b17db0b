"""The store as a worker has it: readers of its own on the file; the writing process writes."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from heddle.errors import HeddleError, Unavailable
from heddle.ipc.rpc import Client
from heddle.settings import Settings
from heddle.store.control.repository import WriteStats
from heddle.store.sqlite.database import DATABASE, Session, Writer, open_reader
from heddle.store.sqlite.store import SqliteControl, SqliteStore
from heddle.web_workers.supervisor import STORE_METHODS, WISH

T = TypeVar("T")
_FOLLOW_SECONDS = 2.0


class _NoWriter(Writer):
    """Stands where the writer of the file would be, which is in another process."""

    def __init__(self) -> None:
        self.stats = WriteStats()

    async def write(self, work: Callable[[Session], T], size: int = 0) -> T:  # noqa: ARG002
        """Refuse: what may be written here is a method of the writing process."""
        raise Unavailable("This process only reads")

    def close(self) -> None:
        """Nothing to end."""


class _ReadingControl(SqliteControl):
    """The readers of the file."""

    def _start_writer(self, settings: Settings) -> Writer:  # noqa: ARG002
        return _NoWriter()

    def _close_file(self) -> None:
        self._session.close()


class WorkerStore(SqliteStore):
    """Everything that is kept; what `STORE_METHODS` name the writing process does."""

    def __init__(self, settings: Settings, control: SqliteControl, session: Session, writing: Client) -> None:
        super().__init__(settings, control, session, is_shared=True)
        self._writing = writing
        for method in STORE_METHODS:
            group, _, name = method.partition(".")
            setattr(getattr(self, group), name, partial(writing.call, method))

    async def _keep_up(self) -> None:
        """Let the writing process build the indexes that are wished for here, and use those that it built."""
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            with contextlib.suppress(HeddleError):
                if wanted := self.indexes.wanted():
                    await self._writing.call(WISH, wanted)
                await self._readers.read(lambda session: self.indexes.follow(session.raw))


def open_worker_store(settings: Settings, writing: Client) -> WorkerStore:
    """The store of a worker; the writing process has brought the file to the current schema."""
    path = Path(settings.data) / DATABASE
    session = open_reader(path)
    return WorkerStore(settings, _ReadingControl(settings, path, session), session, writing)
