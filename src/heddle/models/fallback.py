"""Causal architectures without an own forward pass, run through `transformers`: slower, one sequence at a time."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from heddle.extras import install_command
from heddle.models.interfaces import Batch, KeyValueCache, Lane, ModelError, SavedBlock, Span

BLOCK_TOKENS = 16
POSITION_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")
UNLIMITED_POSITIONS = 4096
"""For architectures whose config has no limit."""


@dataclass(slots=True, eq=False)
class CacheLane:
    """A cache object of `transformers` with one sequence in it."""

    capacity: int
    cache: Any = None


@dataclass(frozen=True, slots=True)
class CacheBlock:
    """Keys and values of 16 tokens for each layer: [1, kv_heads, 16, head_dim]."""

    layers: list[tuple[Tensor, Tensor]]


@dataclass(slots=True)
class ObjectCache:
    """See `KeyValueCache`."""

    block_bytes: int
    saves_blocks: bool
    max_positions: int
    block_tokens: int = BLOCK_TOKENS
    lanes: list[CacheLane] = field(default_factory=list)

    def blocks_for(self, tokens: int) -> int:
        if tokens > self.max_positions:
            raise ValueError(f"{tokens} tokens in a lane exceed the {self.max_positions} positions of the model")
        return -(-tokens // BLOCK_TOKENS)

    def open_lane(self, tokens: int) -> CacheLane:
        lane = CacheLane(self.blocks_for(tokens) * BLOCK_TOKENS)
        self.lanes.append(lane)
        return lane

    def grow_lane(self, lane: Lane, tokens: int) -> None:
        lane.capacity = max(lane.capacity, self.blocks_for(tokens) * BLOCK_TOKENS)

    def close_lane(self, lane: Lane) -> None:
        place = cast(CacheLane, lane)
        place.cache = None
        self.lanes.remove(place)

    def save_block(self, lane: Lane, index: int) -> SavedBlock:
        layers = read_layers(cast(CacheLane, lane).cache)
        here = slice(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
        return CacheBlock([(keys[:, :, here].clone(), values[:, :, here].clone()) for keys, values in layers])

    def restore_blocks(self, lane: Lane, blocks: Sequence[SavedBlock]) -> None:
        parts = [cast(CacheBlock, block).layers for block in blocks]
        layers = []
        for layer in range(len(parts[0]) if parts else 0):
            keys = torch.cat([part[layer][0] for part in parts], dim=2)
            layers.append((keys, torch.cat([part[layer][1] for part in parts], dim=2)))
        cast(CacheLane, lane).cache = fill_cache(layers)


class FallbackModel:
    """See `CausalModel`."""

    batch_invariant = False

    def __init__(self, model: Any, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.model = model
        self.folder = folder
        self.dtype = dtype
        self.device = device
        config = model.config.get_text_config(decoder=True)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        limits = [getattr(config, name, None) for name in POSITION_NAMES]
        self.max_positions = int(next((limit for limit in limits if limit), UNLIMITED_POSITIONS))
        parameters = inspect.signature(model.forward).parameters
        if "past_key_values" not in parameters:
            raise ModelError(f"{folder}: {type(model).__name__} has no key-value cache, which heddle requires")
        self.keeps_logits = "logits_to_keep" in parameters
        self.token_bytes, self.plain_cache = self.probe()
        self.adapters: dict[str, str] = {}
        self.adapted: Any = None
        self.loaded_adapters = 0

    @torch.inference_mode()
    def probe(self) -> tuple[int, bool]:
        """Bytes that one token takes in the cache, and whether the cache is plain keys and values of all tokens."""
        tokens = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        cache = self.model(input_ids=tokens, past_key_values=self.fresh_cache(), use_cache=True).past_key_values
        held = [
            cached
            for layer in cache.layers
            for cached in [value for value in vars(layer).values() if isinstance(value, Tensor)]
        ]
        plain = all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
        return max(1, sum(cached.numel() * cached.element_size() for cached in held) // 2), plain

    def fresh_cache(self) -> Any:
        """An empty cache of the right kinds of layers."""
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def new_cache(self) -> ObjectCache:
        """An empty cache for this model."""
        return ObjectCache(self.token_bytes * BLOCK_TOKENS, self.plain_cache, self.max_positions)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KeyValueCache) -> Tensor:  # noqa: ARG002
        """Logits, float32 [len(logit_rows), vocab_size]."""
        return self.run_spans(batch)[0]

    @torch.inference_mode()
    def forward_with_states(self, batch: Batch, cache: KeyValueCache) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Logits and last hidden states, float32."""
        return self.run_spans(batch, output_hidden_states=True)

    def run_spans(self, batch: Batch, **options: bool) -> tuple[Tensor, Tensor]:
        """Logits, and hidden states where the options ask for them, of the wanted rows."""
        wanted = list(batch.logit_rows)
        logits = [torch.empty(0, self.vocab_size, device=self.device)]
        states = []
        first = 0
        for span in batch.prefills + batch.decodes:
            rows = [row - first for row in wanted if first <= row < first + span.count]
            tokens = batch.token_ids[first : first + span.count].to(self.device)
            own_logits, own_states = self.run_span(span, tokens, rows, **options)
            logits.append(own_logits)
            states.append(own_states)
            first += span.count
        return torch.cat(logits), torch.cat(states)

    def run_span(self, span: Span, tokens: Tensor, rows: list[int], **options: bool) -> tuple[Tensor, Tensor]:
        """Logits (and hidden states, else an empty tensor) of some rows of one sequence's new tokens."""
        lane = cast(CacheLane, span.lane)
        if span.adapter is not None:
            name = self.adapters[span.adapter]
            self.adapted.base_model.enable_adapter_layers()
            self.adapted.set_adapter(name)
        elif self.adapted is not None:
            self.adapted.base_model.disable_adapter_layers()
        lane.cache = self.cache_at(lane.cache, span.first_position)
        keep = torch.tensor(rows, dtype=torch.int64, device=self.device)
        extra = {"logits_to_keep": keep} if self.keeps_logits and rows else {}
        result = self.model(input_ids=tokens[None], past_key_values=lane.cache, use_cache=True, **extra, **options)
        lane.cache = result.past_key_values
        logits: Tensor = result.logits[0] if extra else result.logits[0, keep]
        states: Tensor = result.hidden_states[-1][0, keep] if options else logits.new_empty(0)
        return logits.float(), states.float()

    def cache_at(self, cache: Any, position: int) -> Any:
        """A cache that holds exactly the tokens before a position."""
        if cache is None or position == 0:
            if position:
                raise ValueError(f"position {position} in an empty lane")
            return self.fresh_cache()
        held = int(cache.get_seq_length())
        if held == position:
            return cache
        if held < position or not self.plain_cache:
            raise ValueError(f"position {position} in a lane with {held} tokens")
        return fill_cache([(keys[:, :, :position], values[:, :, :position]) for keys, values in read_layers(cache)])

    def load_adapter(self, adapter_id: str, folder: Path) -> None:
        """Read a PEFT LoRA folder; raises ModelError naming what does not fit."""
        if adapter_id in self.adapters:
            return
        try:
            from peft import PeftConfig, PeftModel
        except ImportError:
            hint = install_command("transformers")
            raise ModelError(f"{folder}: adapters of this architecture require peft: {hint}") from None
        name = f"adapter{self.loaded_adapters}"
        try:
            kind = PeftConfig.from_pretrained(str(folder)).peft_type
            if kind != "LORA":
                raise ModelError(f"{folder}: peft_type {str(kind)!r} is not supported, only 'LORA'")
            if self.adapted is None:
                # The wrapper puts its layers into the model itself, which stays the one that is called.
                self.adapted = PeftModel.from_pretrained(self.model, str(folder), adapter_name=name)
            else:
                self.adapted.load_adapter(str(folder), adapter_name=name)
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError, AttributeError) as problem:
            raise ModelError(f"{folder}: cannot be loaded: {problem}") from None
        self.loaded_adapters += 1
        self.adapters[adapter_id] = name

    def unload_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no running sequence uses."""
        name = self.adapters.pop(adapter_id, None)
        if name is not None:
            self.adapted.delete_adapter(name)


def read_layers(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer: [1, kv_heads, tokens, head_dim]."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def fill_cache(layers: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """A plain cache that holds these keys and values."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for index, (keys, values) in enumerate(layers):
        cache.update(keys, values, index)
    return cache


def load_fallback(folder: Path, reason: str, dtype: torch.dtype, device: torch.device) -> FallbackModel:
    """Load through `transformers`, from this folder only and without running code from it."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        text = f"{folder}: {reason} requires transformers: {install_command('transformers')}"
        raise ModelError(text) from None
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as problem:
        raise ModelError(f"{folder}: transformers cannot load it ({reason}): {problem}") from None
    model, report = loaded
    if report["missing_keys"]:
        raise ModelError(f"{folder}: tensors are missing: {', '.join(sorted(report['missing_keys'])[:5])}")
    try:
        return FallbackModel(model.eval().to(device), folder, dtype, device)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise ModelError(f"{folder}: {type(model).__name__} cannot be run step by step: {problem}") from None
