"""What web workers call in the writing process: methods of its store that write, and the counting of their answers."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from heddle.errors import HeddleError
from heddle.server_state import ServerState
from heddle.store.sqlite.store import SqliteStore

logger = logging.getLogger("heddle.web_workers")

COUNTED = "counted"
SETTINGS = "settings"
WISH = "wish"
READY = "ready"
STORE_METHODS = frozenset(("calls.write", "files.create", "objects.create", "keys.used"))
Answered = tuple[str, str, int, float, int, int]
"""Route, method, status, seconds, bytes received and sent."""


class Methods:
    """The methods, on the state of the writing process."""

    def __init__(self, state: ServerState, ready: Callable[[], None]) -> None:
        """`ready` is called when a worker says that it can answer."""
        self._state = state
        self._ready = ready

    async def __call__(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Do what a worker asks for; raises HeddleError, also for what went wrong here, which the log tells."""
        try:
            if method in STORE_METHODS:
                group, _, name = method.partition(".")
                return await getattr(getattr(self._state.store, group), name)(*arguments)
            if method == READY:
                return self._ready()
            if method == SETTINGS:
                return self._state.settings
            if method == WISH:
                store = self._state.store
                assert isinstance(store, SqliteStore), "workers are for SQLite"
                return store.indexes.wish(*arguments)
            assert method == COUNTED, method
            return self._count(*arguments)
        except HeddleError:
            raise
        except Exception as error:  # whatever it is, the worker must not wait for ever
            logger.exception("%s failed", method)
            raise HeddleError("Internal server error") from error

    def _count(self, answers: Sequence[Answered], lag_seconds: Sequence[float], limits: Sequence[str]) -> None:
        metrics = self._state.metrics
        for answered in answers:
            metrics.answered(*answered)
        for seconds in lag_seconds:
            metrics.lagged(seconds)
        for limit in limits:
            metrics.refused(limit)
