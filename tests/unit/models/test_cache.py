"""Lanes: capacities, growth, packing, blocks and what memory they hold."""

from collections.abc import Iterator

import pytest
import torch

from heddle.models import cache as cache_module
from heddle.models.cache import CacheShape, LaneCache, SlabLane, lane_capacities

SHAPE = CacheShape(3, 2, 8, 1000, torch.float32, torch.device("cpu"))


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As in the engine: lanes are written without a graph."""
    with torch.inference_mode():
        yield


def fill(lane: SlabLane, value: float, tokens: int) -> None:
    """Write one number into the first tokens of a lane."""
    lane.slab.data[:, lane.row, :, :tokens] = value
    lane.used = tokens


def content(lane: SlabLane, tokens: int) -> torch.Tensor:
    """[layers, 2 * kv_heads, tokens, head_dim]."""
    return lane.slab.data[:, lane.row, :, :tokens]


def test_capacities_double_and_end_at_the_positions_of_the_model() -> None:
    assert lane_capacities(1000) == [64, 128, 256, 512, 1008]
    assert lane_capacities(4096) == [64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]
    assert lane_capacities(40) == [48]


def bytes_in_use(cache: LaneCache) -> int:
    return sum(slab.row_bytes * len(slab.lanes) for slabs in cache.slabs.values() for slab in slabs)


def test_blocks_and_bytes_are_exact() -> None:
    cache = LaneCache(SHAPE)
    assert cache.block_bytes == 3 * 2 * 2 * 8 * 4 * 16
    assert [cache.blocks_for(tokens) for tokens in (1, 64, 65, 513, 1008)] == [4, 4, 8, 63, 63]
    with pytest.raises(ValueError, match="1009 tokens"):
        cache.blocks_for(1009)
    lane = cache.open_lane(65)
    assert lane.capacity == 128
    assert bytes_in_use(cache) == 8 * cache.block_bytes
    cache.grow_lane(lane, 300)
    assert bytes_in_use(cache) == 32 * cache.block_bytes
    cache.close_lane(lane)
    assert cache.slabs == {}


def test_growing_keeps_what_was_written() -> None:
    cache = LaneCache(SHAPE)
    lane, other = cache.open_lane(64), cache.open_lane(64)
    fill(lane, 1.5, 64)
    fill(other, 2.5, 64)
    cache.grow_lane(lane, 60)
    assert lane.capacity == 64
    cache.grow_lane(lane, 65)
    assert lane.capacity == 128
    assert bool((content(lane, 64) == 1.5).all())
    assert bool((content(other, 64) == 2.5).all())
    assert (other.row, lane.row) == (0, 0)


def test_lanes_stay_packed_when_others_close() -> None:
    cache = LaneCache(SHAPE)
    lanes = [cache.open_lane(20) for _ in range(6)]
    for value, lane in enumerate(lanes):
        fill(lane, float(value), 20 + value)
    for place in (1, 5, 0):
        cache.close_lane(lanes[place])
    left = [lanes[place] for place in (2, 3, 4)]
    assert sorted(lane.row for lane in left) == [0, 1, 2]
    for value, lane in zip((2.0, 3.0, 4.0), left, strict=True):
        assert bool((content(lane, 20) == value).all())


def test_more_lanes_than_one_slab_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SLAB_ROWS", 2)
    cache = LaneCache(SHAPE)
    lanes = [cache.open_lane(64) for _ in range(5)]
    assert [len(slab.lanes) for slab in cache.slabs[64]] == [2, 2, 1]
    cache.close_lane(lanes[4])
    assert len(cache.slabs[64]) == 2
    cache.close_lane(lanes[0])
    assert cache.open_lane(64).slab is cache.slabs[64][0]


def test_blocks_are_copies() -> None:
    cache = LaneCache(SHAPE)
    lane = cache.open_lane(64)
    values = torch.randn(content(lane, 48).shape)
    content(lane, 48).copy_(values)
    lane.used = 48
    blocks = [cache.save_block(lane, index) for index in range(3)]
    fill(lane, 0.0, 64)
    assert sum(block.data.numel() * 4 for block in blocks) == 3 * cache.block_bytes
    assert all(block.data.is_contiguous() for block in blocks)
    other = cache.open_lane(200)
    cache.restore_blocks(other, blocks)
    assert torch.equal(content(other, 48), values)
    cache.grow_lane(other, 300)
    assert torch.equal(content(other, 48), values)


def test_what_is_not_finite_does_not_reach_the_next_lane() -> None:
    cache = LaneCache(SHAPE)
    keep, bad = cache.open_lane(64), cache.open_lane(64)
    fill(keep, 1.0, 10)
    fill(bad, 1.0, 30)
    content(bad, 30)[-1, 0, 20, 3] = float("nan")
    content(bad, 30)[0, 0, 20, 3] = float("inf")
    cache.close_lane(bad)
    fresh = cache.open_lane(64)
    assert fresh.row == 1
    assert bool(torch.isfinite(content(fresh, 64)).all())
    fill(fresh, float("nan"), 5)
    cache.close_lane(keep)
    assert fresh.row == 0
    third = cache.open_lane(64)
    assert bool(torch.isfinite(content(third, 64)).all())


def test_pages_of_closed_lanes_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "UNUSED_BYTES", 0)
    cache = LaneCache(CacheShape(2, 4, 64, 4096, torch.float32, torch.device("cpu")))
    lanes = [cache.open_lane(256) for _ in range(8)]
    for lane in lanes:
        fill(lane, 3.0, 256)
    slab = lanes[0].slab
    for lane in lanes[1:]:
        cache.close_lane(lane)
    assert slab.written_rows == 1
    assert bool((slab.data[:, 1:8] == 0).all())
    assert bool((content(lanes[0], 256) == 3.0).all())
