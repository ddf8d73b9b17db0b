"""How many messages are read at once, in all and from one address: each may take as much memory as its limit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from heddle.errors import Busy

_SHARE = 4
"""One address may have a quarter of all places."""


class Admission:
    """Places for messages that are being read."""

    def __init__(self, places: int, patience: float) -> None:
        """`patience` is how long a message waits for a place, in seconds."""
        self._free = places
        self._most_of_address = max(1, places // _SHARE)
        self._patience = patience
        self._of_address: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """A place for one message; raises Busy when none becomes free in time."""
        try:
            async with asyncio.timeout(self._patience), self._changed:
                await self._changed.wait_for(lambda: self._is_free(address))
                self._free -= 1
                self._of_address[address] += 1
        except TimeoutError:
            raise Busy("Too many messages arrive at the same time", retry_after=2) from None
        try:
            yield
        finally:
            async with self._changed:
                self._free += 1
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]
                self._changed.notify_all()

    def _is_free(self, address: str) -> bool:
        return self._free > 0 and self._of_address[address] < self._most_of_address
