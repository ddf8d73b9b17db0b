"""One attempt at a job in a training process that is kept for the next job."""

import asyncio
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(slots=True)
class Work:
    """A job that a slot has taken."""

    job: JobRow
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the slot has nothing more to do with the job."""
    has_progress: bool = False
    """The attempt that runs did a gradient step that none before it did."""


class Slot:
    """A place for one job at a time, with its process; `wake` is set when there may be work, `to_warm` for what."""

    def __init__(self, number: int, options: ProcessOptions, log: EventLog, figures: TrainingMetrics) -> None:
        self.name = f"slot-{number}"
        self.wake = asyncio.Event()
        self.work: Work | None = None
        self.to_warm: Warm | None = None
        self._options = options
        self._log = log
        self._figures = figures
        self._process: TrainingProcess | HandedOver | None = None

    @property
    def pid(self) -> int | None:
        """The process that is alive, working or warm."""
        return self._process.pid if self._process is not None else None

    async def attempt(self, work: Work, task: Task) -> Finished | Failed | Stopped:
        """Let a process do the task, and write down what it reports. Raises ProcessEnded."""
        work.has_progress = False
        await asyncio.to_thread(_prepare, task)
        process = await self._ready()
        canceller = asyncio.create_task(_give_up_when_cancelled(work, process))
        is_clean = False
        try:
            process.send(task)
            result = await self._listen(work, process)
            is_clean = True
            return result
        except ProcessEnded:
            if work.cancelled.is_set():
                return Stopped()
            raise
        finally:
            canceller.cancel()
            if not is_clean:
                await self.close()

    async def prepare(self) -> None:
        """Start a process for a base model that will be trained soon, if there is none."""
        warm, self.to_warm = self.to_warm, None
        if warm is not None and self._process is None:
            try:
                (await self._ready()).warm(warm)
            except ProcessEnded as error:
                logger.warning("%s", error)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    async def _ready(self) -> TrainingProcess | HandedOver:
        """The process that is there, or a new one. Raises ProcessEnded."""
        if self._process is not None and self._process.has_ended:
            await self.close()
        if self._process is None:
            kind = HandedOver if self._options.handover is not None else TrainingProcess
            self._process = await kind.start(self._options)
        return self._process

    async def _listen(self, work: Work, process: TrainingProcess | HandedOver) -> Finished | Failed | Stopped:
        job_id = work.job.id
        while True:
            message = await process.receive()
            if isinstance(message, Finished | Failed | Stopped):
                return message
            if isinstance(message, Started):
                if await self._log.started(job_id, message):
                    self._figures.started(message.data)
            elif isinstance(message, Stepped) and await self._log.stepped(job_id, message):
                work.has_progress = True
                self._figures.stepped(message.data)


async def _give_up_when_cancelled(work: Work, process: TrainingProcess | HandedOver) -> None:
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
