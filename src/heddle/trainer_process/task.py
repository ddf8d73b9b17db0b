"""One task of training in this process, whoever gave it: done on rank 0, which reports it, and on the other ranks."""

import contextlib
from collections.abc import Callable
from typing import Protocol

from heddle.training.base import Failed, Finished, Message, Task, TrainingError
from heddle.training.queue.messages import Answer, Crashed, Request, Stopped, Warm, finite

_LONGEST_REASON = 2000

Say = Callable[[Answer], None]


class Trainer(Protocol):
    """What does the work; one per process, several processes (ranks) may work on one task together."""

    rank: int

    def share(self, request: Request | None) -> Request:
        """The request that rank 0 gives; the others give None and wait."""
        ...

    def leave(self) -> None:
        """Part from the other ranks, where the process ends by itself."""
        ...

    def warm(self, warm: Warm) -> None:
        """Read a base model."""
        ...

    def run(self, task: Task, report: Callable[[Message], None], cancelled: Callable[[], bool]) -> None:
        """Do a whole task and report it; returns early when it is cancelled. Raises TrainingError."""
        ...


def perform(task: Task, trainer: Trainer, say: Say, cancelled: Callable[[], bool]) -> None:
    """Do a task on rank 0; the last thing said is Finished, Failed or Stopped.

    Raises what is no fault of the task's data.
    """
    has_ended = False

    def report(message: Message) -> None:
        nonlocal has_ended
        has_ended = has_ended or isinstance(message, Finished | Failed)
        say(finite(message))

    try:
        trainer.run(task, report, cancelled)
    except TrainingError as error:
        report(Failed(str(error)))
    if not has_ended:
        if not cancelled():
            raise RuntimeError("the trainer returned without a result")
        say(Stopped())


def take_part(task: Task, trainer: Trainer) -> None:
    """Do a task on another rank, which says nothing: rank 0 meets the same errors."""
    with contextlib.suppress(TrainingError):
        trainer.run(task, lambda _: None, lambda: False)


def crashed(error: Exception) -> Crashed:
    """What is said of a failure that is no fault of the task."""
    return Crashed(f"{type(error).__name__}: {error}"[:_LONGEST_REASON])
