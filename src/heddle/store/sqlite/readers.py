"""Reader threads, each with a connection of its own; every query has a deadline."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from heddle.store.sqlite.connection import Session, explain, open_reader

T = TypeVar("T")

_STEPS_BETWEEN_CHECKS = 20_000


class SessionReads(Protocol):
    """Runs what reads from a database."""

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in another thread; raises QueryTimeout after a deadline."""
        ...


class Readers:
    """A pool of `count` reader threads; `timeout` in seconds bounds each piece of work."""

    def __init__(self, path: Path, count: int, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._local = threading.local()
        self._sessions: list[Session] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="heddle-reader")

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a reader thread; raises QueryTimeout after the deadline."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, work)

    def _run(self, work: Callable[[Session], T]) -> T:
        return run_in(self._session(), work, self._timeout)

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = open_reader(self._path)
            with self._lock:
                self._sessions.append(session)
        return session

    def close(self) -> None:
        """Wait for the work that runs, then close the connections."""
        self._pool.shutdown(wait=True)
        for session in self._sessions:
            session.close()


def run_in(session: Session, work: Callable[[Session], T], timeout: float) -> T:
    """Run `work` in this thread, within `timeout` seconds; failures are explained."""
    deadline = time.monotonic() + timeout
    session.raw.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        return work(session)
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        raise known from error
