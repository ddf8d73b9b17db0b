"""How a finished checkpoint becomes the policy: listed, served, judged, pointed to; and how any job ends.

Every step may be done twice, so that a crash between two of them is continued by doing all of them again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heddle import aio
from heddle.auth import Caller
from heddle.errors import Busy, Conflict, HeddleError, QueryTimeout, StorageFull, Unavailable
from heddle.jobs.runner import Cancellation
from heddle.store.control.coordination import CANCELLED, FAILED, SUCCEEDED
from heddle.store.control.training import JobRow, LeaseLost, PromotionRule, TrainJobs
from heddle.store.control.training_models import CheckpointRow, ModelRow, TrainModels
from heddle.store.data_folder import explain_disk
from heddle.training import files
from heddle.training.queue.events import EventLog, stable_id
from heddle.training.schemas.requests import PromotionRequest
from heddle.wire import refs, times
from heddle.wire.training import Evaluator, PolicyHost, PolicyName, Sampling, Scored


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether `latest` may move to the new step; `data` goes into the event training_ended (numbers only)."""

    promote: bool
    data: dict[str, float] = field(default_factory=dict)


Judge = Callable[[ModelRow, JobRow, int, int], Awaitable[Verdict]]
"""Compares a candidate with the latest step, both served; raises HeddleError when the evaluation cannot be run."""
Observer = Callable[[ModelRow, JobRow], Awaitable[None]]
"""Is told about a job that is about to end, with its final state, maybe twice (after a crash) under the same id."""


def policy_name(model: ModelRow) -> PolicyName:
    """How inference calls a model."""
    return PolicyName(model.entity, model.project, model.name)


class Promotion:
    """Lets both policies answer an evaluation of the trace service."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    async def check(self, request: PromotionRequest | None, caller: Caller) -> PromotionRule | None:
        """What the job keeps: the request with its evaluation pinned to a digest, and how far the caller's key reaches.

        Raises HeddleError with what is wrong with the evaluation, before the job is queued.
        """
        if request is None:
            return None
        pinned = await self._evaluator.check(request.evaluation, caller)
        return {
            "evaluation": pinned,
            "minimum_gain": request.minimum_gain,
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "caller": caller.to_json(),
        }

    async def judge(self, model: ModelRow, job: JobRow, candidate: int, latest: int) -> Verdict:
        """Whether the candidate's score reaches the latest one's; raises HeddleError when it cannot be found out."""
        rule = job.config.get("promotion")
        assert rule is not None, "only jobs with a rule are judged"
        old = await self._score(model, job, rule, latest)
        new = await self._score(model, job, rule, candidate)
        promote = new.score >= old.score + rule["minimum_gain"]
        data = {
            "promotion/score_old": old.score,
            "promotion/score_new": new.score,
            "promotion/failed_old": float(old.failed),
            "promotion/failed_new": float(new.failed),
            "promotion/rows": float(new.rows),
            "promotion/promoted": float(promote),
        }
        return Verdict(promote, data)

    async def _score(self, model: ModelRow, job: JobRow, rule: PromotionRule, step: int) -> Scored:
        # What the job was given when it came in; it ends when the key is revoked.
        old = {"user": job.created_by, "scopes": ["read", "write"], "key_id": None, **rule.get("reach", {})}
        author = Caller.from_json(rule.get("caller", old))
        address = f"{refs.ARTIFACT}{model.entity}/{model.project}/{model.name}:step{step}"
        return await self._evaluator.run(
            rule["evaluation"],
            address,
            author,
            model.project_id,
            sampling=Sampling(rule["temperature"], rule["max_tokens"]),
            run_id=f"{job.id}/{step}",
            label=f"{model.name} step {step}",
        )


logger = logging.getLogger("heddle.training")

PROMOTED = "promotion/promoted"
TEMPORARY = (StorageFull, Unavailable, Busy, QueryTimeout)
"""What passes by itself: the job waits."""
Retain = Callable[[ModelRow], Awaitable[None]]


class GivenUp(Exception):
    """The job was cancelled while its checkpoint was being published."""


class Publisher:
    """Ends jobs; `judge`, `observers` and `retain` are what others do for it."""

    def __init__(self, models: TrainModels, jobs: TrainJobs, policies: PolicyHost, data: Path, log: EventLog) -> None:
        self._models = models
        self._jobs = jobs
        self._policies = policies
        self._data = data
        self._log = log
        self.judge: Judge | None = None
        self.observers: list[Observer] = []
        self.retain: Retain | None = None

    async def publish(self, model: ModelRow, job: JobRow, cancelled: Cancellation) -> JobRow:
        """Make the job's checkpoint the policy, and end the job; returns it as it ended.

        Raises what is temporary (a full disk); then it is to be done again. Raises LeaseLost when another server does.
        """
        assert job.step is not None
        try:
            data, reason = await self._promote(model, job, job.step, cancelled)
        except GivenUp:
            await self._take_back(model, job, job.step)
            return await self.end(model, job, CANCELLED, cancelled.reason)
        except (*TEMPORARY, LeaseLost):
            raise
        except (HeddleError, OSError) as error:
            if explain_disk(error):
                raise
            await self._take_back(model, job, job.step)
            return await self.end(model, job, FAILED, f"step {job.step} cannot be published: {error}")
        ended = await self.end(model, job, SUCCEEDED, reason, data)
        if self.retain is not None:
            try:
                await self.retain(model)
            except (HeddleError, OSError):
                logger.exception("old checkpoints of the model %s could not be removed", model.id)
        return ended

    async def end(
        self,
        model: ModelRow | None,
        job: JobRow,
        state: str,
        error: str | None,
        metrics: dict[str, float] | None = None,
    ) -> JobRow:
        """End a job, tell everybody, and remove what it leaves behind; returns it as it ended."""
        at = times.now()
        job = replace(job, state=state, error=error, ended_at=at, lease_owner=None, lease_until=None)
        if model is not None:
            told = replace(job, metrics={**job.metrics, **(metrics or {})})
            for observer in self.observers:
                try:
                    await observer(model, told)
                except Exception:
                    logger.exception("the end of job %s could not be reported", job.id)
        data: dict[str, Any] = {"error_message": error}
        if state == SUCCEEDED:
            seconds = (at - (job.started_at or at)) / 1e6
            data = {**job.metrics, "step": job.step, "seconds": seconds, **(metrics or {})}
        await self._log.ended(job, data)
        if state != SUCCEEDED and job.step is not None:
            rows = await self._models.checkpoints(job.model_id)
            if all(row.step != job.step for row in rows):
                folder = self._data / files.checkpoint_folder(job.model_id, job.step)
                await asyncio.to_thread(files.remove, folder)
                await asyncio.to_thread(files.remove_begun, folder)
        await asyncio.to_thread(files.remove, self._data / files.work_folder(job.model_id, job.id))
        return job

    async def _promote(
        self, model: ModelRow, job: JobRow, step: int, cancelled: asyncio.Event
    ) -> tuple[dict[str, float], str | None]:
        """List, offer, judge, point; returns metrics for the last event, and why `latest` stays, if it does."""
        policy, folder = policy_name(model), files.checkpoint_folder(model.id, step)
        digest, size = await asyncio.to_thread(files.measure, self._data / folder)
        own_id = stable_id(job.id, "checkpoint")
        metrics = job.metrics
        await self._models.add_checkpoint(
            CheckpointRow(own_id, model.id, step, job.parent_step, job.id, folder, digest, size, metrics, times.now())
        )
        await self._policies.offer(policy, step, model.base_model, folder, job.created_by)
        if job.config.get("candidate_from") is not None:
            return {PROMOTED: 0.0}, None
        latest = await self._policies.latest(policy)
        if latest == step:
            return {}, None
        verdict, reason = await self._judge(model, job, step, latest, cancelled)
        if cancelled.is_set():
            raise GivenUp
        if verdict.promote:
            # A server that slept too long must not take the name back from a later step.
            await self._jobs.require_lease(job.id)
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
        judging = asyncio.ensure_future(self.judge(model, job, step, latest))
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
            logger.exception("the evaluation of job %s failed", job.id)
            return Verdict(promote=False, data={PROMOTED: 0.0}), f"not promoted: the evaluation failed: {error!r}"
        finally:
            await aio.cancel(judging, waiting)

    async def _take_back(self, model: ModelRow, job: JobRow, step: int) -> None:
        """Undo what was published of a step, unless somebody let the name mean it meanwhile."""
        try:
            await self._policies.withdraw(policy_name(model), [step], job.created_by)
        except Conflict:
            return
        await self._models.delete_checkpoints(model.id, [step], times.now(), job.created_by)
