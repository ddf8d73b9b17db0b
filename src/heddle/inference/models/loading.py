"""Loading what is served in the background, from the start of the server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from heddle.errors import HeddleError, Unavailable
from heddle.inference.engine.base import EngineBusy, EngineFailed, RequestRefused, as_answer

logger = logging.getLogger("heddle.inference")

RETRY_SECONDS = 2.0
"""How often what does not answer yet is tried again: a store, or servers that others run."""


class Loading:
    """Calls `load` until it succeeds; only what may pass by itself is tried again, and all else stays the failure."""

    def __init__(self, load: Callable[[], Awaitable[None]], waits_for_engine: bool) -> None:
        """`load` may run several times; `waits_for_engine`: others start the engine's servers."""
        self._load = load
        self._waits_for_engine = waits_for_engine
        self._task: asyncio.Task[None] | None = None
        self._failure: HeddleError | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Give up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def problem(self) -> str | None:
        """Why not all is loaded; None when it is, or when nobody wanted it to be."""
        if self._failure is not None:
            return self._failure.reason
        return None if self._task is None or self._task.done() else "The model is loading"

    def succeeded(self) -> None:
        """What failed to load was loaded by a request."""
        self._failure = None

    async def _run(self) -> None:
        while True:
            failure, may_pass = await self._attempt()
            if failure is None:
                self._failure = None
                return
            if not may_pass:
                logger.error("the model cannot be served: %s", failure.reason)
            elif self._failure is None:
                logger.warning("the model is not served yet: %s", failure.reason)
            self._failure = failure
            if not may_pass:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _attempt(self) -> tuple[HeddleError | None, bool]:
        """What failed, and whether it may go well a little later."""
        try:
            await self._load()
        except Unavailable as error:
            return error, True
        except EngineFailed as error:
            return as_answer(error), self._waits_for_engine
        except (EngineBusy, RequestRefused) as error:
            return as_answer(error), False
        except HeddleError as error:
            return error, False
        except Exception as error:  # whatever it is, the server goes on, says so, and ends in order
            logger.exception("loading the model failed")
            return Unavailable(f"Loading the model failed: {error}"), False
        return None, False
