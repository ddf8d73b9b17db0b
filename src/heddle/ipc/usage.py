"""What the server and its processes use."""

import os
import resource
import time
from collections import defaultdict
from pathlib import Path

_PROCESSES = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_FRESH_SECONDS = 0.2
"""Other processes are not read again so soon."""


class CpuMeter:
    """CPU seconds of this process and of all below it, those that have ended included; never less than before.

    Living processes are found in /proc: where there is none (macOS), they count when they have ended.
    """

    def __init__(self) -> None:
        self._counted, self._seen, self._read_at = 0.0, 0.0, -_FRESH_SECONDS

    def read(self) -> float:
        """The seconds since this process began; those of other processes may be some tenths of a second old."""
        if time.monotonic() - self._read_at >= _FRESH_SECONDS:
            seen = _read_others()
            if seen < self._seen:
                # A process that was collected during the look is in neither sum.
                seen = _read_others()
            # What is less than before belonged to a process that ended and was collected by nobody here.
            self._counted += max(0.0, seen - self._seen)
            self._seen, self._read_at = seen, time.monotonic()
        return time.process_time() + self._counted


def _read_others() -> float:
    """CPU seconds of the processes below this one, living and collected."""
    collected = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks, below = _read_processes(), 0
    waiting = [os.getpid()]
    while waiting:
        for child, used in ticks.get(waiting.pop(), ()):
            below += used
            waiting.append(child)
    return collected.ru_utime + collected.ru_stime + below / _TICKS


def _read_processes() -> dict[int, list[tuple[int, int]]]:
    """The children of each process, with the ticks that they and what they collected used (proc(5))."""
    children = defaultdict(list)
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            values = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children[int(values[1])].append((int(folder.name), sum(map(int, values[11:15]))))
    return children
