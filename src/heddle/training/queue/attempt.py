"""One attempt at a job in a training process that is kept for the next job."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from heddle.jobs.runner import Attempt
from heddle.store.control.jobs import JobRow
from heddle.training import handover
from heddle.training.base import Failed, Finished, Started, Stepped, Task
from heddle.training.queue.events import EventLog
from heddle.training.queue.handed_over import HandedOver
from heddle.training.queue.messages import Stopped, Warm
from heddle.training.queue.metrics import TrainingMetrics
from heddle.training.queue.process import ProcessEnded, ProcessOptions, TrainingProcess

logger = logging.getLogger("heddle.training")

GIVE_UP_SECONDS = 5.0
"""How long a process may take to stop between two gradient steps before it is killed."""


class Slot:
    """A place for one job at a time, with its process, which is kept for `idle` seconds (0: not at all)."""

    def __init__(self, options: ProcessOptions, idle: float, log: EventLog, figures: TrainingMetrics) -> None:
        self.is_busy = False
        self.has_progress = False
        """The attempt that runs did a gradient step that none before it did."""
        self._options = options
        self._idle = idle
        self._log = log
        self._figures = figures
        self._process: TrainingProcess | HandedOver | None = None
        self._changing = asyncio.Lock()
        """Held while a process is started or ended."""
        self._resting: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process that is alive, working or warm."""
        return self._process.pid if self._process is not None else None

    async def attempt(self, work: Attempt[JobRow], task: Task) -> Finished | Failed | Stopped:
        """Let a process do the task, and write down what it reports. Raises ProcessEnded."""
        is_clean = False
        canceller: asyncio.Task[None] | None = None
        try:
            await asyncio.to_thread(_prepare, task)
            process = await self._ready()
            canceller = asyncio.create_task(_give_up_when_cancelled(work, process))
            process.send(task)
            result = await self._listen(work.job.id, process)
            is_clean = True
            return result
        except ProcessEnded:
            if work.cancelled.is_set():
                return Stopped()
            raise
        finally:
            if canceller is not None:
                canceller.cancel()
            if not is_clean:
                await self._end()

    def warm(self, warm: Warm) -> None:
        """Start a process for a base model that will be trained soon."""
        self._warming = asyncio.create_task(self._warm(warm))

    async def _warm(self, warm: Warm) -> None:
        try:
            (await self._ready()).warm(warm)
        except ProcessEnded as error:
            logger.warning("%s", error)
        self.rest()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """The place belongs to a job while the block runs."""
        self.is_busy = True
        self._stop_resting()
        try:
            yield
        finally:
            self.is_busy = False

    def rest(self) -> None:
        """There is no work: the process ends unless some comes in time."""
        if not self.is_busy and self._process is not None and self._resting is None:
            self._resting = asyncio.create_task(self._end_later())

    async def _end_later(self) -> None:
        await asyncio.sleep(self._idle)
        self._resting = None
        await self._end()

    def _stop_resting(self) -> None:
        resting, self._resting = self._resting, None
        if resting is not None:
            resting.cancel()

    async def close(self) -> None:
        """End the process."""
        self._stop_resting()
        if self._warming is not None:
            self._warming.cancel()
        await self._end()

    async def _end(self) -> None:
        async with self._changing:
            process, self._process = self._process, None
            if process is not None:
                await process.close()

    async def _ready(self) -> TrainingProcess | HandedOver:
        """The process that is there, or a new one. Raises ProcessEnded."""
        if self._process is not None and self._process.has_ended:
            await self._end()
        async with self._changing:
            if self._process is None:
                kind = HandedOver if self._options.handover is not None else TrainingProcess
                self._process = await kind.start(self._options)
            return self._process

    async def _listen(self, job_id: str, process: TrainingProcess | HandedOver) -> Finished | Failed | Stopped:
        while True:
            message = await process.receive()
            if isinstance(message, Finished | Failed | Stopped):
                return message
            if isinstance(message, Started):
                if await self._log.started(job_id, message):
                    self._figures.started(message.data)
            elif isinstance(message, Stepped) and await self._log.stepped(job_id, message):
                self.has_progress = True
                self._figures.stepped(message.data)


async def _give_up_when_cancelled(work: Attempt[JobRow], process: TrainingProcess | HandedOver) -> None:
    await work.cancelled.wait()
    process.give_up(work.job.id)
    await asyncio.sleep(GIVE_UP_SECONDS)
    process.kill()


def _prepare(task: Task) -> None:
    """Make the folders that the process writes to; the task lies in its work folder, to be done by hand as well."""
    work = Path(task.work)
    work.mkdir(parents=True, exist_ok=True)
    Path(task.target).parent.mkdir(parents=True, exist_ok=True)
    (work / handover.TASK).write_text(json.dumps(task.as_json(), indent=2), encoding="utf-8")
