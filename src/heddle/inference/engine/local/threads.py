"""How many compute threads: as many as help, fewer when they wait for each other.

A step's threads meet at barriers. As soon as another process takes one of the cores, everybody waits for the thread
that stands still, and steps take ten times as long; then fewer threads are faster.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path

WINDOW = 32
"""Steps that are judged together."""
TOO_SLOW = 3.0
"""Mean step over best comparable step, from where on threads are dropped."""
FIRST_PAUSE = 30.0
LONGEST_PAUSE = 600.0
"""Seconds until more threads are tried again; doubles each time that fails."""


def usable_cores() -> int:
    """Cores of this process: its affinity, and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def first_threads(setting: int, dedicated: bool, cores: int) -> int:
    """Threads to begin with: the setting, else all cores of a dedicated machine, else all but one."""
    if setting:
        return setting
    return cores if dedicated else max(1, cores - 1)


class ThreadPolicy:
    """Watches step times and says how many threads to use."""

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.threads = threads
        self.most = threads
        self._clock = clock
        self._best: dict[Hashable, float] = {}
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._pause = FIRST_PAUSE
        self._changed_at = clock()
        self._raised = False

    def observe(self, shape: Hashable, seconds: float) -> bool:
        """Take the time of one step; `shape` says which steps are comparable. True when `threads` changed."""
        if self.most == 1:
            return False
        best = min(self._best.get(shape, seconds), seconds)
        self._best[shape] = best
        self._ratios.append(seconds / best)
        if self.threads > 1 and len(self._ratios) == WINDOW and sum(self._ratios) / WINDOW > TOO_SLOW:
            soon = self._raised and self._clock() - self._changed_at < self._pause
            self._pause = min(LONGEST_PAUSE, self._pause * 2) if soon else FIRST_PAUSE
            return self._change(self.threads // 2)
        if self.threads < self.most and self._clock() - self._changed_at >= self._pause:
            return self._change(min(self.most, self.threads * 2))
        return False

    def _change(self, threads: int) -> bool:
        """Use so many; what was measured with the other number is forgotten."""
        self._raised = threads > self.threads
        self.threads = threads
        self._changed_at = self._clock()
        self._ratios.clear()
        self._best.clear()
        return True
