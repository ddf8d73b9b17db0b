"""The line between a worker and the writing process: answers in any order, failures as they are, an end that shows."""

import asyncio
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import Busy, HeddleError, StorageFull, Unavailable, ValidationFailed
from heddle.workers.line import Exchange, Line


def test_calls_are_answered_in_any_order_and_failures_travel(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def handler(verb: str, arguments: tuple[Any, ...]) -> Any:
            if verb == "wait":
                await gate.wait()
            if verb == "busy":
                raise Busy("Too much waits", retry_after=7)
            if verb == "full":
                raise StorageFull("no room", param="data")
            if verb == "wrong":
                raise ValidationFailed.at(["body", "id"], "too long")
            return verb, arguments

        exchange = Exchange(handler)
        await exchange.open(tmp_path / "line")
        line = await Line.open(tmp_path / "line")
        waiting = asyncio.create_task(line.call("wait", 1))
        assert await line.call("echo", b"x" * 3_000_000) == ("echo", (b"x" * 3_000_000,))
        assert not waiting.done()
        gate.set()
        assert await waiting == ("wait", (1,))
        with pytest.raises(Busy) as busy:
            await line.call("busy")
        assert (busy.value.reason, busy.value.headers) == ("Too much waits", {"Retry-After": "7"})
        with pytest.raises(StorageFull) as full:
            await line.call("full")
        assert (full.value.status, full.value.param) == (507, "data")
        with pytest.raises(ValidationFailed) as wrong:
            await line.call("wrong")
        assert wrong.value.detail == [{"loc": ["body", "id"], "msg": "too long", "type": "value_error"}]
        await line.close()
        await exchange.close()

    asyncio.run(main())


def test_what_waits_is_told_when_the_writing_process_has_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        async with await asyncio.start_unix_server(serve, tmp_path / "line"):
            line = await Line.open(tmp_path / "line")
            with pytest.raises(Unavailable):
                await asyncio.wait_for(line.call("anything"), 30)
            await asyncio.wait_for(line.ended.wait(), 30)
            with pytest.raises(HeddleError, match="has ended"):
                await line.call("more")
            await line.close()

    asyncio.run(main())


def test_an_answer_that_cannot_be_read_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(struct.pack("!QI", 1, 4) + b"junk")

        async with await asyncio.start_unix_server(serve, tmp_path / "line"):
            line = await Line.open(tmp_path / "line")
            with pytest.raises(Unavailable):
                await asyncio.wait_for(line.call("anything"), 30)
            assert line.ended.is_set()
            with pytest.raises(pickle.UnpicklingError):
                await line.close()

    asyncio.run(main())


def test_a_worker_that_dies_does_not_undo_what_it_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        begun, gate, done = asyncio.Event(), asyncio.Event(), list[str]()

        async def handler(verb: str, _arguments: tuple[Any, ...]) -> None:
            begun.set()
            await gate.wait()
            done.append(verb)

        exchange = Exchange(handler)
        await exchange.open(tmp_path / "line")
        line = await Line.open(tmp_path / "line")
        asking = asyncio.create_task(line.call("write"))
        await asyncio.wait_for(begun.wait(), 30)
        asking.cancel()
        await line.close()
        gate.set()
        await exchange.close()
        assert done == ["write"]

    asyncio.run(main())
