"""The HTTP server of a process: how it is tuned, how it stops, what it prints, and how late its event loop runs."""

import asyncio
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TextIO

import uvicorn
from starlette.types import ASGIApp

from heddle.http.connections import Connections, limited_protocol
from heddle.http.listen import BACKLOG
from heddle.http.middleware import RootPath
from heddle.http.state import ServerState
from heddle.settings import Settings

logger = logging.getLogger("heddle.loop")
KEEP_ALIVE_SECONDS = 75
_LAST_WORDS_SECONDS = 0.3
_SAME_SIGNAL_SECONDS = 1.0
MOST_LINES = 10_000
"""Lines that wait to be written; beyond, lines are dropped and counted."""
STALL_SECONDS = 0.25
_INTERVAL = 0.05
_LOOK_SECONDS = 0.1


def configure(settings: Settings, app: ASGIApp, connections: Connections | None = None) -> uvicorn.Config:
    """What every process serves an application with; None for connections that are not limited, being our own."""
    if connections is not None and settings.root_path != "/":
        app = RootPath(app, settings.root_path)
    proxies = [] if connections is None or settings.trusted_proxies == "none" else settings.trusted_proxies.split(",")
    return uvicorn.Config(
        app,
        lifespan="off",
        http="httptools" if connections is None else limited_protocol(connections),
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace)),
    )


class BackgroundStream(io.TextIOBase):
    """A text stream in front of a file descriptor: `write` neither blocks nor fails, whatever happens to the reader."""

    def __init__(self, target: TextIO | None) -> None:
        """`target` is sys.stdout or sys.stderr; None, as when it was closed at the start, keeps nothing."""
        self._descriptor = None if target is None else target.fileno()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._is_writing = False
        if self._descriptor is not None:
            threading.Thread(target=self._write_lines, name="output", daemon=True).start()

    def write(self, text: str) -> int:
        """Take a text, to be written soon."""
        if self._descriptor is not None:
            with self._changed:
                if len(self._lines) < MOST_LINES:
                    self._lines.append(text)
                else:
                    self._dropped += 1
                self._changed.notify_all()
        return len(text)

    def drain(self, seconds: float = 1.0) -> None:
        """Wait until everything is written, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._is_writing, seconds)

    def _write_lines(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._lines))
                text = "".join(self._lines)
                if self._dropped:
                    text += f"heddle: {self._dropped} lines were not written, as nobody read\n"
                self._lines.clear()
                self._dropped = 0
                self._is_writing = True
            self._write_all(text.encode("utf-8", "backslashreplace"))

    def _write_all(self, data: bytes) -> None:
        assert self._descriptor is not None
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return  # a reader that is gone, a disk that is full: there is nobody to tell


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
                self._log_stall(time.monotonic() - last - _INTERVAL)

    def _log_stall(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        if frame is not None:
            stack = "".join(traceback.format_stack(frame))
            logger.warning("the event loop has been blocked for %.0f ms, in:\n%s", seconds * 1000, stack)


class Server(uvicorn.Server):
    """uvicorn, which on the first signal stops in order (exit code 0), and on the second at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        out: BackgroundStream,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """`announce` is called once the server listens."""
        super().__init__(config)
        self._announce = announce
        self._state = state
        self._out = out
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._signalled_at: float | None = None
        self._monitor = LoopMonitor(state.metrics.observe_lag)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self._loop = asyncio.get_running_loop()
        self._monitor.start()
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in order."""
        await super().shutdown(sockets)
        self._monitor.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop taking work; a second signal ends the process, which loses nothing that was acknowledged.

        One within a second is taken for the first: a terminal, `timeout` and service managers often send it twice.
        """
        if self._signalled_at is not None and time.monotonic() - self._signalled_at < _SAME_SIGNAL_SECONDS:
            return
        if self._signalled_at is not None or self._loop is None:
            self._out.write(f"heddle: {signal.Signals(sig).name} again, ending at once\n")
            self._out.drain(_LAST_WORDS_SECONDS)
            os._exit(1)
        self._signalled_at = time.monotonic()
        self._loop.call_soon_threadsafe(self._begin_to_stop, sig)

    def _begin_to_stop(self, sig: int) -> None:
        self._out.write(f"heddle: {signal.Signals(sig).name}, finishing what is in flight\n")
        self._stopping = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        self._state.drain()
        await self.wait_for_drain()
        self._state.stopping = True
        self.should_exit = True

    async def wait_for_drain(self) -> None:
        """Answer on while those who send requests notice, by /ready and by closed connections, that this one stops."""
        await asyncio.sleep(self._state.settings.shutdown_drain)
