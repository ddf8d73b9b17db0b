"""A wall clock for servers and commands that a test moves on, so that months pass in minutes."""

import os
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.preload import compile_library

_SIZE = 1 << 20
_NUMBER = struct.Struct("=q")


class MovedClock:
    """The clock of all processes that have its `environment`; times of files follow, intervals are measured as ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self._added = timedelta()
        with path.open("wb") as file:
            file.truncate(_SIZE)
        self.environment = {"LD_PRELOAD": str(compile_library("moved_clock")), "MOVED_CLOCK": str(path)}

    def now(self) -> datetime:
        """What it shows."""
        return datetime.now(UTC) + self._added

    def move(self, by: timedelta) -> None:
        """Move it on."""
        self._added += by
        self._count += 1
        with self._path.open("r+b") as file:
            file.seek(_NUMBER.size * (2 * self._count - 1))
            file.write(_NUMBER.pack(time.time_ns()) + _NUMBER.pack(self._added // timedelta(microseconds=1) * 1000))
            file.flush()
            file.seek(0)
            file.write(_NUMBER.pack(self._count))

    def run(self, *words: object) -> str:
        """What `heddle ...` prints by this clock; raises AssertionError where it fails."""
        command = [sys.executable, "-m", "heddle", *map(str, words)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
        environment |= self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
