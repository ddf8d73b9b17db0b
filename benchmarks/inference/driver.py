"""The side of a benchmark that runs inside an engine's own environment: standard library only.

A driver reads one JSON object per line and answers one per line. What the engine prints goes to standard error, so
that it cannot mix with the answers. Times are `perf_counter` seconds; on Linux all processes share that clock.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class Timeline:
    """When which stream got how many tokens, and the CPU seconds of the time in which all streams were decoding.

    The window begins when the last stream has its first token and ends when the first stream has its last.
    """

    def __init__(self, streams: int, tokens: int, pids: Sequence[int]) -> None:
        self.counts = [0] * streams
        self.tokens = tokens
        self.pids = pids
        self.events: list[tuple[float, int, int]] = []
        self.first: list[float | None] = [None] * streams
        self.missing = streams
        self.window: list[float] = []
        self.window_cpu: list[float] = []
        self.cpu = cpu_seconds(pids)
        self.began = time.perf_counter()

    def token(self, stream: int, count: int = 1) -> None:
        """Note that a stream got tokens just now."""
        now = time.perf_counter()
        self.events.append((now - self.began, stream, count))
        self.counts[stream] += count
        if self.first[stream] is None:
            self.first[stream] = now - self.began
            self.missing -= 1
            if not self.missing:
                self.mark(now)
        if 1 < self.tokens <= self.counts[stream] and len(self.window) == 1:
            self.mark(now)

    def mark(self, now: float) -> None:
        """One end of the window."""
        self.window.append(now - self.began)
        self.window_cpu.append(cpu_seconds(self.pids))

    def result(self) -> dict[str, Any]:
        """What the parent computes its figures from."""
        return {
            "wall": time.perf_counter() - self.began,
            "cpu": cpu_seconds(self.pids) - self.cpu,
            "first": self.first,
            "counts": self.counts,
            "window": self.window,
            "window_cpu": self.window_cpu,
            "events": self.events,
        }


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
            for task in tasks:
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    found += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU seconds of all living threads of these processes, in steps of nanoseconds."""
    total = 0
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                    total += int(file.read().split()[0])
        except OSError:
            continue
    return total / 1e9


def serve(handlers: dict[str, Callable[..., Any]]) -> None:
    """Answer commands (`{"do": name, ...}`) until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"answer": handlers[command.pop("do")](**command)}
        except Exception as error:  # the parent prints it and goes on with the other engines
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
