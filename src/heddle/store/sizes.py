"""How much room the data folder takes."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from heddle.store.blobs.folder import FILES


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
