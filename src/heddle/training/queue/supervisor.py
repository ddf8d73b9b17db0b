"""Runs the queue of training jobs: takes them, lets processes do them, counts attempts, and has them published."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.control.jobs import CANCELLED, FAILED, OPEN, PUBLISHING, EventRow, JobRow, LeaseLost, TrainJobs
from heddle.store.control.training import ModelRow, TrainModels
from heddle.training import folders, handover
from heddle.training.base import Failed, Finished
from heddle.training.queue.attempt import Slot, Work
from heddle.training.queue.events import EventLog, now
from heddle.training.queue.messages import Stopped, Warm
from heddle.training.queue.metrics import TrainingMetrics
from heddle.training.queue.process import ProcessEnded, ProcessOptions
from heddle.training.queue.publish import CANCELLED_MESSAGE, Publisher
from heddle.training.queue.tasks import Impossible, TaskBuilder
from heddle.wire.policies import PolicyHost

logger = logging.getLogger("heddle.training")

RENEWALS_PER_LEASE = 3
LOOK_SECONDS = 1.0
"""How often a server that shares the queue looks for work, and whether somebody wants the end of what it does."""
OLD_SECONDS = 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a slot tries again after an error of the server itself, such as a full disk."""


class Supervisor:
    """One per server. `publisher` has the hooks that other rooms set."""

    def __init__(
        self,
        settings: Settings,
        models: TrainModels,
        jobs: TrainJobs,
        policies: PolicyHost,
        payload: Callable[[str], Path],
        figures: TrainingMetrics,
        options: ProcessOptions | None = None,
    ) -> None:
        """`payload` gives the path of a blob; `options` replaces how processes are started."""
        self._settings = settings
        self._models = models
        self._jobs = jobs
        self._figures = figures
        self._data = Path(settings.data).resolve()
        self._log = EventLog(jobs)
        self._builder = TaskBuilder(models, policies, self._data, payload, settings.training_ranks)
        self.publisher = Publisher(models, policies, self._data, self._log)
        watched = self._data / handover.ROOT if settings.trainer == "torchrun" else None
        options = options or ProcessOptions(settings.training_ranks, settings.training_lease, handover=watched)
        count = settings.training_workers if settings.training == "on" else 0
        self._slots = [Slot(number, options, self._log, figures) for number in range(count)]
        self._taking = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        figures.watch(jobs.open)

    async def start(self) -> None:
        """Take back what an earlier server left unfinished, where one owns all, and begin to work."""
        released = await self._jobs.release_all()
        if released:
            logger.info("%d training jobs are continued", released)
        await self._sweep()
        self._tasks = [asyncio.create_task(self._serve(slot), name=slot.name) for slot in self._slots]

    async def stop(self) -> None:
        """End the processes; their jobs are continued by another server, or the next one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with contextlib.suppress(HeddleError):  # leases end by themselves
            await self._jobs.let_go()

    def wake(self) -> None:
        """A job was added: look for it now."""
        for slot in self._slots:
            slot.wake.set()

    def warm(self, base_folder: Path, device: str, dtype: str) -> None:
        """A base model will soon be trained: let a process read it now, if none is there yet."""
        if self._tasks and self._settings.training_idle and not self.pids():
            self._slots[0].to_warm = Warm(str(base_folder), device, dtype)
            self._slots[0].wake.set()

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
            for slot in self._slots:
                if slot.work is not None and slot.work.job.id == job_id:
                    slot.work.cancelled.set()
                    return True
            # What another server works on is ended there.
            claimed = await self._jobs.claim(job_id, now(), self._settings.training_lease)
            if claimed is not None:
                await self._cancel_untaken(claimed)
        return True

    async def wait_until_ended(self, job_id: str) -> None:
        """Return once a job is done and nothing works on its folders any more."""
        await self._log.wait_until_ended(job_id)
        for slot in self._slots:
            if slot.work is not None and slot.work.job.id == job_id:
                await slot.work.left.wait()

    async def wait_for_events(self, job_id: str, after: int, seconds: float) -> list[EventRow]:
        """Events of a job behind a place; waits for one, at most `seconds`, then the list is empty."""
        return await self._log.wait(job_id, after, seconds)

    async def _cancel_untaken(self, job: JobRow) -> None:
        model = await self._models.find(job.model_id)
        if model is not None and job.state == PUBLISHING:
            cancelled = asyncio.Event()
            cancelled.set()
            self._figures.ended(await self.publisher.publish(model, job, cancelled))
        else:
            await self._end(model, job, CANCELLED, CANCELLED_MESSAGE)

    async def _serve(self, slot: Slot) -> None:
        """What a slot does all day. An error of the server itself costs a pause, and the job is taken again."""
        pause = FIRST_PAUSE
        try:
            while True:
                slot.wake.clear()
                try:
                    async with self._taken(slot) as work:
                        if work is not None:
                            await self._do_leased(slot, work)
                    if work is None:
                        await slot.prepare()
                        await self._rest(slot)
                    pause = FIRST_PAUSE
                except LeaseLost as error:
                    logger.warning("%s", error)
                except Exception as error:
                    again = "training cannot go on (%s); trying again in %g s"
                    logger.error(again, error, pause, exc_info=not isinstance(error, HeddleError))
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            await slot.close()

    async def _rest(self, slot: Slot) -> None:
        """Wait for work; a process that has nothing to do for long is ended."""
        if slot.pid is not None:
            if await self._wait(slot, self._settings.training_idle):
                return
            await slot.close()
        await self._wait(slot, self._settings.training_lease)

    async def _wait(self, slot: Slot, seconds: float) -> bool:
        """Wait for a wake, or for work that came to another server; False when the time is over."""
        if not self._jobs.instance.is_shared:
            return await _is_set(slot.wake, seconds)
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while clock() < until:
            if await _is_set(slot.wake, min(LOOK_SECONDS, until - clock())) or await self._jobs.is_any_free():
                return True
        return False

    @asynccontextmanager
    async def _taken(self, slot: Slot) -> AsyncIterator[Work | None]:
        """The oldest job that may run, leased as long as it is worked on; None when there is none."""
        async with self._taking:
            held = [other.work.job.id for other in self._slots if other.work is not None]
            job = await self._jobs.lease(now(), self._settings.training_lease, held)
            if job is not None:
                slot.work = Work(job)
                if job.cancel_asked:
                    slot.work.cancelled.set()
        if job is None:
            yield None
            return
        try:
            yield slot.work
        except Exception:
            with contextlib.suppress(HeddleError):
                await self._jobs.let_go(job.id)
            raise
        finally:
            if slot.work is not None:
                slot.work.left.set()
            slot.work = None

    async def _do_leased(self, slot: Slot, work: Work) -> None:
        """Do a job as long as it is this server's; raises LeaseLost."""
        doing = asyncio.create_task(self._do(slot, work))
        keeping = asyncio.create_task(self._keep(work))
        try:
            await asyncio.wait([doing, keeping], return_when=asyncio.FIRST_COMPLETED)
            await (doing if doing.done() else keeping)
        finally:
            for task in (doing, keeping):
                task.cancel()
            await asyncio.gather(doing, keeping, return_exceptions=True)

    async def _keep(self, work: Work) -> None:
        """Keep the lease of a job, and notice that somebody wants its end; raises LeaseLost."""
        clock, job_id, seconds = asyncio.get_running_loop().time, work.job.id, self._settings.training_lease
        renewed = clock()
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, seconds / RENEWALS_PER_LEASE))
            try:
                if clock() - renewed > seconds / RENEWALS_PER_LEASE:
                    asked = clock()
                    await self._jobs.renew(job_id, seconds)
                    renewed = asked
                if self._jobs.instance.is_shared and await self._jobs.is_cancel_asked(job_id):
                    work.cancelled.set()
            except LeaseLost:
                raise
            except HeddleError as error:
                logger.warning("the lease of job %s was not renewed: %s", job_id, error)
                if self._jobs.instance.is_shared and clock() - renewed > seconds:
                    raise LeaseLost(job_id) from error

    async def _do(self, slot: Slot, work: Work) -> None:
        """Bring a job to its end."""
        job = work.job
        model = await self._models.find(job.model_id)
        if model is None:
            await self._jobs.update(job.id, payload="")  # it came in while its model was being deleted
            await self._end(None, job, FAILED, "the model was deleted")
            return
        if job.state != PUBLISHING:
            result = await self._train(slot, model, work)
            if isinstance(result, Stopped):
                await self._end(model, work.job, CANCELLED, CANCELLED_MESSAGE)
                return
            if isinstance(result, Failed):
                await self._end(model, work.job, FAILED, result.message)
                return
            await self._jobs.update(job.id, state=PUBLISHING, metrics=result.metrics)
            work.job = replace(work.job, state=PUBLISHING, metrics=result.metrics)
        self._figures.ended(await self.publisher.publish(model, work.job, work.cancelled))

    async def _train(self, slot: Slot, model: ModelRow, work: Work) -> Finished | Failed | Stopped:
        """Attempts, until one has a result or too many in a row had no progress."""
        attempts = work.job.attempts
        while not work.cancelled.is_set():
            try:
                await self._fix_steps(model, work)
                return await slot.attempt(work, await self._builder.build(model, work.job))
            except Impossible as error:
                return Failed(str(error))
            except (HeddleError, OSError):
                raise  # the server's own, and temporary
            except Exception as error:
                if not isinstance(error, ProcessEnded):
                    logger.exception("job %s", work.job.id)  # a fault of ours, which must not hold up the others
                attempts = 0 if work.has_progress else attempts + 1
                self._figures.lost()
                logger.warning("job %s: %s (attempts without progress: %d)", work.job.id, error, attempts)
                await self._jobs.update(work.job.id, attempts=attempts)
                if attempts >= self._settings.training_attempts:
                    return Failed(f"{_named(error)}; {attempts} attempts ended without progress")
        return Stopped()

    async def _fix_steps(self, model: ModelRow, work: Work) -> None:
        """Write down, once, from which step a job starts and which one it makes."""
        if work.job.step is not None:
            return
        parent, step = await self._builder.first_steps(model)
        await asyncio.to_thread(folders.remove, self._data / folders.checkpoint_folder(model.id, step))
        await self._jobs.update(work.job.id, parent_step=parent, step=step)
        work.job = replace(work.job, parent_step=parent, step=step)

    async def _end(self, model: ModelRow | None, job: JobRow, state: str, error: str) -> None:
        self._figures.ended(await self.publisher.end(model, job, state, error))

    async def _sweep(self) -> None:
        """Remove folders that no checkpoint and no open job names."""
        kept: set[str] = set()
        for model in await self._models.all():
            kept.update(row.folder for row in await self._models.checkpoints(model.id))
        for job in await self._jobs.open():
            kept.add(folders.work_folder(job.model_id, job.id))
            if job.step is not None:
                kept.add(folders.checkpoint_folder(job.model_id, job.step))
        # Another server may be about to name what it has just made.
        age = OLD_SECONDS if self._jobs.instance.is_shared else 0.0
        removed = await asyncio.to_thread(folders.sweep, self._data, kept, age)
        if removed:
            logger.info("%d folders of training that nothing names were removed", len(removed))


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, ProcessEnded) else f"the server failed: {type(error).__name__}: {error}"


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False when the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
