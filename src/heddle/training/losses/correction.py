"""Weights against rollouts that another policy or another engine sampled than the one that is trained.

The ratio w of the policy to the one that sampled is that of a token, or the product over its sequence:
`*_truncate` clips it to [low, high] (TIS, Yao et al., "Your efficient RL framework secretly brings you off-policy RL
training", 2025), `*_mask` leaves out what lies outside (MIS, Liu et al., "When speed kills stability", 2025; IcePop is
`token_mask` with both bounds, Ling team, arXiv:2510.18855). No weight has a gradient. Like TRL's
`vllm_importance_sampling_mode`.
"""

import math
from typing import TYPE_CHECKING, Literal

from heddle.training.losses.base import average_segments, sum_segments, to_ratio

if TYPE_CHECKING:
    from torch import Tensor

Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def weigh(
    differences: "Tensor", segments: "Tensor", mask: "Tensor", mode: Correction, low: float | None, high: float | None
) -> "Tensor":
    """The weight of each token, from log policy - log sampler."""
    differences = differences.detach()
    if mode.startswith("sequence"):
        differences = sum_segments(differences, segments, mask)[0]
    ratios = to_ratio(differences)
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if mode.endswith("truncate"):
        return ratios.clamp(low, high)
    return ratios * ((ratios >= low) & (ratios <= high))


def keep_on_policy(
    differences: "Tensor", advantages: "Tensor", segments: "Tensor", mask: "Tensor", threshold: float
) -> "Tensor":
    """The off-policy sequence mask (DeepSeek-V3.2, arXiv:2512.02556, equation 9): bool, False where it is left out.

    A token with a negative advantage is left out when the mean of log sampler - log policy over its sequence is above
    the threshold.
    """
    drift = average_segments(-differences.detach(), segments, mask)
    return (advantages >= 0) | (drift <= threshold)
