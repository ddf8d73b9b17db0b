"""What a Hugging Face model folder holds: `config.json` of the Llama family, and safetensors."""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from heddle.models.interfaces import ModelError
from heddle.paths import damaged_files
from heddle.wire.tensors import tensor_shapes

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
DEFAULT_MAX_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


class NotNative(Exception):
    """The architecture, or a switch of it, that the own forward pass does not compute; the text says which."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the type of their frequencies, and the numbers that it needs, named as in `rope_parameters`."""

    type: str
    theta: float
    original_positions: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32
    beta_slow: float = 1
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """All that the forward pass depends on."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    query_key_norm: bool
    rope: Rope
    windows: tuple[int | None, ...]
    """For each layer how many tokens, the own one included, a query sees; None = all before it."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder; ModelError when it is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent}: {path.name} is missing") from None
    except (OSError, ValueError) as problem:
        raise ModelError(f"{path}: cannot be read: {problem}") from None
    except RecursionError:
        raise ModelError(f"{path}: cannot be read: it is nested too deep") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return content


def parse_config(config: dict[str, Any]) -> ModelConfig:
    """The shape in a `config.json`; NotNative when another implementation must run it, ModelError when it is broken."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise NotNative(f"model_type {model_type!r}")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise NotNative(f"hidden_act {config['hidden_act']!r}")
    heads = read_positive(config, "num_attention_heads")
    layers = read_positive(config, "num_hidden_layers")
    hidden_size = read_positive(config, "hidden_size")
    kv_heads = read_positive(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    head_dim = config.get("head_dim") or hidden_size // heads
    if not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2:
        raise ModelError(f"config.json: head_dim must be an even whole number, not {head_dim!r}")
    max_positions = DEFAULT_MAX_POSITIONS[model_type]
    if config.get("max_position_embeddings") is not None:
        max_positions = read_positive(config, "max_position_embeddings")
    attention_bias = model_type in ("llama", "qwen3") and bool(config.get("attention_bias", False))
    return ModelConfig(
        model_type=model_type,
        vocab_size=read_positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=read_positive(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=model_type == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
        query_key_norm=model_type == "qwen3",
        rope=read_rope(config, max_positions),
        windows=attention_windows(config, model_type, layers),
    )


def read_positive(config: dict[str, Any], name: str) -> int:
    """A whole number above zero that a config must have."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ModelError(f"config.json: {name} must be a whole number above 0, not {value!r}")
    return value


def read_rope(config: dict[str, Any], max_positions: int) -> Rope:
    """One form of `rope_parameters` and the older `rope_theta` + `rope_scaling`."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = given.get("rope_type") or given.get("type") or "default"
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10000.0)
    original = given.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if kind not in ROPE_TYPES:
        raise NotNative(f"rope_type {kind!r}")
    partial = given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise NotNative(f"partial_rotary_factor {partial}")
    if kind == "yarn" and given.get("factor") is None:
        given["factor"] = max_positions / (original or max_positions)
    needed = {"linear": ["factor"], "yarn": ["factor"], "llama3": ["factor", "low_freq_factor", "high_freq_factor"]}
    for name in needed.get(kind, []):
        if isinstance(given.get(name), bool) or not isinstance(given.get(name), int | float):
            raise ModelError(f"config.json: rope_type {kind!r} needs a number {name}")
    numbers = {spec.name: given[spec.name] for spec in fields(Rope)[3:] if given.get(spec.name) is not None}
    return Rope(kind, theta, original or max_positions, **numbers)


def attention_windows(config: dict[str, Any], model_type: str, layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    if model_type == "llama":
        return (None,) * layers
    window = config.get("sliding_window", 4096)
    if model_type == "mistral":
        return (window,) * layers
    if not config.get("use_sliding_window", False):
        window = None
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28)
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise NotNative(f"layer_types {sorted(set(kinds))} for {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def require_undamaged(folder: Path) -> None:
    """Raise ModelError for a folder whose files are not as they were written."""
    if damaged := damaged_files(folder):
        raise ModelError(f"{folder / damaged[0]} is damaged")


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Weights:
    """Open safetensors files; tensors are mapped, not copied, until something converts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        for file in weight_files(folder):
            try:
                self.files[file.name] = safe_open(file, framework="pt")
            except (OSError, SafetensorError) as problem:
                raise ModelError(f"{file}: cannot be read: {problem}") from None
            _check_names(file)
            self.places |= dict.fromkeys(self.files[file.name].keys(), file.name)

    def __enter__(self) -> "Weights":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it; ModelError when there is none."""
        if name not in self.places:
            raise ModelError(f"{self.folder}: tensor {name} is missing")
        return tuple(self.files[self.places[name]].get_slice(name).get_shape())

    def get(self, name: str, *shape: int) -> Tensor:
        """One tensor; ModelError when it is missing or has not the expected shape."""
        found = self.shape(name)
        if found != shape:
            raise ModelError(
                f"{self.folder}: tensor {name} has shape {list(found)}, but config.json requires {list(shape)}"
            )
        tensor: Tensor = self.files[self.places[name]].get_tensor(name)
        if tensor.dtype not in DTYPES:
            raise ModelError(f"{self.folder}: tensor {name} is stored as {tensor.dtype}, which is not supported")
        return tensor

    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(self.shape(name)) for name in self.places)


def load_tensors(file: Path) -> dict[str, Tensor]:
    """Every tensor of a file; ModelError when it cannot be read."""
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except FileNotFoundError:
        raise ModelError(f"{file.parent}: {file.name} is missing") from None
    except (OSError, SafetensorError) as problem:
        raise ModelError(f"{file}: cannot be read: {problem}") from None
    _check_names(file)
    return tensors


def _check_names(file: Path) -> None:
    """Raise ModelError where two tensors have one name, of which the library takes the last."""
    try:
        tensor_shapes(file)
    except ValueError as problem:
        raise ModelError(f"{file.parent}: {problem}") from None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model; ModelError names the file that is wanted."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise ModelError(f"{folder / INDEX}: weight_map must map tensor names to file names")
        files = [folder / name for name in sorted(set(index.values()))]
        for file in files:
            if file.parent != folder or not file.is_file():
                raise ModelError(f"{folder}: {file.name}, named in {INDEX}, is missing")
        return files
    other = [file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5") for file in folder.glob(pattern)]
    found = f"; found {', '.join(sorted(other)[:3])}, which heddle does not read" if other else ""
    raise ModelError(f"{folder}: {SINGLE} (or {INDEX}) is missing{found}")
