"""Blobs in a folder: `ab/cdef...`, with what is half written under `tmp/`. Several servers may share the folder."""

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO

from heddle.errors import NotFound
from heddle.paths import sync
from heddle.store.blobs.base import LISTED, Blobs, BlobWriter, Named, check_key, is_key
from heddle.store.data_folder import disk_failures


class FolderBlobs(Blobs):
    """A folder of blobs, beside a file that is locked while one is put to its place or removed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unfinished = root / "tmp"
        self._lock = root.with_name(f"{root.name}.lock")

    def begin(self) -> "FileWriter":
        """A file among the unfinished ones."""
        with disk_failures():
            self._unfinished.mkdir(parents=True, exist_ok=True)
            return FileWriter(tempfile.NamedTemporaryFile(dir=self._unfinished, delete=False), self.adopt)

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except FileNotFoundError:
            raise NotFound(f"The content {key} is missing from the data folder") from None

    def path(self, key: str) -> Path:
        path = self._path(key)
        try:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except FileNotFoundError:
            raise NotFound(f"The content {key} is missing from the data folder") from None
        if digest != key:
            raise NotFound(f"The content {key} is damaged (heddle check)")
        return path

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def delete(self, key: str) -> bool:
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def keys(self) -> Iterator[str]:
        names = (path.parent.name + path.name for path in self._root.glob("[0-9a-f][0-9a-f]/*"))
        return filter(is_key, names)

    def total(self) -> tuple[int, int]:
        """Walks the folder."""
        sizes = [self._path(key).stat().st_size for key in self.keys()]
        return len(sizes), sum(sizes)

    def sweep(self, seconds: float = 0.0) -> int:
        """Remove unfinished files; 0 seconds only where no other process writes to the folder."""
        before = time.time() - seconds
        leftovers = [path for path in self._unfinished.glob("*") if _modified(path) <= before]
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def collect(self, named: Named, seconds: float) -> int:
        removed = 0
        keys = self.keys()
        while chunk := list(islice(keys, LISTED)):
            removed += sum(self._remove_older(key, seconds) for key in set(chunk) - set(named(chunk)))
        return removed

    def purge(self, named: Named, seconds: float) -> tuple[int, int]:
        removed = young = 0
        keys = self.keys()
        while chunk := list(islice(keys, LISTED)):
            unnamed = set(chunk) - set(named(chunk))
            gone = sum(self._remove_older(key, seconds) for key in unnamed)
            removed, young = removed + gone, young + len(unnamed) - gone
        return removed, young

    def renew(self, key: str) -> bool:
        with self._placing():
            return self._renew(self._path(key))

    def ping(self) -> None:
        """A folder is there; whether it has room is found by writing."""

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)[:2] / key[2:]

    def _remove_older(self, key: str, seconds: float) -> bool:
        """Remove a blob unless it was put there again in so many seconds; true when it did."""
        with self._placing():
            try:
                # Opened, as a network file system tells only then what another machine did to it.
                with self._path(key).open("rb") as file:
                    age = time.time() - os.fstat(file.fileno()).st_mtime
            except FileNotFoundError:
                return False
            return age > seconds and self.delete(key)

    @staticmethod
    def _renew(path: Path) -> bool:
        """Make a file young, so that `collect` leaves it until its new name is committed; false when there is none."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _placing(self) -> Iterator[None]:
        """One thread of one process at a time."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def adopt(self, unfinished: Path, key: str) -> None:
        """Give a durable file its name."""
        target = self._path(key)
        is_new_folder = not target.parent.exists()
        target.parent.mkdir(exist_ok=True)
        with self._placing():
            if self._renew(target):
                unfinished.unlink()
            else:
                os.replace(unfinished, target)
        # Also when another writer put it there: its own flush of the folder may still be under way.
        sync(target.parent)
        if is_new_folder:
            sync(self._root)


class FileWriter(BlobWriter):
    """A file that gets its name when it is whole, by `place` (given its path and its key)."""

    def __init__(self, file: IO[bytes], place: Callable[[Path, str], object]) -> None:
        super().__init__(file)
        self._place = place

    def _keep(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._place(Path(self._file.name), self.key)

    def _drop(self) -> None:
        # What a full disk left in the buffer is tried again by close, and may fail again.
        with contextlib.suppress(OSError):
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def _modified(path: Path) -> float:
    """When a file was last written to; now for one that is gone already."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
