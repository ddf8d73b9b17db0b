"""The writing process's side: it starts the web workers, does what they call for, and lets them end before itself."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from heddle.errors import HeddleError
from heddle.http.memory import collect_seldom
from heddle.http.server import BackgroundStream, Server, configure
from heddle.http.state import ServerState
from heddle.ipc.child import Child, Restarts, find_socket_parent, keep_running
from heddle.ipc.rpc import Server as RpcServer
from heddle.store.sqlite.store import SqliteStore
from heddle.web_workers.proxy import Private

logger = logging.getLogger("heddle.web_workers")

COUNTED = "counted"
SETTINGS = "settings"
WISH = "wish"
READY = "ready"
STORE_METHODS = frozenset((
    "calls.write", "files.create", "objects.create", "keys.used", "log_records.add", "rejections.add", "feedback.move",
    "audit_log.add", "redaction.add", "meters.count",
))  # fmt: skip


async def call_method(state: ServerState, ready: Callable[[], None], method: str, arguments: tuple[Any, ...]) -> Any:
    """Do what a worker asks for; raises HeddleError, also for what went wrong here, which the log tells.

    `ready` is called when a worker says that it can answer.
    """
    try:
        if method in STORE_METHODS:
            group, _, name = method.partition(".")
            return await getattr(getattr(state.store, group), name)(*arguments)
        if method == READY:
            return ready()
        if method == SETTINGS:
            return state.settings
        if method == WISH:
            assert isinstance(state.store, SqliteStore), "workers are for SQLite"
            return state.store.indexes.wish(*arguments)
        assert method == COUNTED, method
        return state.metrics.add(*arguments)
    except HeddleError:
        raise
    except Exception as error:  # whatever it is, the worker must not wait for ever
        logger.exception("%s failed", method)
        raise HeddleError("Internal server error") from error


MODULE = "heddle.web_workers"
REQUESTS, METHODS = "requests", "methods"
"""Sockets in the folder of the workers: for requests that are passed on, and for calls of methods."""
_FOLDER = "heddle-web-workers-"
_LOOK_SECONDS = 0.1
_RESTARTS = Restarts(first=0.1, longest=10.0, steady=10.0)
_END_SECONDS = 5.0
"""What a worker may take beyond the grace that its requests have."""


async def serve_with_workers(
    state: ServerState, app: FastAPI, listener: socket.socket, say: Callable[[], None], out: BackgroundStream
) -> None:
    """Serve on a listening socket by as many workers as the settings say, until SIGTERM or SIGINT.

    `say` is called once all of them can answer.
    """
    # Only this user can enter the folder.
    _remove_left_folders()
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=find_socket_parent(_FOLDER)))
    try:
        supervisor = _Supervisor(state, folder, listener, say)
        methods = RpcServer(partial(call_method, state, supervisor.is_ready))
        await methods.listen(folder / METHODS)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as requests:
            requests.bind(str(folder / REQUESTS))
            server = _Writing(configure(state.settings, Private(app)), state, out, supervisor)
            collect_seldom()
            await server.serve(sockets=[requests])
        await methods.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_folders() -> None:
    """Remove the folders of this user's servers that were killed: nobody listens there any more."""
    for folder in Path(find_socket_parent(_FOLDER)).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if folder.stat().st_uid != os.getuid():
                continue
            try:
                probe.connect(str(folder / METHODS))
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)


class _Writing(Server):
    """The server of the writing process, which only workers reach."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, out: BackgroundStream, supervisor: "_Supervisor"
    ) -> None:
        super().__init__(config, state, out, announce=supervisor.start)
        self._supervisor = supervisor

    async def wait_for_drain(self) -> None:
        """Let the workers finish first: what they have taken needs this process."""
        self._supervisor.drain()
        await super().wait_for_drain()
        await self._supervisor.stop()


class _Supervisor:
    """The workers; `listener` is the socket that all of them accept from."""

    def __init__(self, state: ServerState, folder: Path, listener: socket.socket, say: Callable[[], None]) -> None:
        self._state = state
        self._arguments = [MODULE, str(folder), str(listener.fileno())]
        self._listener = listener
        self._say = say
        self._not_ready = state.settings.workers
        self._children: set[Child] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    def is_ready(self) -> None:
        """A worker can answer."""
        self._not_ready -= 1
        if self._not_ready == 0:
            self._say()

    def start(self) -> None:
        """Start all of them."""
        self._tasks = [
            asyncio.create_task(keep_running(self._live, _RESTARTS, logger, is_wanted=lambda: not self._is_stopping))
            for _ in range(self._state.settings.workers)
        ]

    def drain(self) -> None:
        """Let them close each connection after its answer."""
        self._is_stopping = True
        for child in self._children:
            child.tell(signal.SIGUSR1)

    async def stop(self) -> None:
        """Let them finish what they have taken, and end."""
        for child in self._children:
            child.tell(signal.SIGTERM)
        self._listener.close()
        _, late = await asyncio.wait(self._tasks, timeout=self._state.settings.shutdown_grace + _END_SECONDS)
        for task in late:
            task.cancel()
        for child in list(self._children):
            child.kill()
            await asyncio.to_thread(child.end)

    async def _live(self) -> str:
        """A worker, from its start to its end; how it ended."""
        try:
            child = Child("a worker", self._arguments, logger, sockets=[self._listener.fileno()])
        except OSError as error:
            return f"a worker cannot be started: {error}"
        self._children.add(child)
        while not child.has_ended:
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.to_thread(child.end)
        self._children.discard(child)
        return child.how_it_ended()
