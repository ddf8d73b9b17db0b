"""The policy: a frozen base model, one LoRA adapter, its optimizer, and the folders that hold both."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heddle.models.folder import load_tensors, read_json, require_undamaged
from heddle.models.interfaces import ModelError
from heddle.models.lora import CONFIG, WEIGHTS, check_settings
from heddle.training.messages import JobKind
from heddle.training.sequences import TrainingError
from heddle.training.trainer.models import EngineScorer, Layout, TrainedModel, load_scorer, load_trained

BETAS = (0.9, 0.99)
EPSILON = 1e-8
SMALL_NORM = 1e-6
SMALLEST = torch.finfo(torch.float32).tiny


def joint_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients together."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
    return norm


class AdamW:
    """Moments of each tensor's gradient, and how many steps they have seen."""

    def __init__(self, tensors: list[Tensor], weight_decay: float) -> None:
        self.tensors = tensors
        self.weight_decay = weight_decay
        self.steps = 0
        self.moments = [(torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor in tensors]

    def gradients(self) -> list[Tensor]:
        """What has been gathered for each tensor."""
        return [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in self.tensors]

    @torch.no_grad()
    def step(
        self, learning_rate: float, largest_norm: float, betas: tuple[float, float] = BETAS, epsilon: float = EPSILON
    ) -> float:
        """Cut the gradients to a norm of all together, move, and forget them; returns the norm they had."""
        gradients = self.gradients()
        norm = joint_norm(gradients)
        cut = (largest_norm / (norm + SMALL_NORM)).clamp(max=1.0)
        self.steps += 1
        first_rest, second_rest = (1 - beta**self.steps for beta in betas)
        for tensor, gradient, (first, second) in zip(self.tensors, gradients, self.moments, strict=True):
            gradient.mul_(cut)
            tensor.mul_(1 - learning_rate * self.weight_decay)
            first.lerp_(gradient, 1 - betas[0])
            second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
            # Without an epsilon that float32 holds, what never had a gradient stays where it is.
            deviation = second.sqrt().div_(second_rest**0.5).add_(epsilon).clamp_(min=SMALLEST)
            tensor.addcdiv_(first, deviation, value=-learning_rate / first_rest)
            tensor.grad = None
        return float(norm)


NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
NOT_TRAINED = ("rank_pattern", "alpha_pattern", "use_rslora")
"""Settings that the engine serves and that this trainer, which writes none of them, does not read."""


@dataclass(slots=True)
class Adapter:
    """The pairs of every adapted linear, float32: down [rank, inputs] and up [outputs, rank]."""

    settings: dict[str, Any]
    """The content of adapter_config.json."""
    pairs: dict[str, tuple[Tensor, Tensor]]

    @property
    def scale(self) -> float:
        """What the product of a pair is multiplied by."""
        return float(self.settings["lora_alpha"]) / int(self.settings["r"])

    def parameters(self) -> list[Tensor]:
        """All tensors in a fixed order."""
        return [tensor for name in sorted(self.pairs) for tensor in self.pairs[name]]

    def named(self) -> dict[str, Tensor]:
        """PEFT's names and the tensors."""
        return {
            f"base_model.model.{name}.lora_{letter}.weight": tensor
            for name in sorted(self.pairs)
            for letter, tensor in zip("AB", self.pairs[name], strict=True)
        }

    def write(self, folder: Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors; the same pairs give the same bytes."""
        (folder / CONFIG).write_text(json.dumps(self.settings, indent=2, sort_keys=True) + "\n")
        tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in self.named().items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read_adapter(folder: Path, device: torch.device) -> Adapter:
    """A folder's pairs, not yet compared with a model; raises ModelError naming what is wrong."""
    require_undamaged(folder)
    settings = read_json(folder / CONFIG)
    # How the base stores its weights, which says nothing about the pairs.
    check_settings(folder, settings | {"fan_in_fan_out": False})
    for name in NOT_TRAINED:
        if settings.get(name):
            raise ModelError(f"{folder}: {name} {settings[name]!r} cannot be trained")
    tensors = load_tensors(folder / WEIGHTS)
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = NAME.fullmatch(name)
        if match is None:
            raise ModelError(f"{folder}: tensor {name} is not a LoRA weight")
        halves.setdefault(match[1], {})[match[2]] = tensor.to(device, torch.float32)
    for name, pair in halves.items():
        rank = settings["r"]
        if len(pair) != 2 or pair["A"].shape[0] != rank or pair["B"].shape[1:] != (rank,):
            raise ModelError(f"{folder}: {name} has no matrix pair of rank {rank}")
    return Adapter(settings, {name: (halves[name]["A"], halves[name]["B"]) for name in sorted(halves)})


class LoraLinear(nn.Module):
    """A frozen linear, and the change that is active at the moment."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        weight = base.weight
        assert isinstance(weight, Tensor)
        self.shape = tuple(weight.shape)
        self.pair: tuple[Tensor, Tensor] | None = None
        self.scale = 1.0

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.base(rows)
        if self.pair is None:
            return result
        down, up = self.pair
        inner, outer = rows @ down.to(rows.dtype).t(), (up * self.scale).to(rows.dtype).t()
        # In place where it is one product: nothing needs what the frozen linear alone gave.
        return result.addmm_(inner, outer) if result.dim() == 2 else result + inner @ outer


class Adapted:
    """A model whose linears take changes; the base weights are frozen."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.requires_grad_(False)
        self.linears: dict[str, LoraLinear] = {}

    def wrap(self, name: str) -> LoraLinear:
        """The linear of a name, ready for changes; raises ModelError when the model has no such linear."""
        if name not in self.linears:
            parent, _, last = name.rpartition(".")
            try:
                module = self.model.get_submodule(name)
            except AttributeError:
                raise ModelError(f"the model has no module {name}") from None
            weight = getattr(module, "weight", None)
            if not isinstance(weight, Tensor) or weight.dim() != 2:
                raise ModelError(f"{name} is not a linear layer")
            self.linears[name] = LoraLinear(module)
            setattr(self.model.get_submodule(parent), last, self.linears[name])
        return self.linears[name]

    def use(self, adapter: Adapter | None) -> None:
        """Let the model be the base with this adapter, or without any."""
        pairs = {} if adapter is None else adapter.pairs
        for name, pair in pairs.items():
            linear = self.wrap(name)
            if (pair[1].shape[0], pair[0].shape[1]) not in (linear.shape, linear.shape[::-1]):
                raise ModelError(f"{name}: the matrix pair does not match a linear layer of shape {list(linear.shape)}")
        for name, linear in self.linears.items():
            linear.pair = pairs.get(name)
            linear.scale = 1.0 if adapter is None else adapter.scale


OPTIMIZER = "optimizer.safetensors"
STATE = "training_state.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHT_DECAY: dict[JobKind, float] = {"rl": 0.1, "sft": 0.0, "dpo": 0.0}
LARGEST_NORM: dict[JobKind, float] = {"rl": 0.1, "sft": 1.0, "dpo": 1.0}
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

    def __init__(self, model: TrainedModel, load_engine: Callable[[], EngineScorer | None] = lambda: None) -> None:
        self.model = model
        self.engine = cache(load_engine)
        """What sampled, where it computes the same bits again; read when it is first asked for."""
        self.adapted = Adapted(model.module)
        self.state = State()
        self.adapter = Adapter({}, {})
        self.optimizer = AdamW([], 0.0)
        self.kind: JobKind = "rl"

    @classmethod
    def load(cls, folder: Path, device: str = "auto", dtype: str = "auto", spread: bool = False) -> "Policy":
        """Read a base model, shared among the ranks when `spread`; raises ModelError."""
        return cls(load_trained(folder, device, dtype, spread), partial(load_scorer, folder, device, dtype))

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
            read_moments(folder, self.adapter, self.optimizer)

    def save(self, folder: Path) -> None:
        """Write the adapter, the optimizer and the state into a folder that exists."""
        self.adapter.write(folder)
        write_moments(folder, self.adapter, self.optimizer)
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
                f"the learning rate of a gradient step is {learning_rate:g}, which exceeds the maximum of "
                f"{LARGEST_RATE:g}"
            )
        norm = self.optimizer.step(learning_rate, LARGEST_NORM[self.kind])
        self.state.optimizer_steps = self.optimizer.steps
        return norm


def read_moments(folder: Path, adapter: Adapter, optimizer: AdamW) -> None:
    """Take over the moments that `write_moments` wrote."""
    kept = load_file(folder / OPTIMIZER)
    for name, moments in zip(adapter.named(), optimizer.moments, strict=True):
        for moment, tensor in zip(MOMENTS, moments, strict=True):
            tensor.copy_(kept[f"{name}.{moment}"])


def write_moments(folder: Path, adapter: Adapter, optimizer: AdamW) -> None:
    """Write optimizer.safetensors; the same moments give the same bytes."""
    kept = {
        f"{name}.{moment}": tensor.to("cpu").contiguous()
        for name, moments in zip(adapter.named(), optimizer.moments, strict=True)
        for moment, tensor in zip(MOMENTS, moments, strict=True)
    }
    save_file(kept, folder / OPTIMIZER, metadata={"format": "pt"})


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
