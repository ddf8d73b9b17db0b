"""Who uses how much: which project a completion belongs to, whether it may run, and what it leaves behind."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from heddle.auth import Caller
from heddle.errors import Busy, Forbidden, HeddleError, InvalidRequest
from heddle.inference.limits import Limits, Place, SharedLimits
from heddle.inference.metrics import InferenceMetrics
from heddle.inference.tracing import COUNTED, call_of, tokens_of
from heddle.quotas import LOCAL_KEY as LOCAL_KEY
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import LIMITS
from heddle.store.control.inference import MeterName, Used
from heddle.wire import refs, times
from heddle.wire.inference import Completion, CompletionSink, Identity, PricesOf
from heddle.wire.jsontypes import Json

logger = logging.getLogger("heddle.inference")

PROJECT_HEADERS = ("Compat-Project", "OpenAI-Project")
SESSION_HEADERS = ("session-id", "x-claude-code-session-id", "x-session-id")
"""Where Codex, Claude Code (both as in their telemetry) and opencode name their conversation in requests."""
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
        value = refs.project_in(headers, name)
        if value:
            try:
                caller.open(value)
            except InvalidRequest:
                raise InvalidRequest(
                    f"The header {name} must be 'team/project', got {value[:200]!r}", param=name
                ) from None
            except Forbidden as error:
                raise Forbidden(error.reason, param=name) from None
            return value
    if caller.project is not None:
        caller.open(caller.project)
    return caller.project


def session_of(headers: Mapping[str, str]) -> str | None:
    """The agent's session that a request belongs to, at most 128 characters of it."""
    return next((value[:128] for name in SESSION_HEADERS if (value := headers.get(name, "").strip())), None)


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
            # In a task of its own, which outlives the request.
            self._closing = self._accounts.spawn(self._accounts.settle(completion, freed))
        await asyncio.shield(self._closing)

    async def release(self) -> None:
        """Free the place of a request that was refused before anything was generated; nothing is counted."""
        freed = self._place.end(0)
        if freed is not None:
            await asyncio.wait([freed])


class Accounts:
    """Admits, counts and traces the completions of one server, within the limits of all that share its tables."""

    def __init__(
        self, settings: Settings, store: Store, sink: CompletionSink | None, prices: PricesOf, metrics: InferenceMetrics
    ) -> None:
        self.limits = Limits(settings)
        self.metrics = metrics
        self.sink = sink
        self.prices = prices
        self._rows = store.inference
        self._redaction = store.redaction
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
            self.metrics.count_refusal()
            logger.info("a completion of model %s was refused by a limit", model)
            raise
        return Ticket(self, place)

    async def reload_limits(self) -> None:
        """Take over the stored limits."""
        number = await self._changes.number(LIMITS)
        self.limits.set_rows(await self._rows.limits())
        self._loaded = number

    async def running(self, name: MeterName) -> int:
        """How many completions of a project or key run now."""
        return self.limits.running(name) if self._shared is None else await self._shared.running(name)

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

    async def settle(self, completion: Completion, freed: "asyncio.Task[None] | None") -> None:
        """Count and trace a completion, and see its place freed."""
        self.metrics.count_completion(completion)
        # Both writes at once, so that they share a commit.
        await asyncio.gather(
            self._run_guarded(
                "usage",
                self._count(
                    Used(
                        project=refs.internal_project(completion.project) if completion.project else "",
                        day=times.to_micros(completion.started_at) // times.DAY,
                        model=(completion.served or completion.model)[:_LONGEST_NAME],
                        key=completion.caller.key_id or "",
                        user=(completion.user or "")[:_LONGEST_NAME],
                        errors=int(completion.error is not None),
                        **{name: getattr(completion, name) for name in (*COUNTED, "seconds", "first_token_seconds")},
                    )
                ),
            ),
            self._run_guarded("trace", self._trace(completion)),
        )
        if freed is not None:
            await asyncio.wait([freed])

    async def _count(self, used: Used) -> None:
        used = replace(used, user=await self._redaction.value(used.project, used.user))
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

    async def _run_guarded(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HeddleError as error:
            self.metrics.count_failure(what)
            logger.warning("%s of a completion was not stored: %s", what, error.reason)
        except Exception:  # the answer is there already: whatever is wrong with its bookkeeping must not spoil it
            self.metrics.count_failure(what)
            logger.exception("%s of a completion was not stored", what)


_UNKNOWN_MANY = 10**9


class ClientGone(HeddleError):
    """Nobody waits for the answer any more."""

    status = 499


def failure_of(error: BaseException) -> HeddleError:
    """What ended a completion, as its record and its answer tell it."""
    if isinstance(error, HeddleError):
        return error
    if isinstance(error, GeneratorExit | asyncio.CancelledError):
        return ClientGone("The client went away")
    return HeddleError("Internal server error")


class ProviderAccount:
    """A context in which a provider answers; `response` is what it said, at least its usage."""

    def __init__(self, accounts: Accounts, record: Completion) -> None:
        self.response: Json | None = None
        self._accounts = accounts
        self._record = record
        self._started = time.perf_counter()

    async def __aenter__(self) -> "ProviderAccount":
        """Admit it; raises Busy over a limit."""
        record = self._record
        wanted = record.request.get("max_completion_tokens") or record.request.get("max_tokens")
        tokens = wanted if isinstance(wanted, int) and wanted > 0 else _UNKNOWN_MANY
        self._ticket = await self._accounts.admit(record.caller, record.project, record.served, 0, tokens)
        return self

    def note_chunk(self, chunk: Json) -> None:
        """Note a chunk of a stream."""
        if self._record.first_token_seconds is None:
            self._record.first_token_seconds = time.perf_counter() - self._started
        if self.response is None or chunk.get("usage"):
            self.response = {"usage": chunk.get("usage")}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count it, however it ended."""
        record = self._record
        record.response, record.seconds = self.response, time.perf_counter() - self._started
        if error is not None:
            failure = failure_of(error)
            record.status, record.error = failure.status, failure.reason
            if self.response is None:
                # A name that no provider knows must not become a row of its own.
                record.served = record.base
        for name, count in tokens_of(self.response or {}).items():
            setattr(record, name, count)
        await self._ticket.close(record)
