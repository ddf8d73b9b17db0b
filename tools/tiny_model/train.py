"""Pretraining: one pass over endless synthetic chats, loss on the assistant's tokens."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from heddle.models.decoder import Decoder
from heddle.models.folder import parse_config
from tools.tiny_model.batches import Batch, batches
from tools.tiny_model.optimizer import optimizers


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run depends on; it ends after `steps`, or after `seconds` of wall time when there are no steps."""

    seed: int = 0
    steps: int | None = None
    seconds: float = 600.0
    batch_tokens: int = 2048
    easy_tokens: int = 500_000
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    warmup: float = 0.02
    decay: float = 0.6
    mixed_precision: bool = True


def shape(vocabulary: int) -> dict[str, Any]:
    """The content of `config.json`: Qwen3's architecture, so that queries and keys are normed."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
    }


def rate(progress: float, recipe: Recipe) -> float:
    """Share of the full learning rate: a short rise, a plateau, and a straight way down to 0."""
    return min(1.0, (progress + 1e-3) / recipe.warmup, max(0.0, 1 - progress) / recipe.decay)


def loss(model: Decoder, batch: Batch, mixed_precision: bool) -> torch.Tensor:
    """Weighted mean of the cross entropy of the assistant's tokens."""
    own = batch.own[:, 1:]
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed_precision):
        logits = model.lm_head(model.hidden(batch.tokens[:, :-1])[own])
    losses = functional.cross_entropy(logits.float(), batch.tokens[:, 1:][own], reduction="none")
    weight = batch.weight[:, 1:][own]
    return (losses * weight).sum() / weight.sum()


def train(
    tokenizer: Tokenizer, recipe: Recipe, checkpoint: Callable[[Decoder, int], None], every: int = 1000
) -> Decoder:
    """Train from nothing; `checkpoint` is called with the model and the step number each `every` steps."""
    model = Decoder(parse_config(shape(tokenizer.get_vocab_size())))
    model.initialise(torch.Generator().manual_seed(recipe.seed), deviation=0.04)
    chosen = optimizers(model, recipe.matrix_rate, recipe.other_rate)
    source = batches(tokenizer, Random(recipe.seed + 1), recipe.batch_tokens, recipe.easy_tokens)
    started, step, seen, recent = time.monotonic(), 0, 0, math.nan
    while True:
        elapsed = time.monotonic() - started
        progress = elapsed / recipe.seconds if recipe.steps is None else step / recipe.steps
        if progress >= 1:
            return model
        batch = next(source)
        for optimizer, full in zip(chosen, (recipe.matrix_rate, recipe.other_rate), strict=True):
            optimizer.param_groups[0]["lr"] = full * rate(progress, recipe)
        value = loss(model, batch, recipe.mixed_precision)
        value.backward()  # type: ignore[no-untyped-call]
        for optimizer in chosen:
            optimizer.step()
            optimizer.zero_grad()
        step, seen = step + 1, seen + batch.tokens.numel()
        recent = value.item() if math.isnan(recent) else 0.98 * recent + 0.02 * value.item()
        if step % 50 == 0:
            print(
                f"step {step}  {elapsed:.0f} s  loss {recent:.4f}  {seen / (time.monotonic() - started):.0f} tokens/s",
                flush=True,
            )
        if step % every == 0:
            checkpoint(model, step)
