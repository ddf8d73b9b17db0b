"""The files of adapters and checkpoints that an import brings into the data folder."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import sqlalchemy as sa

from heddle import paths
from heddle.errors import HeddleError
from heddle.paths import resolve_below
from heddle.store.data_folder import disk_failures
from heddle.transfer import schema
from heddle.transfer.archive import UNFINISHED
from heddle.transfer.validation import folders_above


def put_file(data: Path, place: str, content: IO[bytes]) -> bool:
    """Store a file durably at its place; false when there is one already. Raises HeddleError."""
    target = resolve_below(data, place)
    try:
        return not target.exists() and _write_file(target, content)
    except OSError as error:
        raise HeddleError(f"The file {place} cannot be stored: {error.strerror}") from error


def _write_file(target: Path, content: IO[bytes]) -> bool:
    unfinished = target.parent / (UNFINISHED + hashlib.sha256(target.name.encode()).hexdigest()[:16])
    with disk_failures():
        target.parent.mkdir(parents=True, exist_ok=True)
        # What a killed import left there is written anew; what another one writes at the moment is waited for.
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT, paths.FILE), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if target.exists():
                return False
            try:
                file.truncate()
                shutil.copyfileobj(content, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
                os.replace(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)
    return True


def is_named(folder: str, connection: sa.Connection) -> bool:
    """True for the folder of an adapter or a checkpoint."""
    return any(connection.execute(sa.select(c).where(c == folder)).first() for c in schema.FOLDER_COLUMNS)


def remove_files(data: Path, places: Sequence[str]) -> None:
    """Remove files, and the folders that are empty without them."""
    for place in places:
        resolve_below(data, place).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the first that is not empty
            for folder in folders_above(place):
                if folder not in schema.FOLDERS:
                    (data / folder).rmdir()
