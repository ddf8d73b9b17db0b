"""LoRA pairs beside frozen linears, and their folders in PEFT's layout."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heddle.models.config import read_json
from heddle.models.interfaces import ModelError
from heddle.models.lora import CONFIG, WEIGHTS, check_settings

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
    settings = read_json(folder / CONFIG)
    # How the base stores its weights, which says nothing about the pairs.
    check_settings(folder, settings | {"fan_in_fan_out": False})
    for name in NOT_TRAINED:
        if settings.get(name):
            raise ModelError(f"{folder}: {name} {settings[name]!r} cannot be trained")
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as problem:
        raise ModelError(f"{folder / WEIGHTS}: cannot be read: {problem}") from None
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = NAME.fullmatch(name)
        if match is None:
            raise ModelError(f"{folder}: tensor {name} is not a LoRA weight")
        halves.setdefault(match[1], {})[match[2]] = tensor.to(device, torch.float32)
    for name, pair in halves.items():
        rank = settings["r"]
        if len(pair) != 2 or pair["A"].shape[0] != rank or pair["B"].shape[1:] != (rank,):
            raise ModelError(f"{folder}: {name} has no pair of rank {rank}")
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
                raise ModelError(f"the model has no part {name}") from None
            weight = getattr(module, "weight", None)
            if not isinstance(weight, Tensor) or weight.dim() != 2:
                raise ModelError(f"{name} is no linear")
            self.linears[name] = LoraLinear(module)
            setattr(self.model.get_submodule(parent), last, self.linears[name])
        return self.linears[name]

    def use(self, adapter: Adapter | None) -> None:
        """Let the model be the base with this adapter, or without any."""
        pairs = {} if adapter is None else adapter.pairs
        for name, pair in pairs.items():
            linear = self.wrap(name)
            if (pair[1].shape[0], pair[0].shape[1]) not in (linear.shape, linear.shape[::-1]):
                raise ModelError(f"{name}: the pair does not fit a linear {list(linear.shape)}")
        for name, linear in self.linears.items():
            linear.pair = pairs.get(name)
            linear.scale = 1.0 if adapter is None else adapter.scale
