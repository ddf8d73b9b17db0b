"""Keys and values: every sequence owns a lane, contiguous per layer and head, in a slab of equal lanes.

A slab is one tensor [layers, rows, 2 * kv_heads, capacity, head_dim], keys before values. Rows in use are packed at
its front, so attention of all decoding lanes of a slab reads one slice: nothing is gathered. On the CPU a slab is
mapped memory that costs nothing until it is written, and is given back row by row.
"""

import mmap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from heddle.models.interfaces import Lane, SavedBlock

BLOCK_TOKENS = 16
SLAB_ROWS = 64
SLAB_BYTES = {"cpu": 2**30}
SLAB_BYTES_ELSEWHERE = 2**28
UNUSED_BYTES = 64 * 2**20
"""Written rows that a slab may keep for the next lanes."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token takes."""

    layers: int
    kv_heads: int
    head_dim: int
    max_positions: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Keys and values of all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class SlabLane:
    """One sequence's row in a slab; both change when the lane grows or another one closes."""

    slab: "Slab"
    row: int
    capacity: int
    used: int = 0
    """Tokens written so far, at most."""


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values of 16 tokens: [layers, 2 * kv_heads, 16, head_dim]."""

    data: Tensor


class Slab:
    """Rows for lanes of one capacity."""

    def __init__(self, shape: CacheShape, capacity: int) -> None:
        self.capacity = capacity
        self.row_bytes = capacity * shape.token_bytes
        budget = SLAB_BYTES.get(shape.device.type, SLAB_BYTES_ELSEWHERE)
        self.rows = min(SLAB_ROWS, max(1, budget // self.row_bytes))
        self.lanes: list[SlabLane] = []
        self.written_rows = 0
        size = (shape.layers, self.rows, 2 * shape.kv_heads, capacity, shape.head_dim)
        self.pages: mmap.mmap | None = None
        if shape.device.type == "cpu":
            # Zero, and nothing of it is taken until it is written.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self.pages = mmap.mmap(-1, self.row_bytes * self.rows, flags=flags)
            self.data = torch.frombuffer(self.pages, dtype=shape.dtype).view(size)
        else:
            self.data = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self.layers = list(self.data.view(shape.layers, -1, shape.head_dim).unbind(0))

    def add(self) -> SlabLane:
        """A lane in the first free row."""
        lane = SlabLane(self, len(self.lanes), self.capacity)
        self.lanes.append(lane)
        self.written_rows = max(self.written_rows, len(self.lanes))
        return lane

    def remove(self, lane: SlabLane) -> None:
        """Free a row: the last lane moves into it."""
        last = self.lanes.pop()
        self.clean(lane)
        if last is not lane:
            self.data[:, lane.row, :, : last.used].copy_(self.data[:, last.row, :, : last.used])
            self.lanes[lane.row] = last
            self.clean(last)
            last.row = lane.row
        self.release()

    def clean(self, lane: SlabLane) -> None:
        """Zero a row that holds a NaN or an infinity: masked keys and values must stay finite for the next lane.

        Looking at the last layer is enough: what is not finite at a position stays so in all layers above.
        """
        written = self.data[-1, lane.row, :, : lane.used]
        if not torch.isfinite(written.sum(dtype=torch.float32)):
            self.data[:, lane.row].zero_()

    def release(self) -> None:
        """Give the pages of unused rows back when there are many."""
        unused = self.written_rows - len(self.lanes)
        if self.pages is None or unused * self.row_bytes <= UNUSED_BYTES:
            return
        row = self.data.stride(1) * self.data.element_size()
        for layer in range(len(self.layers)):
            first = (layer * self.rows + len(self.lanes)) * row
            start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (first + unused * row) // mmap.PAGESIZE * mmap.PAGESIZE - start
            if length > 0:
                self.pages.madvise(mmap.MADV_DONTNEED, start, length)
        self.written_rows = len(self.lanes)


class LaneCache:
    """All lanes of one model (see `KeyValueCache`)."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.block_tokens = BLOCK_TOKENS
        self.block_bytes = shape.token_bytes * BLOCK_TOKENS
        self.saves_blocks = True
        self.capacities = lane_capacities(shape.max_positions)
        self.slabs: dict[int, list[Slab]] = {}

    def capacity_for(self, tokens: int) -> int:
        """The smallest lane that holds so many tokens."""
        place = bisect_left(self.capacities, tokens)
        if place == len(self.capacities):
            raise ValueError(f"{tokens} tokens in a lane exceed the {self.capacities[-1]} positions of the model")
        return self.capacities[place]

    def blocks_for(self, tokens: int) -> int:
        """The blocks that a lane with room for so many tokens takes."""
        return self.capacity_for(tokens) // BLOCK_TOKENS

    @torch.inference_mode()
    def open_lane(self, tokens: int) -> SlabLane:
        """A lane with room for at least so many tokens."""
        capacity = self.capacity_for(tokens)
        slabs = self.slabs.setdefault(capacity, [])
        for slab in slabs:
            if len(slab.lanes) < slab.rows:
                return slab.add()
        slabs.append(Slab(self.shape, capacity))
        return slabs[-1].add()

    @torch.inference_mode()
    def grow_lane(self, lane: Lane, tokens: int) -> None:
        """Move a lane to one with more room; a no-op when it has enough."""
        lane = cast(SlabLane, lane)
        if tokens <= lane.capacity:
            return
        fresh = self.open_lane(tokens)
        old, row = lane.slab.data, lane.row
        fresh.slab.data[:, fresh.row, :, : lane.used].copy_(old[:, row, :, : lane.used])
        self.close_lane(lane)
        lane.slab, lane.row, lane.capacity = fresh.slab, fresh.row, fresh.capacity
        lane.slab.lanes[lane.row] = lane

    @torch.inference_mode()
    def close_lane(self, lane: Lane) -> None:
        """Take the lane back."""
        lane = cast(SlabLane, lane)
        slab = lane.slab
        slab.remove(lane)
        if not slab.lanes:
            slabs = self.slabs[slab.capacity]
            slabs.remove(slab)
            if not slabs:
                del self.slabs[slab.capacity]

    @torch.inference_mode()
    def save_block(self, lane: Lane, index: int) -> Block:
        """A copy of 16 tokens."""
        lane = cast(SlabLane, lane)
        first = index * BLOCK_TOKENS
        return Block(lane.slab.data[:, lane.row, :, first : first + BLOCK_TOKENS].clone())

    @torch.inference_mode()
    def restore_blocks(self, lane: Lane, blocks: Sequence[SavedBlock]) -> None:
        """Fill the lane from position 0."""
        lane = cast(SlabLane, lane)
        row = lane.slab.data[:, lane.row]
        for index, block in enumerate(blocks):
            row[:, :, index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS].copy_(cast(Block, block).data)
        lane.used = max(lane.used, len(blocks) * BLOCK_TOKENS)


def lane_capacities(max_positions: int) -> list[int]:
    """Sizes of lanes: doubling from 64, with a step between from 1024 on, up to the model's positions."""
    top = -(-max_positions // BLOCK_TOKENS) * BLOCK_TOKENS
    sizes = [64, 128, 256, 512]
    size = 1024
    while size < top:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [size for size in sizes if size < top] + [top]
