"""Answers that took long, kept for a while."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_SHARE = 20
"""An answer is kept for so many times as long as it took, so that looking costs at most a twentieth of the time."""


class Kept(Generic[T]):
    """The last answer to one question; who asks while it is looked for waits for the same."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._answer: T
        self._good_until = 0.0

    async def get(self, look: Callable[[], Awaitable[T]]) -> T:
        """The answer that is kept, else that of `look`."""
        async with self._asking:
            if time.monotonic() >= self._good_until:
                began = time.monotonic()
                self._answer = await look()
                ended = time.monotonic()
                self._good_until = ended + (ended - began) * _SHARE
        return self._answer

    def forget(self) -> None:
        """Look again when asked the next time."""
        self._good_until = 0.0
