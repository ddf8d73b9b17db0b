"""Blobs of a server that may be running: they are read, and nothing is written or removed."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from heddle.errors import HeddleError
from heddle.store.blobs.base import Blobs, BlobWriter, Named


class LentBlobs(Blobs):
    """The blobs of another store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def begin(self) -> BlobWriter:
        """Raises HeddleError."""
        raise HeddleError("a copy that is exported takes no content")

    def open(self, key: str) -> BinaryIO:
        """The content as a binary file object; raises NotFound."""
        return self._blobs.open(key)

    def path(self, key: str) -> Path:
        """A file with the content; raises NotFound."""
        return self._blobs.path(key)

    def exists(self, key: str) -> bool:
        """True when the blob is there."""
        return self._blobs.exists(key)

    def delete(self, key: str) -> bool:  # noqa: ARG002
        """Nothing is removed."""
        return False

    def keys(self) -> Iterator[str]:
        """Every key, in no order."""
        return self._blobs.keys()

    def total(self) -> tuple[int, int]:
        """How many blobs there are, and their bytes together."""
        return self._blobs.total()

    def sweep(self, seconds: float = 0.0) -> int:  # noqa: ARG002
        """Nothing is removed."""
        return 0

    def collect(self, named: Named, seconds: float) -> int:  # noqa: ARG002
        """Nothing is removed."""
        return 0

    def ping(self) -> None:
        """Raise Unavailable when nothing can be read now."""
        self._blobs.ping()
