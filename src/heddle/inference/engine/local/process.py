"""The engine's process as the server sees it: requests go in, their tokens and the replies to calls come back."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heddle.inference.engine.base import EngineFailed, TokenRequest
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.token_stream import TokenStream
from heddle.ipc.child import ConnectedChild
from heddle.ipc.rpc import Client, Request

logger = logging.getLogger("heddle.inference.engine")

MODULE = "heddle.inference.engine.local"
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Weights in huge pages: up to a quarter less time per step of one sequence. What the environment says goes first."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What the process replies to `start` once the model is loaded."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    load_seconds: float


class EngineProcess(Client):
    """One process from its start to its end.

    Its methods are `start`, `load`, `unload` and `stats`; `generate`, whose reply is a failure only, and `abort`,
    which has none. Tokens come as one list of packed events (`Event.packed`) per step.
    """

    ready: Ready

    def __init__(self, child: ConnectedChild, lost: Callable[["EngineProcess", str | None], None]) -> None:
        super().__init__(EngineFailed("the engine's process has ended"))
        self._child = child
        self._lost = lost
        self._is_stopped = False
        self._burial: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, options: LocalOptions, lost: Callable[["EngineProcess", str | None], None]) -> "EngineProcess":
        """Start a process and wait until its model is loaded. Raises EngineFailed; cancelling ends the process.

        `lost` is called at its end with the reason, None when it was closed.
        """
        try:
            child = ConnectedChild("the engine's process", MODULE, [], logger, environment=HUGE_PAGES)
        except OSError as error:
            raise EngineFailed(f"the engine's process cannot be started: {error}") from error
        try:
            loop = asyncio.get_running_loop()
            _, process = await loop.create_unix_connection(lambda: cls(child, lost), sock=child.connection)
        except BaseException:
            child.kill()
            raise
        try:
            process.ready = await process.call("start", options)
        except BaseException:
            child.kill()
            await process.stop()
            raise
        return process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def generate(self, request: TokenRequest) -> TokenStream:
        """Send a request; its tokens come through the stream until `release`. Raises EngineFailed."""
        stream = TokenStream(request.adapter.id if request.adapter else None)
        stream.number = self.request(stream, "generate", request)
        return stream

    def release(self, stream: TokenStream) -> None:
        """Forget a stream; its request is aborted if it has not ended."""
        self.forget(stream.number)
        if not stream.done():
            self.send(Request(stream.number, "abort"))

    async def stop(self) -> None:
        """End the process and every request."""
        self._is_stopped = True
        self.abort()
        await self.ended.wait()

    def handle_message(self, message: Any) -> None:
        """The tokens of a step, or a reply."""
        if type(message) is list:
            streams = self._pending
            for event in message:
                stream = streams.get(event[0])
                if stream is not None:
                    stream.set_result(event)
        else:
            super().handle_message(message)

    def handle_end(self, error: Exception | None) -> None:
        """The process has closed its end, or we have."""
        self._burial = asyncio.create_task(self._bury(error))

    async def _bury(self, error: Exception | None) -> None:
        """Collect the dead process, and tell everybody who waits for it."""
        await asyncio.to_thread(self._child.end)
        reason = None if self._is_stopped else self._child.how_it_ended()
        self.gone = EngineFailed(reason or "the engine was stopped")
        super().handle_end(error)
        self._lost(self, reason)
