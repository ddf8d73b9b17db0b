"""Matrix products with fixed weights: the fastest of four ways that is right for the weights, device and type.

Seen on one core (1024 x 3072, weights beyond the cache; GB/s of weights at 1 row, GFLOP/s at 512 rows):
float32 plain 13, 95; float32 packed 14, 110; float32 with half-size weights 24, 105; bfloat16 plain 9, 205;
bfloat16 packed 18, 220.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

PACKED_FOR = 32
"""Rows that the packed layout is chosen for; measured best from 1 to 512."""
FEW_WEIGHTS = 2**19
"""Below, starting a packed float32 product (13 us) costs more than it saves."""
FEW_ROWS = 3
"""Up to so many, float32 products with float16 weights beat bfloat16 ones: 24 against 15-18 GB/s of weights."""
HALF_RANGE = 65504.0
HALF_ROUNDING = 2.0**-25
"""What float16 loses of a bfloat16 number that is too small for its normal range; nothing is lost of others."""
PROBE_ROWS = (1, 3, 17)


class Linear(Protocol):
    """weight @ row + bias for each row."""

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        ...


class PlainLinear:
    """Any device and type."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.weight, self.bias)


class PackedLinear:
    """Weights reordered once into oneDNN's layout for the processor."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
        self.bias = bias
        self.product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self.product(rows, self.weight, self.bias, "none", [], "")
        return result


class HalfLinear:
    """float32 rows and sums, weights stored as float16 without loss: half the memory to read. One thread."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.fbgemm_pack_gemm_matrix_fp16(weight.contiguous())
        self.bias = torch.zeros(weight.shape[0]) if bias is None else bias

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = torch.fbgemm_linear_fp16_weight(rows, self.weight, self.bias)
        return result


class ThreadedHalfLinear:
    """The same with all of torch's threads."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self.product = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self.product(rows, self.weight)
        return result


class TwofoldLinear:
    """bfloat16 rows: a second, float16 copy of the weights serves few rows, where only reading weights counts."""

    def __init__(self, many: Linear, few: Linear) -> None:
        self.many = many
        self.few = few

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] > FEW_ROWS:
            return self.many(rows)
        return self.few(rows.float()).to(rows.dtype)


def make_linear(
    weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float32, twofold: bool = False
) -> Linear:
    """Choose for a weight [outputs, inputs] as it was stored, on its device, and the type that rows will have.

    `twofold` spends as much memory again to answer few bfloat16 rows faster.
    """
    if weight.device.type != "cpu":
        return PlainLinear(weight.to(dtype), None if bias is None else bias.to(dtype))
    kind = HalfLinear if torch.get_num_threads() == 1 else ThreadedHalfLinear
    few_weights = weight.numel() < FEW_WEIGHTS and dtype == torch.float32
    half: Linear | None = None
    wanted = dtype == torch.float32 or (twofold and dtype == torch.bfloat16)
    if wanted and (kind is HalfLinear or not few_weights) and fits_half(weight) and is_usable(kind, torch.float32):
        half = kind(weight.float(), None if bias is None else bias.float())
    if half is not None and dtype == torch.float32:
        return half
    packs = not few_weights and is_usable(PackedLinear, dtype)
    full = (PackedLinear if packs else PlainLinear)(weight.to(dtype), None if bias is None else bias.to(dtype))
    return full if half is None else TwofoldLinear(full, half)


def fits_half(weight: Tensor) -> bool:
    """Whether float16 keeps stored weights: those of 16 bits in its range, and float32 that was made from such."""
    if weight.dtype == torch.float16:
        return True
    lowest, highest = weight.aminmax()
    if max(-lowest, highest) > HALF_RANGE:
        return False
    return weight.dtype == torch.bfloat16 or all(
        bool((rows.half().float() - rows).abs_().max() <= HALF_ROUNDING) for rows in (weight[0], weight)
    )


@cache
def is_usable(kind: Callable[[Tensor, Tensor | None], Linear], dtype: torch.dtype) -> bool:
    """Whether this torch has the parts (they are not public) and the products agree with plain ones."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).bfloat16().to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype)
    inputs = [torch.randn(rows, 64, generator=generator).to(dtype) for rows in PROBE_ROWS]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return all(agrees_with_plain(kind, weight, bias, rows) for rows in inputs)
    except (AttributeError, RuntimeError, TypeError):
        return False


@torch.inference_mode()
def agrees_with_plain(
    kind: Callable[[Tensor, Tensor | None], Linear], weight: Tensor, bias: Tensor, rows: Tensor
) -> bool:
    """Compare with float64 for one input."""
    linear, bare = kind(weight, bias), kind(weight, None)
    exact = functional.linear(rows.double(), weight.double(), bias.double())
    results = (linear(rows), bare(rows).double() + bias)
    precision = 1e-4 if rows.dtype == torch.float32 else 0.05
    return all(bool(((result - exact).abs() <= precision * (4 + exact.abs())).all()) for result in results)
