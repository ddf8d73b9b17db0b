"""The store as a worker has it: readers of its own on the file; the writing process writes."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from heddle.errors import HeddleError, Unavailable
from heddle.ipc.rpc import Client
from heddle.settings import Settings
from heddle.store.control.files import Files
from heddle.store.control.keys import Keys
from heddle.store.control.object_rows import NewVersion
from heddle.store.control.objects import Objects
from heddle.store.control.schema import Executor, Instance
from heddle.store.sqlite import trial_rows
from heddle.store.sqlite.calls import Calls
from heddle.store.sqlite.connection import Session, open_reader
from heddle.store.sqlite.store import DATABASE, SqliteControl, SqliteStore
from heddle.store.sqlite.trial_rows import TrialRows
from heddle.store.sqlite.writer import Writer, WriterStats
from heddle.web_workers.methods import WISH
from heddle.wire.calls import End, Start
from heddle.wire.spans import AgentSpan

T = TypeVar("T")
_FOLLOW_SECONDS = 2.0
_OTHERS_WRITE = Instance(is_shared=True)


class _NoWriter(Writer):
    """Stands where the writer of the file would be, which is in another process."""

    def __init__(self) -> None:
        self.figures = WriterStats()

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


class _Calls(Calls):
    """Calls that the writing process writes."""

    writing: Client

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        """Store halves of calls; returns after the commit of the writing process."""
        await self.writing.call("calls.write", list(starts), list(ends), list(agents))


class _Objects(Objects):
    """Objects that the writing process writes; nothing about them is remembered here."""

    def __init__(self, executor: Executor, writing: Client) -> None:
        super().__init__(executor, _OTHERS_WRITE)
        self._writing = writing

    async def create(self, new: NewVersion) -> None:
        """Store a version; raises InvalidRequest as the writing process does."""
        await self._writing.call("objects.create", new)


class _Files(Files):
    """Files that the writing process writes."""

    def __init__(self, executor: Executor, writing: Client) -> None:
        super().__init__(executor, _OTHERS_WRITE)
        self._writing = writing

    async def create(self, project: str, name: str, digest: str, size: int, blob: str) -> None:
        """Give the project a file whose blob is durable already."""
        await self._writing.call("files.create", project, name, digest, size, blob)


class _Keys(Keys):
    """Keys whose use the writing process notes."""

    def __init__(self, executor: Executor, writing: Client) -> None:
        super().__init__(executor)
        self._writing = writing

    async def used(self, key_ids: list[str], at: int) -> None:
        """Note when keys were last used."""
        await self._writing.call("keys.used", key_ids, at)


class WorkerStore(SqliteStore):
    """Everything that is kept, as far as a worker needs it."""

    def __init__(self, settings: Settings, control: SqliteControl, session: Session, writing: Client) -> None:
        super().__init__(settings, control, session, is_shared=True)
        trials = TrialRows(control.names, self._read_text, trial_rows.known_projects(session.raw))
        calls = _Calls(
            control.writer, control.readers, control.long_readers, control.names, self.indexes, self._read_text, trials
        )
        self.calls = calls
        calls.writing = self._writing = writing
        self.objects = _Objects(control.executor, writing)
        self.files = _Files(control.executor, writing)
        self.keys = _Keys(control.keys, writing)

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
