"""Watches the event loop of a process: how late it runs what is due, and what it does when it stands still."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

logger = logging.getLogger("heddle.loop")

STALL_SECONDS = 0.25
_INTERVAL = 0.05
_LOOK_SECONDS = 0.1


class LoopMonitor:
    """Tells `observe` each lag in seconds, 20 times a second; logs where the loop stood still, once per stall."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._last = 0.0
        self._due = 0.0
        self._thread_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="heddle-loop-watchdog", daemon=True)

    def start(self) -> None:
        """Watch the running loop, from its own thread."""
        self._thread_id = threading.get_ident()
        self._last = time.monotonic()
        self._schedule(asyncio.get_running_loop())
        self._watchdog.start()

    def stop(self) -> None:
        """End the watch."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + _INTERVAL
        self._timer = loop.call_later(_INTERVAL, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        self._observe(max(0.0, now - self._due))
        self._last = now
        self._schedule(loop)

    def _watch(self) -> None:
        """The watchdog's thread."""
        told = 0.0
        while not self._ended.wait(_LOOK_SECONDS):
            last = self._last
            if last != told and time.monotonic() - last > _INTERVAL + STALL_SECONDS:
                told = last
                self._tell(time.monotonic() - last - _INTERVAL)

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        if frame is not None:
            stack = "".join(traceback.format_stack(frame))
            logger.warning("the event loop stands still for %.0f ms already, in:\n%s", seconds * 1000, stack)
