"""The data folder: one server at a time, its secret, its size, and a full disk told as what it is."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

from heddle import paths
from heddle.errors import HeddleError, StorageFull, Unavailable

LOCK = "lock"
FILES = "files"
"""The folder of blobs inside the data folder."""
_FRESH_SECONDS, _PATIENCE_SECONDS = 60.0, 1.0


class DataLock:
    """The lock of a data folder, held from entering to leaving; makes the folder where it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> "DataLock":
        """Take the lock; raises HeddleError naming the process that holds it."""
        path = self._folder / LOCK
        make_folder(self._folder)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, paths.FILE)
        except OSError as error:
            raise _unusable(self._folder, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            in_use = f"The data folder {self._folder} is in use by another heddle ({_named(path)})"
            raise HeddleError(f"{in_use}; stop it, or choose another folder with --data") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def make_folder(folder: Path) -> None:
    """Make a data folder where there is none; raises HeddleError where nothing can be written."""
    try:
        folder.mkdir(paths.FOLDER, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unusable(folder, error) from None


def _unusable(folder: Path, error: OSError) -> HeddleError:
    return HeddleError(f"The data folder {folder} cannot be used: {error.strerror}")


def holder(folder: Path) -> str | None:
    """Who holds the folder's lock now, as text, or None."""
    path = folder / LOCK
    if not path.exists():
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(path)
    finally:
        os.close(descriptor)
    return None


def _named(path: Path) -> str:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    return f"process {text}" if text.isdigit() else "its process id is unknown"


_SECRET = "secret"
_BYTES = 32


@cache
def secret(data: Path, name: str = _SECRET) -> bytes:
    """32 random bytes, made when first needed, in a file that only the server's user can read. Raises StorageFull."""
    path = data / name
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    with disk_failures(), tempfile.NamedTemporaryFile(dir=data, prefix=f".{name}-") as file:
        file.write(os.urandom(_BYTES))
        file.flush()
        os.fsync(file.fileno())
        # Another server may be first: its bytes count.
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)
    return path.read_bytes()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the parts of the data folder, and of its disk."""

    database: int
    write_ahead_log: int
    files: int
    adapters: int
    training: int
    disk_free: int
    disk: int

    @property
    def parts(self) -> dict[str, int]:
        """Those of the folder."""
        return {name: getattr(self, name) for name in ("database", "write_ahead_log", "files", "adapters", "training")}


def sizes(database: Path) -> Sizes:
    """What is there now; walks the folders of files, so it wants a thread of its own."""
    folder = database.parent
    log = database.with_name(f"{database.name}-wal")
    disk = shutil.disk_usage(folder)
    return Sizes(
        database=_size(database),
        write_ahead_log=_size(log),
        files=_below(folder / FILES),
        adapters=_below(folder / "adapters"),
        training=_below(folder / "training"),
        disk_free=disk.free,
        disk=disk.total,
    )


class Measured:
    """The last sizes that were measured; one measurement, which walks many files, serves all who ask meanwhile."""

    def __init__(self, measure: Callable[[], Awaitable[Sizes]]) -> None:
        self.sizes: Sizes | None = None
        self._measure = measure
        self._task: asyncio.Task[Sizes] | None = None
        self._at = 0.0

    async def measure(self, age: float) -> Sizes:
        """Sizes that are so many seconds old at most; raises HeddleError."""
        if self.sizes is not None and time.monotonic() - self._at < age:
            return self.sizes
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await asyncio.shield(self._task)

    async def refresh(self) -> None:
        """Measure again once a minute, without waiting long."""
        with contextlib.suppress(TimeoutError, HeddleError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self.measure(_FRESH_SECONDS)

    async def _run(self) -> Sizes:
        self.sizes, self._at = await self._measure(), time.monotonic()
        return self.sizes


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            # A file may go while they are counted.
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


BACKUP_STATE = "last-backup.json"


@dataclass(frozen=True, slots=True)
class BackupState:
    """What came of the last `heddle backup` of a data folder; instants are microseconds, 0 for never."""

    made_at: int = 0
    target: str = ""
    bytes: int = 0
    seconds: float = 0.0
    restored_at: int = 0
    """When one was restored into a temporary folder and checked."""
    since_restored: int = 0
    """How many were made since."""
    notes: tuple[str, ...] = ()
    """What is wrong with the data itself."""
    failed_at: int = 0
    """When the last attempt failed; 0 where it went well."""
    error: str = ""

    @classmethod
    def read(cls, folder: Path) -> "BackupState":
        """The state that is noted in a data folder; an empty one where there is none."""
        try:
            found = json.loads((folder / BACKUP_STATE).read_bytes())
            return cls(**{**found, "notes": tuple(found["notes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return cls()

    def write(self, folder: Path) -> None:
        """Note it there; raises HeddleError."""
        try:
            with tempfile.TemporaryDirectory(prefix=f".{BACKUP_STATE}-", dir=folder) as scratch:
                (Path(scratch) / BACKUP_STATE).write_text(json.dumps(asdict(self)))
                os.replace(Path(scratch) / BACKUP_STATE, folder / BACKUP_STATE)
        except OSError as error:
            raise HeddleError(f"{folder / BACKUP_STATE} cannot be written: {error.strerror}") from None


FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_BROKEN = frozenset((errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO))
_CLOSED = frozenset((errno.EACCES, errno.EPERM, errno.ENOTDIR))
"""What sockets fail with as well, which name no file."""


def explain_disk(error: Exception) -> HeddleError | None:
    """What a failure of the disk means to the caller, or None when it is none."""
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        return StorageFull("The disk is full; nothing of this request was stored")
    if error.errno in _BROKEN or (error.errno in _CLOSED and error.filename is not None):
        return Unavailable(f"The disk is currently unavailable: {error.strerror}; nothing of this request was stored")
    return None


@contextlib.contextmanager
def disk_failures() -> Iterator[None]:
    """Raise StorageFull or Unavailable where the disk fails the body."""
    try:
        yield
    except OSError as error:
        if (known := explain_disk(error)) is None:
            raise
        raise known from error
