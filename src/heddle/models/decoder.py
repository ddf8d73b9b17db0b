"""A differentiable Llama/Qwen decoder in plain torch, with Hugging Face's parameter names: ground of training."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
OUTPUT_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a decoder; `query_key_norm` is Qwen3's, `projection_bias` is Qwen2's."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 32768
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    query_key_norm: bool = False
    projection_bias: bool = False

    @property
    def model_type(self) -> str:
        """Hugging Face's name of the family that has these switches."""
        if self.query_key_norm:
            return "qwen3"
        return "qwen2" if self.projection_bias else "llama"

    @classmethod
    def from_huggingface(cls, config: dict[str, Any]) -> "DecoderConfig":
        """Read `config.json`; ValueError names what this decoder cannot compute."""
        model_type = config.get("model_type")
        if model_type not in ARCHITECTURES:
            raise ValueError(f"model_type {model_type!r} is not one of {', '.join(ARCHITECTURES)}")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(f"rope_type {rope.get('rope_type', rope.get('type'))!r} is not supported")
        for name, plain in (("hidden_act", "silu"), ("mlp_bias", False), ("use_sliding_window", False)):
            if config.get(name, plain) != plain:
                raise ValueError(f"{name} {config[name]!r} is not supported")
        if config.get("attention_bias", False):
            raise ValueError("attention_bias is not supported")
        heads = config["num_attention_heads"]
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            max_position_embeddings=config["max_position_embeddings"],
            rope_theta=rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            rms_norm_eps=config["rms_norm_eps"],
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            query_key_norm=model_type == "qwen3",
            projection_bias=model_type == "qwen2",
        )

    def to_huggingface(self) -> dict[str, Any]:
        """The content of `config.json`, without token ids and the type of the stored weights."""
        return {
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rope_theta": self.rope_theta,
            "attention_bias": False,
            "tie_word_embeddings": self.tie_word_embeddings,
        }


class Norm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden.to(self.weight.dtype), self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.projection_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.projection_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.projection_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        if config.query_key_norm:
            self.q_norm = Norm(config.head_dim, config.rms_norm_eps)
            self.k_norm = Norm(config.head_dim, config.rms_norm_eps)
        self.query_key_norm = config.query_key_norm

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        batch, length, _ = hidden.shape
        split = (batch, length, -1, self.head_dim)
        query, key, value = (
            project(hidden).view(split).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.query_key_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, rotation).to(hidden.dtype),
            rotate(key, rotation).to(hidden.dtype),
            value.to(hidden.dtype),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output


class FeedForward(nn.Module):
    """Gated two-layer network (SwiGLU)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return output


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, mask)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Stack(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    """A causal language model; `load` and `save` speak Hugging Face folders."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Stack(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def initialise(self, generator: torch.Generator, deviation: float = 0.02) -> None:
        """Fresh weights: normal matrices (those that write to the stream scaled by depth), unit norms, zero biases."""
        depth = (2 * self.config.num_hidden_layers) ** -0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    scale = depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                    parameter.normal_(0.0, deviation * scale, generator=generator)
                else:
                    parameter.fill_(0.0 if name.endswith(".bias") else 1.0)

    def hidden(self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Last hidden states, (batch, length, hidden_size), of token ids (batch, length).

        `positions` (batch, length) default to 0, 1, ...; `mask` is True where a query (dim -2) may look at a key
        (dim -1), and default is causal, which also serves sequences padded on the right.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden = self.model.embed_tokens(tokens)
        rotation = rotary(positions, self.config.head_dim, self.config.rope_theta)
        for layer in self.model.layers:
            hidden = layer(hidden, rotation, mask)
        normed: Tensor = self.model.norm(hidden)
        return normed

    def forward(self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Logits, (batch, length, vocab_size); arguments as in `hidden`."""
        logits: Tensor = self.lm_head(self.hidden(tokens, positions, mask))
        return logits

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype = torch.float32) -> "Decoder":
        """Read `config.json` and `model.safetensors`; ValueError when the two do not fit together."""
        config = DecoderConfig.from_huggingface(json.loads((folder / "config.json").read_text()))
        decoder = cls(config).to(dtype)
        weights = load_file(folder / "model.safetensors")
        if config.tie_word_embeddings:
            weights[OUTPUT_HEAD] = weights["model.embed_tokens.weight"]
        expected = {name: tensor.shape for name, tensor in decoder.state_dict().items()}
        found = {name: tensor.shape for name, tensor in weights.items()}
        if odd := sorted(dict(expected.items() ^ found.items())):
            raise ValueError(f"{folder}: config.json and the weights disagree on {', '.join(odd)}")
        decoder.load_state_dict(weights)
        return decoder

    def save(self, folder: Path, dtype: torch.dtype = torch.bfloat16, **extra: Any) -> None:
        """Write `config.json` (with `extra` keys, such as token ids) and `model.safetensors` into `folder`."""
        weights = {
            name: tensor.detach().to("cpu", dtype).contiguous()
            for name, tensor in self.state_dict().items()
            if not (name == OUTPUT_HEAD and self.config.tie_word_embeddings)
        }
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        content = self.config.to_huggingface() | {"dtype": str(dtype).removeprefix("torch.")} | extra
        (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each (batch, 1, length, head_dim), in float32."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].to(torch.float32) * (1.0 / theta**exponents)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys (batch, heads, length, head_dim) by their positions' angles."""
    cosine, sine = rotation
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine + turned * sine
