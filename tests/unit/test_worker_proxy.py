"""Requests that a worker passes on to the writing process."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
from starlette.types import Message

from heddle.web_workers.proxy import Proxy

_SCOPE = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": [(b"host", b"h")]}


class _Exchange:
    """A request without a body, and what is answered."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self._is_sent = False

    async def receive(self) -> Message:
        """The end of the request, then nothing as long as the client stays."""
        if self._is_sent:
            await asyncio.Event().wait()
        self._is_sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


@pytest.mark.parametrize(
    ("sent", "status"), [(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 200), (b"HTTP/1.1 what\r\n\r\n", 503)]
)
def test_a_request_is_freed_with_its_answer(tmp_path: Path, sent: bytes, status: int) -> None:
    """Otherwise the requests of seconds lie between objects that stay, until cyclic garbage is collected."""
    asyncio.run(_exchange(tmp_path / "requests", sent, status))


async def _exchange(path: Path, sent: bytes, status: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.close()

    async with await asyncio.start_unix_server(answer, str(path)):
        exchange = _Exchange()
        freed = weakref.ref(exchange)
        gc.disable()
        try:
            await Proxy(path)(_SCOPE, exchange.receive, exchange.send)
            assert exchange.status == status
            del exchange
            await asyncio.sleep(0)  # what was cancelled is let go of by the loop
            assert freed() is None
        finally:
            gc.enable()
