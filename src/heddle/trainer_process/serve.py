"""What a training process does: tasks of the server, of a folder that servers share, or one for a person."""

import argparse
import contextlib
import functools
import itertools
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

from heddle.ipc.child import die_with_parent, log_to_parent
from heddle.ipc.rpc import BlockingConnection
from heddle.training import handover
from heddle.training.messages import (
    Answer,
    Beat,
    Behind,
    Cancel,
    Crashed,
    Failed,
    Finished,
    Message,
    Operation,
    Performed,
    Request,
    Stopped,
    Task,
    Warm,
    drop_non_finite,
    encode,
)
from heddle.training.sequences import TrainingError

_LONGEST_REASON = 2000

Say = Callable[[Answer], None]


class Trainer(Protocol):
    """What does the work; one per process, several processes (ranks) may work on one task together."""

    rank: int

    def share(self, request: Request | None) -> Request:
        """The request that rank 0 gives; the others give None and wait."""

    def leave(self) -> None:
        """Part from the other ranks, where the process ends by itself."""

    def warm(self, warm: Warm) -> None:
        """Read a base model."""

    def perform(self, operation: Operation) -> Performed | Behind | Failed:
        """Do one request of a run of Tinker's protocol."""

    def run(self, task: Task, report: Callable[[Message], None], cancelled: Callable[[], bool]) -> None:
        """Do a whole task and report it; returns early when it is cancelled. Raises TrainingError."""


def perform_task(task: Task, trainer: Trainer, say: Say, cancelled: Callable[[], bool]) -> None:
    """Do a task on rank 0; the last thing said is Finished, Failed or Stopped.

    Raises what is no fault of the task's data.
    """
    has_ended = False

    def report(message: Message) -> None:
        nonlocal has_ended
        has_ended = has_ended or isinstance(message, Finished | Failed)
        say(drop_non_finite(message))

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


def make_crash(error: Exception) -> Crashed:
    """What is said of a failure that is no fault of the task."""
    errno = error.errno if isinstance(error, OSError) else None
    return Crashed(f"{type(error).__name__}: {error}"[:_LONGEST_REASON], errno)


class ServerConnection:
    """Tasks come in, messages go out, heartbeats go by themselves; when the server is gone, the process ends."""

    def __init__(self, path: Path, beat_seconds: float) -> None:
        """Connect to a unix socket; raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        self._connection = BlockingConnection(connection)
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._beat_seconds = beat_seconds
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"connection{work.__name__}", daemon=True).start()

    def next_request(self) -> Request:
        """Wait for work."""
        return self._requests.get()

    def is_cancelled(self, job_id: str) -> bool:
        """True once the server asked to give a job up."""
        return job_id in self._cancelled

    def say(self, message: Answer) -> None:
        """Send a message; it is with the server's kernel when this returns."""
        try:
            self._connection.send(message)
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        try:
            while True:
                for request in self._connection.receive():
                    if isinstance(request, Cancel):
                        self._cancelled.add(request.job_id)
                        continue
                    if isinstance(request, Task):
                        self._cancelled.discard(request.job_id)
                    self._requests.put(request)
        except (OSError, EOFError):
            pass
        finally:
            # In the middle of a step as well: what is durable is enough to go on from.
            os._exit(0)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._beat_seconds):
            self.say(Beat())


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
    for _ in range(jobs) if jobs else itertools.count():
        if trainer.rank:
            task = trainer.share(None)
            assert isinstance(task, Task)
            take_part(task, trainer)
            continue
        while (folder := handover.claim(root)) is None:  # the folder itself may come later, too
            time.sleep(LOOK_SECONDS)
        with HandedJob(folder) as job:
            try:
                trainer.share(job.task)
                perform_task(job.task, trainer, job.say, job.is_cancelled)
            except Exception as error:
                job.say(make_crash(error))
                raise
    trainer.leave()


OOM_SCORE = "800"
"""When memory runs out, the kernel takes this process and not the server; its job goes on from a snapshot."""

Start = Callable[[], Trainer]
"""Imports the trainer, and joins the other ranks."""


def serve(arguments: list[str], start: Start) -> None:
    """Serve a server's socket, do the job of a folder, or watch a folder for jobs."""
    parser = argparse.ArgumentParser(prog="heddle.trainer_process", description=__doc__)
    parser.add_argument("socket", nargs="?", type=Path, help="the server's socket")
    parser.add_argument("--job", type=Path, help="a folder with task.json: do it, print its messages as JSON lines")
    parser.add_argument("--watch", type=Path, help="a folder in which servers offer jobs: DATA/handover")
    parser.add_argument("--jobs", type=int, default=0, help="end after so many jobs of --watch; 0: never")
    parser.add_argument("--beat", type=float, default=5.0, help="seconds between heartbeats")
    options = parser.parse_args(arguments)
    if sum(place is not None for place in (options.socket, options.job, options.watch)) != 1:
        parser.error("give one of a socket, --job FOLDER and --watch FOLDER")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    log_to_parent()
    if options.job is not None:
        sys.exit(_by_hand(options.job, start))
    if options.watch is not None:
        watch(options.watch, options.jobs, start())
        return
    die_with_parent()
    _for_server(options.socket, options.beat, start)


def _for_server(socket: Path, beat: float, start: Start) -> NoReturn:
    """One request after the other, until the server is gone."""
    # Rank 0 connects before the trainer is imported, so that the server hears it at once.
    server = ServerConnection(socket, beat) if os.environ.get("RANK", "0") == "0" else None
    try:
        trainer = start()
        while True:
            request = trainer.share(server.next_request() if server is not None else None)
            if isinstance(request, Warm):
                trainer.warm(request)
            elif isinstance(request, Operation):
                assert server is not None, "ranks train no runs of Tinker's protocol"
                server.say(trainer.perform(request))
            elif server is None:
                take_part(request, trainer)
            else:
                perform_task(request, trainer, server.say, functools.partial(server.is_cancelled, request.job_id))
    except Exception as error:
        if server is not None:
            server.say(make_crash(error))
        raise


def _by_hand(folder: Path, start: Start) -> int:
    """The task of a folder; paths in it are relative to the folder. Returns 1 when the job failed."""
    task = handover.read(folder)
    Path(task.work).mkdir(parents=True, exist_ok=True)
    trainer = start()
    if trainer.rank:
        take_part(task, trainer)
        trainer.leave()
        return 0
    code = 0

    def say(message: Answer) -> None:
        nonlocal code
        code = 1 if isinstance(message, Failed) else code
        sys.stdout.buffer.write(encode(message))
        sys.stdout.buffer.flush()

    perform_task(task, trainer, say, lambda: False)
    trainer.leave()
    return code
