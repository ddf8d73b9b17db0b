"""The own forward pass of Llama, Mistral, Qwen2 and Qwen3 over mixed batches of prefill and decode."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from heddle.models.attention import attend
from heddle.models.cache import CacheShape, LaneCache
from heddle.models.config import ModelConfig
from heddle.models.interfaces import Batch, KeyValueCache
from heddle.models.linear import Linear, make_linear
from heddle.models.lora import ActiveAdapters, AdapterStore
from heddle.models.rope import RotaryTable, interleave
from heddle.models.steps import Step, plan_step
from heddle.models.weights import Weights


@dataclass(slots=True)
class Layer:
    """Weights of one layer; queries and keys interleaved for `rope`."""

    attention_norm: Tensor
    qkv: Linear
    query_key_norm: Tensor | None
    """[heads + kv_heads, head_dim]."""
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None


class NativeModel:
    """See `CausalModel`."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.device = device
        self.dtype = dtype
        self.windows = tuple(dict.fromkeys(config.windows))
        self.rotary = RotaryTable(config.rope, config.head_dim, config.max_positions, device)
        self.adapters = AdapterStore(config, dtype, device)
        reader = Reader(config, weights, dtype, device)
        with torch.inference_mode():
            self.embedding = weights.get("model.embed_tokens.weight", config.vocab_size, config.hidden_size).to(device)
            self.layers = [reader.layer(index) for index in range(config.layers)]
            self.norm = reader.get("model.norm.weight", config.hidden_size)
            head = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
            self.head = make_linear(reader.get(head, config.vocab_size, config.hidden_size))

    def new_cache(self) -> LaneCache:
        """An empty cache for this model."""
        shape = self.config
        return LaneCache(
            CacheShape(shape.layers, shape.kv_heads, shape.head_dim, shape.max_positions, self.dtype, self.device)
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KeyValueCache) -> Tensor:  # noqa: ARG002
        """Logits, float32 [len(logit_rows), vocab_size]."""
        step = plan_step(batch, self.config.kv_heads, self.windows, self.dtype, self.device)
        adapters = self.adapters.active(step)
        rotation = self.rotary.at(step.positions, step.limit)
        hidden = self.embedding[step.token_ids].to(self.dtype)
        for index, layer in enumerate(self.layers):
            hidden = self.run_layer(index, layer, hidden, rotation, step, adapters)
        if step.logit_rows is not None:
            hidden = hidden.index_select(0, step.logit_rows)
        return self.head(self.normed(hidden, self.norm)).float()

    def run_layer(
        self, index: int, layer: Layer, hidden: Tensor, rotation: Tensor, step: Step, adapters: ActiveAdapters | None
    ) -> Tensor:
        """One layer over the rows of a step."""
        shape, rows = self.config, hidden.shape[0]
        normed = self.normed(hidden, layer.attention_norm)
        qkv = layer.qkv(normed)
        if adapters is not None:
            qkv = adapters.add_to(qkv, normed, index, "qkv")
        heads = qkv.view(rows, -1, shape.head_dim)
        self.turn(heads[:, : shape.heads + shape.kv_heads], layer.query_key_norm, rotation)
        mixed = attend(heads[:, : shape.heads], heads[:, shape.heads :], step, index, layer.window, shape.kv_heads)
        mixed = mixed.view(rows, -1)
        hidden = layer.output.added(mixed, hidden)
        if adapters is not None:
            hidden = adapters.add_to(hidden, mixed, index, "output")
        normed = self.normed(hidden, layer.mlp_norm)
        gate_up = layer.gate_up(normed)
        if adapters is not None:
            gate_up = adapters.add_to(gate_up, normed, index, "gate_up")
        gate, up = gate_up.chunk(2, dim=1)
        inner = functional.silu(gate).mul_(up)
        hidden = layer.down.added(inner, hidden)
        if adapters is not None:
            hidden = adapters.add_to(hidden, inner, index, "down")
        return hidden

    def normed(self, rows: Tensor, scale: Tensor) -> Tensor:
        """Root-mean-square norm with a learned scale."""
        return functional.rms_norm(rows, scale.shape, scale, self.config.norm_epsilon)

    def turn(self, heads: Tensor, scale: Tensor | None, rotation: Tensor) -> None:
        """Norm (Qwen3) and rotate queries and keys [rows, heads, head_dim] in place."""
        turned = heads.float()
        if scale is not None:
            turned = functional.rms_norm(turned, (heads.shape[-1],), None, self.config.norm_epsilon).mul_(scale)
        pairs = torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2))
        pairs.mul_(rotation)
        if turned is not heads:
            heads.copy_(turned)

    def load_adapter(self, adapter_id: str, folder: Path) -> None:
        """Read a PEFT LoRA folder; raises ModelError naming what does not fit."""
        self.adapters.load(adapter_id, folder)

    def unload_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no running sequence uses."""
        self.adapters.unload(adapter_id)


class Reader:
    """Tensors of a folder in the type, place and order in which the model uses them."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = device

    def get(self, name: str, *shape: int) -> Tensor:
        """One tensor."""
        return self.weights.get(name, *shape).to(self.device, self.dtype)

    def layer(self, index: int) -> Layer:
        """All weights of one layer."""
        config, prefix = self.config, f"model.layers.{index}."
        hidden = config.hidden_size
        scale = None
        if config.query_key_norm:
            query = interleave(self.get(f"{prefix}self_attn.q_norm.weight", config.head_dim), config.head_dim)
            key = interleave(self.get(f"{prefix}self_attn.k_norm.weight", config.head_dim), config.head_dim)
            scale = torch.stack([query] * config.heads + [key] * config.kv_heads).float()
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        turned = (("q_proj", queries, True), ("k_proj", keys, True), ("v_proj", keys, False))
        outer = (("down_proj", hidden, False),)
        inner = (("gate_proj", config.intermediate_size, False), ("up_proj", config.intermediate_size, False))
        return Layer(
            attention_norm=self.get(f"{prefix}input_layernorm.weight", hidden),
            qkv=self.linear(f"{prefix}self_attn.", turned, hidden, config.qkv_bias),
            query_key_norm=scale,
            output=self.linear(f"{prefix}self_attn.", (("o_proj", hidden, False),), queries, config.output_bias),
            mlp_norm=self.get(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self.linear(f"{prefix}mlp.", inner, hidden, config.mlp_bias),
            down=self.linear(f"{prefix}mlp.", outer, config.intermediate_size, config.mlp_bias),
            window=config.windows[index],
        )

    def linear(self, prefix: str, parts: tuple[tuple[str, int, bool], ...], inputs: int, bias: bool) -> Linear:
        """One linear out of projections (name, outputs, interleaved) that share their input."""
        weights, biases = [], []
        for name, outputs, turned in parts:
            weight = self.get(f"{prefix}{name}.weight", outputs, inputs)
            weights.append(interleave(weight, self.config.head_dim) if turned else weight)
            if bias:
                offset = self.get(f"{prefix}{name}.bias", outputs)
                biases.append(interleave(offset, self.config.head_dim) if turned else offset)
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        return make_linear(weight, torch.cat(biases) if bias else None)
