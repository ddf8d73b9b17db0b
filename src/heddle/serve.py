"""Runs the server: binds, serves, and stops in order."""

import asyncio
import logging
import os
import socket
import sys

import uvicorn
import uvloop

from heddle import settings as table
from heddle.app import create_app
from heddle.connections import Connections, raise_file_limit
from heddle.http_server import Server, collect_seldom, configure
from heddle.output import BackgroundStream
from heddle.server_state import ServerState
from heddle.services import open_services
from heddle.settings import Settings

logger = logging.getLogger("heddle.serve")


def run(settings: Settings, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT; raises HeddleError when the server cannot start."""
    out, log = BackgroundStream(sys.stdout), BackgroundStream(sys.stderr)
    _log(settings.log_level, log)
    raise_file_limit()
    for name in table.unknown_variables(os.environ):
        logger.warning("variable %s is no setting of heddle and is ignored", name)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(settings, listener, out))
        finally:
            out.drain()
            log.drain()


def _log(level: str, stream: BackgroundStream) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=stream, force=True
    )
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    # It names every address that is asked, and those of webhooks and of signed files are secrets.
    logging.getLogger("httpx").setLevel("WARNING")
    # They warn of what is tried again or told anyhow.
    for name in ("psycopg", "urllib3.connectionpool", "clickhouse_connect"):
        logging.getLogger(name).setLevel("ERROR")
    # They tell at each start where they found what they need.
    for name in ("aiobotocore", "botocore"):
        logging.getLogger(name).setLevel("WARNING")


async def _serve(settings: Settings, listener: socket.socket, out: BackgroundStream) -> None:
    try:
        async with open_services(settings) as services:
            app, address = create_app(settings, services), _address(settings.host, listener)
            if settings.workers > 1:
                # Only who asks for them pays for what workers need.
                from heddle.web_workers.supervisor import serve_with_workers

                await serve_with_workers(services, app, listener, lambda: _say(services, address, out), out)
            else:
                collect_seldom()
                config = configure(settings, app, Connections(settings, services.metrics.refused))
                await _Server(config, services, out, address).serve(sockets=[listener])
            out.write("heddle: stopped\n")
    finally:
        listener.close()


def _address(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def _say(state: ServerState, address: str, out: BackgroundStream) -> None:
    needed = "a key is needed" if state.settings.needs_key else "no key needed"
    out.write(f"heddle: serving {address} (data in {state.settings.data}, {needed})\n")


class _Server(Server):
    """The one server of a process that does all."""

    def __init__(self, config: uvicorn.Config, state: ServerState, out: BackgroundStream, address: str) -> None:
        super().__init__(config, state, out)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say where."""
        await super().startup(sockets)
        _say(self._state, self._address, self._out)
