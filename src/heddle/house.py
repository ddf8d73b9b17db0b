"""The services of one running server, handed to every route."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.auth import Gate
from heddle.body_reader import UnfinishedBodies
from heddle.errors import HeddleError
from heddle.evals.jobs.service import Jobs
from heddle.evals.monitors.service import Monitors
from heddle.evals.scoring import Scoring
from heddle.evals.service import Evaluations
from heddle.event_streams import EventStreams
from heddle.inference.service import Inference
from heddle.metrics import Metrics
from heddle.retention import Retention
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.training.service import Training
from heddle.wire.inference import PricesOf
from heddle.wire.records import Records

if TYPE_CHECKING:
    from heddle.evals.replay.service import Replays
    from heddle.trace.alerts.service import AlertService


@dataclass(slots=True)
class House:
    """What the routes work with; `draining` says that the server stops soon, `stopping` that it takes no new work."""

    settings: Settings
    store: Store
    draining: bool = False
    stopping: bool = False
    gate: Gate = field(init=False)
    metrics: Metrics = field(init=False)
    unfinished_bodies: UnfinishedBodies = field(init=False)
    event_streams: EventStreams = field(init=False)
    retention: Retention = field(init=False)
    inference: Inference = field(init=False)
    training: Training = field(init=False)
    records: Records = field(init=False)
    prices: PricesOf = field(init=False)
    jobs: Jobs = field(init=False)
    evaluations: Evaluations = field(init=False)
    scoring: Scoring = field(init=False)
    monitors: Monitors = field(init=False)
    alerts: "AlertService" = field(init=False)
    replays: "Replays" = field(init=False)
    _proven: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.gate = Gate(self.store.keys, self.settings.needs_key, self.store.sessions)
        self.metrics = Metrics(self._figures)
        self.unfinished_bodies = UnfinishedBodies(self.settings, lambda limit: self.metrics.refused(limit))
        self.event_streams = EventStreams(self.settings.max_event_streams, self.metrics.refused)
        self.retention = Retention(self.store, self.settings.retention_interval)
        self.jobs = Jobs(self.settings, self.store.eval_jobs)

    def drain(self) -> None:
        """Say from now on, in /ready and with each answer, that requests are better sent elsewhere."""
        self.draining = True

    def _figures(self) -> dict[str, float]:
        figures = self.store.figures
        return {
            "store_commits_total": figures.groups,
            "store_writes_total": figures.items,
            "store_queue_bytes": figures.waiting_bytes,
        }

    async def prove_writing(self) -> HeddleError | None:
        """What a write would fail with now, found out by writing; believed for a second when all is well."""
        if time.monotonic() - self._proven < 1.0:
            return None
        try:
            await self.store.ping()
        except HeddleError as error:
            return error
        self._proven = time.monotonic()
        return None
