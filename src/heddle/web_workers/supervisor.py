"""The writing process's side: it starts the web workers, starts dead ones again, and lets them end before itself."""

import asyncio
import logging
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from heddle.http_server import Server, collect_seldom, configure
from heddle.ipc.child import Child
from heddle.ipc.rpc import Server as RpcServer
from heddle.output import BackgroundStream
from heddle.server_state import ServerState
from heddle.web_workers.app import Private
from heddle.web_workers.methods import Methods

logger = logging.getLogger("heddle.web_workers")

MODULE = "heddle.web_workers"
REQUESTS, METHODS = "requests", "methods"
"""Sockets in the folder of the workers: for requests that are passed on, and for calls of methods."""
_LOOK_SECONDS = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LIVED_SECONDS = 10.0
_END_SECONDS = 5.0
"""What a worker may take beyond the grace that its requests have."""


async def serve_with_workers(
    state: ServerState, app: FastAPI, listener: socket.socket, say: Callable[[], None], out: BackgroundStream
) -> None:
    """Serve on a listening socket by as many workers as the settings say, until SIGTERM or SIGINT.

    `say` is called once all of them can answer.
    """
    # Only this user can enter the folder.
    folder = Path(tempfile.mkdtemp(prefix="heddle-web-workers-"))
    try:
        supervisor = _Supervisor(state, folder, listener, say)
        methods = RpcServer(Methods(state, supervisor.is_ready))
        await methods.listen(folder / METHODS)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as requests:
            requests.bind(str(folder / REQUESTS))
            server = _Writing(configure(state.settings, Private(app)), state, out, supervisor)
            collect_seldom()
            await server.serve(sockets=[requests])
        await methods.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Writing(Server):
    """The server of the writing process, which only workers reach."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, out: BackgroundStream, supervisor: "_Supervisor"
    ) -> None:
        super().__init__(config, state, out)
        self._supervisor = supervisor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and let the workers come."""
        await super().startup(sockets)
        self._supervisor.start()

    async def drained(self) -> None:
        """Let the workers finish first: what they have taken needs this process."""
        self._supervisor.drain()
        await super().drained()
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
        self._stopping = asyncio.Event()

    def is_ready(self) -> None:
        """A worker can answer."""
        self._not_ready -= 1
        if self._not_ready == 0:
            self._say()

    def start(self) -> None:
        """Start all of them."""
        self._tasks = [asyncio.create_task(self._keep()) for _ in range(self._state.settings.workers)]

    def drain(self) -> None:
        """Let them close each connection after its answer."""
        self._stopping.set()
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

    async def _keep(self) -> None:
        """One worker after the other, as long as the server runs."""
        clock, pause = asyncio.get_running_loop().time, _FIRST_PAUSE
        while not self._stopping.is_set():
            begun = clock()
            how = await self._one()
            if self._stopping.is_set():
                return
            logger.error("%s; another one takes its place", how)
            pause = _FIRST_PAUSE if clock() - begun > _LIVED_SECONDS else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _one(self) -> str:
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
