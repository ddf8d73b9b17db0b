"""Requests to an object store that does not answer: the first ones wait, the others are refused at once.

Whoever waits holds a thread that others need. So while the store is away one request at a time finds out whether it
is back, and nobody else waits.
"""

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from heddle.errors import HeddleError, Unavailable

logger = logging.getLogger("heddle.store")

STALLED_SECONDS = 3.0
"""A request that waits so long, while no other is answered, closes the gate for those behind it."""
RETRY_AFTER = 2


class CircuitBreaker:
    """Before every request to one store; any thread may pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, float] = {}
        self._answered = 0.0
        self._is_away = False

    @contextmanager
    def passing(self, writes: bool = False) -> Iterator[None]:
        """One request. Raises Unavailable for whatever the store's package raises, and while the gate is closed.

        FileNotFoundError is an answer, and passes; for writes it is a bucket that is missing.
        """
        number = self._enter()
        try:
            yield
        except HeddleError:
            raise
        except Exception as error:
            is_answer = isinstance(error, FileNotFoundError)
            self._note(is_away=not is_answer)
            if is_answer and not writes:
                raise
            logger.warning("the object store: %s: %s", type(error).__name__, error)
            raise _unavailable(type(error).__name__) from error
        else:
            self._note(is_away=False)
        finally:
            with self._lock:
                del self._waiting[number]

    def is_closed(self) -> bool:
        """True while requests wait for a store that is away; the next ones are refused."""
        now = time.monotonic()
        with self._lock:
            first = min(self._waiting.values(), default=now)
            is_stalled = now - max(first, self._answered) > STALLED_SECONDS
            return bool(self._waiting) and (self._is_away or is_stalled)

    def _enter(self) -> int:
        if self.is_closed():
            raise _unavailable("others wait for it already")
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = time.monotonic()
            return number

    def _note(self, is_away: bool) -> None:
        with self._lock:
            self._is_away = is_away
            if not is_away:
                self._answered = time.monotonic()


def _unavailable(why: str) -> Unavailable:
    return Unavailable(f"The object store of the files does not answer ({why})", RETRY_AFTER)
