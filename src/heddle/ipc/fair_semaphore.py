"""A semaphore that is fair to those for whom work is done."""

import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future
from contextvars import ContextVar

from heddle.auth import Caller

OWNER: ContextVar[str] = ContextVar("owner", default="")
"""For whom the request or job at hand is done: its work waits behind that owner's other work only."""


def owner_of(caller: Caller) -> str:
    """Whose work a caller's is: that of everybody whose key is bound to the same project or entity."""
    return caller.reach or caller.user


class FairSemaphore:
    """So many places. One owner never has all of them, and the owners who wait are served one after the other."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._most = max(1, places - 1)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Future[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self) -> "Future[str]":
        """Done with the owner's name when there is a place, which must be released."""
        owner, future = OWNER.get(), Future[str]()
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(future)
            self._serve()
        return future

    def release(self, owner: str) -> None:
        """A place of the owner is free again."""
        with self._lock:
            self._free += 1
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
            self._serve()

    def _serve(self) -> None:
        for owner in list(self._waiting):
            if self._free and self._held[owner] < self._most:
                self._serve_one(owner)

    def _serve_one(self, owner: str) -> None:
        queue = self._waiting.pop(owner)
        while queue:
            future = queue.popleft()
            if future.set_running_or_notify_cancel():
                self._free -= 1
                self._held[owner] += 1
                future.set_result(owner)
                break
        if queue:
            self._waiting[owner] = queue
