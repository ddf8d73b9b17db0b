"""The client of the servers, before a raw socket that answers as told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
import uvloop

from heddle.inference.engine.vllm.http import Client, Refused, Unanswered

Handle = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Called for each connection, with its number from 0."""
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request with its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@asynccontextmanager
async def talking(handle: Handle, prefix: str = "") -> AsyncIterator[Client]:
    """A client of a server that handles each connection so."""
    count = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        try:
            await handle(count - 1, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}", "secret")
    try:
        yield client
    finally:
        client.cut()
        server.close()


def test_a_connection_is_kept_and_says_who_asks() -> None:
    seen: list[tuple[int, bytes]] = []

    async def handle(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append((number, await read_request(reader)))
            writer.write(WHOLE)

    async def go() -> None:
        async with talking(handle, "/base/") as client:
            assert [await client.ask("POST", "/x", b"{}"), await client.ask("GET", "/y")] == [b"ok", b"ok"]

    uvloop.run(go())
    assert [number for number, _ in seen] == [0, 0]
    assert seen[0][1].startswith(b"POST /base/x HTTP/1.1\r\n") and seen[0][1].endswith(b"\r\n\r\n{}")
    assert b"Authorization: Bearer secret\r\n" in seen[0][1]


def test_nobody_reads_what_another_request_left_unread() -> None:
    """All of the first answer has come when its reader goes away in the middle of it."""

    async def handle(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if number > 0:
            writer.write(WHOLE)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await release.wait()
        writer.write(b"2\r\ncd\r\n0\r\n\r\n")
        await read_request(reader)

    async def go() -> None:
        async with talking(handle) as client:
            async with aclosing(client.stream("GET", "/")) as parts:
                assert await anext(parts) == b"ab"
                release.set()
                (connection,) = client._busy
                while not connection.is_whole:
                    await asyncio.sleep(0)
            assert await client.ask("GET", "/") == b"ok"

    release = asyncio.Event()
    uvloop.run(go())


def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    """The server closes after one answer, without having said so."""
    numbers: list[int] = []

    async def handle(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        numbers.append(number)
        await read_request(reader)
        writer.write(WHOLE)
        await read_request(reader)

    async def go() -> None:
        async with talking(handle) as client:
            assert await client.ask("GET", "/") == b"ok"
            assert await client.ask("GET", "/") == b"ok"

    uvloop.run(go())
    assert numbers == [0, 1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "closed"),
        (b"SSH-2.0-OpenSSH\r\n", "is not HTTP"),
    ],
)
def test_half_an_answer_is_none(answer: bytes, said: str) -> None:
    async def handle(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()

    async def go() -> None:
        async with talking(handle) as client:
            with pytest.raises(Unanswered, match=said):
                await client.ask("GET", "/")

    uvloop.run(go())


def test_another_status_is_told_with_its_body() -> None:
    async def handle(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnone\r\n0\r\n\r\n")
        await read_request(reader)
        writer.write(WHOLE)
        await read_request(reader)

    async def go() -> None:
        async with talking(handle) as client:
            with pytest.raises(Refused) as refused:
                await client.ask("GET", "/")
            assert (refused.value.status, refused.value.body) == (404, b"none")
            assert await client.ask("GET", "/") == b"ok", "over the same connection"

    uvloop.run(go())


def test_silence_has_an_end() -> None:
    async def handle(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    async def go() -> None:
        async with talking(handle) as client:
            with pytest.raises(Unanswered, match="within"):
                await client.ask("GET", "/", seconds=0.05)

    uvloop.run(go())


def test_nobody_there() -> None:
    async def go() -> None:
        async with talking(lambda *_: asyncio.sleep(0)) as client:
            pass
        with pytest.raises(Unanswered, match="no connection"):
            await client.ask("GET", "/")

    uvloop.run(go())
