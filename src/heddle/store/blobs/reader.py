"""Reading an object in blocks, and checking that it is what its key says."""

import hashlib
import io
from collections.abc import Callable
from typing import Any

from heddle.errors import HeddleError

BLOCK = 4 << 20
"""Bytes of one request, which a reader holds in memory."""

Fetch = Callable[[int, int], bytes]
"""The bytes from a place to before another."""


class ObjectReader(io.RawIOBase):
    """One object from its beginning to its end; the last bytes come only when the content has the right digest."""

    def __init__(self, key: str, size: int, fetch: Fetch) -> None:
        super().__init__()
        self._key = key
        self._size = size
        self._fetch = fetch
        self._position = 0
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fetch as much as the buffer takes; raises Unavailable, and HeddleError for content that was damaged."""
        content = self._next(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        """Fetch the rest."""
        parts = []
        while part := self._next(BLOCK):
            parts.append(part)
        return b"".join(parts)

    def _next(self, most: int) -> bytes:
        end = min(self._position + most, self._size)
        content = self._fetch(self._position, end) if end > self._position else b""
        self._hash.update(content)
        self._position += len(content)
        is_short = len(content) < most and self._position < self._size
        if is_short or (self._position == self._size and self._hash.hexdigest() != self._key):
            raise HeddleError(f"The content {self._key} was damaged in the object store")
        return content
