"""Training as one service of the server: its models, its queue, its logs, and whether it is possible here."""

import importlib.util
from pathlib import Path

from heddle.errors import ExtraMissing, Unavailable
from heddle.paths import TRAINING
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.training.bodies.data import DatasetReader
from heddle.training.bodies.intake import Intake
from heddle.training.queue.promotion import Promotion
from heddle.training.queue.retention import Retention
from heddle.training.queue.supervisor import Supervisor
from heddle.training.services.jobs import Sources, TrainingQueue
from heddle.training.services.logs import TrainingLogs
from heddle.training.services.models import TrainableModels
from heddle.training.services.rollouts import LoadRenderer, Rollouts
from heddle.wire.policies import PolicyHost
from heddle.wire.training import CallSource

INSTALL = "pip install 'heddle[training]'"
_NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2")


class Training:
    """What the training routes work with. The supervisor is started and stopped by whoever made it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        policies: PolicyHost,
        supervisor: Supervisor,
        *,
        calls: CallSource,
        datasets: DatasetReader,
        promotion: Promotion,
        load_renderer: LoadRenderer | None = None,
    ) -> None:
        self.settings = settings
        self._supervisor = supervisor
        self.policies = policies
        self.retention = Retention(settings, store.train_models, store.train_jobs, policies)
        supervisor.publisher.retain = self.retention.retain
        self.models = TrainableModels(settings, store, policies, supervisor, self.retention)
        self.jobs = TrainingQueue(settings, store, self.models, supervisor, Sources(calls, datasets, promotion))
        self.logs = TrainingLogs(store.train_models)
        self.rollouts = Rollouts(self.jobs.body, load_renderer)
        self.intake = Intake(store.blobs, Path(settings.data) / TRAINING)

    async def start(self) -> None:
        """Begin to work on what waits, where the settings let this server train."""
        if self.settings.training == "on" and not self.missing:
            await self.models.finish()
            await self._supervisor.start()

    async def stop(self) -> None:
        """End the training processes; the next server goes on with their jobs."""
        await self._supervisor.stop()

    @property
    def missing(self) -> list[str]:
        """The packages that training needs and that are not installed."""
        return [name for name in _NEEDED if importlib.util.find_spec(name) is None]

    def require(self) -> None:
        """Raise ExtraMissing or Unavailable where this server trains nothing."""
        if self.settings.training == "off":
            raise Unavailable("This server trains no models; start it with --training on", retry_after=60)
        if self.missing:
            raise ExtraMissing(f"Training needs an extra that is not installed: {INSTALL}")
