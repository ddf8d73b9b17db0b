"""Work that others wrote (templates, patterns, schemas, grammars), done in a process that may die of it.

A module of ours that calls `answer_jobs` reads one JSON line per job and answers one JSON line. It dies of more work
than the job allows and cannot take more than MEMORY_BYTES; `BoundedProcesses` then starts another, and refuses the job
that ended it from then on.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

import orjson

from heddle import aio
from heddle.errors import Unavailable
from heddle.wire.jsontypes import Json

OWNER: ContextVar[str] = ContextVar("owner", default="")
"""For whom the request or job at hand is done: its work waits behind that owner's other work only."""


class FairSemaphore:
    """So many places. One owner never has all of them, and the owners who wait are served one after the other."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._most = max(1, places - 1)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Future[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self) -> "Future[str]":
        """Done with the owner's name when there is a place, which must be released."""
        owner, future = OWNER.get(), Future[str]()
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(future)
            self._serve()
        return future

    def release(self, owner: str) -> None:
        """A place of the owner is free again."""
        with self._lock:
            self._free += 1
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
            self._serve()

    def _serve(self) -> None:
        for owner in list(self._waiting):
            if not self._free or self._held[owner] >= self._most:
                continue
            queue = self._waiting.pop(owner)
            while queue:
                future = queue.popleft()
                if future.set_running_or_notify_cancel():
                    self._free -= 1
                    self._held[owner] += 1
                    future.set_result(owner)
                    break
            if queue:
                self._waiting[owner] = queue


CPU_SECONDS = 2.0
WALL_SECONDS = 60.0
"""Only for a machine that gives the process no time at all; work is limited by CPU_SECONDS."""
MEMORY_BYTES = 1 << 30
MAX_PROCESSES = 2
MOST_REFUSED = 10_000
"""Jobs and programs that ended a process, by digest; the oldest are forgotten first."""
MOST_ENDED = 3
"""Processes that a program may end with one input or another."""
T = TypeVar("T")
_all: WeakSet["BoundedProcesses"] = WeakSet()


class TooMuchWork(Exception):
    """A job that needs more than its process may take, or crashed it."""


class BoundedProcesses:
    """Children that run one module."""

    def __init__(
        self,
        module: str,
        cpu_seconds: float = CPU_SECONDS,
        kept_bytes: int = 0,
        *,
        wall_seconds: float = WALL_SECONDS,
        at_once: int = MAX_PROCESSES,
        most_idle: int = 1,
    ) -> None:
        """`kept_bytes` of answers are remembered: for work that is asked for again and again.

        At most `at_once` processes work, and `most_idle` (0 or 1) wait for the next job; 0 CPU seconds are no limit.
        """
        self.cpu_seconds = cpu_seconds
        self.started = self.refused = 0
        """Processes since the beginning, and jobs that ended one or had done so before."""
        self._module = module
        self._wall_seconds = wall_seconds
        self._most_idle = most_idle
        self._places = FairSemaphore(at_once)
        # Threads of its own: those that wait for a process must not be the ones that the rest of the server needs.
        self._threads = ThreadPoolExecutor(at_once, module.rpartition(".")[2])
        self._turn_of_thread = threading.local()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._at_work: set[_Turn] = set()
        self._answers = _Answers(kept_bytes)
        self._ended: OrderedDict[bytes, int] = OrderedDict()
        """How many processes a job or a program ended, by digest."""
        _all.add(self)

    async def answer(self, job: Json, program: Any = None) -> Json:
        """The answer to a job; raises TooMuchWork. Its process ends when the caller is cancelled.

        `program` is what of the job comes with other inputs, too: where that ended several processes it is refused.
        """
        made = _Job.of(job, program, OWNER.get())
        known = self._known(made)
        return known if known is not None else await self.run(self._answer, made)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function that asks, in a thread of these processes and when it is its owner's turn."""
        future = self._places.acquire()
        try:
            owner = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                self._places.release(future.result())
            raise
        turn = _Turn(owner)
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._in_turn, turn, work, arguments)
        try:
            return await aio.shield(done)
        except asyncio.CancelledError:
            turn.end()
            raise

    def ask(self, job: Json, program: Any = None) -> Json:
        """As `answer`, for threads: it blocks."""
        now = getattr(self._turn_of_thread, "now", None)
        made = _Job.of(job, program, OWNER.get() if now is None else now.owner)
        known = self._known(made)
        if known is not None:
            return known
        if now is not None:
            return self._answer(made)
        turn = _Turn(self._places.acquire().result())
        return self._in_turn(turn, self._answer, (made,))

    def close(self) -> None:
        """End the processes; who waits for an answer gets TooMuchWork."""
        for turn in list(self._at_work):
            turn.end()
        with suppress(IndexError):
            while True:
                _end(self._idle.pop())

    def _in_turn(self, turn: "_Turn", work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        self._turn_of_thread.now = turn
        self._at_work.add(turn)
        try:
            return work(*arguments)
        finally:
            self._at_work.discard(turn)
            self._turn_of_thread.now = None
            self._places.release(turn.owner)

    def _known(self, job: "_Job") -> Json | None:
        """The answer that was given before; raises TooMuchWork for a job that ended a process."""
        if job.digest in self._ended or self._ended.get(job.program, 0) >= MOST_ENDED:
            self.refused += 1
            raise TooMuchWork(f"{self._limits()}, as in an earlier attempt")
        return self._answers.find(job.digest)

    def _answer(self, job: "_Job") -> Json:
        # The one before may have been the same job.
        known = self._known(job)
        if known is not None:
            return known
        process, turn = self._take(), self._turn_of_thread.now
        answer = turn.ask(process, self.cpu_seconds, self._wall_seconds, job.line)
        if answer is None or turn.is_ended or len(self._idle) >= self._most_idle:
            _end(process)
        else:
            self._idle.append(process)
        if answer is None:
            if not turn.is_ended:
                self.refused += 1
                for digest in (job.digest, job.program):
                    self._ended[digest] = self._ended.get(digest, 0) + 1
                while len(self._ended) > MOST_REFUSED:
                    self._ended.popitem(last=False)
            raise TooMuchWork(self._limits())
        self._answers.keep(job.digest, answer)
        made: Json = json.loads(answer)
        return made

    def _limits(self) -> str:
        return f"needs more than {self.cpu_seconds:g} s or too much memory"

    def _take(self) -> subprocess.Popen[bytes]:
        with suppress(IndexError):
            process = self._idle.pop()
            if process.poll() is None:
                return process
            _end(process)
        self.started += 1
        try:
            return _start(self._module)
        except OSError as error:
            raise Unavailable(f"The server cannot start a process for this work: {error.strerror}") from error


class _Turn:
    """One place at work: the process that it asks may be ended from another thread."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_ended = False
        """The process was ended for another reason than its work."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def end(self) -> None:
        """End the process at work, now or as soon as there is one."""
        with self._lock:
            self.is_ended = True
            if self._process is not None:
                self._process.kill()

    def ask(
        self, process: subprocess.Popen[bytes], cpu_seconds: float, wall_seconds: float, line: bytes
    ) -> bytes | None:
        """The line that answers a job's; None when the process ended."""
        assert process.stdin is not None and process.stdout is not None
        self._take(process)
        timer = threading.Timer(wall_seconds, self.end)
        timer.start()
        try:
            process.stdin.write(b"%f\n" % cpu_seconds + line + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            timer.cancel()
            self._take(None)
        return answer if answer.endswith(b"\n") else None

    def _take(self, process: subprocess.Popen[bytes] | None) -> None:
        with self._lock:
            self._process = process
            if process is not None and self.is_ended:
                process.kill()


class _Answers:
    """The answers of late, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._room = most_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> Json | None:
        """The answer to a job, where it is still there."""
        with self._lock:
            answer = self._kept.get(digest)
            if answer is None:
                return None
            self._kept.move_to_end(digest)
        made: Json = json.loads(answer)
        return made

    def keep(self, digest: bytes, answer: bytes) -> None:
        """Remember an answer, unless there is no room for it at all."""
        with self._lock:
            if digest in self._kept or len(answer) > self._most:
                return
            self._kept[digest] = answer
            self._room -= len(answer)
            while self._room < 0:
                self._room += len(self._kept.popitem(last=False)[1])


def close_all() -> None:
    """End every process; what they are at is given up."""
    for processes in list(_all):
        processes.close()


def figures() -> dict[str, float]:
    """For /metrics: processes that were started, and jobs that were refused because they ended one."""
    every = list(_all)
    return {
        "processes": sum(processes.started for processes in every),
        "refusals": sum(processes.refused for processes in every),
    }


class _Job(NamedTuple):
    digest: bytes
    line: bytes
    program: bytes
    """A digest of what comes with other inputs, too, and of its owner: others may have harmless inputs for the same."""

    @classmethod
    def of(cls, job: Json, program: Any, owner: str) -> "_Job":
        line = _encoded(job)
        shared = line if program is None else _encoded({"owner": owner, "program": program})
        return cls(_digest(line), line, _digest(shared))


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=20).digest()


def _encoded(job: Json) -> bytes:
    try:
        return orjson.dumps(job)
    except TypeError:  # half surrogates, integers beyond 64 bits
        try:
            return json.dumps(job).encode()
        except RecursionError:
            raise TooMuchWork("is nested too deeply") from None


def _start(module: str) -> subprocess.Popen[bytes]:
    # nothing of the server's environment (keys) is handed on
    environment = {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=os.sep,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()


def answer_jobs(
    answer: Callable[[Json], Json],
    prepare: Callable[[Json], None] | None = None,
    stack_bytes: int = 0,
    work_bytes: int = 0,
    *,
    is_limited: bool = True,
) -> None:
    """For the module that does the work: answer jobs until the input ends.

    `prepare` is called with a job before its time begins to count. `stack_bytes` is the stack that the work may use,
    at most a quarter of a main thread's; 0 for the main thread itself. `work_bytes` is the memory that a job may take
    beyond what the process has then; 0 for as much as MEMORY_BYTES allows. A process that is not
    `is_limited` may take any memory, and write files.
    """
    import resource
    import signal

    if is_limited:
        with suppress(ValueError, OSError):  # not every system has this limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    if not stack_bytes:
        _answer_lines(answer, prepare, work_bytes)
        return
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    threading.stack_size(stack_bytes if limit < 0 else min(stack_bytes, limit // 4))
    worker = threading.Thread(target=_answer_lines, args=(answer, prepare, work_bytes))
    worker.start()
    worker.join()


def _answer_lines(answer: Callable[[Json], Json], prepare: Callable[[Json], None] | None, work_bytes: int) -> None:
    import signal

    for seconds in sys.stdin.buffer:
        job = json.loads(sys.stdin.buffer.readline())
        if prepare is not None:
            _limit_data(0)
            prepare(job)
        _limit_data(work_bytes)
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        made = answer(job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(made).encode() + b"\n")
        sys.stdout.buffer.flush()


def _limit_data(more_bytes: int) -> None:
    """Let the process take so much memory beyond what it has now; 0 for any. Only Linux tells what that is."""
    import resource

    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        soft = pages * resource.getpagesize() + more_bytes if more_bytes else hard
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
