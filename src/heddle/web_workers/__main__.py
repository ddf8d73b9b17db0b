"""A worker process: `python -m heddle.web_workers FOLDER LISTENER`, started by the writing process, ends with it."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop

from heddle import aio
from heddle.errors import HeddleError, Unavailable
from heddle.first_routes import first_routes
from heddle.http.application import build_application
from heddle.http.connections import Connections
from heddle.http.memory import collect_seldom, limit_free_memory
from heddle.http.metrics import Metrics
from heddle.http.server import BackgroundStream, Server, configure
from heddle.http.state import ServerState
from heddle.ipc.child import die_with_parent, log_to_parent
from heddle.ipc.rpc import Client
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.repository import WriteStats
from heddle.store.sqlite.database import DATABASE, Session, open_reader
from heddle.store.sqlite.store import SqliteControl, SqliteStore
from heddle.store.sqlite.writer import Writer
from heddle.trace.otel.reading import from_dump
from heddle.trace.records import InferencePrices, TraceRecords
from heddle.web_workers.proxy import Fork, Proxy
from heddle.web_workers.supervisor import COUNTED, METHODS, READY, REQUESTS, SETTINGS, STORE_METHODS, WISH

T = TypeVar("T")
_FOLLOW_SECONDS = 2.0


class _NoWriter(Writer):
    """Stands where the writer of the file would be, which is in another process."""

    def __init__(self) -> None:
        self.stats = WriteStats()

    async def write(self, work: Callable[[Session], T], size: int = 0) -> T:  # noqa: ARG002
        """Refuse: what may be written here is a method of the writing process."""
        raise Unavailable("This process is read-only")

    def close(self) -> None:
        """Nothing to end."""


class _ReadingControl(SqliteControl):
    """The readers of the file."""

    def _start_writer(self, settings: Settings) -> Writer:  # noqa: ARG002
        return _NoWriter()

    def _close_file(self) -> None:
        self._session.close()


class WorkerStore(SqliteStore):
    """Everything that is kept; what `STORE_METHODS` name the writing process does."""

    def __init__(self, settings: Settings, control: SqliteControl, session: Session, writing: Client) -> None:
        super().__init__(settings, control, session, is_shared=True)
        self._writing = writing
        for method in STORE_METHODS:
            group, _, name = method.partition(".")
            setattr(getattr(self, group), name, partial(writing.call, method))

    async def _keep_up(self) -> None:
        """Let the writing process build the indexes that are wished for here, and use those that it built."""
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            with contextlib.suppress(HeddleError):
                if wanted := self.indexes.wanted():
                    await self._writing.call(WISH, wanted)
                await self._readers.read(lambda session: self.indexes.follow(session.raw))


def open_worker_store(settings: Settings, writing: Client) -> WorkerStore:
    """The store of a worker; the writing process has brought the file to the current schema."""
    path = Path(settings.data) / DATABASE
    session = open_reader(path)
    return WorkerStore(settings, _ReadingControl(settings, path, session), session, writing)


_REPORT_SECONDS = 1.0


class WorkerState(ServerState):
    """What a worker has; what it counts and sees goes to the writing process."""

    def __init__(self, settings: Settings, store: Store) -> None:
        super().__init__(settings, store, TraceRecords(settings, store), InferencePrices(store), from_dump, Metrics())

    async def report(self, writing: Client) -> None:
        """Tell, again and again, what was answered and which keys were used."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            await self.report_once(writing)

    async def report_once(self, writing: Client, is_end: bool = False) -> None:
        """Tell what is to be told now."""
        with contextlib.suppress(HeddleError):
            await writing.call(COUNTED, self.metrics.take_increases())
            await self.note(is_end)


async def _serve(folder: Path, listener: socket.socket) -> None:
    writing = await Client.connect(folder / METHODS, Unavailable("The writing process has ended"))
    settings = await writing.call(SETTINGS)
    store = open_worker_store(settings, writing)
    state = WorkerState(settings, store)
    routes = [route for route in first_routes() if route.is_local]
    app = build_application(routes, state)
    connections = Connections(settings, state.metrics.count_refusal, settings.workers)
    config = configure(settings, Fork(app, routes, Proxy(folder / REQUESTS)), connections)
    server = Server(config, state, BackgroundStream(None))
    # New connections are to be closed after each answer, as the server stops soon.
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, state.drain)
    background = [asyncio.create_task(state.report(writing)), asyncio.create_task(_end_with(writing, server))]
    await writing.call(READY)
    try:
        async with state.span_export.running(), state.quotas.running():
            await server.serve(sockets=[listener])
    finally:
        await aio.cancel(*background)
        await state.report_once(writing, is_end=True)
        await store.close()
        writing.hang_up()
        await writing.ended.wait()


async def _end_with(writing: Client, server: Server) -> None:
    """Stop when the writing process is gone: nothing can be answered any more."""
    await writing.ended.wait()
    server.force_exit = server.should_exit = True


def main() -> None:
    """Run the worker until the writing process tells it to end, or ends."""
    limit_free_memory()
    die_with_parent()
    log_to_parent()
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    collect_seldom()
    folder, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    with socket.socket(fileno=descriptor) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(folder, listener))


if __name__ == "__main__":
    main()
