"""LoRA adapters in PEFT's folder format, applied beside the base weights to any mix of rows."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from heddle.models.attention import interleave
from heddle.models.folder import ModelConfig, load_tensors, read_json, require_undamaged
from heddle.models.interfaces import Linear, ModelError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
NAME = re.compile(
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,5})\.(?:self_attn|mlp)\.(\w+_proj)\.lora_([AB])\.(?:default\.)?weight"
)
NOT_APPLIED = (
    *("modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters", "lora_bias"),
    *("fan_in_fan_out", "alora_invocation_tokens", "use_dora", "use_qalora", "use_bdlora", "arrow_config"),
    *("kasa_config", "monteclora_config", "velora_config"),
)
"""Settings of PEFT that change the result and that heddle does not compute."""
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
KEPT_MIXTURES = 4
FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The linears of a layer and the projections that each one holds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Low-rank change of one linear: down [rank, inputs], up [outputs, rank] with the scale in it."""

    down: Tensor
    up: Tensor


Adapter = list[dict[str, Pair]]
"""For each layer the pairs of the linears that it changes."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several adapters' pairs for one linear side by side; `owner` tells which adapter each rank column is of."""

    down: Linear
    up: Linear
    owner: tuple[int, ...]


class ActiveAdapters:
    """The adapters of one step, applied to the rows that ask for them."""

    def __init__(self, layers: list[dict[str, Mixture]], row_owner: Tensor | None) -> None:
        self.layers = layers
        self.row_owner = row_owner
        self.masks: dict[tuple[int, ...], Tensor] = {}

    def of_rows(self, rows: Tensor) -> "ActiveAdapters":
        """The same for some of the rows."""
        return ActiveAdapters(self.layers, None if self.row_owner is None else self.row_owner[rows])

    def add_to(self, result: Tensor, rows: Tensor, layer: int, linear: str) -> None:
        """Add the change of one linear to its `result`; rows without an adapter stay as they are."""
        mixture = self.layers[layer].get(linear)
        if mixture is None:
            return
        inner = mixture.down(rows)
        if self.row_owner is not None:
            inner.mul_(self.mask(mixture.owner, inner))
        result.add_(mixture.up(inner))

    def mask(self, owner: tuple[int, ...], inner: Tensor) -> Tensor:
        """[rows, ranks]: 1 where the rank column is of the row's adapter."""
        mask = self.masks.get(owner)
        if mask is None:
            assert self.row_owner is not None
            columns = torch.tensor(owner, device=inner.device)
            mask = self.masks[owner] = (self.row_owner[:, None] == columns).to(inner.dtype)
        return mask


LARGEST = 1e9
"""Ranks and alphas are below it."""
MOST_PATTERNS = 1_000
LONGEST_PATTERN = 256
MOST_REPEATS = 2
"""Of a pattern that an adapter brings: they are matched where the model runs."""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A product on any device and in any type."""
    return partial(functional.linear, weight=weight, bias=bias)


class AdapterStore:
    """The loaded adapters of a model."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        make_linear: Callable[[Tensor], Linear] = make_linear,
    ) -> None:
        self.make_linear = make_linear
        self.config = config
        self.dtype = dtype
        self.device = device
        self.adapters: dict[str, Adapter] = {}
        self.mixed: dict[tuple[str, ...], list[dict[str, Mixture]]] = {}

    def load(self, adapter_id: str, folder: Path) -> None:
        """Read a folder; a no-op when the id is loaded."""
        if adapter_id not in self.adapters:
            self.adapters[adapter_id] = read_adapter(folder, self.config, self.dtype, self.device)

    def unload(self, adapter_id: str) -> None:
        """Forget an adapter; a no-op when it is not loaded."""
        self.adapters.pop(adapter_id, None)
        self.mixed = {names: layers for names, layers in self.mixed.items() if adapter_id not in names}

    def active(self, asked: list[str | None], counts: list[int]) -> ActiveAdapters | None:
        """What a step needs, given the adapter and the rows of each span; None when no row has an adapter."""
        names = tuple(sorted({name for name in asked if name is not None}))
        if not names:
            return None
        missing = [name for name in names if name not in self.adapters]
        if missing:
            raise KeyError(f"adapter {missing[0]!r} is not loaded")
        row_owner = None
        if len(names) > 1 or None in asked:
            number = {name: index for index, name in enumerate(names)}
            owners = torch.tensor([-1 if name is None else number[name] for name in asked], device=self.device)
            row_owner = owners.repeat_interleave(torch.tensor(counts, device=self.device))
        return ActiveAdapters(self.mixture(names), row_owner)

    def mixture(self, names: tuple[str, ...]) -> list[dict[str, Mixture]]:
        """The pairs of some adapters side by side; the last few such sets are kept."""
        layers = self.mixed.pop(names, None)
        if layers is None:
            layers = mix([self.adapters[name] for name in names], self.make_linear)
        self.mixed[names] = layers
        if len(self.mixed) > KEPT_MIXTURES:
            del self.mixed[next(iter(self.mixed))]
        return layers


def mix(adapters: list[Adapter], make_linear: Callable[[Tensor], Linear]) -> list[dict[str, Mixture]]:
    """Concatenate the pairs of several adapters for every linear."""
    layers = []
    for layer in range(len(adapters[0])):
        linears = {}
        for name in FUSED:
            pairs = [(index, adapter[layer].get(name)) for index, adapter in enumerate(adapters)]
            present = [(index, pair) for index, pair in pairs if pair is not None]
            if present:
                owner = tuple(index for index, pair in present for _ in range(pair.down.shape[0]))
                downs, ups = [pair.down for _, pair in present], [pair.up for _, pair in present]
                alone = len(present) == 1
                down, up = (downs[0], ups[0]) if alone else (torch.cat(downs), torch.cat(ups, dim=1))
                linears[name] = Mixture(make_linear(down), make_linear(up), owner)
        layers.append(linears)
    return layers


def read_adapter(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Adapter:
    """Read and check a PEFT LoRA folder."""
    require_undamaged(folder)
    settings = read_json(folder / CONFIG)
    check_settings(folder, settings)
    tensors = load_tensors(folder / WEIGHTS)
    found: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = NAME.fullmatch(name)
        if match is None:
            raise ModelError(f"{folder}: tensor {name} is not a LoRA weight of a projection in a layer")
        if not tensor.is_floating_point():
            raise ModelError(f"{folder}: tensor {name} is of {tensor.dtype}, which is not a supported type of weights")
        pair = found.setdefault((int(match[1]), match[2]), {})
        if match[3] in pair:
            raise ModelError(f"{folder}: tensor {name} is given twice for the same weight")
        pair[match[3]] = tensor
    shapes = projection_shapes(config)
    for (layer, projection), pair in found.items():
        check_pair(f"{folder}: layer {layer} {projection}", layer, projection, pair, shapes, config.layers)
    if not found:
        raise ModelError(f"{folder}: {WEIGHTS} has no LoRA weights")
    with torch.inference_mode():
        return [fuse_pairs(layer, found, settings, config, dtype, device) for layer in range(config.layers)]


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """ModelError naming the setting that heddle does not apply."""
    if settings.get("peft_type") != "LORA":
        raise ModelError(f"{folder}: peft_type {settings.get('peft_type')!r} is not supported, only 'LORA'")
    for name in NOT_APPLIED:
        if settings.get(name):
            raise ModelError(f"{folder}: {name} {settings[name]!r} is not supported")
    start = settings.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise ModelError(f"{folder}: init_lora_weights {start!r} changes the base weights, which is not supported")
    if settings.get("bias", "none") != "none":
        raise ModelError(f"{folder}: bias {settings['bias']!r} is not supported, only 'none'")
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ModelError(f"{folder}: r must be a whole number above 0, not {rank!r}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not -LARGEST < alpha < LARGEST:
        raise ModelError(f"{folder}: lora_alpha must be a number below {LARGEST:g}, not {str(alpha)[:100]}")
    for name in ("rank_pattern", "alpha_pattern"):
        _check_patterns(f"{folder}: {name}", settings.get(name) or {})


def _check_patterns(place: str, patterns: Any) -> None:
    """Refuse what is no map from patterns to numbers, and patterns that can take long to match."""
    if not isinstance(patterns, dict) or len(patterns) > MOST_PATTERNS:
        raise ModelError(f"{place} must be an object with at most {MOST_PATTERNS} patterns")
    for pattern, value in patterns.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise ModelError(f"{place}: the value of {pattern[:100]!r} must be a number above 0")
        repeats = re.findall(r"[*+?{]", pattern.replace("(?:", "("))
        if len(pattern) > LONGEST_PATTERN or len(repeats) > MOST_REPEATS or re.search(r"\)[*+?{]", pattern):
            raise ModelError(
                f"{place}: {pattern[:100]!r} is not a plain name pattern with at most {MOST_REPEATS} repetitions"
            )
        try:
            re.compile(pattern)
        except re.error as problem:
            raise ModelError(f"{place}: {pattern[:100]!r} is not a valid pattern: {problem}") from None


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of each projection."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def check_pair(
    place: str, layer: int, projection: str, pair: dict[str, Tensor], shapes: dict[str, tuple[int, int]], layers: int
) -> None:
    """ModelError when a pair is incomplete or made for another model."""
    if layer >= layers:
        raise ModelError(f"{place}: the model has {layers} layers")
    if projection not in shapes:
        raise ModelError(f"{place}: the model has no such projection")
    if len(pair) != 2:
        raise ModelError(f"{place}: lora_{'B' if 'A' in pair else 'A'} is missing")
    outputs, inputs = shapes[projection]
    down, up = tuple(pair["A"].shape), tuple(pair["B"].shape)
    if len(down) != 2 or down[1] != inputs or up != (outputs, down[0]):
        raise ModelError(
            f"{place}: lora_A {list(down)} and lora_B {list(up)} do not match a linear layer {[outputs, inputs]}"
        )


def fuse_pairs(
    layer: int,
    found: dict[tuple[int, str], dict[str, Tensor]],
    settings: dict[str, Any],
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Pair]:
    """The pairs of one layer, those of one linear joined: up is block-diagonal."""
    shapes = projection_shapes(config)
    pairs = {}
    for fused, projections in FUSED.items():
        present = [name for name in projections if (layer, name) in found]
        if not present:
            continue
        downs = [found[layer, name]["A"] for name in present]
        up = torch.zeros(sum(shapes[name][0] for name in projections), sum(down.shape[0] for down in downs))
        column = 0
        for name, down in zip(present, downs, strict=True):
            rows = found[layer, name]["B"]
            if name in ("q_proj", "k_proj"):
                rows = interleave(rows, config.head_dim)
            first = sum(shapes[before][0] for before in projections[: projections.index(name)])
            block = up[first : first + rows.shape[0], column : column + down.shape[0]]
            torch.mul(rows, scale_of(layer, name, down.shape[0], settings), out=block)
            column += down.shape[0]
        pairs[fused] = Pair(torch.cat(downs).to(device, dtype), up.to(device, dtype))
    return pairs


def scale_of(layer: int, projection: str, rank: int, settings: dict[str, Any]) -> float:
    """lora_alpha / r (or its root); raises ModelError when the tensors have another rank than the settings say."""
    said = int(_of_pattern(layer, projection, settings, "rank_pattern", settings["r"]))
    if rank != said:
        raise ModelError(f"layer {layer}, {projection}: the tensors have rank {rank}, adapter_config.json says {said}")
    alpha = float(_of_pattern(layer, projection, settings, "alpha_pattern", settings["lora_alpha"]))
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _of_pattern(layer: int, projection: str, settings: dict[str, Any], patterns: str, default: Any) -> Any:
    """The value of the first pattern that the name of a linear matches, as peft chooses it."""
    part = "self_attn" if projection in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    for pattern, value in (settings.get(patterns) or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", f"model.layers.{layer}.{part}.{projection}"):
            return value
    return default
