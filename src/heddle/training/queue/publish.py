"""How a finished checkpoint becomes the policy: listed, served, judged, pointed to; and how any job ends.

Every step may be done twice, so that a crash between two of them is continued by doing all of them again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from heddle.errors import Busy, HeddleError, QueryTimeout, StorageFull, Unavailable
from heddle.store.control.jobs import CANCELLED, FAILED, SUCCEEDED, JobRow, LeaseLost
from heddle.store.control.training import CheckpointRow, ModelRow, TrainModels
from heddle.training import folders
from heddle.training.hooks import JobObserver, PromotionJudge, Verdict
from heddle.training.queue.events import EventLog, now, stable_id
from heddle.training.queue.tasks import policy_name
from heddle.wire.policies import PolicyHost

logger = logging.getLogger("heddle.training")

CANCELLED_MESSAGE = "cancelled"
PROMOTED = "promotion/promoted"
TEMPORARY = (StorageFull, Unavailable, Busy, QueryTimeout)
"""What passes by itself: the job waits."""
Retain = Callable[[ModelRow], Awaitable[None]]


class GivenUp(Exception):
    """The job was cancelled while its checkpoint was being published."""


class Publisher:
    """Ends jobs; `judge`, `observers` and `retain` are what other rooms do for it."""

    def __init__(self, models: TrainModels, policies: PolicyHost, data: Path, log: EventLog) -> None:
        self._models = models
        self._policies = policies
        self._data = data
        self._log = log
        self.judge: PromotionJudge | None = None
        self.observers: list[JobObserver] = []
        self.retain: Retain | None = None

    async def publish(self, model: ModelRow, job: JobRow, cancelled: asyncio.Event) -> JobRow:
        """Make the job's checkpoint the policy, and end the job; returns it as it ended.

        Raises what is temporary (a full disk); then it is to be done again. Raises LeaseLost when another server does.
        """
        assert job.step is not None
        try:
            data, reason = await self._promote(model, job, job.step, cancelled)
        except GivenUp:
            await self._take_back(model, job, job.step)
            return await self.end(model, job, CANCELLED, CANCELLED_MESSAGE)
        except (*TEMPORARY, LeaseLost):
            raise
        except (HeddleError, OSError) as error:
            await self._take_back(model, job, job.step)
            return await self.end(model, job, FAILED, f"step {job.step} cannot be published: {error}")
        ended = await self.end(model, job, SUCCEEDED, reason, data)
        if self.retain is not None:
            try:
                await self.retain(model)
            except (HeddleError, OSError):
                logger.exception("old checkpoints of the model %s were not removed", model.id)
        return ended

    async def end(
        self,
        model: ModelRow | None,
        job: JobRow,
        state: str,
        error: str | None,
        figures: dict[str, float] | None = None,
    ) -> JobRow:
        """End a job, tell everybody, and remove what it leaves behind; returns it as it ended."""
        at = now()
        job = replace(job, state=state, error=error, ended_at=at, lease_owner=None, lease_until=None)
        if model is not None:
            told = {**job.metrics, **(figures or {})}
            await self._tell(model, replace(job, metrics=told))
        data: dict[str, Any] = {"error_message": error}
        if state == SUCCEEDED:
            seconds = (at - (job.started_at or at)) / 1e6
            data = {**job.metrics, "step": job.step, "seconds": seconds, **(figures or {})}
        await self._log.ended(job, data)
        if state != SUCCEEDED and job.step is not None:
            await self._drop_unlisted(job)
        await asyncio.to_thread(folders.remove, self._data / folders.work_folder(job.model_id, job.id))
        return job

    async def _promote(
        self, model: ModelRow, job: JobRow, step: int, cancelled: asyncio.Event
    ) -> tuple[dict[str, float], str | None]:
        """List, offer, judge, point; returns figures for the last event, and why `latest` stays, if it does."""
        policy, folder = policy_name(model), folders.checkpoint_folder(model.id, step)
        digest, size = await asyncio.to_thread(folders.measure, self._data / folder)
        own_id = stable_id(job.id, "checkpoint")
        metrics = job.metrics
        await self._models.add_checkpoint(
            CheckpointRow(own_id, model.id, step, job.parent_step, job.id, folder, digest, size, metrics, now())
        )
        await self._policies.offer(policy, step, model.base_model, folder, job.created_by)
        latest = await self._policies.latest(policy)
        if latest == step:
            return {}, None
        verdict, reason = await self._judge(model, job, step, latest, cancelled)
        if cancelled.is_set():
            raise GivenUp
        if verdict.promote:
            # A server that slept too long must not take the name back from a later step.
            await self._log.insist(job.id)
            await self._policies.point(policy, step)
        return dict(verdict.data), reason

    async def _judge(
        self, model: ModelRow, job: JobRow, step: int, latest: int | None, cancelled: asyncio.Event
    ) -> tuple[Verdict, str | None]:
        """The verdict of the evaluation that the job names, if it names one, and what kept it from being made."""
        if not job.config.get("promotion") or latest is None:
            return Verdict(promote=True), None
        if self.judge is None:
            return Verdict(promote=False, data={PROMOTED: 0.0}), "not promoted: this server runs no evaluations"
        judging = asyncio.ensure_future(self.judge.judge(model, job, step, latest))
        waiting = asyncio.ensure_future(cancelled.wait())
        try:
            await asyncio.wait([judging, waiting], return_when=asyncio.FIRST_COMPLETED)
            if cancelled.is_set():
                raise GivenUp
            return await judging, None
        except GivenUp:
            raise
        except HeddleError as error:
            return Verdict(promote=False, data={PROMOTED: 0.0}), f"not promoted: {error}"
        except Exception as error:
            logger.exception("the evaluation of job %s", job.id)
            return Verdict(promote=False, data={PROMOTED: 0.0}), f"not promoted: the evaluation failed: {error!r}"
        finally:
            for task in (judging, waiting):
                task.cancel()
            await asyncio.gather(judging, waiting, return_exceptions=True)

    async def _take_back(self, model: ModelRow, job: JobRow, step: int) -> None:
        """Undo what was published of a step that `latest` never meant."""
        await self._policies.withdraw(policy_name(model), [step], job.created_by)
        await self._models.delete_checkpoints(model.id, [step], now(), job.created_by)

    async def _drop_unlisted(self, job: JobRow) -> None:
        """Remove the folder that a job made, or began, and that no checkpoint names."""
        rows = await self._models.checkpoints(job.model_id)
        if job.step is not None and all(row.step != job.step for row in rows):
            folder = self._data / folders.checkpoint_folder(job.model_id, job.step)
            await asyncio.to_thread(folders.remove_begun, folder)

    async def _tell(self, model: ModelRow, job: JobRow) -> None:
        for observer in self.observers:
            try:
                await observer.ended(model, job)
            except Exception:
                logger.exception("the end of job %s could not be told", job.id)
