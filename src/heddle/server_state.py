"""What every request needs of one running server, whichever process answers it."""

import time
from dataclasses import dataclass, field

from heddle.auth import Authenticator
from heddle.body_reader import UnfinishedBodies
from heddle.errors import HeddleError
from heddle.event_streams import EventStreams
from heddle.metrics import Metrics
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire.inference import PricesOf
from heddle.wire.records import Records


@dataclass(slots=True)
class ServerState:
    """At `app.state.services`; `draining` says that the server stops soon, `stopping` that it takes no new work."""

    settings: Settings
    store: Store
    records: Records
    prices: PricesOf
    metrics: Metrics
    draining: bool = False
    stopping: bool = False
    authenticator: Authenticator = field(init=False)
    unfinished_bodies: UnfinishedBodies = field(init=False)
    event_streams: EventStreams = field(init=False)
    _proven: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.authenticator = Authenticator(self.store.keys, self.settings.needs_key, self.store.sessions)
        self.unfinished_bodies = UnfinishedBodies(self.settings, self.metrics.refused)
        self.event_streams = EventStreams(self.settings.max_event_streams, self.metrics.refused)

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
