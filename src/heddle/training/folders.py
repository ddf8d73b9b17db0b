"""Where training keeps its files below the data folder, and what of it is left over.

training/<model id>/checkpoints/<step>   immutable, made under another name and renamed
training/<model id>/jobs/<job id>        a job's own: snapshots, until it ends
"""

import hashlib
import math
import shutil
import time
import uuid
from collections.abc import Collection
from pathlib import Path

ROOT = "training"
ADAPTER_FILE = "adapter_model.safetensors"


def model_folder(model_id: str) -> str:
    """Everything of a model; relative to the data folder."""
    return f"{ROOT}/{model_id}"


def checkpoint_folder(model_id: str, step: int) -> str:
    """One step of a model; relative to the data folder."""
    return f"{model_folder(model_id)}/checkpoints/{step:04d}"


def work_folder(model_id: str, job_id: str) -> str:
    """What a job needs while it runs; relative to the data folder."""
    return f"{model_folder(model_id)}/jobs/{job_id}"


def remove(folder: Path) -> None:
    """Remove a folder; does nothing when it is not there."""
    if folder.exists():
        shutil.rmtree(folder)


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
