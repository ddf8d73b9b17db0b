"""What the server and a training process say to each other, as objects; on shared storage one JSON line each.

To the process go a `Task`, `Warm` and `Cancel`; back come the messages of `base`, `Stopped` after a cancellation,
`Crashed` before it ends in an error, and `Beat` while it lives.
"""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from heddle.training.base import Failed, Finished, Message, Saved, Started, Stepped, Task


@dataclass(frozen=True, slots=True)
class Warm:
    """Read a base model now, so that the first job does not wait for it."""

    base_folder: str
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give a task up."""

    job_id: str


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


Request = Task | Warm
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
    """One line."""
    value = {"type": _NAMES[type(message)], **asdict(message)}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Answer:
    """What `encode` made; raises ValueError for anything else."""
    value = json.loads(line)
    kind = _KINDS.get(value.pop("type", "")) if isinstance(value, dict) else None
    if kind is None or set(value) != {field.name for field in fields(kind)}:
        raise ValueError(f"no message of a training process: {line[:200]!r}")
    message: Answer = kind(**value)
    return message


def finite(message: Message) -> Message:
    """The message without figures that are no finite numbers: JSON has none."""
    if isinstance(message, Finished):
        return replace(message, metrics=_finite(message.metrics))
    return replace(message, data=_finite(message.data)) if isinstance(message, Started | Stepped) else message


def _finite(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if math.isfinite(value)}
