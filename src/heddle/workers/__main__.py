"""A worker process: `python -m heddle.workers FOLDER LISTENER`, started by the writing process, ends with it."""

import asyncio
import logging
import signal
import socket
import sys
from pathlib import Path

import uvloop
from fastapi.routing import APIRoute

from heddle.app import create_app
from heddle.children import die_with_parent, log_to_parent
from heddle.connections import Connections
from heddle.http_server import Server, collect_seldom, configure
from heddle.output import BackgroundStream
from heddle.workers.app import Fork, WorkerState
from heddle.workers.crew import LINE, REQUESTS
from heddle.workers.line import Line
from heddle.workers.proxy import Proxy
from heddle.workers.store import open_worker_store
from heddle.workers.verbs import READY, SETTINGS


async def _serve(folder: Path, listener: socket.socket) -> None:
    line = await Line.open(folder / LINE)
    settings = await line.call(SETTINGS)
    store = open_worker_store(settings, line)
    state = WorkerState(settings, store)
    app = create_app(settings, state, only_local=True)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    connections = Connections(settings, state.metrics.refused, settings.workers)
    config = configure(settings, Fork(app, routes, Proxy(folder / REQUESTS)), connections)
    server = Server(config, state, BackgroundStream(None))
    # New connections are to be closed after each answer, as the server stops soon.
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, state.drain)
    background = [asyncio.create_task(state.report(line)), asyncio.create_task(_end_with(line, server))]
    await line.call(READY)
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await state.report_once(line)
        await store.close()
        await line.close()


async def _end_with(line: Line, server: Server) -> None:
    """Stop when the writing process is gone: nothing can be answered any more."""
    await line.ended.wait()
    server.force_exit = server.should_exit = True


def main() -> None:
    """Run the worker until the writing process tells it to end, or ends."""
    die_with_parent()
    log_to_parent()
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    collect_seldom()
    folder, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    with socket.socket(fileno=descriptor) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(folder, listener))


if __name__ == "__main__":
    main()
