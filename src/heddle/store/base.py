"""What a store can do, in the verbs of the domain."""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa

from heddle.errors import HeddleError, NotFound, Unavailable
from heddle.store.blobs.base import Blobs, Named
from heddle.store.control.agents.spans import AgentSpans
from heddle.store.control.annotation_queues import AnnotationQueues
from heddle.store.control.audit import AuditLog
from heddle.store.control.coordination import ADAPTERS, LIMITS, MONITORS, Changes, Leases
from heddle.store.control.costs import Costs
from heddle.store.control.erasure import Erasure
from heddle.store.control.eval_jobs import EvalJobs, Replays
from heddle.store.control.feedback import FeedbackRows
from heddle.store.control.files import Files, files
from heddle.store.control.inference import Adapters, InferenceRows, Meters
from heddle.store.control.keys import Keys, Sessions
from heddle.store.control.links import DatasetSources, Registry
from heddle.store.control.log_records import LogRecords
from heddle.store.control.metric_series import MetricSeries
from heddle.store.control.monitors import Alerts, Deliveries, MonitorWaits
from heddle.store.control.objects import Objects
from heddle.store.control.projects import Projects, Providers, Runtimes
from heddle.store.control.redaction import Redaction, Rejections
from heddle.store.control.repository import Executor, Instance, WriteStats
from heddle.store.control.responses import Conversations, Responses
from heddle.store.control.table_rows import RowTexts
from heddle.store.control.tables import Tables
from heddle.store.control.tinker import TinkerRequests, TinkerRows
from heddle.store.control.training import TrainJobs, train_jobs
from heddle.store.control.training_models import TrainModels, train_logs
from heddle.store.data_folder import Sizes
from heddle.store.query.aggregates import USED
from heddle.wire import jsontext
from heddle.wire.aggregates import AggregateRow, CallAggregate, Split
from heddle.wire.calls import (
    CallRow,
    CallsQuery,
    Contents,
    DumpSlice,
    End,
    Ending,
    OpActivity,
    ProjectActivity,
    SearchProgress,
    Start,
    ThreadRow,
    UniformRun,
    UsageRow,
    UsageSum,
)
from heddle.wire.inference import PriceChanges
from heddle.wire.outline import Outline, Span
from heddle.wire.spans import AgentSpan
from heddle.wire.trials import Trial, TrialsPage, TrialsQuery, TrialStats

GoesOn = Callable[[], Awaitable[bool]]
"""Asked before each slice of something long whether it is still wanted."""


async def go_on() -> bool:
    """To the end."""
    return True


class ControlGroups:
    """The groups of a store that live in the control tables.

    Keys, which every caller needs, have an executor that nothing else can occupy; so have spans, whose sums take long.
    `is_shared` says that other servers may work on the same tables.
    """

    def __init__(
        self, executor: Executor, keys: Executor, spans: Executor, rows: RowTexts, is_shared: bool = False
    ) -> None:
        self.control = executor
        instance = Instance(is_shared)
        self.leases = Leases(executor, instance)
        self._removing = asyncio.Lock()
        self.changes = Changes(executor, instance)
        self.meters = Meters(executor, instance)
        self.redaction = Redaction(executor)
        self.objects = Objects(executor, instance, self.redaction)
        self.feedback = FeedbackRows(executor, redaction=self.redaction)
        self.costs = Costs(executor, instance)
        self.files = Files(executor, instance)
        self.tables = Tables(executor, rows, self.redaction)
        self.keys = Keys(keys)
        self.sessions = Sessions(keys)
        self.projects = Projects(executor, instance)
        self.audit_log = AuditLog(executor)
        self.inference = InferenceRows(executor)
        self.adapters = Adapters(executor)
        self.monitor_waits = MonitorWaits(executor, instance)
        self.alerts = Alerts(executor)
        self.alert_deliveries = Deliveries(executor, instance)
        self.train_models = TrainModels(executor)
        self.train_jobs = TrainJobs(executor, instance)
        self.tinker = TinkerRows(executor)
        self.tinker_requests = TinkerRequests(executor, instance)
        self.annotation_queues = AnnotationQueues(executor)
        self.registry = Registry(executor)
        self.runtimes = Runtimes(executor)
        self.providers = Providers(executor)
        self.dataset_sources = DatasetSources(executor)
        self.agent_spans = AgentSpans(spans)
        self.log_records = LogRecords(executor, instance, self.redaction)
        self.metric_series = MetricSeries(spans, redaction=self.redaction)
        self.rejections = Rejections(executor)
        self.eval_jobs = EvalJobs(executor, instance)
        self.replays = Replays(executor)
        self.responses = Responses(executor, instance, self.redaction)
        self.conversations = Conversations(executor, redaction=self.redaction)
        self.erasure = Erasure(executor, instance)

    async def ping(self) -> None:
        """Commit a tiny write; raises what any other write would."""
        await self.projects.write_heartbeat()


class Looked(NamedTuple):
    """What a check of stored things came to: how many were looked at, of how many, and what was wrong."""

    looked_at: int
    of: int
    problems: list[str]


BLOB_COLUMNS = (files.c.blob, train_jobs.c.payload, train_logs.c.payload)
"""The columns of control tables that name blobs; a job without a payload has an empty text."""


def named_blobs(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    """Which of these blobs a file, a training job or a log names."""
    chosen = sa.union(*(sa.select(column).where(column.in_(keys)) for column in BLOB_COLUMNS))
    return set(connection.execute(chosen).scalars())


T = TypeVar("T")

logger = logging.getLogger("heddle.store")
ORPHAN_SECONDS = 3600.0
SETTLE_SECONDS = 60.0
"""From the moment that a blob is durable to that at which something names it; half of it is ample."""
_REMOVING: Final = "remove files"
_REMOVING_SECONDS, _POLL_SECONDS = 300.0, 1.0
UPKEEP_SECONDS = 2.0
TIDY_SECONDS = 1800
_SHARE = 20
"""An answer is kept for so many times as long as it took, so that looking costs at most a twentieth of the time."""


class CallStore(Protocol):
    """The verbs of calls. Project ids are internal, instants microseconds."""

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        """Store halves of calls, in any order, and the index rows of agent spans among them; returns after the commit.

        All of it is one transaction.
        """

    async def add_missing(self, starts: Sequence[Start], ends: Sequence[End]) -> int:
        """Store the halves that their calls lack, of deleted calls none; returns of how many calls one was stored."""

    async def rename(self, project: str, call_id: str, display_name: str) -> None:
        """Give a call its display name; nothing happens for an unknown call."""

    async def delete(self, project: str, ids: Sequence[str], user: str) -> int:
        """Hide calls and their descendants, and say so in the audit log; returns how many."""

    async def purge_older(self, project: str, before: int, goes_on: GoesOn = go_on) -> int:
        """Remove the calls that started before an instant for good, while `goes_on`; returns how many."""

    async def find(self, project: str, kind: str, name: str, limit: int | None = None) -> list[str]:
        """The ids of the calls of a `call`, `trace`, `thread`, `user` or (with an empty name) `project`.

        Deleted calls and halves are among them. Users are those of calls, or named by their attributes.
        """

    async def find_deleted(self, project: str, ids: Sequence[str]) -> set[str]:
        """Which of these calls are deleted, and not yet removed for good."""

    async def children(self, project: str, ids: Sequence[str]) -> list[str]:
        """The ids of the calls directly below some calls, deleted ones too."""

    async def content(self, project: str, ids: Sequence[str]) -> Contents:
        """What some calls hold, deleted ones too."""

    async def purge(self, project: str, ids: Sequence[str]) -> int:
        """Remove calls for good, deleted ones and halves too; returns how many."""

    async def purge_project(self, project: str) -> int:
        """Remove every call of a project for good; returns how many."""

    async def exists(self, project: str, call_id: str) -> bool:
        """True when at least one half of the call is stored."""

    def stream(self, query: CallsQuery) -> AsyncIterator[list[CallRow]]:
        """The selected calls in slices; an unknown field raises InvalidField before the first slice."""

    async def count(self, query: CallsQuery) -> int:
        """How many calls are selected, at most the limit."""

    async def otel_dumps(self, project: str, ids: Sequence[str], containing: str = "") -> DumpSlice:
        """The dumps of live calls in the order of the ids, as many as fit one slice of memory; at least one is read.

        With `containing` only those whose text holds it as it is.
        """

    async def bytes_of(self, query: CallsQuery) -> int:
        """The stored JSON bytes of the selected calls."""

    async def storage_size(self, project: str) -> int:
        """The stored JSON bytes of all live calls of a project."""

    async def search_progress(self, project: str) -> SearchProgress:
        """How far the index of text search is."""

    async def traces_of(self, project: str, ids: Sequence[str]) -> list[str]:
        """The traces that the calls belong to."""

    async def usage(self, query: CallsQuery) -> list[UsageRow]:
        """The usage of the selected calls, in the default order."""

    async def threads(
        self, project: str, thread_ids: Sequence[str] | None, after: int | None, before: int | None
    ) -> list[ThreadRow]:
        """Threads with an ended turn, their turn calls summed."""

    has_endings: asyncio.Event
    """Set when a call of a watched project has ended."""

    def watch(self, projects: Collection[str], seen: int) -> None:
        """Note from now on, with each write, the calls of these projects that end; replaces what was watched.

        `seen` is the number of changes of monitors by which the projects are known: once another server has changed
        one, the calls of every project are noted until this is told anew.
        """

    async def take_endings(self, limit: int, skipping: Collection[str] = ()) -> list[Ending]:
        """The oldest noted endings of one project (none of `skipping`) as a batch.

        The same again until it is dropped, also after a crash.
        """

    async def count_endings(self) -> int:
        """How many noted endings wait."""

    async def drop_endings(self, endings: Sequence[Ending]) -> None:
        """Forget endings that were taken."""


class TraceSpanStore(Protocol):
    """Every call of one trace, as heads."""

    async def outline(self, project: str, trace_id: str, limit: int, selected: str | None = None) -> Outline:
        """The first `limit` calls of a trace by start; empty for a trace without live calls."""

    async def spans(self, outline: Outline, start: int, stop: int) -> list[Span | None]:
        """What a slice of the outline shows; None stands for a call that was removed meanwhile."""


class CachedAnswer(Generic[T]):
    """The last answer to one question; who asks while it is looked for waits for the same."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._answer: T
        self._good_until = 0.0
        self._changes = 0

    async def get(self, look: Callable[[], Awaitable[T]]) -> T:
        """The answer that is kept, else that of `look`."""
        async with self._asking:
            if time.monotonic() >= self._good_until:
                began, changes = time.monotonic(), self._changes
                self._answer = await look()
                ended = time.monotonic()
                if changes == self._changes:
                    self._good_until = ended + (ended - began) * _SHARE
        return self._answer

    def forget(self) -> None:
        """Look again when asked the next time."""
        # A look that began before must not be kept.
        self._changes += 1
        self._good_until = 0.0


class CallAggregateStore(ABC):
    """Sums of calls and of the tokens that they used. Project ids are internal, instants microseconds."""

    def __init__(self) -> None:
        self._kept: CachedAnswer[list[ProjectActivity]] = CachedAnswer()

    @abstractmethod
    async def aggregate(self, request: CallAggregate) -> list[AggregateRow]:
        """The groups that have any call."""

    async def usage(
        self, query: CallsQuery, runs: Sequence[UniformRun], by: str = "", split: Split | None = None
    ) -> list[UsageSum]:
        """Tokens that totals count per bucket, per model and, with `by`, per op, user or thread (or by a split)."""
        keys = (by, "model") if by else ("model",)
        rows = await self.aggregate(CallAggregate(query, USED, keys, runs, "totals", split=split))
        return [UsageSum(row.bucket, row.keys[0] if by or split else "", row.keys[-1], **row.values) for row in rows]

    @abstractmethod
    async def bounds(self, project: str) -> tuple[int, int] | None:
        """The instants at which the first and the last call started, None without calls."""

    @abstractmethod
    async def first_usage(self, project: str) -> int | None:
        """When the first call that used tokens started; None where there is none."""

    @abstractmethod
    async def ops(self, project: str) -> list[OpActivity]:
        """What was called, the last called first; times and errors are those of the newest calls of each."""

    async def projects(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        """Every project that holds a call or an object, or was made known; may be some seconds old.

        Lately means since an instant. `changes` tells when the prices of a project change; usage is summed up in
        between.
        """
        return await self._kept.get(lambda: self._look(since, changes))

    def forget_projects(self) -> None:
        """Look again when asked the next time."""
        self._kept.forget()

    @abstractmethod
    async def _look(self, since: int, changes: PriceChanges) -> list[ProjectActivity]: ...


class TrialStore(Protocol):
    """What evaluations came to, row by row; always in step with the calls that show them."""

    async def page(self, query: TrialsQuery) -> TrialsPage:
        """The rows that the query selects; raises InvalidRequest for a field that rows lack."""

    async def of_rows(
        self, project: str, evaluations: Sequence[str], row_digests: Sequence[str], with_children: bool
    ) -> list[Trial]:
        """The trials of some rows with their calls, in the order of the rows, then in that in which they started."""

    async def refs_in_scores(self, project: str, evaluations: Sequence[str]) -> set[str]:
        """The refs that stand in scores in the place of values."""

    async def fold(
        self,
        query: TrialsQuery,
        with_children: bool,
        with_usage: bool,
        fold: Callable[[Iterable[TrialStats]], T],
        with_answers: bool = False,
    ) -> T:
        """What a function makes of all trials of the selected rows (page and order of the query do not count).

        They come by evaluation, row digest and start. The function runs in a reader thread. `with_answers` adds how
        long the model took, and whether it answered.
        """


class Store(ControlGroups, ABC):
    """All that is kept, one attribute per group."""

    schema: int
    blobs: Blobs
    calls: CallStore
    call_aggregates: CallAggregateStore
    trials: TrialStore
    trace_spans: TraceSpanStore
    _upkeep: asyncio.Task[None]
    _tidied_at: float
    """When everything was tidied up last, by the monotonic clock."""

    @property
    @abstractmethod
    def stats(self) -> WriteStats:
        """What the writer of calls did since the start."""

    @abstractmethod
    async def sizes(self) -> Sizes:
        """How much room everything takes, walked anew."""

    @abstractmethod
    async def find_damage(self) -> str:
        """Which rows are no more what was written, as far as a short look tells; empty for none."""

    @abstractmethod
    async def close(self) -> None:
        """Write what waits and close every connection."""

    @abstractmethod
    async def named_blobs(self, keys: Sequence[str]) -> set[str]:
        """Which of these blobs something names."""

    @abstractmethod
    async def compact(self) -> None:
        """Write the databases anew, so that their files hold nothing of what was removed."""

    async def renew_caches(self, projects: Iterable[str]) -> None:
        """Let every server read anew what it remembers of tables, after rows of projects came or went all at once."""
        for project in projects:
            self.costs.forget(project)
            self.projects.forget(project)
        self.redaction.forget()
        self.call_aggregates.forget_projects()
        for name in (ADAPTERS, LIMITS, MONITORS):
            await self.changes.count(name)
        await self.objects.forget()

    async def purge_files(self) -> int:
        """Remove blobs that nothing names any more; returns how many.

        Young ones, which somebody may be about to name, are waited for.
        """
        removed, young = await self._remove_blobs(lambda named: self.blobs.purge(named, SETTLE_SECONDS))
        if young:
            await asyncio.sleep(SETTLE_SECONDS + 1)
            removed += (await self._remove_blobs(lambda named: self.blobs.purge(named, SETTLE_SECONDS)))[0]
        return removed

    async def collect_files(self) -> int:
        """Remove blobs that nothing names any more (and that are an hour old); returns how many."""
        return await self._remove_blobs(lambda named: self.blobs.collect(named, ORPHAN_SECONDS))

    async def _remove_blobs(self, work: Callable[[Named], T]) -> T:
        """Remove blobs in a thread that asks which are named; raises Unavailable after it slept too long.

        One at a time on all servers: what one moves to the trash, another that looked before would delete at once.
        """
        loop = asyncio.get_running_loop()

        async def find_named(keys: Sequence[str]) -> set[str]:
            if not await self.leases.take(_REMOVING, _REMOVING_SECONDS):
                raise Unavailable("Another server has begun to remove files")
            return await self.named_blobs(keys)

        def ask(keys: Sequence[str]) -> set[str]:
            return asyncio.run_coroutine_threadsafe(find_named(keys), loop).result()

        async with self._removing:
            while not await self.leases.take(_REMOVING, _REMOVING_SECONDS):
                await asyncio.sleep(_POLL_SECONDS)
            try:
                return await asyncio.to_thread(work, ask)
            finally:
                await self.leases.give_back(_REMOVING)

    def _read_text(self, key: str) -> str:
        """The JSON text in a blob; of one that is gone, what is missing, so that all other calls are still answered."""
        try:
            return self.blobs.read(key).decode()
        except NotFound as error:
            logger.error("%s", error.reason)
            return jsontext.dumps({"missing": error.reason})

    async def _keep_up(self) -> None:
        """What is done now and then while the store is open; a failure of it is told, and tried again."""
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            try:
                await self._do_upkeep()
            except Exception as error:  # whatever it is, upkeep goes on
                is_ours = not isinstance(error, HeddleError)
                logger.warning("maintenance of the store was postponed: %s", error, exc_info=is_ours)

    async def _do_upkeep(self) -> None:
        """One round of upkeep."""

    async def _stop_upkeep(self) -> None:
        self._upkeep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._upkeep
