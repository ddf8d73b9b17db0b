"""The embedded store: opens the file, starts the writer, the readers and the upkeep, and closes them in reverse."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.blobs.open import open_blobs
from heddle.store.control.groups import named_blobs
from heddle.store.control.row_texts import ControlRowTexts
from heddle.store.sizes import Sizes, sizes
from heddle.store.sqlite import trial_rows
from heddle.store.sqlite.call_counts import CallCounts
from heddle.store.sqlite.calls import Calls
from heddle.store.sqlite.connection import MINIMUM_VERSION, Readers, Session, explain, open_writer
from heddle.store.sqlite.migrations import CURRENT, migrate
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.path_indexes import PathIndexes
from heddle.store.sqlite.sums import Breakdowns, CallStats, Overviews, ProjectActivities, ThreadSums
from heddle.store.sqlite.trace_spans import TraceSpans
from heddle.store.sqlite.trial_rows import TrialRows
from heddle.store.sqlite.trials import Trials
from heddle.store.sqlite.writer import Writer, WriterStats

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


CONTROL_READERS = 2


class SqliteControl:
    """One writer and the readers of the control tables; `keys` and `spans` have readers of their own."""

    schema = CURRENT

    def __init__(self, settings: Settings, path: Path, session: Session) -> None:
        self._path = path
        self._session = session
        self.names = Names()
        self.writer = self._start_writer(settings)
        # Searching may take seconds: small look-ups have readers of their own, and keys, which every caller needs,
        # one that nothing else can occupy.
        self.readers = Readers(path, settings.readers, settings.query_timeout)
        self.long_readers = Readers(path, 1, settings.query_timeout)
        self._control_readers = Readers(path, CONTROL_READERS, settings.query_timeout)
        self._key_readers = Readers(path, 1, settings.query_timeout)
        self.executor = SqliteExecutor(self.writer, self._control_readers)
        self.keys = SqliteExecutor(self.writer, self._key_readers)
        self.spans = SqliteExecutor(self.writer, self.readers)

    def _start_writer(self, settings: Settings) -> Writer:
        return Writer(self._session, settings.write_queue_bytes, self.names)

    @property
    def figures(self) -> WriterStats:
        """What the writer did since the start."""
        return self.writer.figures

    async def sizes(self) -> Sizes:
        """How much room everything in the folder takes."""
        return await asyncio.to_thread(sizes, self._path)

    async def close(self) -> None:
        """Write what waits, checkpoint the file, close every connection."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.writer.close()
        for readers in (self.readers, self.long_readers, self._control_readers, self._key_readers):
            readers.close()
        self._close_file()

    def _close_file(self) -> None:
        self._session.raw.execute("PRAGMA optimize")
        self._session.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._session.close()


logger = logging.getLogger("heddle.store")

DATABASE = "heddle.db"
_UPKEEP_SECONDS = 2.0
_TIDY_EVERY = 1800


class SqliteStore(Store):
    """Everything that is kept, in one folder."""

    schema = CURRENT

    def __init__(
        self, settings: Settings, control: SqliteControl, session: Session, *, is_shared: bool = False
    ) -> None:
        super().__init__(control.executor, control.keys, control.spans, ControlRowTexts(control.executor), is_shared)
        self._control = control
        self._session = session
        readers = self._readers = control.readers
        self.indexes = PathIndexes(session.raw)
        self.blobs = open_blobs(settings)
        trials = TrialRows(control.names, self._read_text, trial_rows.known_projects(session.raw))
        self.calls = Calls(
            control.writer, readers, control.long_readers, control.names, self.indexes, self._read_text, trials
        )
        self.trials = Trials(readers, self._read_text)
        self.call_counts = CallCounts(readers)
        self.call_stats = CallStats(readers)
        self.trace_spans = TraceSpans(readers)
        self.breakdowns = Breakdowns(readers)
        self.project_activity = ProjectActivities(readers)
        self.overviews = Overviews(readers)
        self.thread_sums = ThreadSums(readers)
        self._upkeep = asyncio.create_task(self._keep_up())

    @property
    def figures(self) -> WriterStats:
        """What the writer did since the start."""
        return self._control.figures

    async def sizes(self) -> Sizes:
        """How much room everything takes."""
        return await self._control.sizes()

    async def _named_blobs(self, keys: Sequence[str]) -> set[str]:
        def named(session: Session) -> set[str]:
            marks = ",".join("?" * len(keys))
            of_calls = session.raw.execute(f"SELECT blob FROM call_files WHERE blob IN ({marks})", keys)
            return named_blobs(session.control, keys) | {row[0] for row in of_calls}

        return await self._readers.read(named)

    async def close(self) -> None:
        """Write what waits, checkpoint the file, close every connection."""
        await self._stop_upkeep()
        await self._control.close()

    async def _keep_up(self) -> None:
        """Build wished indexes while nobody writes; now and then tidy up and refresh the planner's statistics."""
        items, tidied = -1, time.monotonic()
        writer = self._control.writer
        while True:
            await asyncio.sleep(_UPKEEP_SECONDS)
            idle, items = items == self.figures.items, self.figures.items
            try:
                if idle and (wanted := self.indexes.wanted()):
                    await writer.write(lambda session, wanted=wanted: self.indexes.build(session.raw, wanted))  # type: ignore[misc]
                    self.indexes.now_built(wanted)
                if time.monotonic() - tidied > _TIDY_EVERY:
                    tidied = time.monotonic()
                    self.indexes.now_dropped(await writer.write(lambda session: self.indexes.tidy(session.raw)))
                    await writer.write(lambda session: session.raw.execute("PRAGMA optimize").fetchall())
                    await self.collect_files()
            except Exception as error:  # whatever it is, upkeep goes on
                is_ours = not isinstance(error, HeddleError)
                logger.warning("upkeep of the database was put off: %s", error, exc_info=is_ours)


async def open_store(settings: Settings) -> SqliteStore:
    """Open (or make) the store in the data folder, on the current schema; raises HeddleError when it cannot be."""
    path = Path(settings.data) / DATABASE
    session = open_file(settings, path)
    store = SqliteStore(settings, SqliteControl(settings, path, session), session)
    store.blobs.sweep()
    return store


def open_file(settings: Settings, path: Path) -> Session:
    """The writer's connection to a database file, made or brought to the current schema; raises HeddleError."""
    if sqlite3.sqlite_version_info < MINIMUM_VERSION:
        raise HeddleError(f"SQLite {sqlite3.sqlite_version} is too old; heddle needs 3.38 or newer")
    path.parent.mkdir(parents=True, exist_ok=True)
    session = open_writer(path, settings.durability, settings.max_database_bytes)
    try:
        migrate(session, path)
    except sqlite3.Error as error:
        session.close()
        raise explain(error) or error from None
    return session
