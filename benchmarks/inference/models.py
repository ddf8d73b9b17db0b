"""Random-weight models of three sizes as Hugging Face folders, the same bytes on every run; made once.

    python benchmarks/inference/models.py            # all sizes into .cache/bench/models

The tokenizer (byte-level BPE, 16,384 entries and 7 special ones) is trained on sources of the standard library.
"""

import argparse
import json
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import support

FOLDER = support.CACHE / "models"
ENTRIES = 16_384
CONTEXT = 32_768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CHAT_TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "3m": ("llama", {"hidden": 128, "intermediate": 512, "layers": 4, "heads": 4, "kv_heads": 2, "head": 32}),
    "60m": ("qwen3", {"hidden": 512, "intermediate": 2048, "layers": 12, "heads": 8, "kv_heads": 4, "head": 64}),
    "350m": ("qwen3", {"hidden": 1024, "intermediate": 3072, "layers": 24, "heads": 16, "kv_heads": 8, "head": 64}),
}


def model_folder(size: str) -> Path:
    """The folder of this size, built when it is not there."""
    folder = FOLDER / size
    if not (folder / "config.json").exists():
        build(size, folder)
    return folder


def build(size: str, folder: Path) -> None:
    """Write weights and tokenizer beside the final place and move them there when complete."""
    began = time.perf_counter()
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    vocabulary = save_tokenizer(draft)
    parameters = save_weights(size, vocabulary, draft)
    draft.rename(folder)
    print(f"built {folder.name}: {parameters:,} parameters, {time.perf_counter() - began:.0f} s", flush=True)


def save_tokenizer(folder: Path) -> int:
    """The tokenizer of all sizes, trained once; its number of entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained = FOLDER / "tokenizer.json"
    if not trained.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=ENTRIES, special_tokens=list(SPECIAL[:3]), initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(library_sources(), trainer)
        tokenizer.save(str(trained))
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(trained), eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=CONTEXT
    )
    fast.add_tokens(list(SPECIAL[3:]))
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def library_sources() -> Iterator[str]:
    """Texts of the top-level modules of the standard library, in order of name."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf8", errors="replace")


def save_weights(size: str, vocabulary: int, folder: Path) -> int:
    """Config and bfloat16 weights drawn from a fixed seed, scaled so that logits are not flat; the parameters."""
    import torch
    from transformers import AutoModelForCausalLM

    config = transformers_config(size, (vocabulary + 63) // 64 * 64)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim == 2:
                scale = 0.05 if "embed" in name else weight.shape[1] ** -0.5
                weight.normal_(0, scale, generator=generator)
    model = model.to(torch.bfloat16)
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def transformers_config(size: str, vocabulary: int) -> Any:
    """The configuration object of `transformers` for this size."""
    from transformers import LlamaConfig, Qwen3Config

    family, shape = SHAPES[size]
    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[family](
        vocab_size=vocabulary,
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head"],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_theta=10_000.0,
        bos_token_id=None,
        eos_token_id=SPECIAL.index("<|im_end|>"),
        pad_token_id=SPECIAL.index("<|endoftext|>"),
    )


def matmul_parameters(size: str, head: bool = True) -> int:
    """Weights that take part in the matmuls of one token, with or without the output head."""
    _, shape = SHAPES[size]
    projections = shape["head"] * (2 * shape["heads"] + 2 * shape["kv_heads"])
    layer = shape["hidden"] * (projections + 3 * shape["intermediate"])
    vocabulary = int(json.loads((model_folder(size) / "config.json").read_text())["vocab_size"])
    return shape["layers"] * layer + (vocabulary * shape["hidden"] if head else 0)


def make_adapter(size: str, folder: Path, seed: int, rank: int = 8) -> None:
    """A PEFT LoRA folder with random A and B on all seven projections of every layer."""
    import torch
    from safetensors.torch import save_file

    _, shape = SHAPES[size]
    queries, keys = shape["heads"] * shape["head"], shape["kv_heads"] * shape["head"]
    hidden, inner = shape["hidden"], shape["intermediate"]
    sizes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(shape["layers"]):
        for name, (inputs, outputs) in sizes.items():
            base = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{base}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
            tensors[f"{base}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.02
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": size,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(name.split(".")[1] for name in sizes),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    """Build what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="3m,60m,350m")
    for size in parser.parse_args().sizes.split(","):
        print(model_folder(size))


if __name__ == "__main__":
    main()
