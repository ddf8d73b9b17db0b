"""What a loss is, what it is computed from, and what losses share: means, divergences, corrections; without torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

LossName = Literal[
    "cispo",
    "ppo",
    "grpo",
    "dr_grpo",
    "dapo",
    "bnpo",
    "gspo",
    "sapo",
    "luspo",
    "vespo",
    "dro",
    "stable_reinforce",
    "importance_sampling",
    "reverse_kl",
    "cross_entropy",
]
Level = Literal["token", "sequence", "average", "geometric_average"]
Aggregation = Literal["trajectory", "sequence_mean", "sequence_sum", "token_mean", "job_token_mean", "constant"]
"""How token losses become one number, with N tokens in S sequences of T_i tokens in a gradient step.

trajectory: ART's; weights of 1 / T_i, scaled to a mean of 1 over the job, over N.
sequence_mean: 1 / (S T_i). sequence_sum: 1 / S. token_mean: 1 / N.
job_token_mean: 1 / (the job's mean of N over its steps). constant: 1 / (S L), with one L for the job.
"""
LARGEST_DIFFERENCE = 600.0
"""Of logprobs: a ratio above its exponential would not be a number. Servers write -9999 for minus infinity."""


@dataclass(slots=True)
class Terms:
    """What is known of each token when a loss is computed; tensors have one shape."""

    new: "Tensor"
    """Logprobs of the policy, with a gradient."""
    old: "Tensor"
    """Logprobs under the policy that sampled; known everywhere."""
    ratios: "Tensor"
    """exp(new - old) at the level asked for, with a gradient."""
    advantages: "Tensor"
    mask: "Tensor"
    """bool: trained."""
    segments: "Tensor"
    """int64: tokens of one sequence have one number."""
    low: float
    high: float
    """Bounds of the ratio, for losses that have them."""
    options: Mapping[str, float]
    """Of the loss itself; all that it declares."""
    reference: "Tensor | None" = None
    """Logprobs of the reference policy or the teacher."""
    correction: "Tensor | None" = None
    """Weights of `importance_correction`, for a loss that applies them itself."""


@dataclass(frozen=True, slots=True)
class Option:
    """A number of a loss of its own."""

    default: float
    least: float = 0.0
    is_open: bool = False
    """`least` itself is not allowed."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of the registry; its formula stands in a docstring."""

    name: LossName
    per_token: "Callable[[Terms], Tensor]"
    """Losses of tokens before weights and mask."""
    aggregation: Aggregation
    bounds: tuple[float, float | None] | None = None
    """Default `epsilon` and `epsilon_high` (None: the same); None for a loss that does not bound the ratio."""
    levels: tuple[Level, ...] = ("token",)
    """What `importance_sampling_level` may be; the first is the default."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """By their names in `loss_fn_config`."""
    scales_rewards: bool = True
    """The default of `scale_rewards`."""
    needs_reference: bool = False
    """Another policy's logprobs are part of it."""
    corrects_itself: bool = False
    """`importance_correction` is a part of the formula instead of a factor."""


def clipped_surrogate(terms: Terms) -> "Tensor":
    """-min(r A, clip(r, low, high) A); the gradient goes through the ratio (PPO, arXiv:1707.06347)."""
    clipped = terms.ratios.clamp(terms.low, terms.high)
    return -(terms.ratios * terms.advantages).minimum(clipped * terms.advantages)


def to_ratio(difference: "Tensor") -> "Tensor":
    """The exponential, kept from infinity."""
    return difference.clamp(max=LARGEST_DIFFERENCE).exp()


def sum_segments(values: "Tensor", segments: "Tensor", mask: "Tensor") -> "tuple[Tensor, Tensor]":
    """For every token the sum over the trained tokens of its segment, and their number; of the shape of `values`."""
    places = segments.unique(return_inverse=True)[1].reshape(-1)  # type: ignore[no-untyped-call]
    counted = mask.reshape(-1).to(values.dtype)
    count = int(places.max()) + 1 if places.numel() else 0
    sums = values.new_zeros(count).index_add(0, places, values.reshape(-1) * counted)
    counts = values.new_zeros(count).index_add(0, places, counted)
    return sums[places].reshape(values.shape), counts[places].reshape(values.shape)


def average_segments(values: "Tensor", segments: "Tensor", mask: "Tensor") -> "Tensor":
    """For every token the mean over the trained tokens of its segment; 0 for a segment without any."""
    sums, counts = sum_segments(values, segments, mask)
    return sums / counts.clamp(min=1.0)


SMALL = 1e-6
"""Beside ART's counts of tokens."""


def trajectory_weight(tokens: int) -> float:
    """What each token counts, so that every trajectory counts once; `tokens` are the trained ones of all histories."""
    return 1.0 / (tokens + SMALL)


def weigh_tokens(aggregation: Aggregation, own: int, trajectory: int) -> float:
    """What each of a sequence's `own` trained tokens counts; `trajectory` is their number in all its histories."""
    if aggregation == "trajectory":
        return trajectory_weight(trajectory)
    return 1.0 / max(own, 1) if aggregation == "sequence_mean" else 1.0


def find_divisor(aggregation: Aggregation, tokens: float, sequences: int, job_tokens: float, length: float) -> float:
    """What the sum over a step's weighted tokens is divided by.

    `tokens` and `sequences` of the step, `job_tokens` per step on average, `length` the constant of Dr. GRPO.
    """
    if aggregation == "trajectory":
        return tokens + SMALL
    if aggregation == "token_mean":
        return max(tokens, 1.0)
    if aggregation == "job_token_mean":
        return max(job_tokens, 1.0)
    return max(sequences * (length if aggregation == "constant" else 1.0), 1.0)


KlEstimator = Literal["k1", "k2", "k3"]
"""Estimators of KL(p || q) from tokens that p sampled (Schulman, "Approximating KL divergence", 2020).

With d = log q - log p: k1 = -d (unbiased, its gradient is zero in the mean); k2 = d^2 / 2 (biased, its gradient is that
of the divergence on policy); k3 = exp(d) - d - 1 (unbiased, never negative; GRPO, arXiv:2402.03300).
"""


def k1(new: "Tensor", reference: "Tensor") -> "Tensor":
    """log p - log q."""
    return new - reference


def k2(new: "Tensor", reference: "Tensor") -> "Tensor":
    """Half the square of log p - log q."""
    return (new - reference).square() / 2


def k3(new: "Tensor", reference: "Tensor") -> "Tensor":
    """q / p - log(q / p) - 1."""
    return to_ratio(reference - new) - (reference - new) - 1


ESTIMATORS: "dict[KlEstimator, Callable[[Tensor, Tensor], Tensor]]" = {"k1": k1, "k2": k2, "k3": k3}


Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""Weights against rollouts that another policy or another engine sampled than the one that is trained.

The ratio w of the policy to the one that sampled is that of a token, or the product over its sequence:
`*_truncate` clips it to [low, high] (TIS, Yao et al., "Your efficient RL framework secretly brings you off-policy RL
training", 2025), `*_mask` leaves out what lies outside (MIS, Liu et al., "When speed kills stability", 2025; IcePop is
`token_mask` with both bounds, Ling team, arXiv:2510.18855). No weight has a gradient. Like TRL's
`vllm_importance_sampling_mode`.
"""


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
