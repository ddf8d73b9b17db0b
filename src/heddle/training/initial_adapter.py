"""Step 0 of a model: a LoRA adapter that changes nothing yet, in PEFT's layout; numpy only, no weights are read."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from heddle.errors import InvalidRequest, StorageFull, Unavailable
from heddle.store.control.training_models import LoraShape
from heddle.store.data_folder import FULL
from heddle.training.files import ADAPTER_FILE, make_whole
from heddle.wire.jsontypes import Json
from heddle.wire.tensors import folder_shapes

if TYPE_CHECKING:
    import numpy

LORA_ALPHA = 32.0
"""Whatever the rank, so that one learning rate suits all (https://thinkingmachines.ai/blog/lora)."""
CONFIG_FILE = "adapter_config.json"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Attention and MLP projections, as models of the Llama kind call them."""
_PROJECTION = re.compile(r"(?!.*\.experts\.)(?:.+\.)?\d+\..*(?<!norm)(?<!gate)(?<!router)\.weight")
"""Every matrix of the repeated layers, whatever a model calls it; not those that only some tokens pass through."""
_TRANSPOSED = ("gpt2", "openai-gpt")
"""Model types that keep their linears as [inputs, outputs]."""
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class BaseShape:
    """What a base model's files say about it."""

    parameters: int
    projections: dict[str, tuple[int, int]]
    """Outputs and inputs of every linear that LoRA changes, by its name."""

    @property
    def targets(self) -> list[str]:
        """The kinds of projections that are there."""
        found = {name.rpartition(".")[2] for name in self.projections}
        return [target for target in TARGETS if target in found] + sorted(found - {*TARGETS})


def base_shape(folder: Path, config: Json) -> BaseShape:
    """Read the headers of a Hugging Face folder's safetensors files; raises Unavailable when they cannot be read.

    `config` is the content of its `config.json`.
    """
    try:
        shapes = folder_shapes(folder)
    except ValueError as error:
        raise Unavailable(f"The base model's file {error}") from None
    chosen = {
        name.removesuffix(_WEIGHT): shape
        for name, shape in shapes.items()
        if len(shape) == 2 and _PROJECTION.fullmatch(name)
    }
    is_transposed = config.get("model_type") in _TRANSPOSED
    projections = {
        name: (shape[1], shape[0]) if is_transposed else (shape[0], shape[1]) for name, shape in chosen.items()
    }
    return BaseShape(sum(math.prod(shape) for shape in shapes.values()), projections)


def make_adapter(target: Path, base: BaseShape, base_id: str, lora: LoraShape, seed: str) -> None:
    """Write a fresh adapter to a folder that does not exist yet; it appears whole and durable, or not at all.

    `seed` is a UUID: equal seeds give equal bytes. Raises StorageFull.
    """
    try:
        make_whole(target, lambda folder: _write(folder, base, base_id, lora, seed))
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull("The disk is full; the model's first checkpoint was not written") from error
        raise


def lora_of(base: BaseShape, base_id: str, rank: int, alpha: float) -> LoraShape:
    """How adapters of a new model are made; raises InvalidRequest for a base that has nothing to put LoRA on."""
    if not base.projections:
        raise InvalidRequest(
            f"base_model: {base_id} cannot be trained: no linear projection was found in its files", param="base_model"
        )
    return {"rank": rank, "alpha": alpha, "target_modules": base.targets}


def _write(folder: Path, base: BaseShape, base_id: str, lora: LoraShape, seed: str) -> None:
    from safetensors.numpy import save

    # Its own writing to files tells a full disk as an error of no known kind.
    (folder / ADAPTER_FILE).write_bytes(save(_tensors(base, int(lora["rank"]), seed), metadata={"format": "pt"}))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_id,
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "target_modules": lora["target_modules"],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _tensors(base: BaseShape, rank: int, seed: str) -> "dict[str, numpy.ndarray[Any, Any]]":
    """A uniform in +-1/sqrt(inputs) (Kaiming with a = sqrt 5, as PEFT begins), B zero; float32."""
    import numpy

    generator = numpy.random.default_rng(UUID(seed).int)
    tensors = {}
    for name in sorted(base.projections):
        outputs, inputs = base.projections[name]
        bound = 1 / math.sqrt(inputs)
        down = generator.uniform(-bound, bound, (rank, inputs)).astype(numpy.float32)
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = numpy.zeros((outputs, rank), numpy.float32)
    return tensors
