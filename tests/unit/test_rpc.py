"""Calls between processes: answers in any order, failures as they are, an end that shows."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import Busy, HeddleError, StorageFull, Unavailable, ValidationFailed
from heddle.ipc.rpc import Client, Server
from tests.support.patience import strain


def test_calls_are_answered_in_any_order_and_failures_travel(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def handler(method: str, arguments: tuple[Any, ...]) -> Any:
            if method == "wait":
                await gate.wait()
            if method == "busy":
                raise Busy("Too much waits", retry_after=7)
            if method == "full":
                raise StorageFull("no room", param="data")
            if method == "wrong":
                raise ValidationFailed.at(["body", "id"], "too long")
            return method, arguments

        server = Server(handler)
        await server.listen(tmp_path / "socket")
        client = await Client.connect(tmp_path / "socket", Unavailable("The server has ended"))
        waiting = asyncio.create_task(client.call("wait", 1))
        assert await client.call("echo", b"x" * 3_000_000) == ("echo", (b"x" * 3_000_000,))
        assert not waiting.done()
        gate.set()
        assert await waiting == ("wait", (1,))
        with pytest.raises(Busy) as busy:
            await client.call("busy")
        assert (busy.value.reason, busy.value.headers) == ("Too much waits", {"Retry-After": "7"})
        with pytest.raises(StorageFull) as full:
            await client.call("full")
        assert (full.value.status, full.value.param) == (507, "data")
        with pytest.raises(ValidationFailed) as wrong:
            await client.call("wrong")
        assert wrong.value.detail == [{"loc": ["body", "id"], "msg": "too long", "type": "value_error"}]
        client.hang_up()
        await server.close()

    asyncio.run(main())


def test_what_waits_is_told_when_the_server_has_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            client = await Client.connect(tmp_path / "socket", Unavailable("The server has ended"))
            with pytest.raises(Unavailable):
                await asyncio.wait_for(client.call("anything"), 30)
            await asyncio.wait_for(client.ended.wait(), 30 * strain())
            with pytest.raises(HeddleError, match="has ended"):
                await client.call("more")
            client.hang_up()

    asyncio.run(main())


def test_an_answer_that_cannot_be_read_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(struct.pack("<I", 4) + b"junk")

        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            client = await Client.connect(tmp_path / "socket", Unavailable("The server has ended"))
            with pytest.raises(Unavailable):
                await asyncio.wait_for(client.call("anything"), 30)
            await asyncio.wait_for(client.ended.wait(), 30 * strain())

    asyncio.run(main())


def test_a_client_that_dies_does_not_undo_what_it_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        begun, gate, done = asyncio.Event(), asyncio.Event(), list[str]()

        async def handler(method: str, _arguments: tuple[Any, ...]) -> None:
            begun.set()
            await gate.wait()
            done.append(method)

        server = Server(handler)
        await server.listen(tmp_path / "socket")
        client = await Client.connect(tmp_path / "socket", Unavailable("The server has ended"))
        asking = asyncio.create_task(client.call("write"))
        await asyncio.wait_for(begun.wait(), 30 * strain())
        asking.cancel()
        client.hang_up()
        gate.set()
        await server.close()
        assert done == ["write"]

    asyncio.run(main())
