"""The objective of reinforcement learning (contract: training.md, section 2, objective per token).

Every tensor describes tokens in one order and shape; entry i is about one predicted token, so that nothing is shifted
here. What needs the whole row (token counts, the mean divergence) passes through `total`, which adds over the ranks
that hold parts of the row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.training.config import LossName, RlConfig

SMALL = 1e-6
ROUNDING = 1e-9
"""A variance over the mean square that says nothing: probabilities come from float32."""
SMALL_COUNT = 1e-8
"""Beside the number of tokens of a segment."""
LARGEST_DIFFERENCE = 600.0
"""Of logprobs: a ratio above its exponential would not be a number. Servers write -9999 for minus infinity."""


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
    """Logprobs under the policy that the KL penalty compares with."""
    original: Tensor | None = None
    """Logprobs of the rollout, where `old` was computed anew; NaN where unknown."""


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
    """Compare the policy's logprobs `new` with what was sampled; divide `loss_sum` by the row's trained tokens."""
    mask = tokens.mask.to(new.dtype)
    old = torch.where(torch.isnan(tokens.old), new.detach(), tokens.old)
    difference = new - old
    ratios = importance_ratios(difference, tokens, settings)
    low, high = 1 - settings.epsilon, 1 + settings.epsilon_high
    bounded = bound_ratios(ratios, settings, low, high)
    source = old if settings.kl_penalty_source == "sample" else new
    advantages, divergence = adjust_advantages(source, difference, mask, tokens, settings, total)
    losses = LOSSES[settings.loss](new, bounded, advantages, low, high)
    if settings.truncated_importance_sampling is not None:
        against = bounded
        if tokens.original is not None:  # the ratio of the recomputed old policy over the rollout's
            against = to_ratio(old - torch.where(torch.isnan(tokens.original), new.detach(), tokens.original))
        losses = losses * against.detach().clamp(max=settings.truncated_importance_sampling)
    losses = losses * tokens.weights * mask
    seen = ratios.detach()
    cap = settings.max_negative_advantage_importance_sampling_weight
    outside = (seen < low) | (seen > (high if cap is None else min(high, cap)))
    return Objective(losses.sum(), losses.detach(), seen, outside & tokens.mask, divergence)


def cispo(new: Tensor, ratios: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Clipped importance sampling: the ratio weighs the logprob and has no gradient."""
    return -ratios.detach().clamp(low, high) * advantages * new


def ppo(new: Tensor, ratios: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:  # noqa: ARG001
    """The clipped surrogate: the gradient goes through the ratio."""
    return -torch.minimum(ratios * advantages, ratios.clamp(low, high) * advantages)


LOSSES: dict[LossName, Callable[[Tensor, Tensor, Tensor, float, float], Tensor]] = {"cispo": cispo, "ppo": ppo}
"""Per token, before weights and mask: from the policy's logprobs, the ratios, the advantages and the ratio's bounds."""


def importance_ratios(difference: Tensor, tokens: Tokens, settings: RlConfig) -> Tensor:
    """Policy over rollout per token: of the token, of its whole segment, or a mean of both."""
    level = settings.importance_sampling_level
    ratios = to_ratio(difference)
    if level == "token":
        return ratios
    segment_ratios = to_ratio(segment_means(difference, tokens.segments, tokens.mask))
    if level == "sequence":
        return segment_ratios
    if level == "average":
        return (ratios + segment_ratios) / 2
    return ratios**0.5 * segment_ratios**0.5


def to_ratio(difference: Tensor) -> Tensor:
    """The ratio that belongs to a difference of logprobs; always a number."""
    return difference.clamp(max=LARGEST_DIFFERENCE).exp()


def segment_means(values: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
    """For every token the mean over the trained tokens of its segment; untrained tokens get their own value."""
    places = torch.unique(segments, return_inverse=True)[1].reshape(-1)
    counted = mask.reshape(-1).to(values.dtype)
    count = int(places.max()) + 1 if places.numel() else 0
    sums = values.new_zeros(count).index_add(0, places, values.reshape(-1) * counted)
    counts = values.new_zeros(count).index_add(0, places, counted)
    means = (sums / (counts + SMALL_COUNT))[places].reshape(values.shape)
    return torch.where(mask, means, values)


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
    if settings.kl_penalty_coef <= 0 or tokens.reference is None:
        return advantages, None
    divergences = (source - tokens.reference).detach() * mask
    mean = total(divergences.sum()) / (total(mask.sum()) + SMALL)
    return advantages + settings.kl_penalty_coef * (mean - divergences) * mask, mean


def probability_sums(new: Tensor, tokens: Tokens) -> Tensor:
    """Sums for `correlation`, [6] float64: count, x, y, xx, yy, xy of old and new probabilities that are known."""
    known = ~torch.isnan(tokens.old)
    x, y = tokens.old[known].double().exp(), new.detach()[known].double().exp()
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
