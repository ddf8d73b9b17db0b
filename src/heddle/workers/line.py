"""The line between a worker and the writing process: numbered calls of verbs, and their answers, in any order.

A frame is eight bytes of number, four of length, and a pickle. Both ends are this same program under one user, and the
socket lies in a folder that only that user can enter.
"""

import asyncio
import contextlib
import itertools
import pickle
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from heddle.errors import HeddleError, Unavailable

_HEAD = struct.Struct("!QI")
_LIMIT = 1 << 20
Handler = Callable[[str, tuple[Any, ...]], Awaitable[Any]]


def _frame(number: int, value: object) -> bytes:
    payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _HEAD.pack(number, len(payload)) + payload


async def _read(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """The next frame; raises EOFError when the line has ended."""
    try:
        number, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return number, pickle.loads(await reader.readexactly(length))
    except OSError as error:
        raise EOFError(str(error)) from error


class Line:
    """The worker's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.ended = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, path: Path) -> "Line":
        """Connect to the writing process; raises OSError."""
        return cls(*await asyncio.open_unix_connection(path, limit=_LIMIT))

    async def call(self, verb: str, *arguments: Any) -> Any:
        """What a verb of the writing process returns; raises what it raises, and Unavailable when it is gone.

        A caller that goes away does not undo what was asked for.
        """
        if self.ended.is_set():
            raise Unavailable("The writing process has ended")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(_frame(number, (verb, arguments)))
            await self._writer.drain()
            return await answer
        except OSError as error:
            raise Unavailable("The writing process has ended") from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Hang up."""
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        self._writer.close()

    async def _listen(self) -> None:
        try:
            with contextlib.suppress(EOFError):
                while True:
                    number, (result, error) = await _read(self._reader)
                    waiting = self._waiting.get(number)
                    if waiting is None or waiting.done():
                        continue
                    if error is not None:
                        waiting.set_exception(error)
                    else:
                        waiting.set_result(result)
        finally:
            # However it ended, nobody may wait for ever; the worker stops, and another one takes its place.
            self.ended.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Unavailable("The writing process has ended"))


class Exchange:
    """The writing process's end of all lines; `handler` does what a verb asks for."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, path: Path) -> None:
        """Listen at a path."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=_LIMIT)

    async def close(self) -> None:
        """Finish what was asked for, and hang up."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError):
            while True:
                number, (verb, arguments) = await _read(reader)
                task = asyncio.create_task(self._answer(writer, number, verb, arguments))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, number: int, verb: str, arguments: tuple[Any, ...]) -> None:
        answer: tuple[Any, HeddleError | None]
        try:
            answer = (await self._handler(verb, arguments), None)
        except HeddleError as error:
            answer = (None, error)
        with contextlib.suppress(OSError):  # the worker died; what it asked for is done all the same
            writer.write(_frame(number, answer))
            await writer.drain()
