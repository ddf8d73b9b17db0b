"""Rotary position embedding: frequencies of each variant, and turning by one complex multiplication.

Queries and keys are stored with the two halves of a head interleaved (`interleave`), so that the pair that turns
together is one complex number. Dot products do not change, as both sides are stored so.
"""

import math
from typing import Any

import torch
from torch import Tensor

FIRST_POSITIONS = 1024


def frequencies(rope: dict[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """Radians per position for each pair, float32 [head_dim / 2], and the factor on cosine and sine.

    `dynamic` is the default up to the length of the config, and no sequence is longer.
    """
    plain: Tensor = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    kind = rope["rope_type"]
    if kind == "linear":
        return plain / rope["factor"], 1.0
    if kind == "llama3":
        return smoothed_by_wavelength(plain, rope), 1.0
    if kind == "yarn":
        return blended_by_rotations(plain, rope, head_dim), yarn_attention_factor(rope)
    return plain, 1.0


def smoothed_by_wavelength(plain: Tensor, rope: dict[str, Any]) -> Tensor:
    """Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended."""
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    share: Tensor = ((original * plain / (2 * math.pi) - low) / (high - low)).clamp(0.0, 1.0)
    factor: float = rope["factor"]
    return (1 - share) * plain / factor + share * plain


def blended_by_rotations(plain: Tensor, rope: dict[str, Any], head_dim: int) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs with few rotations over the original length are slowed by the factor."""
    base, original = rope["rope_theta"], rope["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (max(high - low, 0.001))
    slowed = ramp.clamp(0.0, 1.0)
    factor: float = rope["factor"]
    return plain / factor * slowed + plain * (1 - slowed)


def yarn_attention_factor(rope: dict[str, Any]) -> float:
    """Given, or from the paper's formula."""

    def scale(factor: float, weight: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    weight, weight_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if weight and weight_all:
        return scale(rope["factor"], weight) / scale(rope["factor"], weight_all)
    return scale(rope["factor"])


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder dimension 0 (whole heads): (first half, second half) of each head becomes pairs."""
    rest = rows.shape[1:]
    return rows.reshape(-1, 2, head_dim // 2, *rest).transpose(1, 2).reshape(-1, *rest).contiguous()


class RotaryTable:
    """Unit complex numbers (times the attention factor) of each position and pair; grows with the longest sequence."""

    def __init__(self, rope: dict[str, Any], head_dim: int, max_positions: int, device: torch.device) -> None:
        self.radians, self.factor = frequencies(rope, head_dim)
        self.max_positions = max_positions
        self.device = device
        self.table = self.compute(min(FIRST_POSITIONS, max_positions))

    def compute(self, positions: int) -> Tensor:
        """The table for positions below a count, complex64 [positions, head_dim / 2]."""
        angles = torch.outer(torch.arange(positions).float(), self.radians)
        return torch.complex(angles.cos() * self.factor, angles.sin() * self.factor).to(self.device)

    def at(self, positions: Tensor, limit: int) -> Tensor:
        """Rows for positions, all below `limit`: complex64 [rows, 1, head_dim / 2]."""
        if limit > self.table.shape[0]:
            self.table = self.compute(min(max(limit, 2 * self.table.shape[0]), max(limit, self.max_positions)))
        return self.table.index_select(0, positions).unsqueeze_(1)
