"""A server of vLLM that heddle starts: as a process, again when it dies, and no longer than heddle itself runs."""

import asyncio
import logging
import time
from collections.abc import Callable

from heddle.inference.engine.vllm.keeper import GRACE_SECONDS
from heddle.ipc.child import ConnectedChild

logger = logging.getLogger("heddle.inference.engine")

KEEPER = "heddle.inference.engine.vllm.keeper"
ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Adapters come and go while it runs, and it calls nobody. What heddle's own environment says goes first."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
STEADY_SECONDS = 300.0
"""A server that ran so long is started again at once."""


class Supervisor:
    """Runs one server until it is told to stop."""

    def __init__(self, what: str, command: list[str], ended: Callable[[str | None], None]) -> None:
        """`ended` is called with the reason when the server died, and with None when it is started again."""
        self._what = what
        self._command = command
        self._ended = ended

    async def run(self) -> None:
        """Start, wait, start again, with longer and longer pauses; cancelling ends the server."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            reason = await self._once()
            logger.error("%s; it is started again in %g s", reason, pause)
            self._ended(reason)
            await asyncio.sleep(pause)
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY_SECONDS else min(pause * 2, LONGEST_PAUSE)
            self._ended(None)

    async def _once(self) -> str:
        """One life of the server; how it ended."""
        try:
            process = ConnectedChild(self._what, KEEPER, self._command, logger, environment=ENVIRONMENT)
        except OSError as error:
            return f"{self._what} cannot be started: {error}"
        try:
            # The keeper sends nothing: what can be read is its end.
            process.connection.setblocking(False)
            await asyncio.get_running_loop().sock_recv(process.connection, 1)
        finally:
            process.connection.close()
            await asyncio.shield(asyncio.to_thread(process.end, 3 * GRACE_SECONDS))
        return process.how_it_ended()
