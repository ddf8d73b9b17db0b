"""The server's end of the socket to the engine's process."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

from heddle.inference.engine.base import EngineFailed, TokenRequest
from heddle.inference.engine.local.mailbox import Mailbox
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.process import EngineProcess
from heddle.inference.engine.local.wire import Frames, Ready, frame

Lost = Callable[["Connection", str | None], None]


class Connection(asyncio.Protocol):
    """One process from its start to its end: sends requests, and sorts what comes back into mailboxes."""

    def __init__(self, process: EngineProcess, lost: Lost) -> None:
        self._process = process
        self._lost = lost
        self._frames = Frames()
        self._boxes: dict[int, Mailbox] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_numbers = itertools.count(1)
        self._closing = False
        self._unable: str | None = None
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[Ready] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()

    @classmethod
    async def open_process(cls, options: LocalOptions, lost: Lost) -> "Connection":
        """Start a process and wait until its model is loaded. Raises EngineFailed; cancelling ends the process."""
        loop = asyncio.get_running_loop()
        try:
            process = EngineProcess()
        except OSError as error:
            raise EngineFailed(f"the engine's process cannot be started: {error}") from error
        try:
            _, connection = await loop.create_unix_connection(lambda: cls(process, lost), sock=process.connection)
        except BaseException:
            process.kill()
            raise
        connection._send(options)
        try:
            await asyncio.shield(connection._hello)
        except asyncio.CancelledError:
            process.kill()
            await connection.close()
            connection._hello.exception()
            raise
        return connection

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ready(self) -> Ready:
        """What the process said when it was ready."""
        return self._hello.result()

    def open(self, number: int, request: TokenRequest) -> Mailbox:
        """Send a request; what comes for it goes into the mailbox until `shut`."""
        box = Mailbox(request.adapter.id if request.adapter else None)
        self._boxes[number] = box
        if self._gone.done() or self._closing:
            box.fail(EngineFailed("the engine's process has ended"))
        else:
            self._send(("add", number, request))
        return box

    def shut(self, number: int) -> None:
        """Close a mailbox; its request is aborted if it has not ended."""
        box = self._boxes.pop(number)
        if not box.ended and not self._closing:
            self._send(("abort", number))

    async def call(self, command: str, value: Any) -> Any:
        """Ask and wait for the answer. Raises the engine's exceptions."""
        if self._gone.done() or self._closing:
            raise EngineFailed("the engine's process has ended")
        number = next(self._call_numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send((command, number, value))
        try:
            result = await answer
        finally:
            self._calls.pop(number, None)
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        """End the process and every request."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        # uvloop's transports do not descend from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol: events and answers."""
        boxes = self._boxes
        for message in self._frames.feed(data):
            if type(message) is list:
                for event in message:
                    box = boxes.get(event[0])
                    if box is not None:
                        box.put(event)
            else:
                self._handle(*message)

    def connection_lost(self, _: Exception | None) -> None:
        """Part of asyncio.Protocol: the process has closed its end, or we have."""
        asyncio.get_running_loop().create_task(self._bury())

    def _handle(self, kind: str, *values: Any) -> None:
        if kind == "failed":
            box = self._boxes.get(values[0])
            if box is not None:
                box.fail(values[1])
        elif kind == "reply":
            answer = self._calls.get(values[0])
            if answer is not None and not answer.done():
                answer.set_result(values[1])
        elif kind == "ready":
            self._hello.set_result(values[0])
        elif kind == "unable":
            self._unable = values[0]

    async def _bury(self) -> None:
        """Collect the dead process, and tell everybody who waits for it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._process.end)
        reason = None if self._closing else self._unable or self._process.how_it_ended()
        error = EngineFailed(reason or "the engine was stopped")
        if not self._hello.done():
            self._hello.set_exception(error)
        for box in self._boxes.values():
            box.fail(error)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(error)
        self._lost(self, reason)
        self._gone.set_result(None)

    def _send(self, message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))
