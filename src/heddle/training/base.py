"""What the parts of training share: token sequences, packed rows, the task of a worker, and what it reports."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from heddle.wire.jsontypes import Json

if TYPE_CHECKING:
    import numpy

JobKind = Literal["rl", "sft"]


class Renderer(Protocol):
    """Messages to token ids, by the chat template that inference uses too."""

    vocab_size: int

    def render(self, messages: Sequence[Json], tools: Sequence[Json] | None, *, generation_prompt: bool) -> list[int]:
        """The ids of a conversation; raises ValueError with the template's reason."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone, without a template."""
        ...

    def token_id(self, token: str) -> int | None:
        """The id of a token as logprobs name it (`token_id:17`, or its text); None for one that is not there."""
        ...


@dataclass(slots=True)
class TokenSequence:
    """One history as the model saw it; all lists have one length."""

    ids: list[int]
    mask: list[bool]
    """True where a token is trained: it was sampled."""
    logprobs: list[float]
    """Of the policy that sampled; NaN where unknown or not sampled."""
    group: int
    trajectory: int
    history: int = 0
    advantage: float = 0.0
    weight: float = 0.0
    """Of the trajectory: 1 / (its trainable tokens + 1e-6)."""
    prompt_length: int = 0
    """Tokens that are shared with others of the group and stored once."""
    version: int | None = None
    """The step that sampled it, where the trajectory says so."""


@dataclass(slots=True)
class Row:
    """One packed row, one optimizer step; every array has the row's length.

    A query sees a key that is not behind it and whose segment is its own or its own's parent.
    """

    tokens: "numpy.ndarray[Any, Any]"
    """int64."""
    positions: "numpy.ndarray[Any, Any]"
    """int64, starting again after the shared prompt."""
    segments: "numpy.ndarray[Any, Any]"
    """int64; -1 is padding."""
    parents: "numpy.ndarray[Any, Any]"
    """int64: the segment of the shared prompt, or the own one."""
    mask: "numpy.ndarray[Any, Any]"
    """bool: the token is trained."""
    logprobs: "numpy.ndarray[Any, Any]"
    """float64, NaN where unknown: of the token itself (not shifted)."""
    advantages: "numpy.ndarray[Any, Any]"
    """float64, of the token itself, normalised over the job."""
    weights: "numpy.ndarray[Any, Any]"
    """float64, of the token itself, normalised over the job."""
    sequences: int = 1
    """Distinct sequences in it."""
    lags: list[float] = field(default_factory=list)
    """For each sequence that names its version: the step that trains minus the step that sampled."""


@dataclass(slots=True)
class Task:
    """One job as a worker gets it; plain values, so that it travels as JSON. Paths are absolute."""

    job_id: str
    kind: JobKind
    base_folder: str
    """The base model, a Hugging Face folder."""
    payload: str
    """The body, zstd-compressed JSON: `{"trajectory_groups": [...]}`, or chat rows as `{"rows": [...]}`."""
    config: Json
    """`RlConfig.as_json()` or `SftConfig.as_json()`."""
    parent: str
    """The folder of the checkpoint to start from."""
    target: str
    """The folder to make; it appears whole or not at all."""
    work: str
    """A folder of the job's own, for snapshots; kept between attempts."""
    step: int
    lora: Json
    """rank, alpha, target_modules."""
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

    def as_json(self) -> Json:
        """Plain values."""
        return asdict(self)


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


class TrainingError(Exception):
    """Data that cannot be trained on; the text names group, trajectory and item, and is for the client."""
