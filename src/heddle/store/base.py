"""What a store can do, in the verbs of the domain."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from heddle.store.blobs.base import Blobs
from heddle.store.control.groups import ControlGroups
from heddle.store.sizes import Sizes
from heddle.wire.calls import (
    CallRow,
    CallsQuery,
    CallSums,
    DumpSlice,
    End,
    Ending,
    MetricRow,
    OpActivity,
    OpCount,
    ProjectActivity,
    Start,
    ThreadRow,
    UniformRun,
    UsageRow,
    UsageSum,
)
from heddle.wire.inference import CostOf, PriceChanges
from heddle.wire.outline import Outline, Span
from heddle.wire.overview import ProjectOverview, TimeSpan
from heddle.wire.spans import AgentSpan
from heddle.wire.threads import ThreadStats
from heddle.wire.trials import Trial, TrialsPage, TrialsQuery, TrialStats

T = TypeVar("T")
ORPHAN_SECONDS = 3600.0
_SHARE = 20
"""An answer is kept for so many times as long as it took, so that looking costs at most a twentieth of the time."""
Quantiles = dict[tuple[int, str, str], list[float]]


class StoreStats(Protocol):
    """What the writer did since the start: commits, writes in them, and bytes that wait."""

    groups: int
    items: int
    waiting_bytes: int


class CallStore(Protocol):
    """The verbs of calls. Project ids are internal, instants microseconds."""

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        """Store halves of calls, in any order, and the index rows of agent spans among them; returns after the commit.

        All of it is one transaction.
        """
        ...

    async def rename(self, project: str, call_id: str, display_name: str) -> None:
        """Give a call its display name; nothing happens for an unknown call."""
        ...

    async def delete(self, project: str, ids: Sequence[str], user: str) -> int:
        """Hide calls and their descendants, and say so in the audit log; returns how many."""
        ...

    async def purge_older(self, project: str, before: int) -> int:
        """Remove the calls that started before an instant for good; returns how many."""
        ...

    async def exists(self, project: str, call_id: str) -> bool:
        """True when at least one half of the call is stored."""
        ...

    def stream(self, query: CallsQuery) -> AsyncIterator[list[CallRow]]:
        """The selected calls in slices; an unknown field raises InvalidField before the first slice."""
        ...

    async def count(self, query: CallsQuery) -> int:
        """How many calls are selected, at most the limit."""
        ...

    async def otel_dumps(self, project: str, ids: Sequence[str], containing: str = "") -> DumpSlice:
        """The dumps of live calls in the order of the ids, as many as fit one slice of memory; at least one is read.

        With `containing` only those whose text holds it as it is.
        """
        ...

    async def bytes_of(self, query: CallsQuery) -> int:
        """The stored JSON bytes of the selected calls."""
        ...

    async def storage_size(self, project: str) -> int:
        """The stored JSON bytes of all live calls of a project."""
        ...

    async def traces_of(self, project: str, ids: Sequence[str]) -> list[str]:
        """The traces that the calls belong to."""
        ...

    async def usage(self, query: CallsQuery) -> list[UsageRow]:
        """The usage of the selected calls, in the default order."""
        ...

    async def threads(
        self, project: str, thread_ids: Sequence[str] | None, after: int | None, before: int | None
    ) -> list[ThreadRow]:
        """Threads with an ended turn, their turn calls summed."""
        ...

    has_endings: asyncio.Event
    """Set when a call of a watched project has ended."""

    def watch(self, projects: Collection[str], seen: int) -> None:
        """Note from now on, with each write, the calls of these projects that end; replaces what was watched.

        `seen` is the number of changes of monitors by which the projects are known: once another server has changed
        one, the calls of every project are noted until this is told anew.
        """
        ...

    async def take_endings(self, limit: int, skipping: Collection[str] = ()) -> list[Ending]:
        """The oldest noted endings of one project (none of `skipping`) as a batch.

        The same again until it is dropped, also after a crash.
        """
        ...

    async def count_endings(self) -> int:
        """How many noted endings wait."""
        ...

    async def drop_endings(self, project: str) -> None:
        """Forget the batch of a project that was taken."""
        ...


class CallCountsStore(Protocol):
    """How many calls there are, for people to look at."""

    async def bounds(self, project: str) -> tuple[int, int] | None:
        """The instants at which the first and the last call started, None without calls."""
        ...

    async def ops(self, project: str, limit: int) -> list[OpCount]:
        """The ops that were called, the most called first."""
        ...

    async def sums(self, query: CallsQuery, start: int, width: int, buckets: int) -> list[CallSums]:
        """Calls and failed calls per bucket of `width` microseconds from `start` on."""
        ...


class CallStatsStore(ABC):
    """Bucketed sums of calls; buckets come as runs of equal width, so that one query serves one run."""

    async def usage(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Token metrics per bucket and model, and all values in order of the metrics in `quantiles`."""
        return await self._read(query, runs, metrics, quantiles, True)

    async def calls(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Call metrics per bucket; the model of each row is empty."""
        return await self._read(query, runs, metrics, quantiles, False)

    @abstractmethod
    async def _read(
        self,
        query: CallsQuery,
        runs: Sequence[UniformRun],
        metrics: Sequence[str],
        quantiles: Sequence[str],
        by_model: bool,
    ) -> tuple[list[MetricRow], Quantiles]: ...


class TraceSpanStore(Protocol):
    """Every call of one trace, as heads."""

    async def outline(self, project: str, trace_id: str, limit: int, selected: str | None = None) -> Outline:
        """The first `limit` calls of a trace by start; empty for a trace without live calls."""
        ...

    async def spans(self, outline: Outline, start: int, stop: int) -> list[Span | None]:
        """What a slice of the outline shows; None stands for a call that was removed meanwhile."""
        ...


class ThreadSumStore(Protocol):
    """StoreStats of threads."""

    async def figures(self, project: str, thread_ids: Sequence[str], price: CostOf) -> list[ThreadStats]:
        """The figures of the named threads, in that order."""
        ...


class Kept(Generic[T]):
    """The last answer to one question; who asks while it is looked for waits for the same."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._answer: T
        self._good_until = 0.0

    async def get(self, look: Callable[[], Awaitable[T]]) -> T:
        """The answer that is kept, else that of `look`."""
        async with self._asking:
            if time.monotonic() >= self._good_until:
                began = time.monotonic()
                self._answer = await look()
                ended = time.monotonic()
                self._good_until = ended + (ended - began) * _SHARE
        return self._answer

    def forget(self) -> None:
        """Look again when asked the next time."""
        self._good_until = 0.0


class ProjectActivityStore(ABC):
    """The projects of the store with their sums; sums that took long are kept for a while."""

    def __init__(self) -> None:
        self._kept: Kept[list[ProjectActivity]] = Kept()

    async def all(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        """Every project that holds a call or an object, or was made known; may be some seconds old.

        Lately means since an instant. `changes` tells when the prices of a project change; usage is summed up in
        between.
        """
        return await self._kept.get(lambda: self._look(since, changes))

    def forget(self) -> None:
        """Look again when asked the next time."""
        self._kept.forget()

    @abstractmethod
    async def _look(self, since: int, changes: PriceChanges) -> list[ProjectActivity]: ...


class BreakdownStore(Protocol):
    """Sums of a project by model, op and user."""

    async def first_usage(self, project: str) -> int | None:
        """When the first call that used tokens started; None where there is none."""
        ...

    async def usage(
        self, project: str, by: str, lower: int, upper: int, shift: int, width: int, cuts: Sequence[int] = ()
    ) -> list[UsageSum]:
        """Tokens per bucket of `width` microseconds from `shift`, per model and, with `by` "op" or "user", per name.

        No sum spans one of the instants in `cuts`.
        """
        ...

    async def ops(self, project: str) -> list[OpActivity]:
        """What was called, the last called first; times and errors are those of the newest calls of each."""
        ...


class OverviewStore(Protocol):
    """A project over time."""

    async def first_started_at(self, project: str) -> int | None:
        """When the first call of a project started; None without any."""
        ...

    async def read(self, project: str, span: TimeSpan) -> ProjectOverview:
        """The calls of a project in a span."""
        ...


class TrialStore(Protocol):
    """What evaluations came to, row by row; always in step with the calls that show them."""

    async def page(self, query: TrialsQuery) -> TrialsPage:
        """The rows that the query selects; raises InvalidRequest for a field that rows lack."""
        ...

    async def of_rows(
        self, project: str, evaluations: Sequence[str], row_digests: Sequence[str], with_children: bool
    ) -> list[Trial]:
        """The trials of some rows with their calls, in the order of the rows, then in that in which they started."""
        ...

    async def refs_in_scores(self, project: str, evaluations: Sequence[str]) -> set[str]:
        """The refs that stand in scores in the place of values."""
        ...

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
        ...


class Store(ControlGroups, ABC):
    """All that is kept, one attribute per group."""

    schema: int
    blobs: Blobs
    calls: CallStore
    call_counts: CallCountsStore
    call_stats: CallStatsStore
    trials: TrialStore
    trace_spans: TraceSpanStore
    thread_sums: ThreadSumStore
    project_activity: ProjectActivityStore
    breakdowns: BreakdownStore
    overviews: OverviewStore
    _upkeep: asyncio.Task[None]

    @property
    @abstractmethod
    def figures(self) -> StoreStats:
        """What the writer of calls did since the start."""

    @abstractmethod
    async def sizes(self) -> Sizes:
        """How much room everything takes, walked anew."""

    @abstractmethod
    async def close(self) -> None:
        """Write what waits and close every connection."""

    @abstractmethod
    async def _named_blobs(self, keys: Sequence[str]) -> set[str]:
        """Which of these blobs something names."""

    async def collect_files(self) -> int:
        """Remove blobs that nothing names any more (and that are an hour old); returns how many."""
        loop = asyncio.get_running_loop()

        def ask(keys: Sequence[str]) -> set[str]:
            return asyncio.run_coroutine_threadsafe(self._named_blobs(keys), loop).result()

        return await asyncio.to_thread(self.blobs.collect, ask, ORPHAN_SECONDS)

    def _read_text(self, key: str) -> str:
        return self.blobs.read(key).decode()

    async def _stop_upkeep(self) -> None:
        self._upkeep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._upkeep
