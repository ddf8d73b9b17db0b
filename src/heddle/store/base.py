"""What a store can do, in the verbs of the domain."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from heddle.store.blobs import Blobs
from heddle.store.control.adapters import Adapters
from heddle.store.control.costs import Costs
from heddle.store.control.feedback import FeedbackRows
from heddle.store.control.files import Files
from heddle.store.control.inference import InferenceRows
from heddle.store.control.jobs import TrainJobs
from heddle.store.control.keys import Keys
from heddle.store.control.objects import Objects
from heddle.store.control.projects import Projects
from heddle.store.control.tables import Tables
from heddle.store.control.training import TrainModels
from heddle.wire.calls import CallRow, CallsQuery, End, MetricRow, Start, ThreadRow, UniformRun, UsageRow

Quantiles = dict[tuple[int, str, str], list[float]]


class Figures(Protocol):
    """What the writer did since the start: commits, writes in them, and bytes that wait."""

    groups: int
    items: int
    waiting_bytes: int


class CallStore(Protocol):
    """The verbs of calls. Project ids are internal, instants microseconds."""

    async def write(self, starts: Sequence[Start], ends: Sequence[End]) -> None:
        """Store halves of calls, in any order; returns after the commit."""
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


class CallStatsStore(Protocol):
    """Sums of calls over time buckets."""

    async def usage(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Token metrics per bucket and model, and all values in order of the metrics in `quantiles`."""
        ...

    async def calls(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Call metrics per bucket."""
        ...


class Store(Protocol):
    """All that is kept, one attribute per group."""

    objects: Objects
    tables: Tables
    feedback: FeedbackRows
    costs: Costs
    files: Files
    blobs: Blobs
    keys: Keys
    projects: Projects
    inference: InferenceRows
    adapters: Adapters
    train_models: TrainModels
    train_jobs: TrainJobs

    @property
    def calls(self) -> CallStore:
        """Calls."""
        ...

    @property
    def call_stats(self) -> CallStatsStore:
        """Sums of calls."""
        ...

    @property
    def figures(self) -> Figures:
        """What the writer did."""
        ...

    async def collect_files(self) -> int:
        """Remove blobs that nothing names any more (and that are an hour old); returns how many."""
        ...

    async def ping(self) -> None:
        """Commit a tiny write; raises what any other write would."""
        ...

    async def close(self) -> None:
        """Write what waits and close."""
        ...
