"""The two ends of a socket between processes of this program: framed pickles, in an event loop or in a thread.

A frame is four bytes of length and the pickle. Both ends run the same code under one user, and nobody else can reach
the socket.
"""

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, cast

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
                raise FrameTooLarge(f"it said more than {self._max_bytes} bytes at once")
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
