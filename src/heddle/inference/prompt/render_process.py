"""A process that renders the templates of requests, so that none can hold up or fill up the server.

`python -m heddle.inference.prompt.render_process` reads one JSON line per job and answers one JSON line. It dies of
more work than the job allows and cannot take more than MEMORY_BYTES; the server then starts another.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from heddle.inference.prompt.render_job import Rendered, RenderJob, TemplateFailed

CPU_SECONDS = 2.0
WALL_SECONDS = 60.0
"""Only for a machine that gives the process no time at all; work is limited by CPU_SECONDS."""
MEMORY_BYTES = 1 << 30
MAX_PROCESSES = 2


class RenderProcesses:
    """Renders in child processes: at most MAX_PROCESSES at once, one kept for the next job."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._turn = threading.BoundedSemaphore(MAX_PROCESSES)
        self._idle: list[subprocess.Popen[bytes]] = []

    def render(self, job: RenderJob) -> Rendered:
        """As `render.render`; blocks. TemplateFailed also for too much time or memory."""
        with self._turn:
            process = self._take()
            answer = _ask(process, job, self._cpu_seconds)
            if answer is None or self._idle:
                _end(process)
            else:
                self._idle.append(process)
        if answer is None:
            raise TemplateFailed(f"the chat template needs more than {self._cpu_seconds:g} s or too much memory")
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return Rendered(answer["text"], frozenset(answer["names"]))

    def close(self) -> None:
        """End the process that waits for the next job."""
        with suppress(IndexError):
            while True:
                _end(self._idle.pop())

    def _take(self) -> subprocess.Popen[bytes]:
        try:
            return self._idle.pop()
        except IndexError:
            return _start()


def _start() -> subprocess.Popen[bytes]:
    # nothing of the server's environment (keys) is handed on
    environment = {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=os.sep,
    )


def _ask(process: subprocess.Popen[bytes], job: RenderJob, cpu_seconds: float) -> dict[str, Any] | None:
    """The answer to a job; None when the process died of it."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(WALL_SECONDS, process.kill)
    timer.start()
    try:
        process.stdin.write(json.dumps({"job": asdict(job), "cpu_seconds": cpu_seconds}).encode() + b"\n")
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


def main() -> None:
    """Answer jobs until the input ends."""
    import resource
    import signal

    from heddle.inference.prompt.render import render

    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_seconds"])
        try:
            rendered = render(RenderJob(**asked["job"]))
            answer = {"text": rendered.text, "names": sorted(rendered.names)}
        except TemplateFailed as error:
            answer = {"error": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
