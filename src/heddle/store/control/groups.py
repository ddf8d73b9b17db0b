"""Every group of control tables over one database, as attributes of the store."""

from collections.abc import Sequence

import sqlalchemy as sa

from heddle.store.control.adapters import Adapters
from heddle.store.control.agents.spans import AgentSpans
from heddle.store.control.alerts import Alerts
from heddle.store.control.annotation_queues import AnnotationQueues
from heddle.store.control.changes import Changes
from heddle.store.control.costs import Costs
from heddle.store.control.dataset_sources import DatasetSources
from heddle.store.control.eval_jobs import EvalJobs
from heddle.store.control.feedback import FeedbackRows
from heddle.store.control.files import Files, files
from heddle.store.control.inference import InferenceRows
from heddle.store.control.jobs import TrainJobs, train_jobs
from heddle.store.control.keys import Keys
from heddle.store.control.leases import Leases
from heddle.store.control.meters import Meters
from heddle.store.control.monitors import MonitorWaits
from heddle.store.control.objects import Objects
from heddle.store.control.projects import Projects
from heddle.store.control.registry import Registry
from heddle.store.control.replays import Replays
from heddle.store.control.row_texts import RowTexts
from heddle.store.control.runtimes import Runtimes
from heddle.store.control.schema import Executor, Instance
from heddle.store.control.sessions import Sessions
from heddle.store.control.tables import Tables
from heddle.store.control.train_runs import TrainRuns
from heddle.store.control.training import TrainModels, train_logs


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
        self.changes = Changes(executor, instance)
        self.meters = Meters(executor, instance)
        self.objects = Objects(executor, instance)
        self.feedback = FeedbackRows(executor)
        self.costs = Costs(executor, instance)
        self.files = Files(executor, instance)
        self.tables = Tables(executor, rows)
        self.keys = Keys(keys)
        self.sessions = Sessions(keys)
        self.projects = Projects(executor)
        self.inference = InferenceRows(executor)
        self.adapters = Adapters(executor)
        self.monitor_waits = MonitorWaits(executor)
        self.alerts = Alerts(executor, instance)
        self.train_models = TrainModels(executor)
        self.train_jobs = TrainJobs(executor, instance)
        self.train_runs = TrainRuns(executor)
        self.annotation_queues = AnnotationQueues(executor)
        self.registry = Registry(executor)
        self.runtimes = Runtimes(executor)
        self.dataset_sources = DatasetSources(executor)
        self.agent_spans = AgentSpans(spans)
        self.eval_jobs = EvalJobs(executor, instance)
        self.replays = Replays(executor)

    async def ping(self) -> None:
        """Commit a tiny write; raises what any other write would."""
        await self.projects.beat()


def named_blobs(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    """Which of these blobs a file, a training job or a log names."""
    columns = (files.c.blob, train_jobs.c.payload, train_logs.c.payload)
    chosen = sa.union(*(sa.select(column).where(column.in_(keys)) for column in columns))
    return set(connection.execute(chosen).scalars())
