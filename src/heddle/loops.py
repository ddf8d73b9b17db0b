"""Work that a server does again and again beside its requests."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from heddle.errors import HeddleError


class Loop:
    """Does its work again and again, at once when it is woken; after an error it goes on after a pause.

    The work returns the seconds until the next time (None: until it is woken); `problem` is logged with an error.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[float | None]],
        logger: logging.Logger,
        problem: str,
        pause: float,
        news: asyncio.Event | None = None,
    ) -> None:
        self._work = work
        self._logger = logger
        self._problem = problem
        self._pause = pause
        self._news = news or asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.was_woken = False
        """The work that runs was asked for."""

    @property
    def is_running(self) -> bool:
        """True between start and stop."""
        return self._task is not None and not self._task.done()

    def wake(self) -> None:
        """Do the work now."""
        self._news.set()

    def start(self) -> None:
        """Begin in a task of its own."""
        self._task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            self.was_woken = self._news.is_set()
            self._news.clear()
            try:
                pause = await self._work()
            except Exception as error:  # whatever it is, the next time may go well
                is_ours = not isinstance(error, HeddleError)
                self._logger.warning("%s: %s", self._problem, error, exc_info=is_ours)
                pause = self._pause
            # `wait_for` may swallow a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
