"""Whether a LoRA adapter fits the model: a server takes one that does not, and answers nonsense or fails with it."""

import json
import re

from heddle.inference.engine.base import AdapterRef, RequestRefused
from heddle.wire.tensors import Shapes, tensor_shapes

_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.(?:default\.)?weight")
_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"


def check_adapter(adapter: AdapterRef, base: Shapes) -> None:
    """Raise RequestRefused for a folder that is no LoRA adapter, or not one of a model with these tensors.

    `base` is empty where the model's weights lie with the servers only; then shapes are not compared.
    """
    try:
        config = json.loads((adapter.path / _CONFIG).read_text(encoding="utf-8"))
        shapes = tensor_shapes(adapter.path / _WEIGHTS)
    except (OSError, ValueError) as error:
        raise _misfit(adapter, str(error)) from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise _misfit(adapter, f"its peft_type is {kind!r}, not 'LORA'")
    known = [_compare(adapter, name, shape, base) for name, shape in shapes.items()] if base else [True]
    if not any(known):
        raise _misfit(adapter, "the model has none of the linears that it changes")


def _compare(adapter: AdapterRef, name: str, shape: list[int], base: Shapes) -> bool:
    """A goes from the inputs of a linear, B to its outputs, in whichever order the model keeps them.

    False for a linear that the files of the model call something else.
    """
    match = _NAME.fullmatch(name)
    linear = base.get(f"{match[1]}.weight") if match is not None else None
    if match is None or linear is None or len(linear) != 2:
        return False
    if shape[-1 if match[2] == "A" else 0] not in linear:
        raise _misfit(adapter, f"{name} has shape {shape}, and the model's linear {linear}")
    return True


def _misfit(adapter: AdapterRef, reason: str) -> RequestRefused:
    return RequestRefused(f"adapter {adapter.id}: {reason}", param="model")
