"""The embedded engine as the server sees it: an `Engine` whose work is done in a process of its own."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from heddle.inference.engine.base import (
    AdapterRef,
    EngineFailed,
    EngineInfo,
    EngineStats,
    TokenEvent,
    TokenLogprobs,
    TokenRequest,
)
from heddle.inference.engine.local.options import NAME, LocalOptions, read_info
from heddle.ipc.child import ConnectedChild
from heddle.ipc.rpc import Client, Request

Packed = tuple[Any, ...]


class TokenStream:
    """Packed events of one request, in an event loop; a slow reader gets them merged."""

    number = 0
    """Of the request."""

    def __init__(self, policy: str | None) -> None:
        self._policy = policy
        self._events: list[Packed] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_ended = False

    def done(self) -> bool:
        """True once the last event has come, or a failure."""
        return self._has_ended

    def set_result(self, event: Packed) -> None:
        """One event of the engine."""
        self._events.append(event)
        if len(event) > 2 and event[4] is not None:
            self._has_ended = True
        self._wake()

    def set_exception(self, error: Exception) -> None:
        """The request ends with an exception, after the events before it."""
        if not self._has_ended:
            self._failure = error
            self._has_ended = True
            self._wake()

    async def take(self) -> TokenEvent:
        """All that has come, as one event; waits for the first. Raises the request's failure."""
        if not self._events and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._events:
            assert self._failure is not None
            raise self._failure
        events, self._events = self._events, []
        return merge_events(events, self._policy)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge_events(events: list[Packed], policy: str | None) -> TokenEvent:
    """One event with the tokens of all."""
    if len(events) == 1 and len(events[0]) == 2:
        return TokenEvent(token_ids=(events[0][1],), policy=policy)
    logprobs: list[TokenLogprobs] = []
    first = end = state = None
    for event in events:
        if len(event) > 2:
            _, _, own, event_first, event_end, event_state = event
            first, end, state = first or event_first, end or event_end, state or event_state
            if own is not None:
                logprobs.append(TokenLogprobs(*own))
    cached, prompt = first or (None, None)
    reason, stop = end or (None, None)
    return TokenEvent(
        token_ids=tuple(event[1] for event in events if event[1] is not None),
        logprobs=tuple(logprobs),
        prompt_logprobs=None if prompt is None else tuple(item and TokenLogprobs(*item) for item in prompt),
        cached_tokens=cached,
        finish_reason=reason,
        stop_reason=stop,
        policy=policy,
        state=state,
    )


logger = logging.getLogger("heddle.inference.engine")

MODULE = "heddle.inference.engine.local"
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Weights in huge pages: up to a quarter less time per step of one sequence. What the environment says goes first."""


class EngineProcess(Client):
    """One process from its start to its end.

    Its methods are `start`, `load`, `unload` and `stats`; `generate`, whose reply is a failure only, and `abort`,
    which has none. Tokens come as one list of packed events (`Event.packed`) per step.
    """

    ready: tuple[EngineInfo, float]
    """What it loaded, and in how many seconds."""

    def __init__(self, child: ConnectedChild, lost: Callable[["EngineProcess", str | None], None]) -> None:
        super().__init__(EngineFailed("the engine process has exited"))
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
            raise EngineFailed(f"the engine process could not be started: {error}") from error
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
        self._burial = asyncio.create_task(self._collect(error))

    async def _collect(self, error: Exception | None) -> None:
        """Collect the dead process, and tell everybody who waits for it."""
        await asyncio.to_thread(self._child.end)
        reason = None if self._is_stopped else self._child.how_it_ended()
        self.gone = EngineFailed(reason or "the engine was stopped")
        super().handle_end(error)
        self._lost(self, reason)


__all__ = ["LocalEngine", "LocalOptions"]

STATS_SECONDS = 2.0
"""A step may take longer than somebody wants to wait for stats; then the last known ones are given."""


class LocalEngine:
    """Starts its process with the first request, and again with the next one after it died."""

    def __init__(self, options: LocalOptions) -> None:
        """Reads the small files of the model folder; raises Unavailable."""
        self.options = options
        self._info = read_info(NAME, options)
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
        await self._ensure_process()

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
        process = await self._ensure_process()
        stream = process.generate(request)
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
        process = await self._ensure_process() if start else self._process
        if process is not None:
            await process.call("load", adapter)

    async def unload_adapter(self, adapter_id: str) -> None:
        """Forget a version with the end of its last request; does not wait for that."""
        if self._process is not None:
            await self._process.call("unload", adapter_id)

    async def stats(self) -> EngineStats:
        """Stats now; those of an earlier moment while a long step runs."""
        process = self._process
        if self._starting is not None:
            return dataclasses.replace(self._last, state="loading", error=None)
        if process is not None:
            with contextlib.suppress(TimeoutError, EngineFailed):
                self._last = await asyncio.wait_for(process.call("stats"), STATS_SECONDS)
                self._last.load_seconds = self._load_seconds
        return dataclasses.replace(self._last)

    async def _ensure_process(self) -> EngineProcess:
        """The running process, started when there is none."""
        if self._process is not None:
            return self._process
        starting = self._starting
        if starting is None:
            starting = self._starting = asyncio.get_running_loop().create_task(self._start())
            starting.add_done_callback(self._note_start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise EngineFailed("the engine was stopped while it was starting") from None
            raise

    async def _start(self) -> EngineProcess:
        process = await EngineProcess.start(self.options, self._lost)
        self._info, self._load_seconds = process.ready
        self._process = process
        return process

    def _note_start(self, task: asyncio.Task[EngineProcess]) -> None:
        self._starting = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._last = EngineStats(state="failed", error=str(error))

    def _lost(self, process: EngineProcess, reason: str | None) -> None:
        """The process is gone; `reason` is None when it was ended on purpose."""
        if self._process is process:
            self._process = None
        self._last = EngineStats(state="failed" if reason else "idle", error=reason)
