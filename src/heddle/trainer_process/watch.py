"""Jobs from a folder that servers share with this machine: take one, do it, say what happens in its files."""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from heddle.trainer_process.task import Trainer, crashed, perform, take_part
from heddle.training import handover
from heddle.training.base import Task
from heddle.training.queue.messages import Answer, Beat, encode

LOOK_SECONDS = 0.5


class HandedJob:
    """The files of a job that this process took; a context manager that sends heartbeats meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.task = handover.read(folder)
        self._folder = folder
        self._work = Path(self.task.work)
        self._sending = threading.Lock()
        self._is_over = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def say(self, message: Answer) -> None:
        """Append a message; nobody hears it when the server has withdrawn the job."""
        with (
            self._sending,
            contextlib.suppress(FileNotFoundError),
            (self._folder / handover.MESSAGES).open("ab") as file,
        ):
            file.write(encode(message))

    def is_cancelled(self) -> bool:
        """True when the server wants the job to stop, has withdrawn it, or has ended it."""
        is_wanted = (self._folder / handover.TASK).exists() and self._work.is_dir()
        return not is_wanted or (self._folder / handover.CANCEL).exists()

    def _beat(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            seconds = float((self._folder / handover.BEAT).read_text(encoding="ascii"))
            while not self._is_over.wait(seconds):
                self.say(Beat())

    def __enter__(self) -> "HandedJob":
        self._beating.start()
        self.say(Beat())
        return self

    def __exit__(self, *failure: object) -> None:
        self._is_over.set()
        self._beating.join()


def watch(root: Path, jobs: int, trainer: Trainer) -> None:
    """Do `jobs` jobs (0: all that ever come) of a folder, together with the other ranks."""
    counted: Iterable[int] = range(jobs) if jobs else itertools.count()
    for _ in counted:
        if trainer.rank:
            take_part(_shared(trainer, None), trainer)
        else:
            _do_next(root, trainer)
    trainer.leave()


def _do_next(root: Path, trainer: Trainer) -> None:
    folder = _wait(functools.partial(handover.claim, root))
    with HandedJob(folder) as job:
        try:
            perform(_shared(trainer, job.task), trainer, job.say, job.is_cancelled)
        except Exception as error:
            job.say(crashed(error))
            raise


def _shared(trainer: Trainer, task: Task | None) -> Task:
    request = trainer.share(task)
    assert isinstance(request, Task)
    return request


def _wait(look: Callable[[], Path | None]) -> Path:
    """What is found at last; the folder itself may come later, too."""
    while (found := look()) is None:
        time.sleep(LOOK_SECONDS)
    return found
