"""The embedded engine as the server sees it: an `Engine` whose work is done in a process of its own."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

from heddle.inference.engine.base import (
    AdapterRef,
    EngineFailed,
    EngineInfo,
    EngineStats,
    TokenEvent,
    TokenRequest,
)
from heddle.inference.engine.local.options import LocalOptions, read_facts
from heddle.inference.engine.local.process import EngineProcess

__all__ = ["LocalEngine", "LocalOptions"]

STATS_SECONDS = 2.0
"""A step may take longer than somebody wants to wait for figures; then the last known ones are given."""


class LocalEngine:
    """Starts its process with the first request, and again with the next one after it died."""

    def __init__(self, options: LocalOptions) -> None:
        """Reads the small files of the model folder; raises OSError or ValueError."""
        facts = read_facts(options)
        self.options = options
        self._info = EngineInfo(
            name="heddle-local",
            max_model_len=min(options.max_model_len or facts.max_positions, facts.max_positions),
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            scheduling=options.scheduling,
        )
        self._process: EngineProcess | None = None
        self._starting: asyncio.Task[EngineProcess] | None = None
        self._last = EngineStats()
        self._load_seconds = 0.0

    def info(self) -> EngineInfo:
        """From the folder; `max_model_len` may become smaller with the first start, when memory holds less."""
        return self._info

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Load, if that has not been done; many may wait for one loading. Raises EngineFailed."""
        await self._ready()

    async def stop(self) -> None:
        """End every request and the process."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._process is not None:
            await self._process.stop()
        self._last.state = "idle"

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:
        """The tokens of one request; closing the iterator aborts it.

        Raises EngineFailed, EngineBusy, RequestRefused.
        """
        process = await self._ready()
        stream = process.generate(sendable(request))
        try:
            while True:
                event = await stream.take()
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            process.release(stream)

    async def load_adapter(self, adapter: AdapterRef, start: bool = True) -> None:
        """Make a version ready. Raises RequestRefused when it does not fit the model, and EngineFailed."""
        process = await self._ready() if start else self._process
        if process is not None:
            await process.call("load", adapter)

    async def unload_adapter(self, adapter_id: str) -> None:
        """Forget a version with the end of its last request; does not wait for that."""
        if self._process is not None:
            await self._process.call("unload", adapter_id)

    async def stats(self) -> EngineStats:
        """Figures now; those of an earlier moment while a long step runs."""
        process = self._process
        if self._starting is not None:
            return dataclasses.replace(self._last, state="loading", error=None)
        if process is not None:
            with contextlib.suppress(TimeoutError, EngineFailed):
                self._last = await asyncio.wait_for(process.call("stats"), STATS_SECONDS)
                self._last.load_seconds = self._load_seconds
        return dataclasses.replace(self._last)

    async def _ready(self) -> EngineProcess:
        """The running process, started when there is none."""
        if self._process is not None:
            return self._process
        starting = self._starting
        if starting is None:
            starting = self._starting = asyncio.get_running_loop().create_task(self._start())
            starting.add_done_callback(self._started)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise EngineFailed("the engine was stopped while it was starting") from None
            raise

    async def _start(self) -> EngineProcess:
        process = await EngineProcess.start(self.options, self._lost)
        ready = process.ready
        self._load_seconds = ready.load_seconds
        self._info = dataclasses.replace(
            self._info,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            eos_token_ids=ready.eos_token_ids,
        )
        self._process = process
        return process

    def _started(self, task: asyncio.Task[EngineProcess]) -> None:
        self._starting = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._last = EngineStats(state="failed", error=str(error))

    def _lost(self, process: EngineProcess, reason: str | None) -> None:
        """The process is gone; `reason` is None when it was ended on purpose."""
        if self._process is process:
            self._process = None
        self._last = EngineStats(state="failed" if reason else "idle", error=reason)


def sendable(request: TokenRequest) -> TokenRequest:
    """The request as it goes to the other process: plain containers, and nothing that is not used there."""
    return dataclasses.replace(
        request,
        sampling=dataclasses.replace(request.sampling, logit_bias=dict(request.sampling.logit_bias)),
        kv_transfer_params=None,
        xargs=None,
    )
