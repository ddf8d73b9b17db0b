"""The own forward pass of Llama, Mistral, Qwen2 and Qwen3 over mixed batches of prefill and decode."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from heddle.models.attention import Plan, RotaryTable, Step, attend, interleave, plan_step, store
from heddle.models.cache import CacheShape, LaneCache
from heddle.models.folder import ModelConfig, Weights
from heddle.models.interfaces import Batch, KeyValueCache, Linear
from heddle.models.lora import ActiveAdapters, AdapterStore, make_linear


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

    batch_invariant: bool = False
    cache_dtypes: Mapping[torch.dtype, torch.dtype] = {}
    """What keys and values are kept in, by the precision of a model, where it is another one."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.device = device
        self.dtype = dtype
        self.cache_dtype = self.cache_dtypes.get(dtype, dtype)
        self.epsilon = torch.tensor(config.norm_epsilon, dtype=torch.float32, device=device)
        windows = tuple(dict.fromkeys(config.windows))
        self.plan = Plan(config.heads, config.kv_heads, windows, dtype, device)
        self.rotary = RotaryTable(config.rope, config.head_dim, config.max_positions, device)
        self.adapters = AdapterStore(config, dtype, device)
        with torch.inference_mode():
            # A copy, so that the mapping of the file ends with loading.
            embedding = weights.get("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
            self.embedding = embedding.to(device, copy=True)
            self.layers = [self.read_layer(weights, index) for index in range(config.layers)]
            self.norm = self.read_norm(weights, "model.norm.weight", config.hidden_size)
            head = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
            output = weights.get(head, config.vocab_size, config.hidden_size)
            self.head = self.make_linear(output.to(device), None)

    def read_norm(self, weights: Weights, name: str, size: int) -> Tensor:
        """The scale of a norm, which works in float32."""
        return weights.get(name, size).to(self.device, torch.float32)

    def read_layer(self, weights: Weights, index: int) -> Layer:
        """All weights of one layer."""
        config, prefix = self.config, f"model.layers.{index}."
        hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.heads * size, config.kv_heads * size
        scale = None
        if config.query_key_norm:
            query, key = (
                interleave(self.read_norm(weights, f"{prefix}self_attn.{name}_norm.weight", size), size)
                for name in "qk"
            )
            scale = torch.stack([query] * config.heads + [key] * config.kv_heads)

        def join(part: str, outputs: dict[str, int], inputs: int, has_bias: bool) -> Linear:
            """One linear out of projections that share their input, those of queries and keys interleaved."""

            def read(kind: str, *shape: int) -> Tensor:
                parts = []
                for name, count in outputs.items():
                    tensor = weights.get(f"{prefix}{part}.{name}.{kind}", count, *shape).to(self.device)
                    parts.append(interleave(tensor, size) if name in ("q_proj", "k_proj") else tensor)
                return parts[0] if len(parts) == 1 else torch.cat(parts)

            return self.make_linear(read("weight", inputs), read("bias") if has_bias else None)

        projections = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        return Layer(
            attention_norm=self.read_norm(weights, f"{prefix}input_layernorm.weight", hidden),
            qkv=join("self_attn", projections, hidden, config.qkv_bias),
            query_key_norm=scale,
            output=join("self_attn", {"o_proj": hidden}, queries, config.output_bias),
            mlp_norm=self.read_norm(weights, f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=join("mlp", {"gate_proj": inner, "up_proj": inner}, hidden, config.mlp_bias),
            down=join("mlp", {"down_proj": hidden}, inner, config.mlp_bias),
            window=config.windows[index],
        )

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """A product with these weights, as they were stored."""
        return make_linear(weight.to(self.dtype, copy=True), bias if bias is None else bias.to(self.dtype, copy=True))

    def new_cache(self) -> LaneCache:
        """An empty cache for this model."""
        shape = self.config
        sizes = (shape.layers, shape.kv_heads, shape.head_dim, shape.max_positions)
        return LaneCache(CacheShape(*sizes, self.cache_dtype, self.device))

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KeyValueCache) -> Tensor:  # noqa: ARG002
        """Logits, float32 [len(logit_rows), vocab_size]."""
        return self.logits(self.states(batch))

    @torch.inference_mode()
    def forward_with_states(self, batch: Batch, cache: KeyValueCache) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Logits and the states that they are made of, float32 [len(logit_rows), hidden_size]."""
        states = self.states(batch)
        return self.logits(states), states.float()

    def logits(self, states: Tensor) -> Tensor:
        """What the output layer makes of states, float32."""
        return self.head(states).float() if states.shape[0] else states.new_empty(0, self.vocab_size)

    def states(self, batch: Batch) -> Tensor:
        """Rows after the last norm, in the type of the model; new keys and values go into the lanes."""
        step = plan_step(batch, self.plan)
        adapters = self.adapters.active(step.adapters, step.counts)
        rotation = self.rotary.at(step.positions, step.limit)
        hidden = self.embedding[step.token_ids].float()
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            mixed = self.attention(index, layer, hidden, rotation, step, adapters)
            if index == last and step.logit_rows is not None:
                mixed, hidden = mixed[step.logit_rows], hidden[step.logit_rows]
                adapters = None if adapters is None else adapters.of_rows(step.logit_rows)
            if hidden.shape[0]:
                self.mix(index, layer, hidden, mixed, adapters)
        return self.norm_rows(hidden, self.norm)

    def attention(
        self, index: int, layer: Layer, hidden: Tensor, rotation: Tensor, step: Step, adapters: ActiveAdapters | None
    ) -> Tensor:
        """Mixed values of all rows, [rows, heads * head_dim]; new keys and values go into the lanes."""
        heads, both = self.config.heads, self.config.heads + self.config.kv_heads
        normed = self.norm_rows(hidden, layer.attention_norm)
        qkv = self.apply(layer.qkv, normed, adapters, index, "qkv")
        rows = qkv.view(hidden.shape[0], -1, self.config.head_dim)
        self.rotate(rows[:, :both], layer.query_key_norm, rotation)
        store(rows[:, heads:], step, index)
        queries = rows[:, :heads].view(-1, self.config.kv_heads, heads // self.config.kv_heads, self.config.head_dim)
        return attend(queries, step, index, layer.window)

    def mix(self, index: int, layer: Layer, hidden: Tensor, mixed: Tensor, adapters: ActiveAdapters | None) -> None:
        """Add what attention found, and the feed-forward network's answer to it, to the stream `hidden`."""
        hidden.add_(self.apply(layer.output, mixed, adapters, index, "output"))
        normed = self.norm_rows(hidden, layer.mlp_norm)
        gate_up = self.apply(layer.gate_up, normed, adapters, index, "gate_up")
        size = self.config.intermediate_size
        inner = functional.silu(gate_up[:, :size]).mul_(gate_up[:, size:])
        hidden.add_(self.apply(layer.down, inner, adapters, index, "down"))

    @staticmethod
    def apply(linear: Linear, rows: Tensor, adapters: ActiveAdapters | None, index: int, name: str) -> Tensor:
        """What a linear of a layer and its adapters make of rows."""
        result = linear(rows)
        if adapters is not None:
            adapters.add_to(result, rows, index, name)
        return result

    def norm_rows(self, rows: Tensor, scale: Tensor) -> Tensor:
        """Root-mean-square norm of float32 rows with a learned scale, in the type of the model."""
        return self.normalise(rows).mul_(scale).to(self.dtype)

    def normalise(self, rows: Tensor) -> Tensor:
        """Rows divided by the root of their mean square; half as many operations as `functional.rms_norm`."""
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return rows * torch.addcmul(self.epsilon, length, length, value=1.0 / rows.shape[-1]).rsqrt_()

    def rotate(self, heads: Tensor, scale: Tensor | None, rotation: Tensor) -> None:
        """Norm (Qwen3) and rotate queries and keys [rows, heads, head_dim] in place."""
        turned = heads.float()
        if scale is not None:
            turned = self.normalise(turned).mul_(scale)
        torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2)).mul_(rotation)
        if turned is not heads:
            heads.copy_(turned)

    def load_adapter(self, adapter_id: str, folder: Path) -> None:
        """Read a PEFT LoRA folder; raises ModelError naming what does not fit."""
        self.adapters.load(adapter_id, folder)

    def unload_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no running sequence uses."""
        self.adapters.unload(adapter_id)
