"""The server's side: it starts the process and says what it must know, starts it anew when it dies, and ends it."""

import asyncio
import contextlib
import importlib.util
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields

from heddle.errors import ExtraMissing, HeddleError
from heddle.extras import install_command
from heddle.ipc.child import ConnectedChild, Restarts, keep_running
from heddle.settings import Settings

logger = logging.getLogger("heddle.otlp_grpc")

MODULE = "heddle.otlp_grpc"
_RESTARTS = Restarts(first=0.1, longest=10.0, steady=10.0)
_START_SECONDS = 60.0
_END_SECONDS = 5.0


_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server is reached that listens on every address."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Where to listen, where the server is, and settings; sizes in bytes, times in seconds."""

    address: str
    server: str
    """Of HTTP, without a path."""
    needs_key: bool
    max_trace_body: int
    max_unfinished_bytes: int
    max_header_bytes: int
    max_connections: int
    header_timeout: float
    body_timeout: float

    @classmethod
    def of(cls, settings: Settings, listener: socket.socket) -> "Configuration":
        """The configuration for the server that listens there."""
        host, port = listener.getsockname()[:2]
        return cls(
            address=f"{_bracketed(settings.host)}:{settings.otlp_grpc_port}",
            server=f"http://{_bracketed(_LOOPBACK.get(host, host))}:{port}",
            **{field.name: getattr(settings, field.name) for field in fields(cls)[2:]},
        )

    def dump(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "Configuration":
        """The configuration of a JSON text."""
        return cls(**json.loads(text))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def serve_grpc(settings: Settings, listener: socket.socket) -> AsyncIterator[None]:
    """Serve OTLP over gRPC meanwhile, where the settings name a port; `listener` is the socket of HTTP.

    Raises ExtraMissing without grpcio, HeddleError where the port cannot be had.
    """
    if not settings.otlp_grpc_port:
        yield
        return
    if importlib.util.find_spec("grpc") is None:
        raise ExtraMissing(f"otlp_grpc_port requires grpcio: {install_command('grpc')}")
    process = _Process(Configuration.of(settings, listener))
    task = asyncio.create_task(process.run())
    try:
        await process.wait_until_it_listens()
        yield
    finally:
        await process.end()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Process:
    """The process, and those that follow it."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._child: ConnectedChild | None = None
        self._is_ending = False
        self._listens: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep it running."""
        await keep_running(self._live, _RESTARTS, logger, is_wanted=lambda: not self._is_ending)

    async def wait_until_it_listens(self) -> None:
        """Return once calls are taken; raises HeddleError when the first process ends instead."""
        async with asyncio.timeout(_START_SECONDS):
            await self._listens

    async def end(self) -> None:
        """Tell it to finish what it has taken, and end."""
        self._is_ending = True
        if (child := self._child) is not None:
            child.tell(signal.SIGTERM)
            await asyncio.to_thread(child.end, _END_SECONDS)

    async def _live(self) -> str:
        """A process, from its start to its end; how it ended."""
        child = self._child = ConnectedChild("the gRPC port", MODULE, [self._configuration.dump()], logger)
        child.connection.setblocking(False)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while await loop.sock_recv(child.connection, 1):
                if not self._listens.done():
                    self._listens.set_result(None)
        await asyncio.to_thread(child.end)
        child.connection.close()
        how = child.how_it_ended()
        if not self._listens.done():
            self._is_ending = True
            self._listens.set_exception(HeddleError(child.last_lines[-1] if child.last_lines else how))
        return how
