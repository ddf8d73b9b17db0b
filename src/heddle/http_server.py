"""The HTTP server of a process: how it is tuned, and how it stops."""

import asyncio
import gc
import os
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from heddle.connections import Connections, limited_protocol
from heddle.listen import BACKLOG
from heddle.loop_monitor import LoopMonitor
from heddle.output import BackgroundStream
from heddle.server_state import ServerState
from heddle.settings import Settings

KEEP_ALIVE_SECONDS = 75
_LAST_WORDS_SECONDS = 0.3


def configure(settings: Settings, app: ASGIApp, connections: Connections | None = None) -> uvicorn.Config:
    """What every process serves an application with; None for connections that are not limited, being our own."""
    proxies = [] if connections is None or settings.trusted_proxies == "none" else settings.trusted_proxies.split(",")
    return uvicorn.Config(
        app,
        lifespan="off",
        http="httptools" if connections is None else limited_protocol(connections),
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
    )


def collect_seldom() -> None:
    """Look for cyclic garbage seldom, and never among what was made at start.

    Requests make many objects and hardly a cycle; with the usual thresholds a third of the CPU of a batch goes there.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


class Server(uvicorn.Server):
    """uvicorn, which on the first signal stops in order (exit code 0), and on the second at once."""

    def __init__(self, config: uvicorn.Config, state: ServerState, out: BackgroundStream) -> None:
        super().__init__(config)
        self._state = state
        self._out = out
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_told = False
        self._monitor = LoopMonitor(state.metrics.lagged)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self._loop = asyncio.get_running_loop()
        self._monitor.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in order."""
        await super().shutdown(sockets)
        self._monitor.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop taking work; a second signal ends the process, which loses nothing that was acknowledged."""
        if self._is_told or self._loop is None:
            self._out.write(f"heddle: {signal.Signals(sig).name} again, ending at once\n")
            self._out.drain(_LAST_WORDS_SECONDS)
            os._exit(1)
        self._is_told = True
        self._loop.call_soon_threadsafe(self._begin_to_stop, sig)

    def _begin_to_stop(self, sig: int) -> None:
        self._out.write(f"heddle: {signal.Signals(sig).name}, finishing what is in flight\n")
        self._stopping = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        self._state.drain()
        await self.drained()
        self._state.stopping = True
        self.should_exit = True

    async def drained(self) -> None:
        """Answer on while those who send requests notice, by /ready and by closed connections, that this one stops."""
        await asyncio.sleep(self._state.settings.shutdown_drain)
