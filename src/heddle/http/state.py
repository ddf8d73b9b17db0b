"""What every request needs of one running server, whichever process answers it."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from heddle.auth import Authenticator, Caller
from heddle.errors import Busy, HeddleError, NotAuthenticated
from heddle.http.bodies import UnfinishedBodies
from heddle.http.metrics import EXPORTED, OVER_QUOTA, Metrics
from heddle.http.quotas import Quotas
from heddle.http.span_export import SpanExport
from heddle.oidc import Provider
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.audit import Tally
from heddle.wire.inference import PricesOf
from heddle.wire.records import Records
from heddle.wire.spans import SpanReader

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStreams:
    """The open streams of server-sent events: so many per key, and only while the key or session counts."""

    def __init__(self, authenticator: Authenticator, most: int, refused: Callable[[str], None]) -> None:
        """`refused` counts streams that are one too many, by the name of the setting."""
        self._authenticator = authenticator
        self._most = most
        self._refused = refused
        self._open: Counter[str] = Counter()

    def answer(self, caller: Caller, events: AsyncIterator[bytes]) -> StreamingResponse:
        """The answer that sends the events until the key or session ends or its roles change.

        Raises Busy while the caller's key has too many streams open.
        """
        key = caller.key_id or caller.user
        if self._open[key] >= self._most:
            self._refused("max_event_streams")
            raise Busy(f"This key already has {self._most} open event streams (limit max_event_streams)", retry_after=5)
        return _EventStream(self._open, key, self._authenticator, events)


class _EventStream(StreamingResponse):
    """Counts as open while it is sent."""

    def __init__(
        self, open_streams: Counter[str], key: str, authenticator: Authenticator, events: AsyncIterator[bytes]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._open = open_streams
        self._key = key
        self._authenticator = authenticator
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        self._open[self._key] += 1
        self.body_iterator = self._while_allowed(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open[self._key] -= 1
            if not self._open[self._key]:
                del self._open[self._key]

    async def _while_allowed(self, scope: Scope) -> AsyncIterator[bytes]:
        caller, headers = scope.get("heddle.caller"), dict(scope["headers"])
        async for event in self._events:
            try:
                now = await self._authenticator.authenticate(headers, scope["method"])
            except NotAuthenticated:
                return
            if caller is not None and now.grants != caller.grants:
                return
            yield event


@dataclass(slots=True)
class ServerState:
    """At `app.state.services`; `draining` says that the server stops soon, `stopping` that it takes no new work."""

    settings: Settings
    store: Store
    records: Records
    prices: PricesOf
    read_span: SpanReader
    metrics: Metrics
    draining: bool = False
    stopping: bool = False
    authenticator: Authenticator = field(init=False)
    unfinished_bodies: UnfinishedBodies = field(init=False)
    event_streams: EventStreams = field(init=False)
    span_export: SpanExport = field(init=False)
    quotas: Quotas = field(init=False)
    tally: Tally = field(init=False)
    provider: Provider | None = field(init=False)
    _proven: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.authenticator = Authenticator(self.store.keys, self.settings.needs_key, self.store.sessions)
        self.unfinished_bodies = UnfinishedBodies(self.settings, self.metrics.count_refusal)
        self.event_streams = EventStreams(
            self.authenticator, self.settings.max_event_streams, self.metrics.count_refusal
        )
        self.tally = Tally()
        self.quotas = Quotas(self.settings, self.store, partial(self.metrics.count, OVER_QUOTA))
        self.provider = None if self.settings.oidc_issuer == "none" else Provider(self.settings)
        self.span_export = SpanExport(
            self.settings, lambda outcome, number: self.metrics.count(EXPORTED, outcome, by=number)
        )

    async def note(self, is_end: bool = False) -> None:
        """Store which keys were used, and what was counted for the audit log."""
        await self.authenticator.note_use()
        if rows := self.tally.take(is_end):
            await self.store.audit_log.add(rows)

    def drain(self) -> None:
        """Say from now on, in /ready and with each answer, that requests are better sent elsewhere."""
        self.draining = True

    async def why_not_ready(self) -> str | None:
        """Why this server cannot take work now, found out by writing; believed for a second when all is well."""
        if self.draining:
            return "The server is stopping"
        if time.monotonic() - self._proven >= 1.0:
            try:
                await self.store.ping()
            except HeddleError as error:
                return error.reason
            self._proven = time.monotonic()
        return None
