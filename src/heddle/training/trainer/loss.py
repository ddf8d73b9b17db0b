"""The objective of reinforcement learning (contract: training.md, section 2, objective per token).

Every tensor describes tokens in one order and shape; entry i is about one predicted token, so that nothing is shifted
here. What needs the whole row (token counts, the mean divergence) passes through `total`, which adds over the ranks
that hold parts of the row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.training.config import RlConfig
from heddle.training.losses import LOSSES
from heddle.training.losses.base import (
    ESTIMATORS,
    SMALL,
    Terms,
    average_segments,
    keep_on_policy,
    sum_segments,
    to_ratio,
    weigh,
)

ROUNDING = 1e-9
"""A variance over the mean square that says nothing: probabilities come from float32."""
SMALL_COUNT = 1e-8
"""Beside the number of tokens of a segment."""


@dataclass(slots=True)
class Tokens:
    """What is known about tokens before the policy has judged them; all of one shape."""

    old: Tensor
    """Logprobs under the policy that sampled; NaN where unknown, which means: under the present one."""
    advantages: Tensor
    weights: Tensor
    mask: Tensor
    """bool: trained."""
    segments: Tensor
    """int64: tokens of one sequence have one number, no matter where they lie."""
    reference: Tensor | None = None
    """Logprobs under the reference policy, or the teacher."""
    original: Tensor | None = None
    """Logprobs of the rollout, where `old` was computed anew; NaN where unknown."""
    ratio_mask: Tensor | None = None
    """bool: tokens that the ratio of a sequence is the mean of; None: the trained ones."""


@dataclass(slots=True)
class Objective:
    """The objective's parts as sums over these tokens; `loss_sum` has a gradient, all others have none."""

    loss_sum: Tensor
    token_losses: Tensor
    """Per token, weighted and masked."""
    ratios: Tensor
    """Importance ratio per token at the level asked for, before any bound."""
    clipped: Tensor
    """bool: outside the bounds, or above the cap, and trained."""
    divergence: Tensor | None
    """Mean over the row of log policy (or log rollout: `kl_penalty_source`) - log reference."""


def keep_total(value: Tensor) -> Tensor:
    """The total of a value when one process holds the row."""
    return value


def objective(
    new: Tensor, tokens: Tokens, settings: RlConfig, total: Callable[[Tensor], Tensor] = keep_total
) -> Objective:
    """Compare the policy's logprobs `new` with what was sampled, by the loss that the settings name.

    `loss_sum` is to be divided by what `find_divisor` says.
    """
    loss = LOSSES[settings.loss]
    mask = tokens.mask.to(new.dtype)
    old = torch.where(torch.isnan(tokens.old), new.detach(), tokens.old)
    sampled = old if tokens.original is None else torch.where(tokens.original.isnan(), new.detach(), tokens.original)
    difference = new - old
    ratios = importance_ratios(difference, tokens, settings)
    low, high = -math.inf, math.inf
    if loss.bounds is not None:
        low, high = 1 - settings.epsilon, 1 + settings.epsilon_high
    bounded = bound_ratios(ratios, settings, low, high)
    source = old if settings.kl_penalty_source == "sample" else new
    advantages, divergence = adjust_advantages(source, difference, mask, tokens, settings, total)
    correction = weigh_rollouts(new, old, sampled, bounded, tokens, settings)
    terms = Terms(
        new, old, bounded, advantages, tokens.mask, tokens.segments, low, high, settings.loss_fn_config,
        tokens.reference, correction,
    )  # fmt: skip
    losses = loss.per_token(terms)
    if correction is not None and not loss.corrects_itself:
        losses = losses * correction
    if settings.off_policy_mask_threshold is not None:
        threshold = settings.off_policy_mask_threshold
        losses = losses * keep_on_policy(new - sampled, advantages, tokens.segments, tokens.mask, threshold)
    if settings.kl_loss_coef and tokens.reference is not None:
        losses = losses + settings.kl_loss_coef * ESTIMATORS[settings.kl_estimator](new, tokens.reference)
    losses = losses * tokens.weights * mask
    seen = ratios.detach()
    cap = settings.max_negative_advantage_importance_sampling_weight
    outside = (seen < low) | (seen > (high if cap is None else min(high, cap)))
    return Objective(losses.sum(), losses.detach(), seen, outside & tokens.mask, divergence)


def weigh_rollouts(
    new: Tensor, old: Tensor, sampled: Tensor, bounded: Tensor, tokens: Tokens, settings: RlConfig
) -> Tensor | None:
    """The weights against rollouts of another policy, without a gradient; None where no setting asks for them."""
    policy = new if tokens.original is None else old
    if settings.importance_correction is not None:
        low, high = settings.importance_correction_min, settings.importance_correction_max
        return weigh(policy - sampled, tokens.segments, tokens.mask, settings.importance_correction, low, high)
    if settings.truncated_importance_sampling is None:
        return None
    ratios = bounded if tokens.original is None else to_ratio(policy - sampled)
    return ratios.detach().clamp(max=settings.truncated_importance_sampling)


def importance_ratios(difference: Tensor, tokens: Tokens, settings: RlConfig) -> Tensor:
    """Policy over rollout per token: of the token, of its whole segment, or a mean of both."""
    level = settings.importance_sampling_level
    ratios = to_ratio(difference)
    if level == "token":
        return ratios
    if LOSSES[settings.loss].aggregation == "trajectory":
        segment_ratios = to_ratio(segment_means(difference, tokens.segments, tokens.mask))
    else:
        counted = tokens.mask if tokens.ratio_mask is None else tokens.ratio_mask
        segment_ratios = to_ratio(average_segments(difference, tokens.segments, counted))
    if level == "sequence":
        return segment_ratios
    if level == "average":
        return (ratios + segment_ratios) / 2
    return ratios**0.5 * segment_ratios**0.5


def segment_means(values: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
    """ART's mean over the trained tokens of a segment for each of them; untrained tokens get their own value."""
    sums, counts = sum_segments(values, segments, mask)
    return torch.where(mask, sums / (counts + SMALL_COUNT), values)


def bound_ratios(ratios: Tensor, settings: RlConfig, low: float, high: float) -> Tensor:
    """Cap the ratios, and zero those outside the bounds where that is asked for."""
    cap = settings.max_negative_advantage_importance_sampling_weight
    if cap is not None:
        ratios = ratios.clamp(max=cap)
    if settings.mask_prob_ratio:
        ratios = torch.where((ratios > low) & (ratios < high), ratios, torch.zeros_like(ratios))
    return ratios


def adjust_advantages(
    source: Tensor,
    difference: Tensor,
    mask: Tensor,
    tokens: Tokens,
    settings: RlConfig,
    total: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Advantages with the two penalties, and the mean divergence from the reference."""
    advantages = tokens.advantages
    if settings.kimi_k2_tau:
        advantages = advantages - settings.kimi_k2_tau * difference.detach()
    if tokens.reference is None or not settings.compares:
        return advantages, None
    divergences = (source - tokens.reference).detach() * mask
    mean = total(divergences.sum()) / (total(mask.sum()) + SMALL)
    if settings.kl_penalty_coef <= 0:
        return advantages, mean
    return advantages + settings.kl_penalty_coef * (mean - divergences) * mask, mean


def probability_sums(new: Tensor, tokens: Tokens) -> Tensor:
    """The moments of old and new probabilities that are known, float64."""
    known = ~torch.isnan(tokens.old)
    x, y = tokens.old[known].double().exp(), new.detach()[known].double().exp()
    return moments(x, y)


def moments(x: Tensor, y: Tensor) -> Tensor:
    """Sums for `correlation` of two tensors, [6]: count, x, y, xx, yy, xy."""
    return torch.stack([torch.ones_like(x).sum(), x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()])


def correlation(sums: Tensor) -> float:
    """Correlation of old and new token probabilities; NaN when one of them varies by no more than rounding."""
    count, x, y, xx, yy, xy = sums.tolist()
    old, new = count * xx - x * x, count * yy - y * y
    if old <= ROUNDING * count * xx or new <= ROUNDING * count * yy:
        return float("nan")
    return float((count * xy - x * y) / (old * new) ** 0.5)


def shift(values: Tensor, padding: float) -> Tensor:
    """Move what is stored at each token [batch, length] to the place that predicts it, and pad the end."""
    return torch.nn.functional.pad(values[:, 1:], (0, 1), value=padding)
