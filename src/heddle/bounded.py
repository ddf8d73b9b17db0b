"""Work that others wrote (templates, patterns, schemas), done in a process that may die of it.

A module of ours that calls `answer_jobs` reads one JSON line per job and answers one JSON line. It dies of more work
than the job allows and cannot take more than MEMORY_BYTES; `BoundedProcesses` then starts another.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CPU_SECONDS = 2.0
WALL_SECONDS = 60.0
"""Only for a machine that gives the process no time at all; work is limited by CPU_SECONDS."""
MEMORY_BYTES = 1 << 30
MAX_PROCESSES = 2
Json = dict[str, Any]


class BoundedProcesses:
    """Children that run one module: at most MAX_PROCESSES at once, one kept for the next job."""

    def __init__(self, module: str, cpu_seconds: float = CPU_SECONDS) -> None:
        self.cpu_seconds = cpu_seconds
        self._module = module
        self._turn = threading.BoundedSemaphore(MAX_PROCESSES)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._at_work: set[subprocess.Popen[bytes]] = set()

    def ask(self, job: Json) -> Json | None:
        """The answer to a job; None when it needs too much time or memory. Blocks."""
        with self._turn:
            process = self._take()
            self._at_work.add(process)
            answer = _ask(process, job, self.cpu_seconds)
            self._at_work.discard(process)
            if answer is None or self._idle:
                _end(process)
            else:
                self._idle.append(process)
        return answer

    def close(self) -> None:
        """End the processes; who waits for an answer gets None."""
        for process in list(self._at_work):
            process.kill()
        with suppress(IndexError):
            while True:
                _end(self._idle.pop())

    def _take(self) -> subprocess.Popen[bytes]:
        try:
            return self._idle.pop()
        except IndexError:
            return _start(self._module)


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


def _ask(process: subprocess.Popen[bytes], job: Json, cpu_seconds: float) -> Json | None:
    """The answer to a job; None when the process died of it."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(WALL_SECONDS, process.kill)
    timer.start()
    try:
        process.stdin.write(json.dumps({"job": job, "cpu_seconds": cpu_seconds}).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    finally:
        timer.cancel()
    return json.loads(line) if line.endswith(b"\n") else None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()


def answer_jobs(answer: Callable[[Json], Json]) -> None:
    """For the module that does the work: answer jobs until the input ends."""
    import resource
    import signal

    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_seconds"])
        made = answer(asked["job"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(made).encode() + b"\n")
        sys.stdout.buffer.flush()
