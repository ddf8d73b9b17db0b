"""Runs the server: binds, serves, and stops in order."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from functools import partial

import uvloop

from heddle.app import create_app
from heddle.http.connections import Connections, raise_file_limit
from heddle.http.memory import collect_seldom, limit_free_memory
from heddle.http.server import BackgroundStream, Server, configure
from heddle.http.span_export import check_endpoint
from heddle.logs import configure_logs
from heddle.otlp_grpc.supervisor import serve_grpc
from heddle.services import open_services
from heddle.settings import Settings

logger = logging.getLogger("heddle.serve")


def run(settings: Settings, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT; raises HeddleError when the server cannot start."""
    limit_free_memory()  # before there are threads, which would have heaps of their own
    out, log = BackgroundStream(sys.stdout), BackgroundStream(sys.stderr)
    _log(settings, log)
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(settings, listener, out))
        finally:
            out.drain()
            log.drain()


def _log(settings: Settings, stream: BackgroundStream) -> None:
    configure_logs(settings.log_level, settings.log_format, stream)
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
        check_endpoint(settings, listener.getsockname()[1])
        async with open_services(settings) as services, serve_grpc(settings, listener):
            app = create_app(settings, services)
            announce = partial(_announce, settings, listener, out)
            if settings.workers > 1:
                # Only who asks for them pays for what workers need.
                from heddle.web_workers.supervisor import serve_with_workers

                await serve_with_workers(services, app, listener, announce, out)
            else:
                collect_seldom()
                config = configure(settings, app, Connections(settings, services.metrics.count_refusal))
                await Server(config, services, out, announce).serve(sockets=[listener])
            out.write("heddle: stopped\n")
    finally:
        listener.close()


def _announce(settings: Settings, listener: socket.socket, out: BackgroundStream) -> None:
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    needed = "a key is needed" if settings.needs_key else "no key needed"
    if settings.otlp_grpc_port:
        out.write(f"heddle: OTLP over gRPC on {name}:{settings.otlp_grpc_port}\n")
    out.write(f"heddle: serving http://{name}:{listener.getsockname()[1]} (data in {settings.data}, {needed})\n")
    if address := os.environ.get("NOTIFY_SOCKET"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(b"READY=1", f"\0{address[1:]}" if address.startswith("@") else address)
