"""`python -m heddle.otlp_grpc SOCKET CONFIGURATION`, started by the server: OTLP over gRPC."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from typing import Any

from heddle.ipc.child import die_with_parent, log_to_parent
from heddle.otlp_grpc.service import Forwarder, make_server
from heddle.otlp_grpc.supervisor import Configuration

logger = logging.getLogger("heddle.otlp_grpc")
GRACE_SECONDS = 2.0
_PORT_SECONDS = 0.05
LISTENS = b"1"


async def _serve(parent: socket.socket, configuration: Configuration) -> None:
    forwarder, loop = Forwarder(configuration), asyncio.get_running_loop()
    loop.set_exception_handler(_log_fault)
    try:
        server, failed = await _listen(configuration, forwarder)
    except RuntimeError:
        sys.exit(f"Cannot listen on {configuration.address}. Choose another port with --otlp-grpc-port")
    parent.setblocking(False)
    await loop.sock_sendall(parent, LISTENS)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    watch, stopping = asyncio.create_task(_watch(parent, ended)), set[asyncio.Task[None]]()
    while await _fails(failed, ended):
        # What it had taken goes on meanwhile; it listens no more.
        stopping.add(left := asyncio.create_task(server.stop(configuration.body_timeout)))
        left.add_done_callback(stopping.discard)
        server, failed = await _listen_again(configuration, forwarder)
    watch.cancel()
    await server.stop(GRACE_SECONDS)
    await forwarder.close()


async def _listen(configuration: Configuration, forwarder: Forwarder) -> tuple[Any, asyncio.Event]:
    """A server, and what is set when it takes no more calls; raises RuntimeError where the port cannot be had."""
    server = make_server(configuration, forwarder)
    server.add_insecure_port(configuration.address)
    before = asyncio.all_tasks()
    await server.start()
    failed = asyncio.Event()

    def note(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            failed.set()

    for task in asyncio.all_tasks() - before:
        task.add_done_callback(note)
    return server, failed


async def _listen_again(configuration: Configuration, forwarder: Forwarder) -> tuple[Any, asyncio.Event]:
    """The same, as soon as the server before has let the port go."""
    while True:
        try:
            return await _listen(configuration, forwarder)
        except RuntimeError:
            await asyncio.sleep(_PORT_SECONDS)


async def _fails(failed: asyncio.Event, ended: asyncio.Event) -> bool:
    """Wait for the end (False), or until grpcio takes no more calls: one whose method is no UTF-8 ends that."""
    waits = [asyncio.create_task(event.wait()) for event in (failed, ended)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if ended.is_set():
        return False
    logger.warning("the gRPC port was reopened after a call that grpcio cannot read")
    return True


def _log_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody awaited, but not once more what made grpcio listen no more."""
    if not isinstance(context.get("exception"), UnicodeDecodeError):
        loop.default_exception_handler(context)


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
    logging.getLogger("grpc._cython.cygrpc").setLevel("CRITICAL")  # tracebacks of calls that it cannot read
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parent = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(_serve(parent, Configuration.load(sys.argv[2])))


if __name__ == "__main__":
    main()
