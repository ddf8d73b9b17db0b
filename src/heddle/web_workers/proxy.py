"""Passes requests on to the writing process, whole and as they come, over a connection of their own each."""

import asyncio
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from httptools import HttpParserError, HttpResponseParser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heddle import aio
from heddle.http.middleware import client_prefix

CLIENT = b"x-heddle-client"
"""Who the worker's client is: address and port; nobody but workers reaches the socket."""
_HOP = frozenset((
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
))  # fmt: skip
_OWN = _HOP | {b"date"}
_PART = 1 << 16
_AWAY = (
    b'{"reason":"The writing process does not answer"}',
    [(b"content-type", b"application/json"), (b"retry-after", b"1")],
)


class Proxy:
    """An ASGI application in front of another one that listens at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and its answer back; a client that goes away ends the request there, too."""
        # No stream: where the body is refused, sending it fails while the answer is still to be read.
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        with connection:
            try:
                await asyncio.get_running_loop().sock_connect(connection, str(self._path))
            except OSError:
                await _answer_away(send)
            else:
                await _exchange(connection, scope, receive, send)


async def _exchange(connection: socket.socket, scope: Scope, receive: Receive, send: Send) -> None:
    upload = asyncio.create_task(_upload(scope, receive, connection))
    answer = asyncio.create_task(_Answer(scope["method"] == "HEAD", send).run(connection))
    try:
        done, _ = await asyncio.wait([upload, answer], return_when=asyncio.FIRST_COMPLETED)
        if answer in done or await upload:
            await answer
    finally:
        await aio.cancel(upload, answer)


def _head(scope: Scope) -> tuple[bytes, bool]:
    """The head of a request, and whether its body goes in chunks."""
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = [pair for pair in scope["headers"] if pair[0] not in _HOP and pair[0] != CLIENT]
    names = {name for name, _ in scope["headers"]}
    in_chunks = b"transfer-encoding" in names
    if in_chunks:
        headers.append((b"transfer-encoding", b"chunked"))
    if scope.get("client"):
        headers.append((CLIENT, "{}:{}".format(*scope["client"]).encode()))
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target)]
    lines += [b"%b: %b" % pair for pair in (*headers, (b"connection", b"close"))]
    return b"\r\n".join(lines) + b"\r\n\r\n", in_chunks


async def _upload(scope: Scope, receive: Receive, connection: socket.socket) -> bool:
    """Send the request; returns True when the other side takes no more of it, False when the client has gone."""
    loop, (head, in_chunks) = asyncio.get_running_loop(), _head(scope)
    try:
        await loop.sock_sendall(connection, head)
        while (message := await receive())["type"] == "http.request":
            if part := _chunk(message, in_chunks):
                await loop.sock_sendall(connection, part)
    except OSError:
        return True
    return False


def _chunk(message: Message, in_chunks: bool) -> bytes:
    body: bytes = message.get("body", b"")
    if not in_chunks:
        return body
    framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return framed if message.get("more_body", False) else framed + b"0\r\n\r\n"


class _Answer:
    """Reads an answer and hands it on part by part; the callbacks of the parser fill `_messages`."""

    def __init__(self, is_head: bool, send: Send) -> None:
        self._is_head = is_head
        self._send = send
        self._parser = HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[Message] = []
        self._has_begun = self._is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if name.lower() not in _OWN:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        status = self._parser.get_status_code()
        if status == 401:
            self._headers.append((b"connection", b"close"))
        self._messages.append({"type": "http.response.start", "status": status, "headers": self._headers})
        self._is_whole = self._is_head

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        """The end."""
        self._is_whole = True

    async def run(self, connection: socket.socket) -> None:
        """Pass the answer on; one that breaks off stays incomplete, which the client sees."""
        loop = asyncio.get_running_loop()
        try:
            while not self._is_whole and (data := await loop.sock_recv(connection, _PART)):
                self._parser.feed_data(data)
                messages, self._messages = self._messages, []
                for message in messages:
                    self._has_begun = True
                    await self._send(message)
        except (OSError, HttpParserError):
            pass
        finally:
            # It holds the callbacks: a cycle would keep the whole request until garbage is collected.
            del self._parser
        if self._is_whole:
            await self._send({"type": "http.response.body", "body": b""})
        elif not self._has_begun:
            await _answer_away(self._send)
        else:
            raise ConnectionError("the writing process interrupted a response")


async def _answer_away(send: Send) -> None:
    body, headers = _AWAY
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Fork:
    """An ASGI application: what is local goes to one, the rest to the other."""

    def __init__(self, local: ASGIApp, routes: Iterable[APIRoute], elsewhere: Proxy) -> None:
        self._local = local
        self._elsewhere = elsewhere
        self._plain: set[str] = set()
        self._patterns: list[re.Pattern[str]] = []
        for route in routes:
            if "{" in route.path:
                self._patterns.append(route.path_regex)
            else:
                self._plain.add(route.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path: str = scope["path"].removeprefix(client_prefix(scope))
        is_local = scope["method"] == "POST" and (
            path in self._plain or any(pattern.match(path) for pattern in self._patterns)
        )
        await (self._local if is_local else self._elsewhere)(scope, receive, send)


class Private:
    """The application of the writing process as workers reach it: with the address of their client."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that a worker passed on."""
        client = next((value.decode() for name, value in scope["headers"] if name == CLIENT), "")
        host, _, port = client.rpartition(":")
        headers = [pair for pair in scope["headers"] if pair[0] != CLIENT]
        named = (host, int(port)) if port else None
        await self._app({**scope, "headers": headers, "client": named}, receive, send)
