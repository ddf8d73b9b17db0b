"""Limits per project and per key, of one server or of several that share their tables."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle import aio
from heddle.errors import Busy, HeddleError
from heddle.quotas import KEY as KEY
from heddle.quotas import PROJECT as PROJECT
from heddle.quotas import describe
from heddle.settings import Settings
from heddle.store.control.inference import LimitRow, Meter, MeterName, Meters
from heddle.wire import times

KINDS = (PROJECT, KEY)
MOST_METERS = 10_000
_MINUTE = 60.0
"""A name is (`project`, `team/project` or empty) or (`key`, key id or `local`)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What one project or key may do; 0 = no limit."""

    concurrency: int = 0
    tokens_per_minute: int = 0


class Place:
    """The place of one admitted completion; `headers` tell the client how much room is left."""

    def __init__(self, headers: dict[str, str], give_back: "Callable[[int], asyncio.Task[None] | None]") -> None:
        self.headers = headers
        self._give_back = give_back
        self._held = True

    def end(self, tokens: int) -> "asyncio.Task[None] | None":
        """Give the place back and correct the estimate to the tokens really used; a second time does nothing.

        Returns what to wait for until it is free, None where it is free at once.
        """
        if not self._held:
            return None
        self._held = False
        return self._give_back(tokens)


class Limits:
    """The limits that hold, and the meters of all projects and keys of a server that is alone.

    Used on the event loop only, so that a check and its taking are one step.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._defaults = {
            PROJECT: Limit(settings.inference_project_concurrency, settings.inference_project_tokens_per_minute),
            KEY: Limit(settings.inference_key_concurrency, settings.inference_key_tokens_per_minute),
        }
        self._own: dict[MeterName, Limit] = {}
        self._meters: dict[MeterName, Meter] = {}
        self._clock = clock

    def set_rows(self, rows: Iterable[LimitRow]) -> None:
        """Take over the stored limits, instead of those before."""
        self._own = {}
        for row in rows:
            default = self._defaults[row.kind]
            self._own[row.kind, row.name] = Limit(
                default.concurrency if row.concurrency is None else row.concurrency,
                default.tokens_per_minute if row.tokens_per_minute is None else row.tokens_per_minute,
            )

    def of(self, name: MeterName) -> Limit:
        """The limit that holds."""
        return self._own.get(name) or self._defaults[name[0]]

    def default(self, kind: str) -> Limit:
        """The limit of the settings."""
        return self._defaults[kind]

    def running(self, name: MeterName) -> int:
        """How many completions run now."""
        meter = self._meters.get(name)
        return meter.running if meter is not None else 0

    def take(self, project: str, key: str, estimate: int) -> Place:
        """Admit a completion that will use about `estimate` tokens; raises Busy when a limit is reached."""
        now = self._clock()
        names = ((PROJECT, project), (KEY, key))
        headers = self.admit({name: self._meter(name, now) for name in names}, estimate, now)
        return Place(headers, lambda tokens: self.give_back(names, tokens - estimate))

    def admit(self, meters: Mapping[MeterName, Meter], estimate: int, now: float) -> dict[str, str]:
        """Count one more completion in meters, as of now; returns headers. Raises Busy, and then nothing is counted."""
        for name, meter in meters.items():
            self._settle(name, meter, now)
            limit = self.of(name)
            if limit.concurrency and meter.running >= limit.concurrency:
                most = f"{limit.concurrency} completion{'s' if limit.concurrency > 1 else ''} at the same time"
                raise self._busy(name, meter, f"{describe(name)} may run {most}", 1)
            rate = limit.tokens_per_minute
            # A request beyond a whole minute's tokens can run when nothing is owed; its debt then takes longer.
            over = meter.debt + min(estimate, rate) - rate
            if rate and over > 1e-6:
                wait = max(1, math.ceil(over * _MINUTE / rate))
                reason = f"{describe(name)} may use {rate} tokens per minute; try again in {wait} s"
                raise self._busy(name, meter, reason, wait)
        for meter in meters.values():
            meter.running += 1
            meter.debt += estimate
        return self._headers(meters)

    def correct(self, meters: Mapping[MeterName, Meter], tokens: int, now: float) -> None:
        """Correct what was taken from meters by `tokens` of either sign."""
        for name, meter in meters.items():
            self._settle(name, meter, now)
            meter.debt = max(0.0, meter.debt + tokens) if self.of(name).tokens_per_minute else 0.0

    def give_back(self, names: Iterable[MeterName], tokens: int) -> None:
        """End one completion of each; `tokens` (of either sign) corrects what was taken."""
        now = self._clock()
        meters = {name: self._meter(name, now) for name in names}
        for meter in meters.values():
            meter.running -= 1
        self.correct(meters, tokens, now)
        if len(self._meters) > MOST_METERS:
            self._meters = {name: meter for name, meter in self._meters.items() if meter.running or meter.debt}

    def _meter(self, name: MeterName, now: float) -> Meter:
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = Meter(at=now)
        return meter

    def _settle(self, name: MeterName, meter: Meter, now: float) -> None:
        """Take off what the time since the last look has paid, at the rate of the limit."""
        rate = self.of(name).tokens_per_minute
        meter.debt = max(0.0, meter.debt - (now - meter.at) * rate / _MINUTE) if rate else 0.0
        meter.at = now

    def _busy(self, name: MeterName, meter: Meter, reason: str, retry_after: int) -> Busy:
        error = Busy(f"Rate limit reached: {reason}", retry_after)
        error.headers.update(self._headers({name: meter}))
        return error

    def _headers(self, meters: Mapping[MeterName, Meter]) -> dict[str, str]:
        """The tightest room of the limits that hold, in the headers that OpenAI's clients know."""
        limits = [(self.of(name), meter) for name, meter in meters.items()]
        headers: dict[str, str] = {}
        open_places = [(limit.concurrency - meter.running, limit) for limit, meter in limits if limit.concurrency]
        if open_places:
            left, limit = min(open_places, key=lambda pair: pair[0])
            headers |= _header("requests", limit.concurrency, left, 0.0 if left > 0 else 1.0)
        tokens = [
            (limit.tokens_per_minute - meter.debt, limit, meter) for limit, meter in limits if limit.tokens_per_minute
        ]
        if tokens:
            free, limit, meter = min(tokens, key=lambda item: item[0])
            headers |= _header(
                "tokens", limit.tokens_per_minute, int(free), meter.debt * _MINUTE / limit.tokens_per_minute
            )
        return headers


def _header(what: str, limit: int, remaining: int, reset: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(0, remaining)),
        f"x-ratelimit-reset-{what}": f"{max(0.0, reset):.3f}s",
    }


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
        place = times.uuid7()

        def decide(meters: Mapping[MeterName, Meter], now: float) -> dict[str, str]:
            return self._rules.admit(meters, estimate, now)

        async def admit() -> dict[str, str]:
            async with self._turn:
                headers = await self._rows.take(place, names, LEASE_SECONDS, decide)
            self._held.add(place)
            return headers

        try:
            headers = await aio.finish(admit())
        except asyncio.CancelledError:
            if place in self._held:
                self._end(place, names, -estimate)
            raise
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return Place(headers, lambda tokens: self._end(place, names, tokens - estimate))

    async def running(self, name: MeterName) -> int:
        """How many completions of a project or key run on all servers; those without a limit, on this one."""
        return await self._rows.running(name) if self._holds(name) else self._rules.running(name)

    async def stop(self) -> None:
        """Renew nothing any more."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None

    def _holds(self, name: MeterName) -> bool:
        limit = self._rules.of(name)
        return bool(limit.concurrency or limit.tokens_per_minute)

    def _end(self, place: str, names: tuple[MeterName, ...], tokens: int) -> "asyncio.Task[None]":
        """Free a place in the background; one that cannot be freed now is free when its lease ends."""
        self._held.discard(place)
        return self._spawn(self._give_back(place, names, tokens))

    async def _give_back(self, place: str, names: tuple[MeterName, ...], tokens: int) -> None:
        def decide(meters: Mapping[MeterName, Meter], now: float) -> None:
            self._rules.correct(meters, tokens, now)

        try:
            async with self._turn:
                await self._rows.give_back(place, names, decide)
        except HeddleError as error:
            logger.warning("the slot of a completion remains taken until its lease ends: %s", error.reason)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / _RENEWALS_PER_LEASE)
            if not self._held:
                continue
            try:
                await self._rows.renew(list(self._held), LEASE_SECONDS)
            except Exception as error:  # whatever it is, the next renewal may go well
                is_ours = not isinstance(error, HeddleError)
                logger.warning("the slots of completions were not renewed: %s", error, exc_info=is_ours)
