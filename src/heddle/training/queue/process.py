"""The server's side of a training process: start it, talk to it over a private socket, notice its silence or end."""

import asyncio
import contextlib
import logging
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from heddle.children import Child
from heddle.training.base import Task
from heddle.training.queue.messages import Answer, Beat, Crashed, Warm, decode, encode_cancel, encode_task, encode_warm

logger = logging.getLogger("heddle.training")

MODULE = "heddle.worker"
TORCHRUN = "torch.distributed.run"
START_SECONDS = 120.0
"""How long the interpreter (and torchrun) may take until the process says its first word."""
BEATS_PER_LEASE = 6
LINE_BYTES = 8 << 20
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


class TrainingProcess:
    """One process, which does one task after the other and keeps its model between them."""

    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, options: ProcessOptions
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self._options = options
        self._reason: str | None = None

    @classmethod
    async def start(cls, options: ProcessOptions) -> "TrainingProcess":
        """Start a process and wait until it has connected. Raises ProcessEnded; cancelling ends the process."""
        folder = Path(tempfile.mkdtemp(prefix="heddle-training-"))
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connected = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if connected.done():
                writer.close()
            else:
                connected.set_result((reader, writer))

        try:
            server = await asyncio.start_unix_server(accept, folder / "socket", limit=LINE_BYTES)
            try:
                child = Child(
                    "the training process", options.arguments(folder / "socket"), logger, environment=ENVIRONMENT
                )
                reader, writer = await _connected(child, connected)
            finally:
                server.close()
        except OSError as error:
            raise ProcessEnded(f"the training process cannot be started: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return cls(child, reader, writer, options)

    @property
    def pid(self) -> int:
        """The process id; of torchrun where it is used."""
        return self._child.pid

    def send(self, task: Task) -> None:
        """Give it a task; its messages come through `receive`."""
        self._writer.write(encode_task(task))

    def warm(self, warm: Warm) -> None:
        """Let it prepare; it says nothing to that."""
        self._writer.write(encode_warm(warm))

    @property
    def has_ended(self) -> bool:
        """True for a process that died while it had nothing to do."""
        return self._child.has_ended or self._reader.at_eof()

    def give_up(self, job_id: str) -> None:
        """Ask it to stop a task between two gradient steps; it answers `Stopped`, or ends the task all the same."""
        with contextlib.suppress(OSError):
            self._writer.write(encode_cancel(job_id))

    def kill(self) -> None:
        """End it at once; `receive` then raises ProcessEnded."""
        self._child.kill()

    async def receive(self) -> Answer:
        """The next message that is no heartbeat; raises ProcessEnded when the process is dead or silent."""
        while True:
            line = await self._line()
            if line is None:
                self._child.kill()
                await self.close()
                raise ProcessEnded(f"the training process was silent for {self._options.silence:g} s")
            if not line.endswith(b"\n"):
                await self.close()
                raise ProcessEnded(self._how_it_ended())
            answer = decode(line)
            if isinstance(answer, Crashed):
                self._reason = answer.reason
            elif not isinstance(answer, Beat):
                return answer

    async def close(self) -> None:
        """End the process and collect it."""
        if self._options.ranks > 1:
            # Ranks die with torchrun, which otherwise reports at length that they ended.
            self._child.kill()
        self._writer.transport.abort()
        await _collect(self._child)

    def _how_it_ended(self) -> str:
        """In words; torchrun tells of a killed rank in its log only."""
        if self._reason is not None:
            return f"the training process failed: {self._reason}"
        if self._options.ranks > 1 and any(KILLED_RANK.match(line) for line in self._child.last_lines):
            return "a rank of the training process was killed (signal 9); perhaps the system ran out of memory"
        return self._child.how_it_ended()

    async def _line(self) -> bytes | None:
        """The next line, a part of one (or nothing) at the end of the connection, None after a silence."""
        for seconds in (self._options.silence, GRACE_SECONDS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    try:
                        return await self._reader.readline()
                    except OSError:
                        return b""
                    except ValueError:
                        self._reason = f"it said more than {LINE_BYTES} bytes at once"
                        return b""
        return None


async def _connected(
    child: Child, connected: "asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Wait for the child's connection; raises ProcessEnded when it ends or takes too long."""
    reason = None
    try:
        async with asyncio.timeout(START_SECONDS):
            while not connected.done() and not child.has_ended:
                await asyncio.wait([connected], timeout=LOOK_SECONDS)
    except TimeoutError:
        reason = f"the training process did not connect within {START_SECONDS:g} s"
    finally:
        if not connected.done():
            child.kill()
            await _collect(child)
    if not connected.done():
        raise ProcessEnded(reason or child.how_it_ended())
    return connected.result()


async def _collect(child: Child) -> None:
    await asyncio.get_running_loop().run_in_executor(None, child.end)
