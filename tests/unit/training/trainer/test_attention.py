"""Attention in blocks equals attention under one mask over the whole row, values and gradients."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from heddle.training.trainer.attention import QUERIES, SegmentMixer, Segments, make_blocks  # noqa: E402
from tests.unit.training.trainer.rows import make_row  # noqa: E402

FAMILIES = {
    "one sequence": [(0, [40])],
    "short ones beside each other": [(0, [30, 41, 7, 1]), (0, [25])],
    "groups with a shared prompt": [(30, [12, 14, 9]), (28, [10, 11, 3]), (0, [50])],
    "a long child": [(20, [QUERIES + 90, 5]), (3, [2])],
    "a long prompt": [(3 * QUERIES + 5, [QUERIES + 1, 30, 30])],
    "more children than a block holds": [(10, [200] * 7)],
}


def dense(query, key, value, segments, window):  # type: ignore[no-untyped-def]
    """Attention under the mask of the contract."""
    numbers, parents, positions = (
        torch.from_numpy(part) for part in (segments.numbers, segments.parents, segments.positions)
    )
    places = torch.arange(len(numbers))
    mask = (numbers[:, None] == numbers) | (parents[:, None] == numbers)
    mask &= places[:, None] >= places
    if window is not None:
        mask &= positions > positions[:, None] - window
    parts = (part.transpose(0, 1)[None] for part in (query, key, value))
    mixed = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True)
    return mixed[0].transpose(0, 1)


@pytest.mark.parametrize(("name", "window"), itertools.product(FAMILIES, (None, 16, 600)))
def test_values_and_gradients(name: str, window: int | None) -> None:
    row = make_row(FAMILIES[name])
    segments = Segments(row.segments, row.parents, row.positions)
    generator = torch.Generator().manual_seed(0)
    count = len(row.tokens)
    inputs = [torch.randn(count, heads, 8, generator=generator).requires_grad_(True) for heads in (4, 2, 2)]
    weight = torch.randn(count, 4, 8, generator=generator)
    found = SegmentMixer(segments, [window, window], torch.device("cpu"))(*inputs, window)
    expected = dense(*inputs, segments, window)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad((found * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    for gradient, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, theirs, atol=1e-4, rtol=1e-4)


def test_work_grows_with_what_is_seen() -> None:
    """64 sequences of 40 tokens behind 8 prompts cost a small part of the whole square; every token asks once."""
    row = make_row([(1000, [40] * 8)] * 8)
    found = make_blocks(Segments(row.segments, row.parents, row.positions), None)
    assert sorted(np.concatenate([block.queries for block in found]).tolist()) == list(range(len(row.tokens)))
    assert sum(block.cells for block in found) < len(row.tokens) ** 2 / 6
