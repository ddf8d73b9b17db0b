"""What the server prints and logs, written by a thread of its own: a reader that is slow or gone stops nothing."""

import io
import os
import threading
from collections import deque
from typing import TextIO

MOST_LINES = 10_000
"""Lines that wait to be written; beyond, lines are dropped and counted."""


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
