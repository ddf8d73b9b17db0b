"""Random-weight Hugging Face folders (model, tokenizer, chat template) and PEFT adapter folders, made offline.

Weights are scaled so that logits are not flat. Everything follows from the seed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}{% if not (tools and loop.first and message.role == 'system') %}<|im_start|>\
{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% for document in documents or [] %}<|im_start|>document
{{ document.title }}: {{ document.text }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 64, "inner": 160, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 512},
    "3m": {"hidden": 128, "inner": 512, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 16448},
    "60m": {"hidden": 512, "inner": 2048, "layers": 12, "heads": 8, "kv_heads": 4, "head_dim": 64, "vocab": 16448},
    "350m": {"hidden": 1024, "inner": 3072, "layers": 24, "heads": 16, "kv_heads": 8, "head_dim": 64, "vocab": 16448},
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(slots=True)
class ModelRecipe:
    """What to make; `config` overrides or adds keys of `config.json`."""

    model_type: str = "llama"
    size: str = "tiny"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    tied: bool = True
    shards: int = 1
    config: dict[str, Any] = field(default_factory=dict)

    def huggingface(self) -> dict[str, Any]:
        """The content of `config.json`."""
        size = SIZES[self.size]
        content: dict[str, Any] = {
            "architectures": [f"{self.model_type.capitalize()}ForCausalLM"],
            "model_type": self.model_type,
            "vocab_size": size["vocab"],
            "hidden_size": size["hidden"],
            "intermediate_size": size["inner"],
            "num_hidden_layers": size["layers"],
            "num_attention_heads": size["heads"],
            "num_key_value_heads": size["kv_heads"],
            "head_dim": size["head_dim"],
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "attention_bias": False,
            "tie_word_embeddings": self.tied,
            "bos_token_id": None,
            "eos_token_id": SPECIAL.index("<|im_end|>"),
            "pad_token_id": SPECIAL.index("<|endoftext|>"),
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        if self.model_type == "mistral":
            content["sliding_window"] = 24
        return {name: value for name, value in (content | self.config).items() if value is not ...}


def make_model(folder: Path, recipe: ModelRecipe | None = None, **changes: Any) -> Path:
    """Write a model folder; `changes` are fields of the recipe."""
    recipe = recipe or ModelRecipe(**changes)
    config = recipe.huggingface()
    weights = random_weights(config, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    ends = {"eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    save_weights(folder, weights, recipe.shards)
    save_tokenizer(folder, config["vocab_size"])
    return folder


def random_weights(config: dict[str, Any], recipe: ModelRecipe) -> dict[str, torch.Tensor]:
    """Tensors under Hugging Face's names."""
    generator = torch.Generator().manual_seed(recipe.seed)

    def matrix(outputs: int, inputs: int, deviation: float | None = None) -> torch.Tensor:
        values = torch.randn(outputs, inputs, generator=generator)
        return (values * (deviation or inputs**-0.5)).to(recipe.dtype)

    def vector(size: int, centre: float, deviation: float) -> torch.Tensor:
        return (centre + deviation * torch.randn(size, generator=generator)).to(recipe.dtype)

    hidden, head_dim, vocab = config["hidden_size"], config.get("head_dim"), config["vocab_size"]
    head_dim = head_dim or hidden // config["num_attention_heads"]
    weights = {"model.embed_tokens.weight": matrix(vocab, hidden, 2.0 * hidden**-0.5)}
    shapes = projection_sizes(config)
    qkv_bias = config["model_type"] == "qwen2" or config.get("attention_bias")
    biased = {"q_proj", "k_proj", "v_proj"} if qkv_bias else set()
    biased |= {"o_proj"} if config.get("attention_bias") and config["model_type"] != "qwen2" else set()
    biased |= {"gate_proj", "up_proj", "down_proj"} if config.get("mlp_bias") else set()
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, (part, outputs, inputs) in shapes.items():
            weights[f"{prefix}{part}.{name}.weight"] = matrix(outputs, inputs)
            if name in biased:
                weights[f"{prefix}{part}.{name}.bias"] = vector(outputs, 0.0, 0.2)
        if config["model_type"] == "qwen3":
            weights[f"{prefix}self_attn.q_norm.weight"] = vector(head_dim, 1.0, 0.2)
            weights[f"{prefix}self_attn.k_norm.weight"] = vector(head_dim, 1.0, 0.2)
        weights[f"{prefix}input_layernorm.weight"] = vector(hidden, 1.0, 0.1)
        weights[f"{prefix}post_attention_layernorm.weight"] = vector(hidden, 1.0, 0.1)
    weights["model.norm.weight"] = vector(hidden, 1.0, 0.1)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(vocab, hidden, 2.0 * hidden**-0.5)
    return weights


def projection_sizes(config: dict[str, Any]) -> dict[str, tuple[str, int, int]]:
    """(part of the layer, outputs, inputs) of each projection."""
    heads, hidden, inner = config["num_attention_heads"], config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, config["num_key_value_heads"] * head_dim
    return {
        "q_proj": ("self_attn", queries, hidden),
        "k_proj": ("self_attn", keys, hidden),
        "v_proj": ("self_attn", keys, hidden),
        "o_proj": ("self_attn", hidden, queries),
        "gate_proj": ("mlp", inner, hidden),
        "up_proj": ("mlp", inner, hidden),
        "down_proj": ("mlp", hidden, inner),
    }


def save_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One safetensors file, or several behind an index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    places = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def save_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level BPE tokenizer with at most so many entries, and the chat template."""
    tokenizer = Tokenizer.from_str(trained_tokenizer(min(vocab_size, 16384) - len(ADDED)))
    tokenizer.add_special_tokens(ADDED)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


@cache
def trained_tokenizer(entries: int) -> str:
    """The JSON of a tokenizer trained on a part of the standard library, more of it for more entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=entries, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(library_texts(4 if entries < 2000 else 400), trainer)
    return str(tokenizer.to_str())


def library_texts(files: int) -> Iterator[str]:
    """Sources of the standard library in the order of their names."""
    for file in sorted(Path(json.__file__).parent.parent.glob("*.py"))[10 : 10 + files]:
        yield file.read_text(encoding="utf-8", errors="replace")


def make_adapter(folder: Path, model: Path, *, rank: int = 8, seed: int = 1, **settings: Any) -> Path:
    """Write a PEFT LoRA folder for a model folder, with random (not zero) B; `settings` go into the config."""
    config = json.loads((model / "config.json").read_text())
    content: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": list(PROJECTIONS),
        "bias": "none",
        "inference_mode": True,
        "use_rslora": False,
        **settings,
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (part, outputs, inputs) in projection_sizes(config).items():
            if name not in content["target_modules"]:
                continue
            prefix = f"base_model.model.model.layers.{layer}.{part}.{name}"
            own_rank = next((r for n, r in content.get("rank_pattern", {}).items() if prefix.endswith(n)), rank)
            weights[f"{prefix}.lora_A.weight"] = torch.randn(own_rank, inputs, generator=generator) * inputs**-0.5
            weights[f"{prefix}.lora_B.weight"] = torch.randn(outputs, own_rank, generator=generator) * 0.3 / own_rank
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(content, indent=2))
    return folder


def spoil_weights(folder: Path) -> Path:
    """Make every weight of an adapter no number."""
    file = folder / "adapter_model.safetensors"
    save_file({name: weight * torch.nan for name, weight in load_file(file).items()}, file)
    return folder


def make_unknown_model(folder: Path, model_type: str = "gpt2") -> Path:
    """A tiny model of an architecture without an own forward pass, made by `transformers`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
    if model_type == "gpt_neox":
        sizes |= {"intermediate_size": 160, "max_position_embeddings": 512}
    config = AutoConfig.for_model(model_type, **sizes, bos_token_id=None, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.25 if "emb" in name or "wte" in name else parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
    save_tokenizer(folder, 512)
    return folder
