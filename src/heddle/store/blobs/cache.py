"""Local copies of objects, for processes that read files."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from heddle.store.blobs.base import CHUNK
from heddle.store.disk import room

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
            with read(key) as source, room():
                self._fetch(source, path)
        return path

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
