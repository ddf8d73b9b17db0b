"""Files of training below the data folder.

training/<model id>/checkpoints/<step>   immutable, made under another name and renamed
training/<model id>/jobs/<job id>        a job's own: snapshots, until it ends
"""

import hashlib
import io
import json
import logging
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import zstandard

from heddle.paths import SUMS, OutsideRoot, as_part, model_folder, resolve_below, sync, write_sums
from heddle.paths import TRAINING as ROOT
from heddle.wire import jsontext

logger = logging.getLogger("heddle.training")
ADAPTER_FILE = "adapter_model.safetensors"
FULL_STATE = ("adapter_config.json", ADAPTER_FILE, "optimizer.safetensors", "training_state.json")
"""The files of a checkpoint; every one has the first two."""


def checkpoint_folder(model_id: str, step: int) -> str:
    """One step of a model; relative to the data folder."""
    return f"{model_folder(model_id)}/checkpoints/{step:04d}"


def work_folder(model_id: str, job_id: str) -> str:
    """What a job needs while it runs; relative to the data folder."""
    return f"{model_folder(model_id)}/jobs/{as_part(job_id)}"


def remove(folder: Path) -> None:
    """Remove a folder; does nothing when it is not there."""
    if folder.exists():
        shutil.rmtree(folder)


def remove_deleted(folder: Path) -> None:
    """Remove a folder whose rows are gone already: where the disk refuses it, the next start does."""
    try:
        remove(folder)
    except OSError as error:
        logger.warning("%s could not be removed; the next start will try again: %s", folder, error)


def resolve_folder(data: Path, folder: str) -> Path:
    """The place of a row's folder, which lies among those of training; raises OutsideRoot."""
    return resolve_below(data / ROOT, (data / folder).absolute())


def remove_below(data: Path, folder: str) -> None:
    """Remove a row's folder; what the row names elsewhere stays, and is logged."""
    try:
        remove_deleted(resolve_folder(data, folder))
    except OutsideRoot as error:
        logger.warning("a checkpoint's folder was not removed: %s", error)


def remove_begun(folder: Path) -> None:
    """Remove what earlier attempts began of a folder."""
    for begun in folder.parent.glob(f".{folder.name}.*tmp"):
        shutil.rmtree(begun, ignore_errors=True)


def measure(folder: Path) -> tuple[str, int]:
    """The SHA-256 of a checkpoint's adapter, and the bytes of the whole folder; raises OSError."""
    with (folder / ADAPTER_FILE).open("rb") as adapter:
        digest = hashlib.file_digest(adapter, "sha256").hexdigest()
    return digest, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sweep(data: Path, kept: Collection[str], age: float = 0.0) -> list[str]:
    """Remove the checkpoints and work folders that are not in `kept` (relative), as a crash leaves them.

    What changed in the last `age` seconds stays: servers that share the folder may be making it. Returns what was
    removed, relative to the data folder.
    """
    removed, before = [], time.time() - age if age else math.inf
    for pattern in ("*/checkpoints/*", "*/jobs/*"):
        for path in sorted((data / ROOT).glob(pattern)):
            name = path.relative_to(data).as_posix()
            if name not in kept and path.lstat().st_mtime <= before:
                _remove_any(path)
                removed.append(name)
    for model in (data / ROOT).glob("*"):
        is_named = any(name.startswith(f"{ROOT}/{model.name}/") for name in kept)
        if not is_named and all(path.lstat().st_mtime <= before for path in (model, *model.rglob("*"))):
            _remove_any(model)
    return removed


def _remove_any(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


_ZSTD_LEVEL = 3
_CHUNK = 1 << 18


def write_payload(value: Any) -> bytes:
    """The compressed JSON of plain values; equal values give equal bytes. Non-finite numbers become null."""
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(jsontext.dumps_bytes(value))


def read_payload(path: Path | str) -> Any:
    """What `write_payload` was given; raises OSError, or ValueError for a file that is none of ours."""
    with Path(path).open("rb") as stream:
        text = b"".join(read_chunks(stream))
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # numbers beyond its range
        return json.loads(text)


def read_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The JSON text behind a binary stream, part by part; raises ValueError for what is no zstd."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BufferedReader(stream)) as text:  # type: ignore[type-var]
            while chunk := text.read(_CHUNK):
                yield chunk
    except zstandard.ZstdError as error:
        raise ValueError(f"not valid zstd data: {error}") from None


SNAPSHOT = "snapshot-"
KEPT_SNAPSHOTS = 2


def make_whole(target: Path, fill: Callable[[Path], None]) -> None:
    """Let a folder be filled beside its place, make it durable, and move it there.

    Where another attempt at the same job (one that was believed dead) was first, its folder stays.
    """
    remove_begun(target)
    begun = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    begun.mkdir(parents=True)
    try:
        fill(begun)
        write_sums(begun)
        for place, _, files in os.walk(begun):
            for name in files:
                sync(Path(place) / name)
            sync(Path(place))
        begun.rename(target)
    except BaseException as error:
        shutil.rmtree(begun, ignore_errors=True)
        if not (isinstance(error, OSError) and target.exists()):
            raise
    sync(target.parent)


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


def copy(source: Path, target: Path, names: Sequence[str]) -> None:
    """The same files of a checkpoint in another folder, but for those it never had; raises OSError if one is gone."""
    noted = (source / SUMS).read_text() if (source / SUMS).exists() else None
    for name in names:
        is_known = (source / name).is_file() if noted is None else f"  {name}\n" in noted
        if is_known or name in FULL_STATE[:2]:
            link_or_copy(source / name, target / name)


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes under another name, without taking their space again where the file system can."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
