"""One server per data folder: a lock that ends with the process, however that ends."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from heddle import modes
from heddle.errors import HeddleError

NAME = "lock"


class DataLock:
    """The lock of a data folder, held from entering to leaving; makes the folder where it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> "DataLock":
        """Take the lock; raises HeddleError naming the process that holds it."""
        path = self._folder / NAME
        try:
            self._folder.mkdir(modes.FOLDER, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, modes.FILE)
        except OSError as error:
            raise HeddleError(f"The data folder {self._folder} cannot be used: {error.strerror}") from None
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


def holder(folder: Path) -> str | None:
    """Who holds the folder's lock now, as text, or None."""
    path = folder / NAME
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
    return f"process {text}" if text.isdigit() else "its process id is not known"
