"""What the server and a training process say to each other: one JSON object per line.

To the process go `{"type": "task", ...Task}`, `{"type": "warm", ...Warm}` and `{"type": "cancel", "job_id": ...}`; back
come the messages of `base` (`started`, `stepped`, `saved`, `finished`, `failed`), `stopped` after a cancellation,
`crashed` before it ends in an error, and `beat` while it lives.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from heddle.training.base import Failed, Finished, Message, Saved, Started, Stepped, Task
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class Warm:
    """Read a base model now, so that the first job does not wait for it."""

    base_folder: str
    device: str
    dtype: str


@dataclass(slots=True)
class Stopped:
    """The task was given up because it was cancelled."""


@dataclass(slots=True)
class Crashed:
    """The process ends because of an error that is no fault of the task; another attempt may go better."""

    reason: str


@dataclass(slots=True)
class Beat:
    """The process lives."""


Answer = Message | Stopped | Crashed | Beat
_KINDS: dict[str, type[Any]] = {
    "started": Started,
    "stepped": Stepped,
    "saved": Saved,
    "finished": Finished,
    "failed": Failed,
    "stopped": Stopped,
    "crashed": Crashed,
    "beat": Beat,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(message: Answer) -> bytes:
    """One line. Figures that are no finite numbers are left out: JSON has none."""
    values = {name: _finite(value) if isinstance(value, dict) else value for name, value in asdict(message).items()}
    return _line({"type": _NAMES[type(message)], **values})


def decode(line: bytes) -> Answer:
    """What `encode` made; raises ValueError for anything else."""
    value = json.loads(line)
    kind = _KINDS.get(value.pop("type", "")) if isinstance(value, dict) else None
    if kind is None or set(value) != {field.name for field in fields(kind)}:
        raise ValueError(f"no message of a training process: {line[:200]!r}")
    message: Answer = kind(**value)
    return message


def encode_task(task: Task) -> bytes:
    """The line that gives a process its task."""
    return _line({"type": "task", **task.as_json()})


def encode_warm(warm: Warm) -> bytes:
    """The line that lets a process prepare for jobs."""
    return _line({"type": "warm", **asdict(warm)})


def encode_cancel(job_id: str) -> bytes:
    """The line that asks a process to give a task up."""
    return _line({"type": "cancel", "job_id": job_id})


def decode_request(line: bytes) -> Task | Warm | str:
    """A task, what to prepare for, or the id of the job to give up; raises ValueError."""
    value = json.loads(line)
    kind = value.pop("type", None)
    if kind == "task":
        return Task(**value)
    if kind == "warm":
        return Warm(**value)
    if kind == "cancel":
        return str(value["job_id"])
    raise ValueError(f"no request to a training process: {line[:200]!r}")


def _finite(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _line(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
