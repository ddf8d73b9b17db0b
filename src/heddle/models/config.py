"""Shape of a decoder of the Llama family, read from a Hugging Face `config.json`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.models.interfaces import ModelError

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
DEFAULT_MAX_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


class NotNative(Exception):
    """The architecture, or a switch of it, that the own forward pass does not compute; the text says which."""


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
    rope: dict[str, Any]
    """`rope_type`, `rope_theta` and what the type needs."""
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
    heads = positive(config, "num_attention_heads")
    layers = positive(config, "num_hidden_layers")
    hidden_size = positive(config, "hidden_size")
    kv_heads = positive(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    if heads % kv_heads:
        raise ModelError(f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    head_dim = config.get("head_dim") or hidden_size // heads
    if not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2:
        raise ModelError(f"config.json: head_dim must be an even whole number, not {head_dim!r}")
    max_positions = DEFAULT_MAX_POSITIONS[model_type]
    if config.get("max_position_embeddings") is not None:
        max_positions = positive(config, "max_position_embeddings")
    attention_bias = model_type in ("llama", "qwen3") and bool(config.get("attention_bias", False))
    return ModelConfig(
        model_type=model_type,
        vocab_size=positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "intermediate_size"),
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
        rope=rope_settings(config, max_positions),
        windows=attention_windows(config, model_type, layers),
    )


def positive(config: dict[str, Any], name: str) -> int:
    """A whole number above zero that a config must have."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ModelError(f"config.json: {name} must be a whole number above 0, not {value!r}")
    return value


def rope_settings(config: dict[str, Any], max_positions: int) -> dict[str, Any]:
    """One spelling for `rope_parameters` and the older `rope_theta` + `rope_scaling`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope["rope_theta"] = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or max_positions
    if rope["rope_type"] not in ROPE_TYPES:
        raise NotNative(f"rope_type {rope['rope_type']!r}")
    partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise NotNative(f"partial_rotary_factor {partial}")
    if rope["rope_type"] == "yarn" and rope.get("factor") is None:
        rope["factor"] = max_positions / rope["original_max_position_embeddings"]
    needed = {"linear": ["factor"], "yarn": ["factor"], "llama3": ["factor", "low_freq_factor", "high_freq_factor"]}
    for name in needed.get(rope["rope_type"], []):
        if isinstance(rope.get(name), bool) or not isinstance(rope.get(name), int | float):
            raise ModelError(f"config.json: rope_type {rope['rope_type']!r} needs a number {name}")
    return rope


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
