"""Streams of server-sent events, which stay open as long as their reader wants: so many per key and no more."""

from collections import Counter
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from heddle.auth import Caller
from heddle.errors import Busy

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStreams:
    """The open streams of a server, by key."""

    def __init__(self, most: int, refused: Callable[[str], None]) -> None:
        """`refused` counts streams that are one too many, by the name of the setting."""
        self._most = most
        self._refused = refused
        self._open: Counter[str] = Counter()

    def answer(self, caller: Caller, events: AsyncIterator[bytes]) -> StreamingResponse:
        """The answer that sends the events; raises Busy while the caller's key has too many of them open."""
        key = caller.key_id or caller.user
        if self._open[key] >= self._most:
            self._refused("max_event_streams")
            raise Busy(
                f"This key has {self._most} streams of events open already (limit max_event_streams)", retry_after=5
            )
        return _EventStream(self._open, key, events)


class _EventStream(StreamingResponse):
    """Counts as open while it is sent."""

    def __init__(self, open_streams: Counter[str], key: str, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._open = open_streams
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        self._open[self._key] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open[self._key] -= 1
            if not self._open[self._key]:
                del self._open[self._key]
