"""The kinds of linears agree with the plain product, and are dropped when they do not."""

import pytest
import torch
from torch.nn import functional

from heddle.models import linear
from heddle.models.linear import (
    FEW_ROWS,
    HalfLinear,
    PackedLinear,
    PlainLinear,
    ThreadedHalfLinear,
    TwofoldLinear,
    fits_half,
    is_usable,
    make_linear,
)


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("kind", [HalfLinear, ThreadedHalfLinear, PackedLinear])
def test_every_kind_that_this_torch_has_is_exact(kind: type, rows: int) -> None:
    if not is_usable(kind, torch.float32):
        pytest.skip(f"this torch has no {kind.__name__}")
    weight = torch.randn(200, 72).bfloat16().float()
    bias, inputs = torch.randn(200), torch.randn(rows, 72)
    with torch.inference_mode():
        assert torch.allclose(kind(weight, bias)(inputs), functional.linear(inputs, weight, bias), atol=1e-4)
        assert torch.allclose(kind(weight)(inputs), functional.linear(inputs, weight), atol=1e-4)


def test_only_weights_that_float16_keeps_are_stored_so() -> None:
    exact = torch.randn(8, 8)
    assert not fits_half(exact)
    assert fits_half(exact.bfloat16().float())
    assert fits_half(exact.half().float())
    assert fits_half(torch.full((2, 2), 1e-6).bfloat16().float())
    assert not fits_half(torch.full((2, 2), 1e5).bfloat16().float())
    last = exact.half().float()
    last[-1, -1] += 1e-4
    assert not fits_half(last)


def test_a_second_copy_serves_few_rows_only() -> None:
    weight = torch.randn(64, 48).bfloat16()
    rows = torch.randn(FEW_ROWS + 1, 48).bfloat16()
    exact = functional.linear(rows.double(), weight.double())
    twofold = make_linear(weight, None, torch.bfloat16, twofold=True)
    if not isinstance(twofold, TwofoldLinear):
        pytest.skip("this torch has no float16 products")
    calls: list[int] = []

    class Spy:
        def __call__(self, rows: torch.Tensor) -> torch.Tensor:
            calls.append(rows.shape[0])
            return functional.linear(rows, weight)

    twofold.many = Spy()
    with torch.inference_mode():
        for count in range(1, FEW_ROWS + 2):
            found = twofold(rows[:count])
            assert found.dtype == torch.bfloat16
            assert torch.allclose(found.double(), exact[:count], rtol=0.01, atol=0.01)
    assert calls == [FEW_ROWS + 1]
    assert not isinstance(make_linear(weight, None, torch.bfloat16), TwofoldLinear)
    assert not isinstance(make_linear(weight * 1e6, None, torch.bfloat16, twofold=True), TwofoldLinear)


def test_a_product_that_is_wrong_or_missing_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(1024, 1024).bfloat16().float()

    def broken(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.zeros(rows.shape[0], bias.shape[0])

    def missing(weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("FBGEMM is not there")

    monkeypatch.setattr(linear.torch, "get_num_threads", lambda: 1)
    is_usable.cache_clear()
    monkeypatch.setattr(linear.torch, "fbgemm_linear_fp16_weight", broken)
    assert not is_usable(HalfLinear, torch.float32)
    assert isinstance(make_linear(weight), PackedLinear | PlainLinear)
    is_usable.cache_clear()
    monkeypatch.setattr(linear.torch, "fbgemm_pack_gemm_matrix_fp16", missing)
    assert not is_usable(HalfLinear, torch.float32)
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, rows: missing(rows))
    is_usable.cache_clear()
    assert isinstance(make_linear(weight), PlainLinear)
    assert isinstance(make_linear(weight.bfloat16(), None, torch.bfloat16), PlainLinear)
    is_usable.cache_clear()
