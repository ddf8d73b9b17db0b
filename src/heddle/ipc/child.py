"""Child processes of the server: a clean interpreter whose log becomes ours, and how it ended in words."""

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence

LAST_LINES = 8
_DEATH_SIGNAL_OPTION = 1
KILL_AFTER = 3.0
"""Seconds that a process has to end by itself when its socket is closed."""


class Child:
    """A Python program of ours in a process of its own; it reads nothing and writes only its log (stderr)."""

    def __init__(
        self,
        what: str,
        arguments: Sequence[str],
        logger: logging.Logger,
        *,
        environment: Mapping[str, str] | None = None,
        sockets: Sequence[int] = (),
    ) -> None:
        """Start `python -P -m ARGUMENTS...`; `what` names it in texts. Raises OSError.

        `environment` gives defaults, which our own environment overrides; the child inherits `sockets`.
        """
        self._what = what
        self._logger = logger
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *arguments],
            pass_fds=sockets,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(environment or {}) | os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reader = threading.Thread(target=self._pass_log_on, name="child-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True once it is dead; `end` collects it."""
        return self._process.poll() is not None

    def end(self, seconds: float = KILL_AFTER) -> None:
        """Wait for the process, which was told to end, and kill it when it does not. Blocks."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(KILL_AFTER)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        if not self.has_ended:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once; `end` collects it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def how_it_ended(self) -> str:
        """In words, after `end`."""
        code = self._process.returncode
        if code == -9:
            return f"{self._what} was killed (signal 9); perhaps the system ran out of memory"
        if code is not None and code < 0:
            return f"{self._what} died of signal {-code}"
        last = self.last_lines[-1] if self.last_lines else "it said nothing"
        return f"{self._what} ended with code {code}: {last}"

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
                self.last_lines.append(text)
                self._logger.log(level, "%s", text)
        self._process.stderr.close()


class ConnectedChild(Child):
    """A child with the other end of `connection`, whose number is its first argument."""

    def __init__(
        self,
        what: str,
        module: str,
        arguments: Sequence[str],
        logger: logging.Logger,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """As `Child`."""
        self.connection, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [module, str(number), *arguments]
            super().__init__(what, command, logger, environment=environment, sockets=[number])


def die_with_parent() -> None:
    """For the child: on Linux the kernel ends it with the thread that started it; elsewhere the closed socket does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL_OPTION, signal.SIGKILL)


def log_to_parent() -> None:
    """For the child: its log goes to stderr, in the form that `Child` reads."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
