"""Child processes of the server: a clean interpreter whose log becomes ours, how it ended in words, and restarts."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from heddle.logs import configure_logs, read_record

LAST_LINES = 8
_DEATH_SIGNAL_OPTION = 1
KILL_AFTER = 3.0
"""Seconds that a process has to end by itself when its socket is closed."""
_LONGEST_ADDRESS = 100
"""Bytes of a path that every system takes as the address of a socket (108 on Linux, 104 elsewhere)."""


def find_socket_parent(prefix: str) -> str:
    """The folder for a temporary folder of that prefix with sockets: TMPDIR, or /tmp where their paths get too long."""
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) + len(prefix) + 24 <= _LONGEST_ADDRESS else "/tmp"


def start_module(
    arguments: Sequence[str], environment: Mapping[str, str], sockets: Sequence[int]
) -> "subprocess.Popen[bytes]":
    """A process of `python -P -m ARGUMENTS...` that inherits `sockets` and whose log is a pipe. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *arguments],
        pass_fds=sockets,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )


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
        variables = dict(environment or {}) | os.environ | {"PYTHONUNBUFFERED": "1"}
        self._process = start_module(arguments, variables, sockets)
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
        """The process's records become records of our log; what something else printed there is one of its own."""
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            if line := raw.decode("utf-8", "replace").rstrip():
                self._log(line)
        self._process.stderr.close()

    def _log(self, line: str) -> None:
        record = read_record(line)
        if record is None:
            self.last_lines.append(line)
            self._logger.info("%s", line)
            return
        self.last_lines += record.text.splitlines()
        logging.getLogger(record.logger).log(record.level, "%s", record.text, extra=record.extra)


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


class Restarts(NamedTuple):
    """Seconds before a dead process is started again: longer and longer, unless it had run for `steady`."""

    first: float
    longest: float
    steady: float


async def keep_running(
    live: Callable[[], Awaitable[str]],
    restarts: Restarts,
    logger: logging.Logger,
    *,
    died: Callable[[str | None], None] = lambda _: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run a process again and again while it is wanted; `live` is one life, from the start to how it ended in words.

    `died` is called with those words, and with None when the process is started again.
    """
    pause = restarts.first
    while is_wanted():
        began = time.monotonic()
        how = await live()
        if not is_wanted():
            return
        pause = restarts.first if time.monotonic() - began > restarts.steady else pause
        logger.error("%s; it will be restarted in %g s", how, pause)
        died(how)
        await asyncio.sleep(pause)
        pause = min(2 * pause, restarts.longest)
        died(None)


def die_with_parent() -> None:
    """For the child: on Linux the kernel ends it with the thread that started it; elsewhere the closed socket does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL_OPTION, signal.SIGKILL)


def log_to_parent() -> None:
    """For the child: its log goes to stderr, in the form that `Child` reads."""
    configure_logs("info", "json", sys.stderr)
