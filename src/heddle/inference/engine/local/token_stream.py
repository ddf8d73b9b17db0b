"""Tokens of one request that have come and were not yet fetched."""

import asyncio
from typing import Any

from heddle.inference.engine.base import TokenEvent, TokenLogprobs

Packed = tuple[Any, ...]


class TokenStream:
    """Packed events of one request, in an event loop; a slow reader gets them merged."""

    number = 0
    """Of the request."""

    def __init__(self, policy: str | None) -> None:
        self._policy = policy
        self._events: list[Packed] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_ended = False

    def done(self) -> bool:
        """True once the last event has come, or a failure."""
        return self._has_ended

    def set_result(self, event: Packed) -> None:
        """One event of the engine."""
        self._events.append(event)
        if len(event) > 2 and event[4] is not None:
            self._has_ended = True
        self._wake()

    def set_exception(self, error: Exception) -> None:
        """The request ends with an exception, after the events before it."""
        if not self._has_ended:
            self._failure = error
            self._has_ended = True
            self._wake()

    async def take(self) -> TokenEvent:
        """All that has come, as one event; waits for the first. Raises the request's failure."""
        if not self._events and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._events:
            assert self._failure is not None
            raise self._failure
        events, self._events = self._events, []
        return merged(events, self._policy)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merged(events: list[Packed], policy: str | None) -> TokenEvent:
    """One event with the tokens of all."""
    if len(events) == 1 and len(events[0]) == 2:
        return TokenEvent(token_ids=(events[0][1],), policy=policy)
    logprobs: list[TokenLogprobs] = []
    first = end = None
    for event in events:
        if len(event) > 2:
            _, _, own, event_first, event_end = event
            first, end = first or event_first, end or event_end
            if own is not None:
                logprobs.append(TokenLogprobs(*own))
    cached, prompt = first or (None, None)
    reason, stop = end or (None, None)
    return TokenEvent(
        token_ids=tuple(event[1] for event in events if event[1] is not None),
        logprobs=tuple(logprobs),
        prompt_logprobs=None if prompt is None else tuple(item and TokenLogprobs(*item) for item in prompt),
        cached_tokens=cached,
        finish_reason=reason,
        stop_reason=stop,
        policy=policy,
    )
