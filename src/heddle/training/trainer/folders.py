"""Folders that appear whole or not at all, and the snapshots of a job."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from heddle.training.folders import forget_begun, staged

SNAPSHOT = "snapshot-"
KEPT_SNAPSHOTS = 2


def make_whole(target: Path, fill: Callable[[Path], None]) -> None:
    """Let a folder be filled beside its place, make it durable, and move it there.

    Where another attempt at the same job (one that was believed dead) was first, its folder stays.
    """
    forget_begun(target)
    begun = staged(target)
    begun.mkdir(parents=True)
    fill(begun)
    for place, _, files in os.walk(begun):
        for name in files:
            sync(Path(place) / name)
        sync(Path(place))
    try:
        begun.rename(target)
    except OSError:
        shutil.rmtree(begun)
        if not target.exists():
            raise
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def snapshots(work: Path) -> list[tuple[int, Path]]:
    """The whole snapshots of a job, oldest first: how many gradient steps each holds, and its folder."""
    found = []
    for folder in work.glob(f"{SNAPSHOT}*"):
        steps = folder.name.removeprefix(SNAPSHOT)
        if steps.isdecimal():
            found.append((int(steps), folder))
    return sorted(found)


def add_snapshot(work: Path, steps: int, fill: Callable[[Path], None]) -> None:
    """Make a snapshot durable; older ones but one are removed."""
    make_whole(work / f"{SNAPSHOT}{steps:06d}", fill)
    for _, folder in snapshots(work)[:-KEPT_SNAPSHOTS]:
        shutil.rmtree(folder)


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes under another name, without taking their space again where the file system can."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
