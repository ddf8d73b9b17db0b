"""What a place for blobs can do. A blob's key is the SHA-256 of its content in hexadecimal: equal content is kept once.

A blob appears under its key only after all of it is durable; what is half written can be read by nobody.
"""

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from heddle.errors import NotFound
from heddle.store.data_folder import disk_failures

CHUNK = 1 << 20
LISTED = 500
"""How many keys are asked about at once."""
_KEY_LENGTH = 64

Named = Callable[[Sequence[str]], Collection[str]]
"""Of some keys, those that are in use."""


class BlobWriter(ABC):
    """One blob on its way; `size` and `key` grow with every `write`, `is_done` after the end."""

    def __init__(self, file: IO[bytes]) -> None:
        """`file` holds what was written until the end."""
        self._file = file
        self._hash = hashlib.sha256()
        self.is_done = False
        self.size = 0

    @property
    def key(self) -> str:
        """The key of what was written so far."""
        return self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Append; raises StorageFull, after which only `discard` makes sense."""
        with disk_failures():
            self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def commit(self) -> str:
        """Make the blob durable and visible; returns its key. Raises StorageFull and Unavailable."""
        with disk_failures():
            self._keep()
        self.is_done = True
        return self.key

    def discard(self) -> None:
        """Leave nothing behind; does nothing after `commit`."""
        if not self.is_done:
            self.is_done = True
            self._drop()

    @abstractmethod
    def _keep(self) -> None:
        """Put what was written to its place."""

    @abstractmethod
    def _drop(self) -> None:
        """Forget what was written."""


class Blobs(ABC):
    """A place for blobs; every method blocks, so call it in a thread. All but `sweep` may raise Unavailable."""

    @abstractmethod
    def begin(self) -> BlobWriter:
        """A blob that is about to be written; end it with `commit` or `discard`."""

    def put(self, content: BinaryIO) -> str:
        """Store what a binary file object holds from its place on; returns the key once it is durable."""
        writer = self.begin()
        try:
            while chunk := content.read(CHUNK):
                writer.write(chunk)
            return writer.commit()
        finally:
            writer.discard()

    def put_bytes(self, content: bytes) -> str:
        """Store bytes; returns the key once they are durable."""
        return self.put(io.BytesIO(content))

    @abstractmethod
    def open(self, key: str) -> BinaryIO:
        """The content as a binary file object; raises NotFound."""

    def read(self, key: str) -> bytes:
        """The whole content; raises NotFound, also for one that is damaged."""
        with self.open(key) as stream:
            content = stream.read()
        if hashlib.sha256(content).hexdigest() != key:
            raise NotFound(f"The content {key} is damaged (heddle check)")
        return content

    @abstractmethod
    def path(self, key: str) -> Path:
        """A file with the content, to be read by another process; raises NotFound."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """True when the blob is there."""

    @abstractmethod
    def renew(self, key: str) -> bool:
        """Spare `seconds` of a blob's `collect` and `purge` from now on; false when it is not there."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove a blob that nothing names any more; False when it was not there."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Every key, in no order."""

    @abstractmethod
    def total(self) -> tuple[int, int]:
        """How many blobs there are, and their bytes together."""

    @abstractmethod
    def sweep(self, seconds: float = 0.0) -> int:
        """Remove what a crash left half written and nobody wrote to for `seconds`; returns how many."""

    @abstractmethod
    def collect(self, named: Named, seconds: float) -> int:
        """Remove blobs that `named` (of some keys, those in use) does not name and that are older than `seconds`.

        Returns how many. Several servers may do it, and write, at the same time.
        """

    @abstractmethod
    def purge(self, named: Named, seconds: float) -> tuple[int, int]:
        """Remove for good what `named` does not name; returns how many, and how many another purge is to remove.

        Those are what somebody may be about to name: another purge removes them once `seconds` have passed.
        """

    @abstractmethod
    def ping(self) -> None:
        """Raise Unavailable when nothing can be stored or read now."""


def is_key(text: str) -> bool:
    """Whether a text can be a key; other names are not heddle's, such as what a store or NFS leaves for a moment."""
    return len(text) == _KEY_LENGTH and not text.strip("0123456789abcdef")


def check_key(key: str) -> str:
    """The key; raises NotFound for a text that cannot be one."""
    if not is_key(key):
        raise NotFound(f"{key[:100]!r} is not a key of a blob")
    return key
