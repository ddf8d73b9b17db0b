"""Additions to asyncio."""

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


async def shield(future: "asyncio.Future[T]") -> T:
    """The result of work that goes on when its caller is cancelled; a failure that nobody awaits is then no error."""
    future.add_done_callback(_retrieve_exception)
    return await asyncio.shield(future)


def _retrieve_exception(future: "asyncio.Future[Any]") -> None:
    """Mark a failure as seen, which asyncio.shield of Python 3.11 does not once its caller has been cancelled."""
    if not future.cancelled():
        future.exception()
