"""Additions to asyncio."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool(ThreadPoolExecutor):
    """Threads for work that coroutines wait for.

    A StopIteration becomes a RuntimeError, as in a coroutine: asyncio of Python 3.11 would wait for ever, as no future
    of its takes one (https://github.com/python/cpython/issues/112182).
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Do some work in a thread."""

        def work(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return fn(*args, **kwargs)
            except StopIteration as error:
                raise RuntimeError("the work raised StopIteration") from error

        return super().submit(work, *args, **kwargs)


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
