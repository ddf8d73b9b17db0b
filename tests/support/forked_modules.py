"""Runs the children of servers that need torch (`python -m heddle...` of `Child`) by forking one process that has it.

Torch takes two seconds of a processor to import. A forked child is the child of that process, no longer of its server;
it ends with its server all the same, and its output and how it ended are told as those of any other.
"""

import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from heddle.ipc import child as heddle_child
from tests.support.zygote import Forked, run_to_the_end

MODULES = ("heddle.inference.engine.local", "heddle.trainer_process")
_start_anew = heddle_child.start_module
_ORDER_BYTES, _MOST_SOCKETS = 1 << 17, 8
_FREE_NUMBERS = 1000
"""File descriptors from here on are those of an order, until they have the numbers that it names."""


class ForkedModule(Forked):
    """A process that was forked for `Child`, by the process for modules; that one collects it."""

    def __init__(
        self, address: str, arguments: Sequence[str], environment: Mapping[str, str], sockets: Sequence[int]
    ) -> None:
        super().__init__(0)
        reading, writing = os.pipe()
        self.stderr = os.fdopen(reading, "rb")
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {"arguments": arguments, "environment": dict(environment), "numbers": sockets, "cwd": os.getcwd()}
        try:
            self._connection.connect(address)
            socket.send_fds(self._connection, [json.dumps(order).encode()], [writing, *sockets])
        finally:
            os.close(writing)

    @property
    def pid(self) -> int:
        """The process id; blocks until it was forked."""
        while self._pid == 0:
            self.poll()
            time.sleep(0.01)
        return self._pid

    @pid.setter
    def pid(self, pid: int) -> None:
        self._pid = pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with self._waiting, contextlib.suppress(BlockingIOError):
            while self.returncode is None:
                told = self._connection.recv(32, socket.MSG_DONTWAIT)
                if told and self._pid == 0:
                    self._pid = int(told)
                    continue
                self._pid = self._pid or -1
                self.returncode = int(told or -signal.SIGKILL)
                self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(OSError):
                self._connection.send(str(int(number)).encode())


@cache
def address_of_modules() -> str:
    """Where this test worker's process for modules listens; it imports them with the first order."""
    address = f"\0heddle-modules-{os.getpid()}"
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, theirs:
        listener.bind(address)
        listener.listen(64)
        numbers = [listener.fileno(), theirs.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_modules", *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parent.parent.parent,
        )
    _kept.extend((ours, process))
    return address


_kept: list[Any] = []
"""The process ends when this one does."""


def fork_modules(address: Callable[[], str]) -> None:
    """Let every `Child` of this process be forked from now on, where it is one of `MODULES`."""

    def start(arguments: Sequence[str], environment: Mapping[str, str], sockets: Sequence[int]) -> Any:
        if arguments[0] not in MODULES or environment.get("PYTHONPATH") != own_path:
            return _start_anew(arguments, environment, sockets)
        return ForkedModule(address(), arguments, environment, sockets)

    own_path = os.environ.get("PYTHONPATH")
    heddle_child.start_module = start


class _Forking:
    """Forks a process for each connection that brings an order, and kills it when the connection is closed."""

    def __init__(self, listener: socket.socket, lifeline: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(lifeline, selectors.EVENT_READ, lambda: os._exit(0))

    def wait(self) -> None:
        """Until there is something to do."""
        self._selector.select()

    def run(self) -> None:
        """Until the test worker is gone."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj in self._selector.get_map():
                    key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        content, received, _, _ = socket.recv_fds(connection, _ORDER_BYTES, _MOST_SOCKETS)
        if not content:
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            _run_module(json.loads(content), received)
        for number in received:
            os.close(number)
        with contextlib.suppress(OSError):  # its server may be gone; `_tell` sees that
            connection.send(str(pid).encode())
        ended = os.pidfd_open(pid)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._tell(pid, connection))
        self._selector.register(ended, selectors.EVENT_READ, lambda: self._collect(pid, ended, connection))

    def _tell(self, pid: int, connection: socket.socket) -> None:
        try:
            number = connection.recv(32)
        except ConnectionError:
            number = b""
        if not number:
            self._selector.unregister(connection)
        os.kill(pid, int(number or signal.SIGKILL))

    def _collect(self, pid: int, ended: int, connection: socket.socket) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.send(str(code).encode())
        connection.close()


def _run_module(order: dict[str, Any], received: list[int]) -> None:
    """Be `python -P -m ARGUMENTS...` with the file descriptors of the order."""
    for place, number in enumerate(received):
        os.dup2(number, _FREE_NUMBERS + place)
    os.closerange(3, _FREE_NUMBERS)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    for place, number in enumerate((2, *order["numbers"])):
        os.dup2(_FREE_NUMBERS + place, number)
        os.close(_FREE_NUMBERS + place)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    module, *arguments = order["arguments"]
    sys.argv = [module, *arguments]
    sys.modules.pop(f"{module}.__main__")  # it was imported, and is run
    run_to_the_end(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def main() -> None:
    """Wait for the first order, import what the modules import at their start or later, then fork."""
    listener, lifeline = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    forking = _Forking(listener, lifeline)
    forking.wait()
    gc.disable()  # what is imported is no garbage
    import heddle.inference.engine.local.__main__
    import heddle.trainer_process.__main__
    import heddle.training.trainer.operations
    import heddle.training.trainer.ranks
    import heddle.training.trainer.run  # noqa: F401

    gc.freeze()
    gc.enable()
    forking.run()


if __name__ == "__main__":
    main()
