"""The embedded store: opens the file, starts the writer, the readers and the upkeep, and closes them in reverse."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.blobs import FILES, Blobs
from heddle.store.control.adapters import Adapters
from heddle.store.control.agents.spans import AgentSpans
from heddle.store.control.alerts import Alerts
from heddle.store.control.annotation_queues import AnnotationQueues
from heddle.store.control.costs import Costs
from heddle.store.control.dataset_sources import DatasetSources
from heddle.store.control.eval_jobs import EvalJobs
from heddle.store.control.feedback import FeedbackRows
from heddle.store.control.files import Files
from heddle.store.control.inference import InferenceRows
from heddle.store.control.jobs import TrainJobs
from heddle.store.control.keys import Keys
from heddle.store.control.monitors import MonitorWaits
from heddle.store.control.objects import Objects
from heddle.store.control.projects import Projects
from heddle.store.control.registry import Registry
from heddle.store.control.replays import Replays
from heddle.store.control.runtimes import Runtimes
from heddle.store.control.sessions import Sessions
from heddle.store.control.tables import Tables
from heddle.store.control.train_runs import TrainRuns
from heddle.store.control.training import TrainModels
from heddle.store.sizes import Sizes, sizes
from heddle.store.sqlite import trial_rows
from heddle.store.sqlite.breakdowns import Breakdowns
from heddle.store.sqlite.call_counts import CallCounts
from heddle.store.sqlite.call_stats import CallStats
from heddle.store.sqlite.calls import Calls
from heddle.store.sqlite.connection import MINIMUM_VERSION, Session, explain, open_writer
from heddle.store.sqlite.executor import SqliteExecutor
from heddle.store.sqlite.migrations import CURRENT, migrate
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.overview import Overviews
from heddle.store.sqlite.path_indexes import PathIndexes
from heddle.store.sqlite.project_activity import ProjectActivities
from heddle.store.sqlite.readers import Readers
from heddle.store.sqlite.thread_figures import ThreadSums
from heddle.store.sqlite.trace_spans import TraceSpans
from heddle.store.sqlite.trial_rows import TrialRows
from heddle.store.sqlite.trials import Trials
from heddle.store.sqlite.writer import Writer, WriterFigures

logger = logging.getLogger("heddle.store")

DATABASE = "heddle.db"
_UPKEEP_SECONDS = 2.0
_TIDY_EVERY = 1800
_ORPHAN_SECONDS = 3600.0
_CONTROL_READERS = 2


class SqliteStore:
    """Everything that is kept, in one folder."""

    schema = CURRENT

    def __init__(self, settings: Settings, session: Session) -> None:
        folder = Path(settings.data)
        path = self._path = folder / DATABASE
        names = Names()
        self._session = session
        self._writer = Writer(session, settings.write_queue_bytes, names)
        self._readers = Readers(path, settings.readers, settings.query_timeout)
        # Searching calls may take seconds: small look-ups have readers of their own, and keys, which every caller
        # needs, one that nothing else can occupy.
        self._control_readers = Readers(path, _CONTROL_READERS, settings.query_timeout)
        self._key_readers = Readers(path, 1, settings.query_timeout)
        self._indexes = PathIndexes(session.raw)
        executor = SqliteExecutor(self._writer, self._control_readers)
        self.blobs = Blobs(folder / FILES)
        trials = TrialRows(names, self._read_text, trial_rows.known_projects(session.raw))
        self.calls = Calls(self._writer, self._readers, names, self._indexes, self._read_text, trials)
        self.trials = Trials(self._readers, self._read_text)
        self.call_counts = CallCounts(self._readers)
        self.call_stats = CallStats(self._readers)
        self.trace_spans = TraceSpans(self._readers)
        self.breakdowns = Breakdowns(self._readers)
        self.project_activity = ProjectActivities(self._readers)
        self.overviews = Overviews(self._readers)
        self.thread_sums = ThreadSums(self._readers)
        self.objects = Objects(executor)
        self.feedback = FeedbackRows(executor)
        self.costs = Costs(executor)
        self.files = Files(executor)
        self.tables = Tables(executor)
        self.keys = Keys(SqliteExecutor(self._writer, self._key_readers))
        self.sessions = Sessions(SqliteExecutor(self._writer, self._key_readers))
        self.projects = Projects(executor)
        self.inference = InferenceRows(executor)
        self.adapters = Adapters(executor)
        self.monitor_waits = MonitorWaits(executor)
        self.alerts = Alerts(executor)
        self.train_models = TrainModels(executor)
        self.train_jobs = TrainJobs(executor)
        self.train_runs = TrainRuns(executor)
        self.annotation_queues = AnnotationQueues(executor)
        self.registry = Registry(executor)
        self.runtimes = Runtimes(executor)
        self.dataset_sources = DatasetSources(executor)
        # Sums over spans may take as long as those over calls.
        self.agent_spans = AgentSpans(SqliteExecutor(self._writer, self._readers))
        self.eval_jobs = EvalJobs(executor)
        self.replays = Replays(executor)
        self._upkeep = asyncio.create_task(self._keep_up())

    def _read_text(self, key: str) -> str:
        return self.blobs.read(key).decode()

    @property
    def figures(self) -> WriterFigures:
        """What the writer did since the start."""
        return self._writer.figures

    async def sizes(self) -> Sizes:
        """How much room everything takes."""
        return await asyncio.to_thread(sizes, self._path)

    async def ping(self) -> None:
        """Commit a tiny write; raises what any other write would."""
        await self.projects.beat()

    async def collect_files(self) -> int:
        """Remove blobs that no file, call, training job or log names any more; returns how many."""

        def named(session: Session, keys: Sequence[str]) -> set[str]:
            marks = ",".join("?" * len(keys))
            query = f"SELECT blob FROM files WHERE blob IN ({marks}) "
            query += f"UNION SELECT blob FROM call_files WHERE blob IN ({marks}) "
            query += f"UNION SELECT payload FROM train_jobs WHERE payload IN ({marks}) "
            query += f"UNION SELECT payload FROM train_logs WHERE payload IN ({marks})"
            return {row[0] for row in session.raw.execute(query, (*keys, *keys, *keys, *keys))}

        loop = asyncio.get_running_loop()

        def ask(keys: Sequence[str]) -> set[str]:
            reading = self._readers.read(lambda session: named(session, keys))
            return asyncio.run_coroutine_threadsafe(reading, loop).result()

        return await asyncio.to_thread(self.blobs.collect, ask, _ORPHAN_SECONDS)

    async def close(self) -> None:
        """Write what waits, checkpoint the file, close every connection."""
        self._upkeep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._upkeep
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        for readers in (self._readers, self._control_readers, self._key_readers):
            readers.close()
        self._session.raw.execute("PRAGMA optimize")
        self._session.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._session.close()

    async def _keep_up(self) -> None:
        """Build wished indexes while nobody writes; now and then tidy up and refresh the planner's statistics."""
        items, tidied = -1, time.monotonic()
        while True:
            await asyncio.sleep(_UPKEEP_SECONDS)
            idle, items = items == self.figures.items, self.figures.items
            try:
                if idle and (wanted := self._indexes.wanted()):
                    await self._writer.write(lambda session, wanted=wanted: self._indexes.build(session.raw, wanted))  # type: ignore[misc]
                    self._indexes.now_built(wanted)
                if time.monotonic() - tidied > _TIDY_EVERY:
                    tidied = time.monotonic()
                    self._indexes.now_dropped(await self._writer.write(lambda session: self._indexes.tidy(session.raw)))
                    await self._writer.write(lambda session: session.raw.execute("PRAGMA optimize").fetchall())
                    await self.collect_files()
            except HeddleError as error:
                logger.warning("upkeep of the database was put off: %s", error)


async def open_store(settings: Settings) -> SqliteStore:
    """Open (or make) the store in the data folder, on the current schema; raises HeddleError when it cannot be."""
    if sqlite3.sqlite_version_info < MINIMUM_VERSION:
        raise HeddleError(f"SQLite {sqlite3.sqlite_version} is too old; heddle needs 3.38 or newer")
    folder = Path(settings.data)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DATABASE
    session = open_writer(path, settings.durability, settings.max_database_bytes)
    try:
        migrate(session, path)
    except sqlite3.Error as error:
        session.close()
        raise explain(error) or error from None
    store = SqliteStore(settings, session)
    store.blobs.sweep()
    return store
