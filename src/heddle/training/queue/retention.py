"""Which steps of a model stay: taking them away, by hand and by the setting training_keep."""

import asyncio
from collections.abc import Collection
from pathlib import Path

from heddle.settings import Settings
from heddle.store.control.jobs import OPEN, JobRow, TrainJobs
from heddle.store.control.training import CheckpointRow, ModelRow, TrainModels
from heddle.training import folders
from heddle.training.queue.tasks import policy_name
from heddle.wire import times
from heddle.wire.policies import PolicyHost

OWN = "heddle"
"""Who takes steps away when nobody asked for it."""


class Retention:
    """Takes checkpoints away, and knows which must stay."""

    def __init__(self, settings: Settings, models: TrainModels, jobs: TrainJobs, policies: PolicyHost) -> None:
        self._keep = settings.training_keep
        self._data = Path(settings.data)
        self._models = models
        self._jobs = jobs
        self._policies = policies
        self.changing = asyncio.Lock()
        """Held while steps are chosen and taken away, or a name is pointed elsewhere by hand."""

    async def retain(self, model: ModelRow) -> None:
        """Take away what is older than the newest steps that the settings keep, and needed by nobody."""
        async with self.changing:
            await self._retain(model)

    async def _retain(self, model: ModelRow) -> None:
        rows = await self._models.checkpoints(model.id)
        if self._keep == 0 or len(rows) <= self._keep:
            return
        reasons = await self.needed(model, rows)
        old = [row.step for row in rows[: -self._keep] if row.step not in reasons]
        if old:
            await self.remove(model, old, OWN)

    async def needed(self, model: ModelRow, rows: list[CheckpointRow]) -> dict[int, str]:
        """The steps that must stay, and why."""
        reasons: dict[int, str] = {}
        for job in await self._jobs.of_model(model.id):
            if job.state in OPEN:
                reasons |= dict.fromkeys(_steps_of(job), f"the job {job.id} needs it")
        if rows:
            reasons[rows[-1].step] = "it is the newest, and its number must not be given twice"
        latest = await self._policies.latest(policy_name(model))
        if latest is not None:
            reasons[latest] = "the model's name means it; roll back first"
        return reasons

    async def remove(self, model: ModelRow, steps: Collection[int], user: str) -> list[CheckpointRow]:
        """Take steps away from addresses, list and disk; returns those that were there."""
        await self._policies.withdraw(policy_name(model), list(steps), user)
        rows = await self._models.delete_checkpoints(model.id, steps, times.now(), user)
        for row in rows:
            await asyncio.to_thread(folders.remove_below, self._data, row.folder)
        return rows


def _steps_of(job: JobRow) -> list[int]:
    """The steps that an open job starts from, makes, or compares with."""
    settings = job.config.get("settings") or {}
    named = [job.step, job.parent_step, settings.get("kl_penalty_reference_step")]
    lag = settings.get("kl_penalty_step_lag")
    if lag is not None and job.parent_step is not None:
        named.append(max(0, job.parent_step - lag))
    return [step for step in named if step is not None]
