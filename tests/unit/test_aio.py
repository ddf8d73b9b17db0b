import asyncio
from typing import Any

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
