"""Runs `heddle ...` by forking a process that has imported heddle once, so that a start costs no second of importing.

What runs has the same arguments, environment and output; `make soak` starts every process from nothing.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

FROM_NOTHING = os.environ.get("HEDDLE_SOAK") == "1" or sys.platform != "linux"
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Forked:
    """A process that was forked for us; has what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with self._waiting:  # the code is told once: of two threads that ask, the second would find no child
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("heddle", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        root = Path(__file__).parent.parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=root,
        )
        theirs.close()
        self._answers = self._ours.makefile()
        self._starting = threading.Lock()

    def start(
        self,
        arguments: list[str],
        environment: dict[str, str],
        out: Path,
        err: Path | None = None,
        *,
        forks_children: bool = True,
    ) -> Forked:
        """A child of this process that runs `heddle` with the arguments; both outputs go to one file, or to two."""
        from tests.support.forked_modules import address_of_modules

        umask = os.umask(0o077)
        os.umask(umask)
        order = {
            "arguments": arguments,
            "environment": environment,
            "out": str(out),
            "err": str(err or out),
            "cwd": str(Path.cwd()),
            "umask": umask,
            "modules": address_of_modules() if forks_children else None,
        }
        with self._starting:
            # The child loses its parent at once and would become a child of init; as long as this is set, of us.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                self._ours.sendall(json.dumps(order).encode() + b"\n")
                line = self._answers.readline()
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not line:
            raise RuntimeError("the process that forks has died")
        return Forked(int(line))


@cache
def zygote() -> Zygote | None:
    """The process that forks for this test worker; None where every process starts from nothing."""
    return None if FROM_NOTHING else Zygote()


def _serve_orders(channel: socket.socket) -> None:
    for line in channel.makefile():
        order = json.loads(line)
        reading, writing = os.pipe()
        middle = os.fork()
        if middle == 0:
            os.close(reading)
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                channel.close()
                _run_heddle(order)
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(middle, 0)
        pid_text = os.read(reading, 32)
        os.close(reading)
        channel.sendall(pid_text + b"\n")


def _run_heddle(order: dict[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(order[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["heddle", *order["arguments"]]
    from heddle.cli import main
    from tests.support.forked_modules import fork_modules

    if order["modules"] is not None:
        fork_modules(lambda: order["modules"])

    run_to_the_end(main)


def run_to_the_end(program: Callable[[], object]) -> NoReturn:
    """Run a program as an interpreter does that was started for it, and end this process with its code."""
    code = 1
    try:
        program()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import what a server imports, at its start or later, then fork one per order until the other side is gone."""
    gc.disable()  # what is imported is no garbage
    import uvicorn.lifespan.off
    import uvicorn.protocols.http.httptools_impl  # noqa: F401

    import tests.support.forked_modules  # noqa: F401
    from heddle.app import served_routes

    served_routes()
    gc.freeze()
    gc.enable()
    _serve_orders(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
