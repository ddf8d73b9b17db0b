"""Where training keeps its files below the data folder, and what of it is left over.

training/<model id>/checkpoints/<step>   immutable, made under another name and renamed
training/<model id>/jobs/<job id>        a job's own: snapshots, until it ends
"""

import hashlib
import logging
import math
import shutil
import time
import uuid
from collections.abc import Collection
from pathlib import Path

from heddle.paths import TRAINING as ROOT
from heddle.paths import OutsideRoot, as_part, model_folder, resolve_below

logger = logging.getLogger("heddle.training")
ADAPTER_FILE = "adapter_model.safetensors"


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


def resolved(data: Path, folder: str) -> Path:
    """The place of a row's folder, which lies among those of training; raises OutsideRoot."""
    return resolve_below(data / ROOT, (data / folder).absolute())


def remove_below(data: Path, folder: str) -> None:
    """Remove a row's folder; what the row names elsewhere stays, and is logged."""
    try:
        remove(resolved(data, folder))
    except OutsideRoot as error:
        logger.warning("a checkpoint's folder is not removed: %s", error)


def staged(folder: Path) -> Path:
    """Where a folder that appears whole or not at all is filled: a new place for each attempt."""
    return folder.parent / f".{folder.name}.{uuid.uuid4().hex}.tmp"


def remove_begun(folder: Path) -> None:
    """Remove a folder, and what was begun of it."""
    remove(folder)
    forget_begun(folder)


def forget_begun(folder: Path) -> None:
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
