"""A provider that answers some requests at once and lets the others wait, to stop a server in the middle of a job."""

import threading
from http.server import BaseHTTPRequestHandler

from tests.support.provider import FakeProvider

DEADLINE_SECONDS = 60.0


class GatedProvider(FakeProvider):
    """Answers so many requests, then lets the others wait until the gate is open."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.waiting = 0
        """Requests that have had to wait."""
        self._free = first
        self._lock = threading.Lock()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request when it is its turn."""
        with self._lock:
            self._free -= 1
            waits = self._free < 0
            self.waiting += waits
        if waits:
            self.opened.wait(DEADLINE_SECONDS)
        try:
            super().serve(handler)
        except OSError:
            # The server that asked was killed.
            return
