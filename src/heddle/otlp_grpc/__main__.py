"""`python -m heddle.otlp_grpc SOCKET CONFIGURATION`, started by the server: OTLP over gRPC."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys

from heddle.ipc.child import die_with_parent, log_to_parent
from heddle.otlp_grpc.service import Forwarder, make_server
from heddle.otlp_grpc.supervisor import Configuration

GRACE_SECONDS = 2.0
LISTENS = b"1"


async def _serve(parent: socket.socket, configuration: Configuration) -> None:
    forwarder = Forwarder(configuration)
    server = make_server(configuration, forwarder)
    try:
        server.add_insecure_port(configuration.address)
    except RuntimeError:
        sys.exit(f"Cannot listen on {configuration.address}. Choose another port with --otlp-grpc-port")
    await server.start()
    loop = asyncio.get_running_loop()
    parent.setblocking(False)
    await loop.sock_sendall(parent, LISTENS)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    watch = asyncio.create_task(_watch(parent, ended))
    await ended.wait()
    watch.cancel()
    await server.stop(GRACE_SECONDS)
    await forwarder.close()


async def _watch(parent: socket.socket, ended: asyncio.Event) -> None:
    """End with the server."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_recv(parent, 1)
    ended.set()


def main() -> None:
    """Serve until the server tells it to end, or ends."""
    die_with_parent()
    log_to_parent()
    logging.getLogger("httpx").setLevel("WARNING")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parent = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(_serve(parent, Configuration.load(sys.argv[2])))


if __name__ == "__main__":
    main()
