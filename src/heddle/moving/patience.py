"""Asking a server again when it had no time or could not be reached."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from heddle.errors import HeddleError
from heddle.remote import Refused, Unreachable

T = TypeVar("T")
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
_LATER = (408, 425, 429, 500, 502, 503, 504)


@contextmanager
def understood(source: object) -> Iterator[None]:
    """Raise HeddleError for an answer or a file that lacks what its kind always has."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise HeddleError(f"{source} holds something else than expected ({error!r}); is it the right one?") from error


def patiently(ask: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What `ask` returns, which is tried a few times; raises its last HeddleError."""
    for wait in _WAITS:
        try:
            return ask()
        except Unreachable:
            sleep(wait)
        except Refused as error:
            if error.answered not in _LATER:
                raise
            sleep(wait)
    return ask()
