"""Matrix products with fixed weights: the fastest of four ways that is right for the weights, device and type.

Seen on one core (1024 x 3072, weights beyond the cache; GB/s of weights at 1 row, GFLOP/s at 512 rows):
float32 plain 13, 95; float32 packed 14, 110; float32 with half-size weights 24, 105; bfloat16 plain 9, 205;
bfloat16 packed 18, 220.
"""

from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

PACKED_FOR = 32
"""Rows that the packed layout is chosen for; measured best from 1 to 512."""
FEW_WEIGHTS = 2**17
"""Below, starting a packed product costs more than it saves."""
HALF_ROUNDING = 2.0**-25
"""What float16 loses of a bfloat16 number that is too small for its normal range; nothing is lost of others."""
PROBE_ROWS = (1, 3, 17)


class Linear(Protocol):
    """weight @ row + bias for each row."""

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        ...

    def added(self, rows: Tensor, stream: Tensor) -> Tensor:
        """The same plus `stream` [rows, outputs], which stays as it is."""
        ...


class PlainLinear:
    """Any device and type."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.weight, self.bias)

    def added(self, rows: Tensor, stream: Tensor) -> Tensor:
        return functional.linear(rows, self.weight, self.bias).add_(stream)


class PackedLinear:
    """Weights reordered once into oneDNN's layout for the processor."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
        self.bias = bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.product_and_sum = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self.product(rows, self.weight, self.bias, "none", [], "")
        return result

    def added(self, rows: Tensor, stream: Tensor) -> Tensor:
        result: Tensor = self.product_and_sum(rows, stream, self.weight, self.bias, "add")
        return result


class HalfLinear:
    """float32 rows and sums, weights stored as float16 without loss: half the memory to read. One thread."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.fbgemm_pack_gemm_matrix_fp16(weight.contiguous())
        self.bias = torch.zeros(weight.shape[0]) if bias is None else bias

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = torch.fbgemm_linear_fp16_weight(rows, self.weight, self.bias)
        return result

    def added(self, rows: Tensor, stream: Tensor) -> Tensor:
        return self(rows).add_(stream)


class ThreadedHalfLinear:
    """The same with all of torch's threads."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self.product = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self.product(rows, self.weight)
        return result

    def added(self, rows: Tensor, stream: Tensor) -> Tensor:
        return self(rows).add_(stream)


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Choose for a weight [outputs, inputs] on its device and in the type that rows will have."""
    if weight.device.type != "cpu":
        return PlainLinear(weight, bias)
    half = HalfLinear if torch.get_num_threads() == 1 else ThreadedHalfLinear
    large = weight.numel() >= FEW_WEIGHTS
    if (large or half is HalfLinear) and fits_half(weight) and works(half, torch.float32):
        return half(weight, bias)
    if large and works(PackedLinear, weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def fits_half(weight: Tensor) -> bool:
    """Whether float32 weights come from a 16-bit file, so that float16 keeps them."""
    if weight.dtype != torch.float32 or weight[0].half().float().sub_(weight[0]).abs_().max() > HALF_ROUNDING:
        return False
    return bool(weight.half().float().sub_(weight).abs_().max() <= HALF_ROUNDING)


@cache
def works(kind: Callable[[Tensor, Tensor | None], Linear], dtype: torch.dtype) -> bool:
    """Whether this torch has the parts (they are not public) and the products agree with plain ones."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).bfloat16().to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype)
    try:
        return all(
            agrees(kind, weight, bias, torch.randn(rows, 64, generator=generator).to(dtype)) for rows in PROBE_ROWS
        )
    except (AttributeError, RuntimeError, TypeError):
        return False


@torch.inference_mode()
def agrees(kind: Callable[[Tensor, Tensor | None], Linear], weight: Tensor, bias: Tensor, rows: Tensor) -> bool:
    """Compare with float64 for one input."""
    linear, bare = kind(weight, bias), kind(weight, None)
    exact = functional.linear(rows.double(), weight.double(), bias.double())
    stream = torch.ones(rows.shape[0], weight.shape[0], dtype=rows.dtype)
    results = (linear(rows), linear.added(rows, stream).double() - 1, bare(rows).double() + bias)
    precision = 1e-4 if rows.dtype == torch.float32 else 0.05
    return all(bool(((result - exact).abs() <= precision * (4 + exact.abs())).all()) for result in results)
