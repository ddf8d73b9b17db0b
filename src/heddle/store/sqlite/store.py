"""The embedded store: opens the file, starts the writer, the readers and the upkeep, and closes them in reverse."""

import asyncio
import contextlib
import logging
import shlex
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from heddle import aio
from heddle.errors import HeddleError, Unavailable
from heddle.settings import Settings
from heddle.store.base import TIDY_SECONDS, UPKEEP_SECONDS, Store, named_blobs
from heddle.store.blobs.open import open_blobs
from heddle.store.control.repository import WriteStats
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.data_folder import Sizes, sizes
from heddle.store.sqlite import row_checksums, search
from heddle.store.sqlite.aggregates import CallAggregates
from heddle.store.sqlite.call_table import PathIndexes
from heddle.store.sqlite.call_writes import TrialRows, projects_with_trials
from heddle.store.sqlite.calls import Calls
from heddle.store.sqlite.database import DATABASE, MINIMUM_VERSION, Readers, Session, empty_log, explain, open_writer
from heddle.store.sqlite.log_damage import find_log_damage
from heddle.store.sqlite.migrations import CURRENT, migrate
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.schema import stored_name
from heddle.store.sqlite.trace_spans import TraceSpans
from heddle.store.sqlite.trials import Trials
from heddle.store.sqlite.writer import SqliteExecutor, Writer
from heddle.wire.batched import batched
from heddle.wire.calls import COLUMNS

logger = logging.getLogger("heddle.store")
CONTROL_READERS = 2
_OF_CALLS = sa.text("SELECT blob FROM call_files WHERE blob IN :keys").bindparams(sa.bindparam("keys", expanding=True))


def named_in_file(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    """Which of these blobs something in a database file names."""
    of_calls = connection.execute(_OF_CALLS, {"keys": list(keys)}).scalars()
    return named_blobs(connection, keys) | set(of_calls)


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
        self.executor = SqliteExecutor(self.writer, self._control_readers, self.long_readers)
        self.keys = SqliteExecutor(self.writer, self._key_readers, self.long_readers)
        self.spans = SqliteExecutor(self.writer, self.readers, self.long_readers)

    def _start_writer(self, settings: Settings) -> Writer:
        return Writer(self._session, settings.write_queue_bytes, self.names)

    @property
    def stats(self) -> WriteStats:
        """What the writer did since the start."""
        return self.writer.stats

    async def sizes(self) -> Sizes:
        """How much room everything in the folder takes."""
        return await asyncio.to_thread(sizes, self._path)

    async def find_damage(self) -> str:
        """Which rows are damaged, as far as a short look tells; empty for none."""
        return await asyncio.to_thread(row_checksums.find_damage, self._path)

    async def compact(self) -> None:
        """Write the file anew, and remove the copies of it that were made before migrations.

        Raises StorageFull where there is no room for a second file, Unavailable where readers need the log for long.
        """
        for copy in self._path.parent.glob(f"{self._path.name}.before-*"):
            await asyncio.to_thread(copy.unlink)
        await self.writer.write(lambda _: self.names.watch())
        unused = await self.long_readers.read(lambda session: unused_names(session.raw))
        for part in batched(sorted(unused)):
            await self.writer.write(lambda session, part=part: self.names.erase(session.raw, part))  # type: ignore[misc]
        await self.merge_search()
        await self.writer.write_alone(_rewrite)
        deadline = time.monotonic() + _LOG_SECONDS
        while not await self.writer.write_alone(empty_log):
            if time.monotonic() > deadline:
                raise Unavailable(
                    "Other connections still read removed rows; the write-ahead log cannot be truncated now"
                )
            await asyncio.sleep(0.1)

    async def merge_search(self) -> None:
        """Write the index of text search anew, without the words of what was taken out."""
        removed = await self.long_readers.read(lambda session: search.count_removed(session.raw))
        is_first = True
        while await self.writer.write(lambda session, first=is_first: search.merge(session.raw, first)):  # type: ignore[misc]
            is_first = False
        await self.writer.write(lambda session: search.end_merge(session.raw, removed))

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
        # What reads on, such as a backup or litestream, must not hold up the end.
        self._session.raw.execute("PRAGMA busy_timeout = 0")
        self._session.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._session.close()


_LOG_SECONDS = 60.0
_NAMED = (
    *(("calls", column) for column in ("project", *(stored_name(item) for item in COLUMNS if item.is_repeated))),
    *(("usage", "model"), ("usage_blocks", "model"), ("usage_blocks", "project"), ("call_blocks", "op")),
    *(("call_blocks", "project"), ("call_refs", "ref"), ("call_endings", "project"), ("eval_trials", "project")),
)
"""Where numbers of `names` stand."""


def unused_names(raw: sqlite3.Connection) -> set[int]:
    """The numbers of texts that no row has."""
    unused = {row[0] for row in raw.execute("SELECT k FROM names")}
    for table, column in _NAMED:
        unused.difference_update(row[0] for row in raw.execute(f"SELECT DISTINCT {column} FROM {table}"))
    return unused


def _rewrite(session: Session) -> None:
    raw = session.raw
    if raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat4'").fetchone():
        raw.execute("DELETE FROM sqlite_stat4")
    try:
        # In memory the second file would take as much of it.
        raw.execute("PRAGMA temp_store = FILE")
        raw.execute("VACUUM")
    finally:
        raw.execute("PRAGMA temp_store = MEMORY")
        # A connection whose setting changes loses its triggers.
        row_checksums.watch(raw)


class SqliteStore(Store):
    """Everything that is kept, in one folder."""

    schema = CURRENT
    calls: Calls

    def __init__(
        self, settings: Settings, control: SqliteControl, session: Session, *, is_shared: bool = False
    ) -> None:
        super().__init__(control.executor, control.keys, control.spans, ControlRowTexts(control.executor), is_shared)
        self._control = control
        self._session = session
        readers = self._readers = control.readers
        self.indexes = PathIndexes(session.raw)
        self.blobs = open_blobs(settings)
        self.redaction.set_default(settings.redaction)
        trials = TrialRows(control.names, self._read_text, projects_with_trials(session.raw))
        self.calls = Calls(
            control.writer, readers, control.long_readers, control.names, self.indexes, self._read_text, trials
        )
        self.trials = Trials(readers, self._read_text)
        self.call_aggregates = CallAggregates(readers)
        self.trace_spans = TraceSpans(readers)
        self._items_before, self._tidied_at = -1, time.monotonic()
        self._upkeep = asyncio.create_task(self._keep_up())
        is_indexing = settings.search == "on" and not is_shared
        self._indexing = asyncio.create_task(self._index()) if is_indexing else None

    @property
    def stats(self) -> WriteStats:
        return self._control.stats

    async def sizes(self) -> Sizes:
        return await self._control.sizes()

    async def find_damage(self) -> str:
        return await self._control.find_damage()

    async def compact(self) -> None:
        await self._control.compact()

    async def named_blobs(self, keys: Sequence[str]) -> set[str]:
        return await self._readers.read(lambda session: named_in_file(session.control, keys))

    async def close(self) -> None:
        """Write what waits, checkpoint the file, close every connection."""
        if self._indexing is not None:
            await aio.cancel(self._indexing)
        await self._stop_upkeep()
        await self._control.close()

    async def _index(self) -> None:
        """Index calls for text search; what hinders that is told, and it is tried again."""
        while True:
            try:
                await self.calls.index()
            except Exception as error:  # whatever it is, indexing goes on
                logger.warning("indexing was postponed: %s", error, exc_info=not isinstance(error, HeddleError))
                await asyncio.sleep(UPKEEP_SECONDS)

    async def _do_upkeep(self) -> None:
        """Build wished indexes while nobody writes; now and then tidy up and refresh the planner's statistics."""
        writer = self._control.writer
        is_idle, self._items_before = self._items_before == self.stats.items, self.stats.items
        if is_idle and (wanted := self.indexes.wanted()):
            await writer.write(lambda session: self.indexes.build(session.raw, wanted))
            self.indexes.now_built(wanted)
        is_due = time.monotonic() - self._tidied_at > TIDY_SECONDS
        readers = self._control.long_readers
        if (is_idle or is_due) and await readers.read(lambda session: search.needs_merge(session.raw)):
            await self._control.merge_search()
        if is_due:
            self._tidied_at = time.monotonic()
            self.indexes.now_dropped(await writer.write(lambda session: self.indexes.tidy(session.raw)))
            await writer.write(lambda session: session.raw.execute("PRAGMA optimize").fetchall())
            await self.collect_files()


async def open_store(settings: Settings) -> SqliteStore:
    """Open (or make) the store in the data folder, on the current schema; raises HeddleError when it cannot be."""
    path = Path(settings.data) / DATABASE
    session = open_file(settings, path)
    store = SqliteStore(settings, SqliteControl(settings, path, session), session)
    store.blobs.sweep()
    return store


def require_whole_log(path: Path) -> None:
    """Raise HeddleError for a log that has lost acknowledged writes, which opening the file would drop."""
    try:
        damage = find_log_damage(path) if path.exists() else None
    except sqlite3.Error as error:
        raise HeddleError(f"{path} cannot be read: {error}; `heddle restore` brings back the last backup") from None
    if damage and not damage.is_certain:
        logger.warning("%s", damage)
    elif damage:
        begin = f"truncate -s {damage.at} {shlex.quote(str(damage.log))}"
        raise HeddleError(f"{damage}; `heddle restore` brings back the last backup, `{begin}` starts without them")


def open_file(settings: Settings, path: Path) -> Session:
    """The writer's connection to a database file, made or brought to the current schema; raises HeddleError."""
    if sqlite3.sqlite_version_info < MINIMUM_VERSION:
        raise HeddleError(f"SQLite {sqlite3.sqlite_version} is too old; heddle needs 3.38 or newer")
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings.durability == "full":
        require_whole_log(path)
    try:
        session = open_writer(path, settings.durability, settings.max_database_bytes)
    except sqlite3.Error as error:
        raise explain(error) or error from None
    with contextlib.suppress(sqlite3.Error):
        # Frames that a crash left behind the sound ones must not stand behind those of this process.
        empty_log(session)
    try:
        migrate(session, path)
        row_checksums.watch(session.raw)
        search.renew(session.raw, settings.search == "on")
    except (sqlite3.Error, sa.exc.DBAPIError) as error:
        session.close()
        raise explain(error) or error from None
    return session
