"""A differentiable decoder of the Llama family in plain torch, with Hugging Face's parameter names.

It computes what the engine's own forward pass (`native`) computes, from the same config, frequencies and files, and
in the same types: the stream and the norms in float32, products in the type of the weights.
"""

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from heddle.models.attention import frequencies
from heddle.models.folder import ModelConfig, Weights, parse_config, read_json
from heddle.models.interfaces import ModelError

OUTPUT_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
UNUSED = ("rotary_emb.inv_freq", OUTPUT_HEAD)
"""Tensors that files of some models hold though the config already says what is in them."""


class Mixer(Protocol):
    """Which tokens look at which."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Mixed values [..., heads, head_dim] of queries of that shape; keys and values have kv_heads instead."""


def causal(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """A `Mixer` of sequences [batch, length, heads, head_dim] that begin together; padding at the end is harmless."""
    length = query.shape[1]
    mask = None
    if window is not None and length > window:
        places = torch.arange(length, device=query.device)
        behind = places[:, None] - places
        mask = (behind >= 0) & (behind < window)
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return mixed.transpose(1, 2)


class Linear(nn.Linear):
    """Weights are not drawn: they are loaded, or `Decoder.initialise` draws them."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Embedding(nn.Embedding):
    """The same for the embedding."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Norm(nn.Module):
    """Root-mean-square norm with a learned scale, in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden.float(), self.weight.shape, self.weight.float(), self.epsilon)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.window = window
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = Linear(queries, config.hidden_size, bias=config.output_bias)
        if config.query_key_norm:
            self.q_norm = Norm(config.head_dim, config.norm_epsilon)
            self.k_norm = Norm(config.head_dim, config.norm_epsilon)
        self.query_key_norm = config.query_key_norm

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], mixer: Mixer, rows: Tensor | None = None
    ) -> Tensor:
        """Results of all rows of the first dimension, or of some."""
        query, key, value = (
            project(hidden).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        kind = value.dtype
        if self.query_key_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        mixed = mixer(rotate(query, rotation).to(kind), rotate(key, rotation).to(kind), value, self.window)
        mixed = mixed if rows is None else mixed.index_select(0, rows)
        output: Tensor = self.o_proj(mixed.flatten(-2))
        return output


class FeedForward(nn.Module):
    """Gated two-layer network (SwiGLU)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return output


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.norm_epsilon)
        self.self_attn = Attention(config, window)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm_epsilon)
        self.mlp = FeedForward(config)

    def forward(
        self,
        hidden: Tensor,
        kind: torch.dtype,
        rotation: tuple[Tensor, Tensor],
        mixer: Mixer,
        rows: Tensor | None = None,
    ) -> Tensor:
        """The stream behind this layer; of some rows of the first dimension only, when the rest is not needed."""
        change = self.self_attn(self.input_layernorm(hidden).to(kind), rotation, mixer, rows)
        hidden = (hidden if rows is None else hidden.index_select(0, rows)) + change
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden).to(kind))
        return output


class Stack(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, window) for window in config.windows)
        self.norm = Norm(config.hidden_size, config.norm_epsilon)


class Decoder(nn.Module):
    """A causal language model without weights; `load` and `initialise` give it some, `save` writes a folder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Keep only what enters each layer, and compute the rest again for the gradient: less memory, more time."""
        self.model = Stack(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Let the output head be the embedding, where the config says so."""
        if self.config.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def initialise(self, generator: torch.Generator, deviation: float = 0.02) -> None:
        """Fresh weights: normal matrices (those that write to the stream scaled by depth), unit norms, zero biases."""
        depth = (2 * self.config.layers) ** -0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    scale = depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                    parameter.normal_(0.0, deviation * scale, generator=generator)
                else:
                    parameter.fill_(0.0 if name.endswith(".bias") else 1.0)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, float32 [..., 1, head_dim] for positions [...]."""
        radians, factor = frequencies(self.config.rope, self.config.head_dim)
        angles = positions[..., None, None].float() * radians.to(positions.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos() * factor, both.sin() * factor

    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, mixer: Mixer = causal, rows: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [..., hidden_size], in the type of the weights, of token ids [...].

        `positions` have the shape of `tokens` and default to 0, 1, ... along the last dimension; the default mixer
        wants tokens [batch, length]. `rows` are the places of the first dimension whose states are wanted.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[-1], device=tokens.device).expand(tokens.shape)
        hidden, kind = self.model.embed_tokens(tokens).float(), self.model.embed_tokens.weight.dtype
        rotation = self.rotation(positions)
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            wanted = rows if index == last else None
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, kind, rotation, mixer, wanted, use_reentrant=False)
            else:
                hidden = layer(hidden, kind, rotation, mixer, wanted)
        normed: Tensor = self.model.norm(hidden).to(kind)
        return normed

    def forward(self, tokens: Tensor, positions: Tensor | None = None, mixer: Mixer = causal) -> Tensor:
        """Logits [..., vocab_size]; arguments as in `hidden`."""
        logits: Tensor = self.lm_head(self.hidden(tokens, positions, mixer))
        return logits

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> "Decoder":
        """Read a folder as the engine does; raises ModelError, or NotNative for what it does not compute."""
        config = parse_config(read_json(folder / "config.json"))
        with torch.device("meta"):
            decoder = cls(config)
        wanted = {name: tensor.shape for name, tensor in decoder.state_dict().items()}
        with Weights(folder) as weights:
            odd = [name for name in sorted(weights.places) if name not in wanted and not name.endswith(UNUSED)]
            if odd:
                raise ModelError(f"{folder}: config.json does not describe the tensor {odd[0]}")
            found = {
                name: weights.get(name, *shape).to(device, torch.float32 if "norm" in name else dtype, copy=True)
                for name, shape in wanted.items()
                if not (name == OUTPUT_HEAD and config.tied_embeddings)
            }
        if config.tied_embeddings:
            found[OUTPUT_HEAD] = found[EMBEDDING]
        decoder.load_state_dict(found, assign=True)
        decoder.tie()
        return decoder

    def save(self, folder: Path, content: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> None:
        """Write `config.json` with a content that describes this model, and `model.safetensors`, into `folder`."""
        if parse_config(content) != self.config:
            raise ValueError("the content of config.json describes another model")
        weights = {
            name: tensor.detach().to("cpu", dtype).contiguous()
            for name, tensor in self.state_dict().items()
            if not (name == OUTPUT_HEAD and self.config.tied_embeddings)
        }
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        content = content | {"dtype": str(dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys [..., heads, head_dim] by their positions' angles, in float32."""
    cosine, sine = rotation
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine + turned * sine
