"""The limits of several servers together: the same rules over meters that lie in the control tables.

A completion that no limit holds for touches nothing but the number of changes. A place is a lease, which its server
renews: those of a server that died are free again after half a minute.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from heddle.errors import HeddleError
from heddle.inference.limits.rate_limits import KEY, PROJECT, Limits, Place
from heddle.store.control.meters import Meter, Meters, Name
from heddle.wire import ids

logger = logging.getLogger("heddle.inference")

LEASE_SECONDS = 30.0
_RENEWALS_PER_LEASE = 3
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class SharedLimits:
    """Admits completions by the limits of all servers; `rules` say which hold, `spawn` runs what ends them."""

    def __init__(self, rules: Limits, rows: Meters, spawn: Spawn) -> None:
        self._rules = rules
        self._rows = rows
        self._spawn = spawn
        self._held: set[str] = set()
        self._renewing: asyncio.Task[None] | None = None
        # Of one server one transaction at a time touches the meters, which would only be run again otherwise.
        self._turn = asyncio.Lock()

    async def take(self, project: str, key: str, estimate: int) -> Place:
        """Admit a completion that will use about `estimate` tokens; raises Busy when a limit is reached."""
        names = tuple(name for name in ((PROJECT, project), (KEY, key)) if self._holds(name))
        if not names:
            return self._rules.take(project, key, estimate)
        place = ids.uuid7()

        def decide(meters: Mapping[Name, Meter], now: float) -> dict[str, str]:
            return self._rules.admit(meters, estimate, now)

        async with self._turn:
            headers = await self._rows.take(place, names, LEASE_SECONDS, decide)
        self._held.add(place)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return Place(headers, lambda tokens: self._end(place, names, tokens - estimate))

    async def running(self, name: Name) -> int:
        """How many completions of a project or key run on all servers; those without a limit, on this one."""
        return await self._rows.running(name) if self._holds(name) else self._rules.running(name)

    async def stop(self) -> None:
        """Renew nothing any more."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None

    def _holds(self, name: Name) -> bool:
        limit = self._rules.of(name)
        return bool(limit.concurrency or limit.tokens_per_minute)

    def _end(self, place: str, names: tuple[Name, ...], tokens: int) -> "asyncio.Task[None]":
        """Free a place in the background; one that cannot be freed now is free when its lease ends."""
        self._held.discard(place)
        return self._spawn(self._give_back(place, names, tokens))

    async def _give_back(self, place: str, names: tuple[Name, ...], tokens: int) -> None:
        def decide(meters: Mapping[Name, Meter], now: float) -> None:
            self._rules.correct(meters, tokens, now)

        try:
            async with self._turn:
                await self._rows.give_back(place, names, decide)
        except HeddleError as error:
            logger.warning("the place of a completion is free only when its lease ends: %s", error.reason)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / _RENEWALS_PER_LEASE)
            if not self._held:
                continue
            try:
                await self._rows.renew(list(self._held), LEASE_SECONDS)
            except Exception as error:  # whatever it is, the next renewal may go well
                is_ours = not isinstance(error, HeddleError)
                logger.warning("the places of completions were not renewed: %s", error, exc_info=is_ours)
