import asyncio
from typing import Any

import pytest

from heddle import aio


def test_a_failure_after_its_caller_has_gone_is_no_error_of_the_event_loop() -> None:
    heard: list[dict[str, Any]] = []

    async def go_away() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(context))
        future: asyncio.Future[None] = loop.create_future()
        caller = asyncio.create_task(aio.shield(future))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled() and not future.done()
        future.set_exception(ValueError("nobody is there"))
        await asyncio.sleep(0)

    asyncio.run(go_away())
    assert heard == []


def test_tasks_have_ended_when_they_were_cancelled() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "b":
                raise ValueError(name)

    async def go() -> None:
        tasks = [asyncio.create_task(work(name)) for name in "ab"]
        await asyncio.sleep(0)
        await aio.cancel(*tasks)
        assert all(task.done() for task in tasks)

    asyncio.run(go())
    assert ended == ["a", "b"]


def test_a_wait_ends_with_the_work_or_its_time() -> None:
    async def go() -> None:
        event = asyncio.Event()
        await aio.wait_at_most(0, event.wait())
        event.set()
        await aio.wait_at_most(None, event.wait())

    asyncio.run(go())


def test_work_comes_to_its_end_before_its_caller_is_cancelled() -> None:
    async def main() -> None:
        begun, going_on, ended = asyncio.Event(), asyncio.Event(), list[str]()

        async def work() -> None:
            begun.set()
            await going_on.wait()
            ended.append("work")

        async def call() -> None:
            try:
                await aio.finish(work())
            finally:
                ended.append("caller")

        caller = asyncio.create_task(call())
        await begun.wait()
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
        going_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ended == ["work", "caller"]

    asyncio.run(main())
