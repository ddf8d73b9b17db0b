"""The policy: a frozen base model, one LoRA adapter, its optimizer, and the folders that hold both."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heddle.models.config import read_json
from heddle.training.base import JobKind, TrainingError
from heddle.training.trainer.adamw import AdamW
from heddle.training.trainer.adapter import Adapted, Adapter, read_adapter
from heddle.training.trainer.layout import Layout
from heddle.training.trainer.models import TrainedModel, load_trained

OPTIMIZER = "optimizer.safetensors"
STATE = "training_state.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHT_DECAY: dict[JobKind, float] = {"rl": 0.1, "sft": 0.0}
LARGEST_NORM: dict[JobKind, float] = {"rl": 0.1, "sft": 1.0}
"""Of the gradient, before it is cut."""
LARGEST_RATE = 10.0
"""Where the weight decay of reinforcement learning takes all of a weight away in one step."""

Which = Literal["policy", "base"] | Adapter


@dataclass(slots=True)
class State:
    """What a folder keeps beside the tensors; travels as training_state.json."""

    kind: JobKind | None = None
    """Of the job that made it; the optimizer starts anew when it changes."""
    optimizer_steps: int = 0
    job_id: str | None = None
    job_steps: int = 0
    """Gradient steps of that job that are in the tensors."""
    started: dict[str, float] | None = None
    """Data of the job's event training_started."""
    num_sequences: int = 0
    stepped: list[dict[str, float]] = field(default_factory=list)
    """Data of the job's gradient steps so far."""
    reward_std_dev: list[tuple[int, float]] = field(default_factory=list)
    """Step and mean deviation of rewards of all jobs up to this one."""


class Policy:
    """One base model that takes adapters; `restore` says which one is trained."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model
        self.adapted = Adapted(model.module)
        self.state = State()
        self.adapter = Adapter({}, {})
        self.optimizer = AdamW([], 0.0)
        self.kind: JobKind = "rl"

    @classmethod
    def load(cls, folder: Path, device: str = "auto", dtype: str = "auto", spread: bool = False) -> "Policy":
        """Read a base model, shared among the ranks when `spread`; raises ModelError."""
        return cls(load_trained(folder, device, dtype, spread))

    def read(self, folder: Path) -> Adapter:
        """A checkpoint's adapter, to be judged by; raises ModelError."""
        return read_adapter(folder, self.model.device)

    def restore(self, folder: Path, kind: JobKind) -> None:
        """Become what a checkpoint or snapshot holds, and train it with a kind's optimizer; raises ModelError."""
        self.adapter = self.read(folder)
        self.kind = kind
        self.adapted.use(self.adapter)
        parameters = [tensor.requires_grad_(True) for tensor in self.adapter.parameters()]
        self.optimizer = AdamW(parameters, WEIGHT_DECAY[kind])
        self.state = read_state(folder)
        if self.state.kind == kind and self.state.optimizer_steps:
            self.optimizer.steps = self.state.optimizer_steps
            kept = load_file(folder / OPTIMIZER)
            for name, moments in zip(self.adapter.named(), self.optimizer.moments, strict=True):
                for moment, tensor in zip(MOMENTS, moments, strict=True):
                    tensor.copy_(kept[f"{name}.{moment}"])

    def save(self, folder: Path) -> None:
        """Write the adapter, the optimizer and the state into a folder that exists."""
        self.adapter.write(folder)
        kept = {
            f"{name}.{moment}": tensor.to("cpu").contiguous()
            for name, moments in zip(self.adapter.named(), self.optimizer.moments, strict=True)
            for moment, tensor in zip(MOMENTS, moments, strict=True)
        }
        save_file(kept, folder / OPTIMIZER, metadata={"format": "pt"})
        write_state(folder, self.state)

    def score(self, layout: Layout, chunk: int, which: Which = "policy") -> tuple[Tensor, Tensor]:
        """Logprobs and entropies, float32 [trained], under the policy (with a gradient) or another adapter."""
        if which == "policy":
            return self.model.score(layout, chunk)
        self.adapted.use(None if which == "base" else which)
        try:
            with torch.no_grad():
                return self.model.score(layout, chunk)
        finally:
            self.adapted.use(self.adapter)

    def step(self, learning_rate: float) -> float:
        """One optimizer step along the gradient that has been gathered; returns the norm it had.

        TrainingError for a rate with which the weight decay would turn the weights around and blow them up.
        """
        if not learning_rate <= LARGEST_RATE:
            raise TrainingError(
                f"the learning rate of a gradient step is {learning_rate:g}, more than {LARGEST_RATE:g}"
            )
        norm = self.optimizer.step(learning_rate, LARGEST_NORM[self.kind])
        self.state.optimizer_steps = self.optimizer.steps
        return norm


def read_state(folder: Path) -> State:
    """The state in a folder; a fresh one where there is none, as beside a fresh adapter."""
    if not (folder / STATE).is_file():
        return State()
    values = read_json(folder / STATE)
    state = State(**{name: values[name] for name in State.__slots__ if name in values})
    state.reward_std_dev = [(int(step), float(value)) for step, value in state.reward_std_dev]
    return state


def write_state(folder: Path, state: State) -> None:
    """Write training_state.json."""
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1, sort_keys=True) + "\n")
