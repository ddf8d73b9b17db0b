"""Runs the server: binds, serves, and stops in order."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn
import uvloop

from heddle import settings as table
from heddle.app import create_app, open_house
from heddle.house import House
from heddle.listen import BACKLOG
from heddle.settings import Settings

logger = logging.getLogger("heddle.serve")

KEEP_ALIVE_SECONDS = 75


def run(settings: Settings, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT; raises HeddleError when the server cannot start."""
    _log(settings.log_level)
    for name in table.unknown_variables(os.environ):
        logger.warning("variable %s is no setting of heddle and is ignored", name)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener))


def _log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    # It names every address that is asked, and those of webhooks and of signed files are secrets.
    logging.getLogger("httpx").setLevel("WARNING")


async def _serve(settings: Settings, listener: socket.socket) -> None:
    try:
        async with open_house(settings) as house:
            config = uvicorn.Config(
                create_app(settings, house),
                lifespan="off",
                http="httptools",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
            )
            _collect_seldom()
            await _Server(config, house, _address(settings.host, listener)).serve(sockets=[listener])
            print("heddle: stopped", flush=True)
    finally:
        listener.close()


def _collect_seldom() -> None:
    """Look for cyclic garbage seldom, and never among what was made at start.

    Requests make many objects and hardly a cycle; with the usual thresholds a third of the CPU of a batch goes there.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def _address(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """uvicorn, ending with exit code 0 on the first signal and at once on the second."""

    def __init__(self, config: uvicorn.Config, house: House, address: str) -> None:
        super().__init__(config)
        self._house = house
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say where."""
        await super().startup(sockets)
        needed = "a key is needed" if self._house.settings.needs_key else "no key needed"
        print(f"heddle: serving {self._address} (data in {self._house.settings.data}, {needed})", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop taking work; a second signal ends the process, which loses nothing that was acknowledged."""
        if self.should_exit:
            os.write(1, f"heddle: {signal.Signals(sig).name} again, ending at once\n".encode())
            os._exit(1)
        os.write(1, f"heddle: {signal.Signals(sig).name}, finishing what is in flight\n".encode())
        self._house.stopping = True
        self.should_exit = True
