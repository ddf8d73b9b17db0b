"""Starting and ending the engine's process, and passing its log on."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque

logger = logging.getLogger("heddle.inference.engine")

MODULE = "heddle.inference.engine.local.worker"
LAST_LINES = 8
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Weights in huge pages: up to a quarter less time per step of one sequence. What the environment says goes first."""
KILL_AFTER = 3.0
"""Seconds that a process has to end by itself when its socket is closed."""


class EngineProcess:
    """A child with a clean interpreter; `connection` is the server's end of the socket."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=HUGE_PAGES | os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reader = threading.Thread(target=self._pass_log_on, name="engine-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def end(self) -> None:
        """Wait for the process, whose socket is closed, and kill it when it does not end. Blocks."""
        try:
            self._process.wait(KILL_AFTER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(KILL_AFTER)

    def kill(self) -> None:
        """End it at once; `end` collects it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def how_it_ended(self) -> str:
        """In words, after `end`."""
        code = self._process.returncode
        if code == -9:
            return "the engine's process was killed (signal 9); perhaps the system ran out of memory"
        if code is not None and code < 0:
            return f"the engine's process died of signal {-code}"
        last = self._last_lines[-1] if self._last_lines else "it said nothing"
        return f"the engine's process ended with code {code}: {last}"

    def _pass_log_on(self) -> None:
        """The process's lines become records of our log, at the level that they begin with."""
        assert self._process.stderr is not None
        level = logging.INFO
        for raw in self._process.stderr:
            line = raw.decode("utf-8", "replace").rstrip()
            word, _, rest = line.partition(" ")
            known = logging.getLevelNamesMapping().get(word)
            level = known if known is not None else level
            text = rest if known is not None else line
            if text:
                self._last_lines.append(text)
                logger.log(level, "%s", text)
        self._process.stderr.close()
