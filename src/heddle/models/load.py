"""Model folder in, `CausalModel` out."""

import math
from pathlib import Path
from typing import Any

import torch

from heddle.models.config import NotNative, parse_config, read_json
from heddle.models.interfaces import CausalModel, ModelError
from heddle.models.memory import available_bytes, check_fits
from heddle.models.native import NativeModel
from heddle.models.weights import Weights

EMBEDDING = "model.embed_tokens.weight"
SMALL_PARAMETERS = 100_000_000
COPY_SHARE = 0.05
"""Of the free memory: what a second copy of the weights may take."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(folder: Path, *, device: str = "auto", dtype: str = "auto") -> CausalModel:
    """Read a Hugging Face folder (`config.json` and safetensors); ModelError says what is wrong with it.

    `device` is `auto`, `cpu`, `cuda` or `cuda:<n>`; `dtype` is `auto` (float32 below 100 million parameters,
    bfloat16 above), `float32`, `bfloat16` or `float16`.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    target = choose_device(device)
    content = read_json(folder / "config.json")
    if content.get("quantization_config"):
        raise ModelError(f"{folder}: quantized weights (quantization_config) are not supported")
    with Weights(folder) as weights:
        parameters = weights.parameters()
        chosen = choose_dtype(dtype, parameters)
        check_fits(str(folder), resident_weights_bytes(weights, content, chosen), target)
        try:
            config = parse_config(content)
        except NotNative as reason:
            from heddle.models.fallback import load_fallback

            return load_fallback(folder, str(reason), chosen, target)
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as problem:
            raise ModelError(f"{folder / 'config.json'}: a value has the wrong type: {problem}") from None
        return NativeModel(config, weights, chosen, target, spare_memory(2 * parameters, target))


def resident_weights_bytes(weights: Weights, config: dict[str, Any], dtype: torch.dtype) -> int:
    """What the weights of a folder take in memory at most (float32 that float16 keeps takes half of it)."""
    numbers = weights.parameters()
    if config.get("tie_word_embeddings") and EMBEDDING in weights:
        # The output head is a matrix of its own there, in the layout of products.
        numbers += math.prod(weights.shape(EMBEDDING))
    return numbers * dtype.itemsize


def spare_memory(weight_bytes: int, device: torch.device) -> bool:
    """Whether a second copy of the weights, for speed at few rows, is small beside the memory there is."""
    free = available_bytes(device)
    return free is not None and weight_bytes <= free * COPY_SHARE


def choose_device(name: str) -> torch.device:
    """The device of a setting."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device {name!r} is unknown") from None
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def choose_dtype(name: str, parameters: int) -> torch.dtype:
    """The type of weights, activations and cache of a setting."""
    if name == "auto":
        return torch.float32 if parameters < SMALL_PARAMETERS else torch.bfloat16
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
