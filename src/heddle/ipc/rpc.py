"""Framed pickles over a socket between processes of this program, and calls with their replies over that.

A frame is four bytes of length and the pickle. Both ends run the same code under one user, and nobody else can reach
the socket.
"""

import asyncio
import itertools
import pickle
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from heddle.errors import HeddleError

_HEADER = struct.Struct("<I")
_READ_BYTES = 1 << 16


class FrameTooLarge(Exception):
    """The other side said more at once than it may."""


def pack(message: Any) -> bytes:
    """A message as a frame."""
    body = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self, max_bytes: int = 0) -> None:
        """`max_bytes` of one message; 0 for any."""
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete with these bytes. Raises FrameTooLarge, and what pickle raises."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            if 0 < self._max_bytes < size:
                raise FrameTooLarge(f"it sent more than {self._max_bytes} bytes at once")
            end = start + _HEADER.size + size
            if end > len(buffer):
                break
            yield pickle.loads(memoryview(buffer)[start + _HEADER.size : end])
            start = end
        del buffer[:start]


class Connection(asyncio.Protocol):
    """An end in an event loop. What cannot be read, or fails in `handle_message`, breaks the connection."""

    def __init__(self, max_bytes: int = 0) -> None:
        self._frames = Frames(max_bytes)
        self._transport: asyncio.Transport | None = None
        self.is_open = False

    def handle_message(self, message: Any) -> None:
        """Called for every message."""
        raise NotImplementedError

    def handle_end(self, error: Exception | None) -> None:
        """Called once when the other side is gone, or this one has closed; `error` for what broke the connection."""
        raise NotImplementedError

    def send(self, message: Any) -> None:
        """Send a message; it is lost when the other side is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def hang_up(self) -> None:
        """Hang up once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        # uvloop's transports do not descend from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        for message in self._frames.feed(data):
            self.handle_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self.is_open = False
        self.handle_end(error)


class BlockingConnection:
    """An end in threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = Frames()
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message; it is with the kernel when this returns. Raises OSError when the other side is gone."""
        with self._sending:
            self._connection.sendall(pack(message))

    def receive(self, wait: bool = True) -> list[Any]:
        """Messages that have come, with `wait` once there is something; OSError or EOFError without the other side."""
        try:
            data = self._connection.recv(_READ_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        return list(self._frames.feed(data))


Handler = Callable[[str, tuple[Any, ...]], Awaitable[Any]]


class Request(NamedTuple):
    """A call of a method."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()


class Reply(NamedTuple):
    """What a method returned or raised."""

    number: int
    value: Any = None
    error: Exception | None = None


class Pending(Protocol):
    """What waits for a reply; a future, or something that takes more than one."""

    def done(self) -> bool:
        """True when nothing more is wanted."""

    def set_result(self, result: Any, /) -> None:
        """What the method returned."""

    def set_exception(self, exception: Exception, /) -> None:
        """What the method raised."""


class Client(Connection):
    """Calls methods of the other side."""

    def __init__(self, gone: Exception) -> None:
        """`gone` is raised by calls of a process that has ended."""
        super().__init__()
        self.gone = gone
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self.ended = asyncio.Event()

    @classmethod
    async def connect(cls, path: Path, gone: Exception) -> "Client":
        """Connect to a server's socket; raises OSError."""
        _, client = await asyncio.get_running_loop().create_unix_connection(lambda: Client(gone), str(path))
        return client

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method returns; raises what it raises, and `gone`. Who goes away does not undo what was asked for."""
        reply = asyncio.get_running_loop().create_future()
        number = self.request(reply, method, *arguments)
        try:
            return await reply
        finally:
            self.forget(number)

    def request(self, pending: Pending, method: str, *arguments: Any) -> int:
        """Send a request whose reply goes to `pending` until it is forgotten; its number. Raises `gone`."""
        if not self.is_open:
            raise self.gone
        number = next(self._numbers)
        self._pending[number] = pending
        self.send(Request(number, method, arguments))
        return number

    def forget(self, number: int) -> None:
        """Nobody waits for the reply any more."""
        self._pending.pop(number, None)

    def handle_message(self, message: Any) -> None:
        """A reply."""
        number, value, error = message
        pending = self._pending.get(number)
        if pending is None or pending.done():
            return
        if error is not None:
            pending.set_exception(error)
        else:
            pending.set_result(value)

    def handle_end(self, error: Exception | None) -> None:  # noqa: ARG002
        """Tell everybody who waits."""
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(self.gone)
        self.ended.set()


class Server:
    """Lets other processes call methods; `handler` does what they ask for, and raises HeddleError."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._clients: set[_ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> None:
        """Take connections at a path."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _ServerConnection(self._take, self._clients), str(path))

    async def close(self) -> None:
        """Finish what was asked for, and hang up."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for client in list(self._clients):
            client.hang_up()

    def _take(self, client: Connection, request: Request) -> None:
        task = asyncio.create_task(self._answer(client, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, client: Connection, request: Request) -> None:
        try:
            reply = Reply(request.number, await self._handler(request.method, request.arguments))
        except HeddleError as error:
            reply = Reply(request.number, error=error)
        client.send(reply)


class _ServerConnection(Connection):
    def __init__(self, take: Callable[[Connection, Request], None], clients: "set[_ServerConnection]") -> None:
        super().__init__()
        self._take = take
        self._clients = clients
        clients.add(self)

    def handle_message(self, message: Any) -> None:
        """A request."""
        self._take(self, message)

    def handle_end(self, error: Exception | None) -> None:  # noqa: ARG002
        """What was asked for is done all the same."""
        self._clients.discard(self)
