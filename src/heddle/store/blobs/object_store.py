"""Blobs in an object store, through fsspec: `<prefix>/ab/cdef...`, the layout of the folder.

A name is known only when its content is: what comes in waits in a temporary file (in memory while it is small), and
then goes up in parts. Object stores show an object only when it is whole.

No lock is shared with other servers. What `collect` removes therefore lies in `<prefix>/trash` for as long again, where
reading still finds it and puts it back: a writer that was told "stored" at the moment of the removal loses nothing.
"""

import contextlib
import hashlib
import io
import itertools
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO

from heddle.errors import HeddleError, NotFound, Unavailable
from heddle.store.blobs.base import CHUNK, LISTED, Blobs, BlobWriter, Named, check_key, is_key
from heddle.store.data_folder import disk_failures

logger = logging.getLogger("heddle.store")

STALLED_SECONDS = 3.0
"""A request that waits so long, while no other is answered, closes the gate for those behind it."""
RETRY_AFTER = 2


class CircuitBreaker:
    """Before every request to one store; any thread may pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, float] = {}
        self._answered = 0.0
        self._is_away = False

    @contextmanager
    def passing(self, writes: bool = False) -> Iterator[None]:
        """One request. Raises Unavailable for whatever the store's package raises, and while the gate is closed.

        FileNotFoundError is an answer, and passes; for writes it is a bucket that is missing.
        """
        number = self._enter()
        try:
            yield
        except HeddleError:
            raise
        except Exception as error:
            is_answer = isinstance(error, FileNotFoundError)
            self._note(is_away=not is_answer)
            if is_answer and not writes:
                raise
            logger.warning("the object store: %s: %s", type(error).__name__, error)
            verb = "refuses access" if isinstance(error, PermissionError) else "is unavailable"
            raise _unavailable(f"{verb} ({type(error).__name__})") from error
        else:
            self._note(is_away=False)
        finally:
            with self._lock:
                del self._waiting[number]

    def is_closed(self) -> bool:
        """True while requests wait for a store that is away; the next ones are refused."""
        now = time.monotonic()
        with self._lock:
            first = min(self._waiting.values(), default=now)
            is_stalled = now - max(first, self._answered) > STALLED_SECONDS
            return bool(self._waiting) and (self._is_away or is_stalled)

    def _enter(self) -> int:
        if self.is_closed():
            raise _unavailable("is unavailable (too many requests are already waiting for it)")
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = time.monotonic()
            return number

    def _note(self, is_away: bool) -> None:
        with self._lock:
            self._is_away = is_away
            if not is_away:
                self._answered = time.monotonic()


def _unavailable(why: str) -> Unavailable:
    return Unavailable(f"The object store of the files {why}", RETRY_AFTER)


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
        """Fetch as much as the buffer takes; raises Unavailable, and NotFound for content that is gone or damaged."""
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
            raise NotFound(f"The content {self._key} is damaged in the object store (heddle check)")
        return content


KEPT_SECONDS = 86_400.0
"""How long a copy stays after it was last asked for."""
_BEGUN = ".part"


class LocalCopies:
    """A folder of copies by key, each whole or not there; several processes may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str, read: Callable[[str], BinaryIO]) -> Path:
        """The copy of a blob, fetched by `read` where it is missing. Raises what `read` raises, and StorageFull."""
        path = self._folder / key
        try:
            os.utime(path)
        except FileNotFoundError:
            with read(key) as source, disk_failures():
                self._fetch(source, path)
        return path

    def keys(self) -> list[str]:
        """The keys of the copies."""
        return [path.name for path in self._folder.glob("?" * 64)]

    def remove(self, key: str) -> None:
        """Remove a copy, if there is one."""
        (self._folder / key).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove copies that nobody asked for in a day."""
        self._remove("*", KEPT_SECONDS)

    def sweep(self, seconds: float) -> int:
        """Remove copies that were begun and not written to for `seconds`; returns how many."""
        return self._remove(f"*{_BEGUN}", seconds)

    def _fetch(self, source: BinaryIO, path: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, suffix=_BEGUN, delete=False) as file:
            try:
                shutil.copyfileobj(source, file, CHUNK)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def _remove(self, pattern: str, seconds: float) -> int:
        removed = 0
        for path in self._folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= seconds:
                    path.unlink()
                    removed += 1
        return removed


IN_MEMORY = 4 << 20
"""Content up to this size waits in memory, and is one request."""
_PARTS = 9000
"""Object stores take 10,000 parts of one object."""
_SMALLEST_PART = 8 << 20
_YOUNG_SECONDS = 20.0
"""A whole object of this age is not sent again: `collect` is far from it."""
_TRASH, _READY = "trash", "ready"
_FOLDER = re.compile("[0-9a-f]{2}")


class ObjectBlobs(Blobs):
    """A prefix of an object store."""

    def __init__(self, filesystem: Any, root: str, copies: Path) -> None:
        """`filesystem` is fsspec's, without a cache of listings; `copies` is a folder for local copies."""
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._copies = LocalCopies(copies)
        self._gate = CircuitBreaker()

    def begin(self) -> "ObjectWriter":
        """A temporary file, which has no name and is gone after a crash."""
        return ObjectWriter(self, tempfile.SpooledTemporaryFile(max_size=IN_MEMORY))

    def open(self, key: str) -> BinaryIO:
        """Read in blocks, one request each; the content is checked against its key before the end is given out."""
        size = int(self._found(key)["size"])
        return BufferedReader(ObjectReader(key, size, partial(self._fetch, key)), BLOCK)

    def _fetch(self, key: str, start: int, end: int) -> bytes:
        """Some bytes of a blob, which may be moved to the trash or removed while it is read; raises NotFound."""
        for _ in range(2):
            with self._gate.passing(), contextlib.suppress(FileNotFoundError):
                content: bytes = self._filesystem.cat_file(self._place(key), start=start, end=end)
                return content
            self._found(key)
        raise NotFound(f"The content {key} is missing from the object store")

    def path(self, key: str) -> Path:
        """A local copy, which is kept for some time."""
        check_key(key)
        return self._copies.path(key, self.open)

    def exists(self, key: str) -> bool:
        """Also of what lies in the trash, which is put back."""
        return self._find(key) is not None

    def renew(self, key: str) -> bool:
        """True when it is there: what is removed lies in the trash for `seconds`."""
        return self.exists(key)

    def delete(self, key: str) -> bool:
        """Remove the object, from the trash too."""
        is_there = self.exists(key)
        for place in (self._place(key), self._trash(key)):
            self._remove(place)
        return is_there

    def keys(self) -> Iterator[str]:
        """The names of the objects, listed by their first two letters."""
        return (key for key, _ in self._sizes())

    def total(self) -> tuple[int, int]:
        """Lists everything."""
        sizes = [size for _, size in self._sizes()]
        return len(sizes), sum(sizes)

    def sweep(self, seconds: float = 0.0) -> int:
        """Remove local copies that were not finished."""
        return self._copies.sweep(seconds)

    def collect(self, named: Named, seconds: float) -> int:
        """Move what is old and unnamed to the trash; what lies there for as long is removed, or put back if named."""
        self._empty_trash(named, seconds)
        self._copies.tidy()
        return self._fill_trash(named, seconds)

    def purge(self, named: Named, seconds: float) -> tuple[int, int]:
        """Remove what has been in the trash for `seconds`, and move the rest there; local copies go, too."""
        removed, young = self._empty_trash(named, seconds)
        copies = self._copies.keys()
        for key in set(copies) - set(named(copies)):
            self._copies.remove(key)
        return removed, young + self._fill_trash(named, float("-inf"))

    def ping(self) -> None:
        """Ask for a small object, which is made when it is missing: that shows a bucket that is not there."""
        place = f"{self._root}/{_READY}"
        if self._info(place) is None:
            self.upload_small(place, b"")

    def keep(self, key: str, size: int, file: IO[bytes]) -> None:
        """Upload a file from its beginning; returns when the store has all of it. Raises Unavailable."""
        file.seek(0)
        place = self._place(key)
        if size <= IN_MEMORY:
            self.upload_small(place, file.read())
        elif not self._has_just(place, size):
            self._upload_parts(place, size, file)

    def _has_just(self, place: str, size: int) -> bool:
        """True where an object of that size was stored a moment ago; one that was kept in part is no such object."""
        info = self._info(place)
        return info is not None and int(info["size"]) == size and self._age(place) <= _YOUNG_SECONDS

    def upload_small(self, place: str, content: bytes) -> None:
        """Upload in one request."""
        with self._gate.passing(writes=True):
            self._filesystem.pipe_file(place, content)

    def _upload_parts(self, place: str, size: int, file: IO[bytes]) -> None:
        part = max(_SMALLEST_PART, -(-size // _PARTS))
        remote = self._filesystem.open(place, "wb", block_size=part, autocommit=False)
        try:
            while chunk := file.read(CHUNK):
                with self._gate.passing(writes=True):
                    remote.write(chunk)
            with self._gate.passing(writes=True):
                remote.close()
                remote.commit()
                stored = int(self._filesystem.info(place)["size"])
        except BaseException:
            with contextlib.suppress(Exception):
                remote.discard()
            remote.closed = True
            raise
        if stored != size:
            raise Unavailable(f"The object store stored only {stored} of {size} bytes")

    def _find(self, key: str) -> dict[str, Any] | None:
        """What the store says about a blob, which is put back where it was in the trash."""
        place = self._place(key)
        info = self._info(place)
        return self._info(place) if info is None and self._copy(self._trash(key), place) else info

    def _found(self, key: str) -> dict[str, Any]:
        """The same; raises NotFound, and Unavailable where the whole bucket is missing."""
        info = self._find(key)
        if info is None:
            self.ping()
            raise NotFound(f"The content {key} is missing from the object store")
        return info

    def _empty_trash(self, named: Named, seconds: float) -> tuple[int, int]:
        """Put back what is named, remove what has been there for `seconds`; how many were removed, and are left."""
        removed = left = 0
        keys = filter(is_key, self._listed(f"{self._root}/{_TRASH}", "file"))
        while chunk := list(islice(keys, LISTED)):
            used = set(named(chunk))
            for key in chunk:
                is_used = key in used
                if is_used:
                    self._find(key)
                elif self._age(self._trash(key)) <= seconds:
                    left += 1
                    continue
                else:
                    removed += 1
                self._remove(self._trash(key))
        return removed, left

    def _fill_trash(self, named: Named, seconds: float) -> int:
        """Move what is unnamed and older than `seconds` to the trash; returns how many."""
        moved = 0
        keys = self.keys()
        while chunk := list(islice(keys, LISTED)):
            for key in set(chunk) - set(named(chunk)):
                if self._age(self._place(key)) > seconds and self._copy(self._place(key), self._trash(key)):
                    self._remove(self._place(key))
                    moved += 1
        return moved

    def _sizes(self) -> Iterator[tuple[str, int]]:
        for folder in self._listed(self._root, "directory"):
            if _FOLDER.fullmatch(folder):
                for name, size in self._listed(f"{self._root}/{folder}", "file").items():
                    if is_key(folder + name):
                        yield folder + name, size

    def _listed(self, folder: str, kind: str) -> dict[str, int]:
        """The last parts of the names below a place, with sizes."""
        with self._gate.passing():
            try:
                entries = self._filesystem.ls(folder, detail=True)
            except FileNotFoundError:
                return {}
        return {entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in entries if entry["type"] == kind}

    def _info(self, place: str) -> dict[str, Any] | None:
        with self._gate.passing():
            try:
                info: dict[str, Any] = self._filesystem.info(place)
            except FileNotFoundError:
                return None
        return info

    def _age(self, place: str) -> float:
        """Seconds since an object was stored; infinite for one that is not there."""
        with self._gate.passing():
            try:
                return time.time() - float(self._filesystem.modified(place).timestamp())
            except FileNotFoundError:
                return float("inf")

    def _copy(self, source: str, target: str) -> bool:
        """Copy inside the store; False when the source is gone."""
        with self._gate.passing():
            try:
                self._filesystem.cp_file(source, target)
            except FileNotFoundError:
                return False
        return True

    def _remove(self, place: str) -> None:
        with self._gate.passing(), contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(place)

    def _place(self, key: str) -> str:
        return f"{self._root}/{check_key(key)[:2]}/{key[2:]}"

    def _trash(self, key: str) -> str:
        return f"{self._root}/{_TRASH}/{key}"


class ObjectWriter(BlobWriter):
    """What is uploaded when it is whole."""

    def __init__(self, blobs: ObjectBlobs, file: IO[bytes]) -> None:
        super().__init__(file)
        self._blobs = blobs

    def _keep(self) -> None:
        self._blobs.keep(self.key, self.size, self._file)
        self._file.close()

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
