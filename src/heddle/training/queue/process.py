"""Training processes of this machine, workers of others, and the slot that keeps one for the next job."""

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heddle.ipc.child import Child, find_socket_parent
from heddle.ipc.rpc import Connection, FrameTooLarge
from heddle.jobs.runner import Attempt
from heddle.store.control.training import JobRow
from heddle.store.data_folder import explain_disk
from heddle.training import handover
from heddle.training.messages import (
    Answer,
    Beat,
    Cancel,
    Crashed,
    Failed,
    Finished,
    Operation,
    Request,
    Started,
    Stepped,
    Stopped,
    Task,
    Warm,
    decode,
)
from heddle.training.queue.events import EventLog, TrainingMetrics

logger = logging.getLogger("heddle.training")

MODULE = "heddle.trainer_process"
_FOLDER = "heddle-training-"
TORCHRUN = "torch.distributed.run"
START_SECONDS = 120.0
"""How long the interpreter (and torchrun) may take until the process says its first word."""
BEATS_PER_LEASE = 6
MESSAGE_BYTES = 128 << 20
"""Of the outputs of one request of Tinker's protocol."""
KILLED_RANK = re.compile(r"\s*exitcode\s*:\s*-9\b")
CONNECT_LOOK_SECONDS = 0.05
GRACE_SECONDS = 1.0
"""For what came while this server itself stood still."""
ENVIRONMENT = {
    "KMP_BLOCKTIME": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Threads that wait do not spin: the engine computes on the same cores. What a gradient step allocates is kept for the
next one: to map and zero it anew each time costs a tenth of the step. What the environment says goes first."""


class ProcessEnded(Exception):
    """The process died, fell silent or could not be started; the text says how."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How training processes are started."""

    ranks: int = 1
    """Processes of one job; above 1 torchrun starts them."""
    silence: float = 30.0
    """Seconds without a word after which the process is killed."""
    module: str = MODULE
    """What is run; tests give another."""
    handover: Path | None = None
    """Where jobs are offered to workers that somebody else starts; None is processes of this machine."""

    def arguments(self, socket: Path) -> list[str]:
        """What follows `python -P -m`."""
        own = [str(socket), "--beat", f"{self.silence / BEATS_PER_LEASE:g}"]
        if self.ranks == 1:
            return [self.module, *own]
        many = ["--standalone", "--nproc-per-node", str(self.ranks), "-m"]
        return [TORCHRUN, *many, self.module, *own]


class TrainingProcess(Connection):
    """One process, which does one task after the other and keeps its model between them."""

    def __init__(self, child: Child, options: ProcessOptions) -> None:
        super().__init__(MESSAGE_BYTES)
        self._child = child
        self._options = options
        self._messages: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._crash: Crashed | None = None

    @classmethod
    async def start(cls, options: ProcessOptions) -> "TrainingProcess":
        """Start a process and wait until it has connected. Raises ProcessEnded; cancelling ends the process."""
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=find_socket_parent(_FOLDER)))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(folder / "socket"))
                listener.listen()
                listener.setblocking(False)
                arguments = options.arguments(folder / "socket")
                child = Child("the training process", arguments, logger, environment=ENVIRONMENT)
                connection = await _accept(listener, child)
            loop = asyncio.get_running_loop()
            _, process = await loop.connect_accepted_socket(lambda: cls(child, options), connection)
        except OSError as error:
            raise ProcessEnded(f"the training process cannot be started: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return process

    @property
    def pid(self) -> int:
        """The process id; of torchrun where it is used."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """True for a process that died while it had nothing to do."""
        return self._child.has_ended or not self.is_open

    def give_up(self, job_id: str) -> None:
        """Ask it to stop a task between two gradient steps; it answers `Stopped`, or ends the task all the same."""
        self.send(Cancel(job_id))

    def kill(self) -> None:
        """End it at once; `receive` then raises ProcessEnded."""
        self._child.kill()

    async def receive(self) -> Answer:
        """The next message that is no heartbeat; raises ProcessEnded when the process is dead or silent.

        Where its disk failed it: StorageFull or Unavailable.
        """
        while True:
            message = await self._next()
            if isinstance(message, Crashed):
                self._crash = message
            elif not isinstance(message, Beat):
                return message

    async def close(self) -> None:
        """End the process and collect it."""
        if self._options.ranks > 1:
            # Ranks die with torchrun, which otherwise reports at length that they ended.
            self._child.kill()
        self.abort()
        await asyncio.to_thread(self._child.end)

    def handle_message(self, message: Any) -> None:
        """A message."""
        self._messages.put_nowait(message)

    def handle_end(self, error: Exception | None) -> None:
        """The process has hung up, or said something that nobody can read."""
        if self._crash is None and isinstance(error, FrameTooLarge):
            self._crash = Crashed(str(error))
        self._messages.put_nowait(None)

    async def _next(self) -> Answer:
        for seconds in (self._options.silence, GRACE_SECONDS):
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(self._messages.get(), seconds)
                if message is not None:
                    return message
                await self.close()
                raise self._how_it_ended()
        self._child.kill()
        await self.close()
        raise ProcessEnded(f"the training process did not respond for {self._options.silence:g} s")

    def _how_it_ended(self) -> Exception:
        """What `receive` raises; torchrun tells of a killed rank in its log only."""
        if self._crash is not None:
            return _explain("the training process", self._crash)
        if self._options.ranks > 1 and any(KILLED_RANK.match(line) for line in self._child.last_lines):
            killed = "a rank of the training process was killed (signal 9); perhaps the system ran out of memory"
            return ProcessEnded(killed)
        return ProcessEnded(self._child.how_it_ended())


def _explain(who: str, crash: Crashed) -> Exception:
    """What a crash means: that of a full disk passes by itself, and costs no attempt."""
    known = None if crash.errno is None else explain_disk(OSError(crash.errno, os.strerror(crash.errno)))
    return known or ProcessEnded(f"{who} failed: {crash.reason}")


async def _accept(listener: socket.socket, child: Child) -> socket.socket:
    """Wait for the child's connection; raises ProcessEnded when it ends or takes too long."""
    accepting = asyncio.create_task(asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), START_SECONDS))
    try:
        while not accepting.done() and not child.has_ended:
            await asyncio.wait([accepting], timeout=CONNECT_LOOK_SECONDS)
        if accepting.done():
            return accepting.result()[0]
        reason = None
    except TimeoutError:
        reason = f"the training process did not connect within {START_SECONDS:g} s"
    finally:
        if not accepting.done() or accepting.exception():
            accepting.cancel()
            child.kill()
            await asyncio.to_thread(child.end)
    raise ProcessEnded(reason or child.how_it_ended())


LOOK_SECONDS = 0.2


class HandedOver:
    """Whatever worker takes the next job; as a process it is the same to its slot as one of this machine."""

    has_ended = False
    pid = None

    def __init__(self, root: Path, silence: float) -> None:
        self._root = root
        self._silence = silence
        self._task: Task | None = None
        self._folder: Path | None = None
        self._lines: deque[bytes] = deque()
        self._read = 0
        self._rest = b""
        self._is_given_up = self._is_killed = False

    def send(self, request: Request) -> None:
        """Give out a task; it is offered, and its messages come, through `receive`. Workers are not warmed."""
        self._task = request if isinstance(request, Task) else None

    def give_up(self, job_id: str) -> None:
        """Ask for the end of the task between two gradient steps."""
        self._is_given_up = self._task is not None and self._task.job_id == job_id

    def kill(self) -> None:
        """Take the task away: the worker stops as soon as it notices."""
        self._is_killed = True

    async def receive(self) -> Answer:
        """The next message that is no heartbeat; raises ProcessEnded when the worker crashed or fell silent."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            while self._lines:
                heard = clock()
                answer = decode(self._lines.popleft())
                if isinstance(answer, Crashed):
                    await self.close()
                    raise _explain("the worker", answer)
                if isinstance(answer, Finished | Failed | Stopped):
                    await self.close()
                if not isinstance(answer, Beat):
                    return answer
            is_taken = await asyncio.to_thread(self._look)
            if self._is_killed or (is_taken and not self._lines and clock() - heard > self._silence):
                await self.close()
                raise ProcessEnded(f"the worker did not respond for {self._silence:g} s")
            if not self._lines:
                heard = heard if is_taken else clock()
                await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Withdraw what is not done."""
        folder, self._folder, self._task = self._folder, None, None
        self._is_given_up = self._is_killed = False
        if folder is not None:
            await asyncio.to_thread(handover.withdraw, folder)

    def _look(self) -> bool:
        """Read what is new; True once a worker has taken the task."""
        if self._folder is None:
            assert self._task is not None
            self._folder = handover.offer(self._root, self._task, self._silence / BEATS_PER_LEASE)
            self._lines.clear()
            self._read, self._rest = 0, b""
        if self._is_given_up:
            (self._folder / handover.CANCEL).touch()
        if not (self._folder / handover.TAKEN).exists():
            return False
        try:
            with (self._folder / handover.MESSAGES).open("rb") as file:
                file.seek(self._read)
                news = file.read()
        except FileNotFoundError:
            return True
        self._read += len(news)
        *lines, self._rest = (self._rest + news).split(b"\n")
        self._lines.extend(lines)
        return True


GIVE_UP_SECONDS = 5.0
"""How long a process may take to stop between two gradient steps before it is killed."""


class Slot:
    """A place for one job at a time, with its process, which is kept for `idle` seconds (0: not at all)."""

    def __init__(self, options: ProcessOptions, idle: float, log: EventLog, metrics: TrainingMetrics) -> None:
        self.is_busy = False
        self.has_progress = False
        """The attempt that runs did a gradient step that none before it did."""
        self._options = options
        self._idle = idle
        self._log = log
        self._metrics = metrics
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

    async def ask(self, operation: Operation) -> Answer:
        """Let the process do one operation. Raises ProcessEnded; cancelling ends the process."""
        try:
            process = await self._ready()
            process.send(operation)
            return await process.receive()
        except BaseException:
            await self._end()
            raise

    def warm(self, warm: Warm) -> None:
        """Start a process for a base model that will be trained soon."""
        self._warming = asyncio.create_task(self._warm(warm))

    async def _warm(self, warm: Warm) -> None:
        try:
            (await self._ready()).send(warm)
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
                if self._options.handover is not None:
                    self._process = HandedOver(self._options.handover, self._options.silence)
                else:
                    self._process = await TrainingProcess.start(self._options)
            return self._process

    async def _listen(self, job_id: str, process: TrainingProcess | HandedOver) -> Finished | Failed | Stopped:
        while True:
            message = await process.receive()
            if isinstance(message, Finished | Failed | Stopped):
                return message
            if isinstance(message, Started):
                if await self._log.started(job_id, message):
                    self._metrics.count_tokens(message.data)
            elif isinstance(message, Stepped) and await self._log.stepped(job_id, message):
                self.has_progress = True
                self._metrics.stepped(message.data)


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
    (work / handover.TASK).write_text(json.dumps(asdict(task), indent=2), encoding="utf-8")
