"""Model folder in, `CausalModel` out, where there is memory for it."""

import logging
import math
import os
from pathlib import Path
from typing import Any

import torch

from heddle.models.folder import ModelConfig, NotNative, Weights, parse_config, read_json
from heddle.models.interfaces import Batch, CausalModel, ModelError, Span
from heddle.models.native import NativeModel

logger = logging.getLogger("heddle.models")

WORKING_BYTES = 256 * 2**20
CGROUP = Path("/sys/fs/cgroup")
GROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes(device: torch.device) -> int | None:
    """Bytes that this process can still take on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [limit for limit in (system_bytes(), group_bytes()) if limit is not None]
    return min(limits, default=None)


def system_bytes() -> int | None:
    """Free memory and what the system can drop at once."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        names = getattr(os, "sysconf_names", {})
        if "SC_AVPHYS_PAGES" not in names:
            return None
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return sizes.get("MemAvailable")


def group_bytes() -> int | None:
    """What is left of the limit of a container (cgroup version 2, else 1)."""
    for limit, used, droppable in GROUP_FILES:
        try:
            most = (CGROUP / limit).read_text(encoding="ascii").strip()
            now = int((CGROUP / used).read_text(encoding="ascii"))
            lines = (CGROUP / droppable).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return None if most == "max" else max(0, int(most) - now + cached)
    return None


def check_fits(what: str, needed: int, device: torch.device) -> None:
    """ModelError with both numbers when a model cannot be loaded."""
    free = available_bytes(device)
    if free is not None and needed + WORKING_BYTES > free:
        wanted, left = (needed + WORKING_BYTES) / 2**20, free / 2**20
        raise ModelError(f"{what}: needs about {wanted:,.0f} MiB on {device}, and {left:,.0f} MiB are available")


EMBEDDING = "model.embed_tokens.weight"
SMALL_PARAMETERS = 100_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


def load_model(folder: Path, *, device: str = "auto", dtype: str = "auto") -> CausalModel:
    """Read a Hugging Face folder (`config.json` and safetensors); ModelError says what is wrong with it.

    `device` is `auto`, `cpu`, `cuda` or `cuda:<n>`; `dtype` is `auto` (float32 below 100 million parameters,
    bfloat16 above), `float32`, `bfloat16`, `float16` or `int8`.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    target = choose_device(device)
    content = read_json(folder / "config.json")
    if content.get("quantization_config"):
        raise ModelError(f"{folder}: quantized weights (quantization_config) are not supported")
    with Weights(folder) as weights:
        chosen = choose_dtype(dtype, weights.parameters())
        check_fits(str(folder), resident_weights_bytes(weights, content, chosen), target)
        try:
            config = parse_config(content)
        except NotNative as reason:
            from heddle.models.fallback import load_fallback

            if chosen == torch.int8:
                raise ModelError(f"{folder}: int8 is not supported for this architecture ({reason})") from None
            return load_fallback(folder, str(reason), chosen, target)
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as problem:
            raise ModelError(f"{folder / 'config.json'}: a value has the wrong type: {problem}") from None
        model = compile_model(config, weights, chosen) if target.type == "cpu" else None
        if model is not None:
            return model
        if chosen == torch.int8:
            raise ModelError(f"{folder}: int8 requires the package numba and a processor with AVX-512 VNNI")
        return NativeModel(config, weights, chosen, target)


def compile_model(config: ModelConfig, weights: Weights, dtype: torch.dtype) -> CausalModel | None:
    """The model with compiled kernels, tried once; None where they cannot be had."""
    try:
        from heddle.models.compiled import CompiledModel, Unsuitable
    except ImportError as problem:
        logger.warning("falling back to torch, which is two to three times slower: %s", problem)
        return None
    try:
        model = CompiledModel(config, weights, dtype)
        cache = model.new_cache()
        model.forward(Batch(torch.tensor([0, 0]), [Span(cache.open_lane(2), 0, 2)], [], [1]), cache)
    except Unsuitable as reason:
        logger.info("using torch for everything: no compiled kernels for %s", reason)
        return None
    except ModelError:
        raise
    except Exception:
        logger.exception("falling back to torch: the kernels cannot be compiled")
        return None
    return model


def resident_weights_bytes(weights: Weights, config: dict[str, Any], dtype: torch.dtype) -> int:
    """What the weights of a folder take in memory at most."""
    numbers = weights.parameters()
    if config.get("tie_word_embeddings") and EMBEDDING in weights:
        # The output head is a matrix of its own there, in the layout of products.
        numbers += math.prod(weights.shape(EMBEDDING))
    return numbers * dtype.itemsize


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
