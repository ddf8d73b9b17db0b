"""HTTP/1.1 to one server: kept connections, bodies as they come.

Every token of every answer passes here, so this is asyncio and the parser that heddle's own server uses, without the
layers of a general client (docs: decisions).
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""A connection that rested longer may have been closed by the other side, so a new one is opened."""
_PAUSE_BYTES = 1 << 20
_WHOLE_BYTES = 64 << 20


class Unanswered(Exception):
    """No answer, or not all of it: no connection, or it was closed."""


class Refused(Exception):
    """An answer with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._paused = False
        self.lost = False
        self._broken: Exception | None = None
        self.resting_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.is_silent, self.has_status, self.is_whole, self.keeps = True, False, False, False

    @property
    def status(self) -> int:
        """Of the answer whose head has come."""
        return int(self._parser.get_status_code())

    def send(self, request: bytes) -> None:
        """Write a request; its answer is what is read from now on."""
        self._begin()
        assert self._transport is not None
        self._transport.write(request)

    async def head(self) -> int:
        """Wait for the status; raises Unanswered."""
        while not self.has_status:
            await self._wait_for_data()
        return self.status

    async def read(self) -> bytes:
        """What has come of the body, at least a byte; empty at its end. Raises Unanswered."""
        while not self._parts:
            if self.is_whole:
                return b""
            await self._wait_for_data()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._waiting_bytes = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    @property
    def is_read(self) -> bool:
        """True when all of the answer has come and was read."""
        return self.is_whole and not self._parts

    async def _wait_for_data(self) -> None:
        if self.lost:
            raise Unanswered("the connection was closed before the end of the answer")
        if self._broken is not None:
            raise Unanswered(f"the answer is not HTTP: {self._broken}")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Cut it, which ends the request at the server."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        # uvloop's transports do not descend from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        self.is_silent = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broken = error
        if self._waiting_bytes > _PAUSE_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self.lost = True
        self._wake()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.has_status = True

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        self._parts.append(data)
        self._waiting_bytes += len(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.is_whole = True
        self.keeps = bool(self._parser.should_keep_alive())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Client:
    """One server; requests share kept connections."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        self.url = url.rstrip("/")
        self._host, self._prefix = parts.hostname or "", parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._fixed = f"Host: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        self._fixed += f"Authorization: Bearer {key}\r\n" if key else ""
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    async def ask(self, method: str, path: str, body: bytes = b"", seconds: float = CONNECT_SECONDS) -> bytes:
        """The body of an answer with status 200; raises Refused, and Unanswered also after `seconds`."""
        try:
            async with asyncio.timeout(seconds), aclosing(self.stream(method, path, body)) as parts:
                return b"".join([part async for part in parts])
        except TimeoutError:
            raise Unanswered(f"no answer within {seconds:g} s") from None

    async def stream(self, method: str, path: str, body: bytes = b"") -> AsyncGenerator[bytes]:
        """The body of an answer as it comes, if the status is 200; closing it cuts the connection.

        Raises Refused and Unanswered.
        """
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fixed}Content-Length: {len(body)}\r\n\r\n"
        request = head.encode("latin-1") + body
        connection = await self._send(request)
        try:
            if connection.status != 200:
                raise Refused(connection.status, await _read_body(connection))
            while part := await connection.read():
                yield part
        finally:
            self._give_back(connection)

    def cut(self) -> None:
        """Close every connection; whoever waits for an answer gets Unanswered."""
        for connection in [*self._busy, *self._idle]:
            connection.close()
        self._idle.clear()

    async def _send(self, request: bytes) -> Connection:
        """A connection with the head of its answer."""
        while True:
            kept = self._take_idle()
            connection = kept or await self._open()
            self._busy.add(connection)
            connection.send(request)
            try:
                await connection.head()
            except BaseException as error:
                self._give_back(connection)
                # A kept connection that is closed without a word was idle too long: the request was not read.
                if kept is not None and connection.is_silent and isinstance(error, Unanswered):
                    continue
                raise
            return connection

    def _take_idle(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and connection.resting_since > oldest:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, made = await loop.create_connection(Connection, self._host, self._port, ssl=self._ssl)
        except TimeoutError:
            raise Unanswered(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise Unanswered(f"no connection: {error.strerror or error}") from error
        return made

    def _give_back(self, connection: Connection) -> None:
        self._busy.discard(connection)
        # What was not read of an answer would be the beginning of the next one.
        if connection.is_read and connection.keeps and not connection.lost:
            connection.resting_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()


async def _read_body(connection: Connection) -> bytes:
    body = b""
    while (part := await connection.read()) and len(body) < _WHOLE_BYTES:
        body += part
    return body
