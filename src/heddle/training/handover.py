"""Jobs as folders on storage that servers and workers of other machines share.

handover/<job id>.<attempt>/   made by the server, whole at once; removed by the server: then the worker stops
  task.json                    the task; its paths are relative to the folder where they lie below the data folder
  beat                         how often the server wants to hear the worker, in seconds
  taken                        made by the worker that does it: only one can make it
  messages                     what the worker says, one JSON object per line
  cancel                       made by the server: stop between two gradient steps
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path

from heddle.training.messages import Task

ROOT = "handover"
"""The folder of these folders inside the data folder."""
TASK, BEAT, TAKEN, MESSAGES, CANCEL = "task.json", "beat", "taken", "messages", "cancel"
_PLACES = ("base_folder", "payload", "parent", "target", "work", "kl_reference")


def offer(root: Path, task: Task, beat_seconds: float) -> Path:
    """Make the folder of a new attempt at a job; earlier ones are withdrawn. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    for earlier in root.glob(f"{task.job_id}.*"):
        withdraw(earlier)
    folder = root / f"{task.job_id}.{uuid.uuid4().hex}"
    begun = root / f".{folder.name}"
    begun.mkdir()
    (begun / BEAT).write_text(f"{beat_seconds:g}", encoding="ascii")
    (begun / TASK).write_text(json.dumps(asdict(_relative(task, root.parent, folder)), indent=2), encoding="utf-8")
    begun.rename(folder)
    return folder


def withdraw(folder: Path) -> None:
    """Remove an attempt, by whoever it is being done."""
    shutil.rmtree(folder, ignore_errors=True)


def claim(root: Path) -> Path | None:
    """Take the oldest attempt that nobody has taken, None without one; what no server wants any more is removed."""
    for folder in sorted((path for path in root.glob("[!.]*") if not (path / TAKEN).exists()), key=_made_at):
        try:
            if not Path(read(folder).work).is_dir():
                withdraw(folder)
                continue
            os.close(os.open(folder / TAKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except (FileExistsError, FileNotFoundError):  # another worker was faster, or the server withdrew it
            continue
        return folder
    return None


def read(folder: Path) -> Task:
    """The task of a folder, with absolute paths. Raises OSError, and ValueError for a broken file."""
    task = Task(**json.loads((folder / TASK).read_bytes()))
    places = {name: getattr(task, name) for name in _PLACES}
    paths = {name: str((folder / place).resolve()) for name, place in places.items() if place is not None}
    return Task(**asdict(task) | paths)


def _relative(task: Task, data: Path, folder: Path) -> Task:
    """The task with paths that are right wherever the data folder is mounted."""
    places = {name: getattr(task, name) for name in _PLACES}
    inside = {name: place for name, place in places.items() if place and Path(place).is_relative_to(data)}
    return Task(**asdict(task) | {name: os.path.relpath(place, folder) for name, place in inside.items()})


def _made_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
