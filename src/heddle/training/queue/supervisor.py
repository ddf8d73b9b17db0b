"""Runs the queue of training jobs: takes them, lets processes do them, counts attempts, and has them published."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from heddle.errors import HeddleError, NotFound
from heddle.jobs.runner import Attempt, Cancellation, Runner
from heddle.paths import OutsideRoot, model_folder
from heddle.settings import Settings
from heddle.store.control.coordination import CANCELLED, FAILED
from heddle.store.control.training import OPEN, PUBLISHING, JobConfig, JobRow, LeaseLost, TrainJobs
from heddle.store.control.training_models import CheckpointRow, ModelRow, TrainModels
from heddle.training import files, handover
from heddle.training.config import RlConfig
from heddle.training.messages import Failed, Finished, JobKind, Stopped, Task, Warm
from heddle.training.queue.events import EventLog, TrainingMetrics
from heddle.training.queue.process import ProcessEnded, ProcessOptions, Slot
from heddle.training.queue.publish import Publisher, policy_name
from heddle.training.ruler import JudgeFailed, Ruler
from heddle.wire import times
from heddle.wire.training import PolicyHost


class Impossible(Exception):
    """A job that can never be done; the text is for the client."""


@dataclass(frozen=True, slots=True)
class TaskBuilder:
    """Looks up what a task needs; `payload` gives the path of a blob, `ranks` is the processes of one job."""

    models: TrainModels
    policies: PolicyHost
    data: Path
    payload: Callable[[str], Path]
    ranks: int

    async def first_steps(self, model: ModelRow, job: JobRow) -> tuple[int, int]:
        """Where a job that begins now starts from (`latest`, or the step it names), and the step that it makes.

        Raises Impossible.
        """
        parent = job.config.get("candidate_from")
        if parent is None:
            parent = await self.policies.latest(policy_name(model))
        if parent is None:
            raise Impossible(f"the model {model.name} has no policy to start from")
        rows = await self.models.checkpoints(model.id)
        return parent, max((row.step for row in rows), default=parent) + 1

    async def build(self, model: ModelRow, job: JobRow) -> Task:
        """The task of a job whose steps are fixed. Raises Impossible."""
        assert job.step is not None and job.parent_step is not None
        bases = {base.id: base for base in await self.policies.base_models()}
        base = bases.get(model.base_model)
        if base is None:
            served = ", ".join(sorted(bases)) or "none"
            raise Impossible(f"the base model {model.base_model} is no longer served (served: {served})")
        try:
            payload = self.payload(job.payload).resolve()
        except NotFound as error:
            raise Impossible(f"the data of the job is missing: {error}") from None
        rows = await self.models.checkpoints(model.id)
        config = job.config
        return Task(
            job_id=job.id,
            kind=cast(JobKind, job.kind),
            base_folder=str(base.folder),
            payload=str(payload),
            config=config["settings"],
            parent=self._folder(rows, job.parent_step, "the step to start from"),
            target=str(self.data / files.checkpoint_folder(model.id, job.step)),
            work=str(self.data / files.work_folder(model.id, job.id)),
            step=job.step,
            parent_step=job.parent_step,
            lora=model.lora,
            device=config["device"],
            dtype=config["dtype"],
            threads=config["threads"],
            ranks=self.ranks,
            max_length=config["sequence"],
            kl_reference=self._reference(job, rows),
        )

    def _reference(self, job: JobRow, rows: Sequence[CheckpointRow]) -> str | None:
        """The folder that the KL penalty compares with; None is the base model."""
        assert job.parent_step is not None
        settings = job.config["settings"]
        if job.kind != "rl" or not RlConfig.of_json(settings).compares:
            return None
        if (reference := job.config.get("kl_reference")) is not None:
            with contextlib.suppress(OutsideRoot):
                folder = files.resolve_folder(self.data, reference)
                if folder.is_dir():
                    return str(folder)
            raise Impossible("the checkpoint that kl_ref_adapter_path names was deleted")
        step, lag = settings.get("kl_penalty_reference_step"), settings.get("kl_penalty_step_lag")
        if step is None and lag is not None:
            step = max(0, job.parent_step - lag)
        return None if step is None else self._folder(rows, step, "the KL reference")

    def _folder(self, rows: Sequence[CheckpointRow], step: int, what: str) -> str:
        for row in rows:
            if row.step == step:
                with contextlib.suppress(OutsideRoot):
                    return str(files.resolve_folder(self.data, row.folder))
        raise Impossible(f"{what}: step {step} not found; it was deleted or never existed")


logger = logging.getLogger("heddle.training")

OLD_SECONDS = 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a job is taken again after an error of the server itself, such as a full disk."""


class Supervisor(Runner[JobRow]):
    """One per server. `publisher` has the hooks that others set."""

    logger = logging.getLogger("heddle.training")
    name = "training"

    def __init__(
        self,
        settings: Settings,
        models: TrainModels,
        jobs: TrainJobs,
        policies: PolicyHost,
        payload: Callable[[str], Path],
        metrics: TrainingMetrics,
        options: ProcessOptions | None = None,
    ) -> None:
        """`payload` gives the path of a blob; `options` replaces how processes are started."""
        count = settings.training_workers if settings.training == "on" else 0
        super().__init__(jobs, count, settings.training_lease)
        self._settings = settings
        self._models = models
        self._jobs = jobs
        self.metrics = metrics
        self._data = Path(settings.data).resolve()
        self.events = EventLog(jobs)
        self._builder = TaskBuilder(models, policies, self._data, payload, settings.training_ranks)
        self.publisher = Publisher(models, jobs, policies, self._data, self.events)
        self.ruler: Ruler | None = None
        self.hands_over = settings.trainer == "torchrun"
        """Jobs are done by workers that somebody else starts."""
        watched = self._data / handover.ROOT if self.hands_over else None
        options = options or ProcessOptions(settings.training_ranks, settings.training_lease, handover=watched)
        self._slots = [Slot(options, settings.training_idle, self.events, metrics) for _ in range(count)]
        self._pause = FIRST_PAUSE

    async def start(self) -> None:
        """Take back what an earlier server left unfinished, where one owns all, and begin to work."""
        released = await self._jobs.release_all_leases()
        if released:
            logger.info("continuing %d training jobs", released)
        await self._sweep()
        if self._slots:
            await super().start()

    async def stop(self) -> None:
        """End the processes; their jobs are continued by another server, or the next one."""
        await super().stop()
        for slot in self._slots:
            await slot.close()
        with contextlib.suppress(HeddleError):  # leases end by themselves
            await self._jobs.release_leases()

    def make_slot(self, silence: float) -> Slot:
        """A place of its own for work that is no job of this queue, on this machine."""
        return Slot(ProcessOptions(silence=silence), self._settings.training_idle, self.events, self.metrics)

    def warm(self, base_folder: Path, device: str, dtype: str) -> None:
        """A base model will soon be trained: let a process read it now, if none is there yet."""
        if self._taker.is_running and self._settings.training_idle and not self.pids():
            self._slots[0].warm(Warm(str(base_folder), device, dtype))

    def pids(self) -> list[int]:
        """The training processes that are alive."""
        return [slot.pid for slot in self._slots if slot.pid is not None]

    async def cancel(self, job_id: str) -> bool:
        """Give a job up: one that waits ends at once, one that runs is asked. False for one that is done."""
        async with self._taking:
            job = await self._jobs.find(job_id)
            if job is None or job.state not in OPEN:
                return False
            await self._jobs.ask_to_cancel(job_id)
            if job_id in self._at_work:
                self._at_work[job_id].cancel()
                return True
            # What another server works on is ended there.
            claimed = await self._jobs.claim(job_id, times.now(), self._settings.training_lease)
            if claimed is not None:
                model = await self._models.find(claimed.model_id)
                if model is not None and claimed.state == PUBLISHING:
                    cancelled = Cancellation()
                    cancelled.set()
                    self.metrics.ended(await self.publisher.publish(model, claimed, cancelled))
                else:
                    await self._end(model, claimed, CANCELLED, Cancellation.reason)
        await self._notify()
        return True

    async def wait_until_ended(self, job_id: str) -> None:
        """Return once a job is done and nothing works on its folders any more."""

        async def is_open() -> bool:
            job = await self._jobs.find(job_id)
            return job is not None and job.state in OPEN

        await self.ended(job_id, is_open)

    async def _next(self, is_full: bool) -> JobRow | None:
        """The oldest job that may run."""
        return None if is_full else await self._jobs.lease(times.now(), self._settings.training_lease, self._at_work)

    async def _rest(self) -> float:
        """Processes that have nothing to do for long are ended."""
        for slot in self._slots:
            slot.rest()
        return self._settings.training_lease

    async def _failed(self, attempt: Attempt[JobRow], error: Exception) -> float:
        """An error of the server itself costs a pause, and the job is taken again."""
        if isinstance(error, LeaseLost):
            logger.warning("%s", error)
            if await self._models.find(attempt.job.model_id) is None:
                await asyncio.to_thread(files.remove_deleted, self._data / model_folder(attempt.job.model_id))
            return 0.0
        with contextlib.suppress(HeddleError):
            await self._jobs.release_leases(attempt.job.id)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        again = "training cannot go on (%s); trying again in %g s"
        logger.error(again, error, pause, exc_info=not isinstance(error, HeddleError))
        return pause

    async def _work(self, attempt: Attempt[JobRow]) -> None:
        """Bring a job to its end."""
        job = attempt.job
        model = await self._models.find(job.model_id)
        if model is None:
            await self._end(None, job, FAILED, "the model was deleted")
            return
        if job.state != PUBLISHING:
            slot = min((slot for slot in self._slots if not slot.is_busy), key=lambda slot: slot.pid is None)
            with slot.busy():
                result = await self._train(slot, model, attempt)
            if isinstance(result, Stopped):
                await self._end(model, attempt.job, CANCELLED, attempt.cancelled.reason)
                return
            if isinstance(result, Failed):
                await self._end(model, attempt.job, FAILED, result.message)
                return
            await self._jobs.update(job.id, state=PUBLISHING, metrics=result.metrics)
            attempt.job = replace(attempt.job, state=PUBLISHING, metrics=result.metrics)
        self.metrics.ended(await self.publisher.publish(model, attempt.job, attempt.cancelled))
        self._pause = FIRST_PAUSE

    async def _train(self, slot: Slot, model: ModelRow, work: Attempt[JobRow]) -> Finished | Failed | Stopped:
        """Let a process do it, until it has a result or too many in a row ended without progress."""
        attempts = work.job.attempts
        while not work.cancelled.is_set():
            slot.has_progress = False
            try:
                await self._fix_steps(model, work)
                if not await self._score(model, work):
                    break
                return await slot.attempt(work, await self._builder.build(model, work.job))
            except (Impossible, JudgeFailed) as error:
                return Failed(str(error))
            except (HeddleError, OSError):
                raise  # the server's own, and temporary
            except Exception as error:
                if not isinstance(error, ProcessEnded):
                    logger.exception("job %s", work.job.id)  # a fault of ours, which must not hold up the others
                attempts = 0 if slot.has_progress else attempts + 1
                self.metrics.lost()
                logger.warning("job %s: %s (attempts without progress: %d)", work.job.id, error, attempts)
                await self._jobs.update(work.job.id, attempts=attempts)
                if attempts >= self._settings.training_attempts:
                    ours = f"the server failed: {type(error).__name__}: {error}"
                    reason = str(error) if isinstance(error, ProcessEnded) else ours
                    return Failed(f"{reason}; {attempts} attempts ended without progress")
        return Stopped()

    async def _fix_steps(self, model: ModelRow, work: Attempt[JobRow]) -> None:
        """Write down, once, from which step a job starts and which one it makes."""
        if work.job.step is not None:
            return
        parent, step = await self._builder.first_steps(model, work.job)
        await asyncio.to_thread(files.remove, self._data / files.checkpoint_folder(model.id, step))
        await self._jobs.update(work.job.id, parent_step=parent, step=step)
        work.job = replace(work.job, parent_step=parent, step=step)

    async def _score(self, model: ModelRow, work: Attempt[JobRow]) -> bool:
        """Give a job the rewards of its judge, once; False when it was cancelled meanwhile."""
        wanted = work.job.config.get("ruler")
        if wanted is None or "usage" in wanted:
            return True
        if work.cancelled.is_set():
            return False
        if self.ruler is None:
            raise Impossible("this server has no judge models")
        work.worker = asyncio.create_task(self.ruler.score(model, work.job))
        try:
            payload, usage = await work.worker
        except asyncio.CancelledError:
            if not work.cancelled.is_set():
                raise
            return False
        finally:
            work.worker = None
        config: JobConfig = {**work.job.config, "ruler": {**wanted, "usage": usage}}
        await self._jobs.update(work.job.id, payload=payload, config=config)
        work.job = replace(work.job, payload=payload, config=config)
        return True

    async def _end(self, model: ModelRow | None, job: JobRow, state: str, error: str) -> None:
        self.metrics.ended(await self.publisher.end(model, job, state, error))
        self._pause = FIRST_PAUSE

    async def _sweep(self) -> None:
        """Remove folders that no checkpoint and no open job names."""
        kept: set[str] = set()
        for model in await self._models.all():
            kept.update(row.folder for row in await self._models.checkpoints(model.id))
        for job in await self._jobs.open():
            kept.add(files.work_folder(job.model_id, job.id))
            if job.step is not None:
                kept.add(files.checkpoint_folder(job.model_id, job.step))
        # Another server may be about to name what it has just made.
        age = OLD_SECONDS if self._jobs.instance.is_shared else 0.0
        removed = await asyncio.to_thread(files.sweep, self._data, kept, age)
        if removed:
            logger.info("removed %d unused training folders", len(removed))
