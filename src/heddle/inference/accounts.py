"""Who uses how much: which project a completion belongs to, whether it may run, and what it leaves behind.

A completion is admitted, answered and closed; closing frees its place, and counts and traces it before the answer ends.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from heddle.auth import Caller
from heddle.errors import Busy, Forbidden, HeddleError, InvalidRequest
from heddle.inference.limits import Limits, Place
from heddle.inference.metrics import InferenceMetrics
from heddle.inference.shared_limits import SharedLimits
from heddle.inference.tracing import call_of
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.changes import LIMITS
from heddle.store.control.inference import Used
from heddle.store.control.meters import Name
from heddle.wire import refs, times
from heddle.wire.inference import Completion, CompletionSink, Identity, PricesOf

logger = logging.getLogger("heddle.inference")

PROJECT_HEADERS = ("Compat-Project", "OpenAI-Project")
LOCAL_KEY = "local"
"""Stands for the key where keys are not checked."""
EXPECTED_COMPLETION = 1024
"""Tokens of an answer that are reserved at most; what is used beyond is charged when it ends."""
_LONGEST_NAME = 256
_WAITS = (0.05, 0.2, 0.5, 1.0)
"""Seconds between attempts to count while the store is told to wait."""


def project_of(headers: Mapping[str, str], caller: Caller) -> str | None:
    """The `team/project` that a request is counted for; a key bound to one project needs no header.

    Raises InvalidRequest for a malformed header, Forbidden for a project beyond the key's reach.
    """
    for name in PROJECT_HEADERS:
        value = headers.get(name, "").strip()
        if value:
            return _reached(value, name, caller)
    return caller.project


def _reached(value: str, name: str, caller: Caller) -> str:
    try:
        caller.open(value)
    except InvalidRequest:
        raise InvalidRequest(f"The header {name} must be 'team/project', got {value[:200]!r}", param=name) from None
    except Forbidden as error:
        raise Forbidden(error.reason, param=name) from None
    return value


class Ticket:
    """The permission of one completion to run; `headers` belong on its answer."""

    def __init__(self, accounts: "Accounts", place: Place) -> None:
        self.headers = place.headers
        self._accounts = accounts
        self._place = place
        self._closing: asyncio.Task[None] | None = None

    async def close(self, completion: Completion) -> None:
        """Free the place, count and trace; returns when that is stored. Never raises; a second time only waits.

        When the waiting request goes away, the work goes on.
        """
        if self._closing is None:
            freed = self._place.end(completion.prompt_tokens + completion.completion_tokens)
            self._closing = self._accounts.settle(completion, freed)
        await asyncio.shield(self._closing)

    async def release(self) -> None:
        """Free the place of a request that was refused before anything was generated; nothing is counted."""
        freed = self._place.end(0)
        if freed is not None:
            await asyncio.wait([freed])


class Accounts:
    """Admits, counts and traces the completions of one server, within the limits of all that share its tables."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        sink: CompletionSink | None,
        prices: PricesOf,
        figures: InferenceMetrics,
    ) -> None:
        self.limits = Limits(settings)
        self.figures = figures
        self.sink = sink
        self.prices = prices
        self._rows = store.inference
        self._changes = store.changes
        is_shared = store.changes.instance.is_shared
        self._shared = SharedLimits(self.limits, store.meters, self.spawn) if is_shared else None
        self._traces = settings.trace_inference == "on"
        self._loaded = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def admit(
        self, caller: Identity, project: str | None, model: str, prompt_tokens: int, max_tokens: int
    ) -> Ticket:
        """Let a completion run that may take `max_tokens` beyond its prompt; raises Busy (429) over a limit."""
        if await self._changes.number(LIMITS) != self._loaded:
            await self.reload_limits()
        estimate = prompt_tokens + min(max_tokens, EXPECTED_COMPLETION)
        names = (project or "", caller.key_id or LOCAL_KEY)
        try:
            shared = self._shared
            place = self.limits.take(*names, estimate) if shared is None else await shared.take(*names, estimate)
        except Busy:
            self.figures.refused()
            logger.info("a completion of model %s was refused by a limit", model)
            raise
        return Ticket(self, place)

    async def reload_limits(self) -> None:
        """Take over the stored limits."""
        number = await self._changes.number(LIMITS)
        self.limits.set_rows(await self._rows.limits())
        self._loaded = number

    async def running(self, name: Name) -> int:
        """How many completions of a project or key run now."""
        return self.limits.running(name) if self._shared is None else await self._shared.running(name)

    def settle(self, completion: Completion, freed: "asyncio.Task[None] | None") -> "asyncio.Task[None]":
        """Count and trace a completion, and see its place freed, in a task of its own, which outlives the request."""
        return self.spawn(self._settle(completion, freed))

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run work that `drain` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait until all that was closed is stored."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._shared is not None:
            await self._shared.stop()

    async def _settle(self, completion: Completion, freed: "asyncio.Task[None] | None") -> None:
        self.figures.answered(completion)
        # Both writes at once, so that they share a commit.
        await asyncio.gather(
            self._guarded("usage", self._count(used_of(completion))), self._guarded("trace", self._trace(completion))
        )
        if freed is not None:
            await asyncio.wait([freed])

    async def _count(self, used: Used) -> None:
        for wait in _WAITS:
            try:
                await self._rows.add(used)
            except Busy:
                await asyncio.sleep(wait)
            else:
                return
        await self._rows.add(used)

    async def _trace(self, completion: Completion) -> None:
        if self._traces and self.sink is not None and completion.project is not None and not completion.traced:
            await self.sink.store(call_of(completion, completion.project))

    async def _guarded(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HeddleError as error:
            self.figures.not_stored(what)
            logger.warning("%s of a completion was not stored: %s", what, error.reason)
        except Exception:  # the answer is there already: whatever is wrong with its bookkeeping must not spoil it
            self.figures.not_stored(what)
            logger.exception("%s of a completion was not stored", what)


def used_of(completion: Completion) -> Used:
    """What a completion adds to the usage of its project, on the day it began (UTC)."""
    return Used(
        project=refs.internal_project(completion.project) if completion.project else "",
        day=times.to_micros(completion.started_at) // times.DAY,
        model=(completion.served or completion.model)[:_LONGEST_NAME],
        key=completion.caller.key_id or "",
        user=(completion.user or "")[:_LONGEST_NAME],
        errors=int(completion.error is not None),
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        cached_tokens=completion.cached_tokens,
        reasoning_tokens=completion.reasoning_tokens,
        seconds=completion.seconds,
        first_token_seconds=completion.first_token_seconds,
    )
