"""The server's side of a training process: start it, talk to it over a private socket, notice its silence or end."""

import asyncio
import contextlib
import logging
import re
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.ipc.child import Child
from heddle.ipc.connection import Connection, FrameTooLarge
from heddle.training.queue.messages import Answer, Beat, Cancel, Crashed, Warm

logger = logging.getLogger("heddle.training")

MODULE = "heddle.trainer_process"
TORCHRUN = "torch.distributed.run"
START_SECONDS = 120.0
"""How long the interpreter (and torchrun) may take until the process says its first word."""
BEATS_PER_LEASE = 6
MESSAGE_BYTES = 8 << 20
KILLED_RANK = re.compile(r"\s*exitcode\s*:\s*-9\b")
LOOK_SECONDS = 0.05
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
        self._reason: str | None = None

    @classmethod
    async def start(cls, options: ProcessOptions) -> "TrainingProcess":
        """Start a process and wait until it has connected. Raises ProcessEnded; cancelling ends the process."""
        loop, folder = asyncio.get_running_loop(), Path(tempfile.mkdtemp(prefix="heddle-training-"))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(folder / "socket"))
                listener.listen()
                listener.setblocking(False)
                arguments = options.arguments(folder / "socket")
                child = Child("the training process", arguments, logger, environment=ENVIRONMENT)
                connection = await _accept(listener, child)
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

    def warm(self, warm: Warm) -> None:
        """Let it prepare; it says nothing to that."""
        self.send(warm)

    def give_up(self, job_id: str) -> None:
        """Ask it to stop a task between two gradient steps; it answers `Stopped`, or ends the task all the same."""
        self.send(Cancel(job_id))

    def kill(self) -> None:
        """End it at once; `receive` then raises ProcessEnded."""
        self._child.kill()

    async def receive(self) -> Answer:
        """The next message that is no heartbeat; raises ProcessEnded when the process is dead or silent."""
        while True:
            message = await self._next()
            if isinstance(message, Crashed):
                self._reason = message.reason
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
        self._reason = self._reason or (str(error) if isinstance(error, FrameTooLarge) else None)
        self._messages.put_nowait(None)

    async def _next(self) -> Answer:
        for seconds in (self._options.silence, GRACE_SECONDS):
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(self._messages.get(), seconds)
                if message is not None:
                    return message
                await self.close()
                raise ProcessEnded(self._how_it_ended())
        self._child.kill()
        await self.close()
        raise ProcessEnded(f"the training process was silent for {self._options.silence:g} s")

    def _how_it_ended(self) -> str:
        """In words; torchrun tells of a killed rank in its log only."""
        if self._reason is not None:
            return f"the training process failed: {self._reason}"
        if self._options.ranks > 1 and any(KILLED_RANK.match(line) for line in self._child.last_lines):
            return "a rank of the training process was killed (signal 9); perhaps the system ran out of memory"
        return self._child.how_it_ended()


async def _accept(listener: socket.socket, child: Child) -> socket.socket:
    """Wait for the child's connection; raises ProcessEnded when it ends or takes too long."""
    accepting = asyncio.create_task(asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), START_SECONDS))
    try:
        while not accepting.done() and not child.has_ended:
            await asyncio.wait([accepting], timeout=LOOK_SECONDS)
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
