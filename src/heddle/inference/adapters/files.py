"""The folders of adapter versions that heddle copied: made durably, compared, and swept."""

import contextlib
import filecmp
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from heddle.errors import InvalidRequest, StorageFull
from heddle.paths import TRAINING as CHECKPOINTS
from heddle.paths import OutsideRoot, is_below, resolve_below
from heddle.store.disk import FULL
from heddle.wire import ids

FOLDER = "adapters"
"""Below the data folder; only what lies here is ours to remove."""
FILES = ("adapter_config.json", "adapter_model.safetensors")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
"""What an adapter that is loaded by hand may be called."""


def copy(source: Path, data: Path) -> str:
    """Copy a PEFT folder durably to a place of its own; returns that relative to the data folder.

    Raises InvalidRequest for a folder that is no adapter or cannot be read, StorageFull when there is no room.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise InvalidRequest(
            f"The folder {source.name!r} is no LoRA adapter: it has no {missing[0]}", param="lora_path"
        )
    try:
        return f"{FOLDER}/{_durable_copy(source, data / FOLDER)}"
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull("There is no room for a copy of the adapter") from error
        raise InvalidRequest(
            f"The folder {source.name!r} cannot be copied: {error.strerror or error}", param="lora_path"
        ) from error


def _durable_copy(source: Path, parent: Path) -> str:
    parent.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    try:
        for name in FILES:
            shutil.copyfile(source / name, temporary / name)
            _sync(temporary / name)
        _sync(temporary)
        final = parent / ids.uuid7()
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(parent)
    return final.name


def is_kept(data: Path, folder: str) -> bool:
    """True for a place among the adapters or the checkpoints in the data folder, which may lie on another disk."""
    return any(is_below(data / kept, (data / folder).absolute()) for kept in (FOLDER, CHECKPOINTS))


def remove(data: Path, folder: str) -> None:
    """Remove the folder of a version that was loaded by hand; does nothing where it is none."""
    with contextlib.suppress(OutsideRoot):
        shutil.rmtree(resolve_below(data / FOLDER, folder.removeprefix(f"{FOLDER}/")), ignore_errors=True)


def sweep(parent: Path, known: set[str], age: float = 0.0) -> None:
    """Remove what an interrupted change left behind `age` seconds ago, or before."""
    before = time.time() - age
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name not in known and path.stat().st_mtime <= before:
            shutil.rmtree(path, ignore_errors=True)


def same_files(one: Path, other: Path) -> bool:
    """True when both folders hold the same adapter, byte by byte."""
    return all((one / name).is_file() and filecmp.cmp(one / name, other / name, shallow=False) for name in FILES)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
