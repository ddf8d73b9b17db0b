"""Additions to asyncio."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shield(future: "asyncio.Future[T]") -> T:
    """The result of work that goes on when its caller is cancelled; a failure that nobody awaits is then no error."""
    future.add_done_callback(_retrieve_exception)
    return await asyncio.shield(future)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that comes to its end also when its caller is cancelled, who is cancelled after it."""
    task = asyncio.ensure_future(work)
    try:
        return await shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _retrieve_exception(future: "asyncio.Future[Any]") -> None:
    """Mark a failure as seen, which asyncio.shield of Python 3.11 does not once its caller has been cancelled."""
    if not future.cancelled():
        future.exception()


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for their ends, whatever they are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_at_most(seconds: float | None, work: Coroutine[Any, Any, object]) -> None:
    """Wait for work, or until so many seconds have passed (None: for ever) and it is cancelled."""
    # `wait_for` may swallow a cancellation that comes together with the end of the work.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
