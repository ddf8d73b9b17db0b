"""Content-addressed files: a blob's key is the SHA-256 of its content in hexadecimal, so equal content is kept once.

A blob appears under its key only after its bytes and its name are on the disk; what is half written lies under `tmp/`.
"""

import contextlib
import hashlib
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO

from heddle.errors import NotFound
from heddle.store.disk import room

FILES = "files"
"""The folder of blobs inside the data folder."""
_CHUNK = 1 << 20
_KEY_LENGTH = 64
_COLLECTED = 500


class Blobs:
    """A folder of blobs; every method blocks, so call it in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unfinished = root / "tmp"
        self._placing = threading.Lock()

    def begin(self) -> "BlobWriter":
        """A blob that is about to be written; end it with `commit` or `discard`."""
        with room():
            self._unfinished.mkdir(parents=True, exist_ok=True)
            return BlobWriter(self, tempfile.NamedTemporaryFile(dir=self._unfinished, delete=False))

    def put(self, content: BinaryIO) -> str:
        """Store what a binary file object holds from its place on; returns the key once it is durable."""
        writer = self.begin()
        try:
            while chunk := content.read(_CHUNK):
                writer.write(chunk)
            return writer.commit()
        finally:
            writer.discard()

    def put_bytes(self, content: bytes) -> str:
        """Store bytes; returns the key once they are durable."""
        return self.put(io.BytesIO(content))

    def open(self, key: str) -> BinaryIO:
        """The content as a binary file object; raises NotFound."""
        try:
            return self._path(key).open("rb")
        except FileNotFoundError:
            raise NotFound(f"The content {key} is missing from the data folder") from None

    def read(self, key: str) -> bytes:
        """The whole content; raises NotFound."""
        with self.open(key) as stream:
            return stream.read()

    def path(self, key: str) -> Path:
        """Where the content lies, to be read by another process; raises NotFound."""
        path = self._path(key)
        if not path.is_file():
            raise NotFound(f"The content {key} is missing from the data folder")
        return path

    def exists(self, key: str) -> bool:
        """True when the blob is there."""
        return self._path(key).is_file()

    def delete(self, key: str) -> bool:
        """Remove a blob that nothing names any more; False when it was not there."""
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def keys(self) -> Iterator[str]:
        """Every key, in no order."""
        for path in self._root.glob("[0-9a-f][0-9a-f]/*"):
            yield path.parent.name + path.name

    def total(self) -> tuple[int, int]:
        """How many blobs there are, and their bytes together."""
        sizes = [self._path(key).stat().st_size for key in self.keys()]
        return len(sizes), sum(sizes)

    def sweep(self) -> int:
        """Remove what a crash left half written; only for the one process that holds the folder. Returns how many."""
        leftovers = list(self._unfinished.glob("*"))
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def collect(self, named: Callable[[Sequence[str]], Collection[str]], seconds: float) -> int:
        """Remove blobs that `named` (of some keys, those in use) does not name and that are older than `seconds`."""
        removed = 0
        keys = self.keys()
        while chunk := list(islice(keys, _COLLECTED)):
            for key in set(chunk) - set(named(chunk)):
                path = self._path(key)
                with self._placing, contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > seconds:
                        path.unlink()
                        removed += 1
        return removed

    def _path(self, key: str) -> Path:
        if len(key) != _KEY_LENGTH or key.strip("0123456789abcdef"):
            raise NotFound(f"{key[:100]!r} is no key of a blob")
        return self._root / key[:2] / key[2:]

    def _adopt(self, unfinished: Path, key: str) -> None:
        target = self._path(key)
        is_new_folder = not target.parent.exists()
        target.parent.mkdir(exist_ok=True)
        with self._placing:
            if target.exists():
                unfinished.unlink()
                # Young again, so that `collect` leaves it until its new name is committed.
                os.utime(target)
            else:
                os.replace(unfinished, target)
        # Also when another writer put it there: its own flush of the folder may still be under way.
        _flush_folder(target.parent)
        if is_new_folder:
            _flush_folder(self._root)


class BlobWriter:
    """One blob on its way into the folder; `size` and `key` grow with every `write`, `is_done` after the end."""

    def __init__(self, blobs: Blobs, file: IO[bytes]) -> None:
        self._blobs = blobs
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
        with room():
            self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def commit(self) -> str:
        """Make the blob durable and visible; returns its key."""
        with room():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._blobs._adopt(Path(self._file.name), self.key)
        self.is_done = True
        return self.key

    def discard(self) -> None:
        """Leave nothing behind; does nothing after `commit`."""
        if self.is_done:
            return
        self.is_done = True
        # What a full disk left in the buffer is tried again by close, and may fail again.
        with contextlib.suppress(OSError):
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
