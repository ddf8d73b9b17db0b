"""What the server and a training process say to each other: a task, and what is reported of it."""

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal

from heddle.wire.jsontypes import Json

if TYPE_CHECKING:
    from heddle.store.control.training_models import LoraShape

JobKind = Literal["rl", "sft", "dpo"]


@dataclass(slots=True)
class Task:
    """One job as a worker gets it; plain values, so that it travels as JSON. Paths are absolute."""

    job_id: str
    kind: JobKind
    base_folder: str
    """The base model, a Hugging Face folder."""
    payload: str
    """The body, zstd-compressed JSON: `{"trajectory_groups": [...]}`, or chats or pairs as `{"rows": [...]}`."""
    config: Json
    """`as_json` of the kind's settings."""
    parent: str
    """The folder of the checkpoint to start from."""
    target: str
    """The folder to make; it appears whole or not at all."""
    work: str
    """A folder of the job's own, for snapshots; kept between attempts."""
    step: int
    lora: "LoraShape"
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    ranks: int = 1
    max_length: int = 2048
    """The longest sequence, in tokens."""
    kl_reference: str | None = None
    """The checkpoint folder that the KL penalty compares with; None: the base model."""
    parent_step: int | None = None
    """The step of `parent`, from which lags are counted; None: the one before `step`."""


@dataclass(slots=True)
class Started:
    """The job is prepared; `data` becomes the event training_started. The first message of every attempt."""

    num_sequences: int
    data: dict[str, float]


@dataclass(slots=True)
class Stepped:
    """A gradient step is done; `index` counts from 0, `data` becomes an event gradient_step."""

    index: int
    data: dict[str, float]


@dataclass(slots=True)
class Saved:
    """A snapshot is on the disk that holds the first `steps` gradient steps: progress that no crash takes away."""

    steps: int


@dataclass(slots=True)
class Finished:
    """The checkpoint's folder is complete and durable."""

    digest: str
    """SHA-256 of adapter_model.safetensors."""
    bytes: int
    metrics: dict[str, float]


@dataclass(slots=True)
class Failed:
    """The job cannot be done, and trying again would not help (bad data); `message` is for the client."""

    message: str


Message = Started | Stepped | Saved | Finished | Failed


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
    errno: int | None = None
    """Of an error of the system, such as a full disk."""


@dataclass(slots=True)
class Beat:
    """The process lives."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a datum that this server sampled, by their places among the targets."""

    datum: int
    start: int
    length: int
    lag: int
    """Optimizer steps since the weights that sampled them."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One request of a run of Tinker's protocol. Paths are absolute."""

    run: str
    seq: int
    """Its number among the requests of the run."""
    after: int
    """The last request before it that changed the run."""
    kind: str
    body: bytes
    origin: str
    """The folder that the run began with."""
    work: str
    """The folder of its snapshots."""
    place: str | None
    """The folder to make (save_weights, save_weights_for_sampler) or to read (load_weights)."""
    base_folder: str
    device: str
    dtype: str
    threads: int
    spans: tuple[Span, ...] = ()


@dataclass(slots=True)
class Behind:
    """The process holds a run as it was after this request; those behind it are to be given first."""

    seq: int


@dataclass(slots=True)
class Performed:
    """An operation is done."""

    result: bytes
    kept: int
    """A state is durable that holds the requests up to this one."""
    step: Json | None = None
    """Of an optimizer step: its metrics, and its losses and optimizer as `settings`."""


Request = Task | Warm | Operation
Answer = Message | Stopped | Crashed | Beat | Behind | Performed
_KINDS = {kind.__name__.lower(): kind for kind in (*Message.__args__, Stopped, Crashed, Beat)}


def encode(message: Answer) -> bytes:
    """One line."""
    value = {"type": type(message).__name__.lower(), **asdict(message)}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Answer:
    """What `encode` made; raises ValueError for anything else."""
    value = json.loads(line)
    kind = _KINDS.get(value.pop("type", "")) if isinstance(value, dict) else None
    if kind is None or set(value) != {field.name for field in fields(kind)}:
        raise ValueError(f"not a message of a training process: {line[:200]!r}")
    message: Answer = kind(**value)
    return message


def drop_non_finite(message: Message) -> Message:
    """The message without figures that are no finite numbers: JSON has none."""
    if isinstance(message, Finished):
        message.metrics = _finite(message.metrics)
    elif isinstance(message, Started | Stepped):
        message.data = _finite(message.data)
    return message


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
