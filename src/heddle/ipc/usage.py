"""What the server and its processes use."""

import os
import time
from collections import defaultdict
from pathlib import Path

_PROCESSES = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_FRESH_SECONDS = 0.2
"""What was read is not read again so soon."""


class CpuMeter:
    """CPU seconds of this process and of all below it, those that have ended included; never less than before.

    Living processes are found in /proc: where there is none (macOS), they count when they have ended.
    """

    def __init__(self) -> None:
        self._most, self._read_at = 0.0, -_FRESH_SECONDS

    def read(self) -> float:
        """The seconds since this process began."""
        if time.monotonic() - self._read_at < _FRESH_SECONDS:
            return self._most
        own = os.times()
        ticks, below = _read_processes(), 0
        waiting = [os.getpid()]
        while waiting:
            for child, used in ticks.get(waiting.pop(), ()):
                below += used
                waiting.append(child)
        total = own.user + own.system + own.children_user + own.children_system + below / _TICKS
        # A process that has ended and is not collected yet is nowhere.
        self._most, self._read_at = max(self._most, total), time.monotonic()
        return self._most


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
