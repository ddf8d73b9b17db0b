"""What the embedded engine asks of a model: one forward pass over a mixed batch, and a cache of keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]
"""weight @ row + bias for each row: [rows, inputs] to [rows, outputs]."""


class Lane(Protocol):
    """The keys and values of one sequence, contiguous per layer and head."""

    capacity: int
    """Tokens it has room for."""


class SavedBlock(Protocol):
    """A copy of one full block of keys and values, of every layer."""


class KeyValueCache(Protocol):
    """Storage only: who may have how much is decided by the scheduler."""

    block_tokens: int
    """Tokens in one block: 16."""
    block_bytes: int
    """Bytes of one block over all layers."""
    saves_blocks: bool
    """Whether blocks can be saved and restored; False for caches that are not plain keys and values."""

    def blocks_for(self, tokens: int) -> int:
        """The blocks that a lane with room for so many tokens really takes (lanes come in steps of size)."""

    def open_lane(self, tokens: int) -> Lane:
        """A lane with room for at least so many tokens; contents undefined."""

    def grow_lane(self, lane: Lane, tokens: int) -> None:
        """Give the lane more room and keep what it holds."""

    def close_lane(self, lane: Lane) -> None:
        """Take the lane back; memory goes back when many are closed."""

    def save_block(self, lane: Lane, index: int) -> SavedBlock:
        """A copy of tokens [16 * index, 16 * index + 16) of the lane."""

    def restore_blocks(self, lane: Lane, blocks: Sequence[SavedBlock]) -> None:
        """Fill the lane from position 0 with these blocks."""


@dataclass(slots=True)
class Span:
    """Consecutive tokens of one sequence in a batch."""

    lane: Lane
    first_position: int
    count: int
    adapter: str | None = None


@dataclass(slots=True)
class Batch:
    """One step: rows of all prefill spans in order, then one row for each decoding sequence.

    Every lane has room for its new tokens. `token_ids` is int64 [rows].
    """

    token_ids: torch.Tensor
    prefills: list[Span]
    decodes: list[Span]
    """Spans with count 1."""
    logit_rows: Sequence[int]
    """Rows whose logits are wanted, ascending."""


class CausalModel(Protocol):
    """A loaded base model with its adapters."""

    vocab_size: int
    max_positions: int
    device: torch.device
    dtype: torch.dtype
    batch_invariant: bool
    """Whether each row's results have the same bits whatever else is in the batch, in chunks and with any threads."""

    def new_cache(self) -> KeyValueCache:
        """An empty cache for this model."""

    def forward(self, batch: Batch, cache: KeyValueCache) -> torch.Tensor:
        """Logits, float32 [len(logit_rows), vocab_size]; keys and values of all rows are in the cache afterwards."""

    def forward_with_states(self, batch: Batch, cache: KeyValueCache) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and what the last norm gives to the output layer in these rows: float32 [rows, hidden size]."""

    def load_adapter(self, adapter_id: str, folder: Path) -> None:
        """Read a PEFT LoRA folder; raises ModelError naming what does not fit."""

    def unload_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no running sequence uses."""


class ModelError(Exception):
    """A model or adapter folder that cannot be loaded; the text says what and where."""
