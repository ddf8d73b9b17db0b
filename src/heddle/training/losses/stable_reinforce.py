"""StableReinforce: the ratio is bounded before the exponential, outliers are left out (R1-Reward, arXiv:2505.02835).

r = exp(clip(log p - log m, -log `ratio_limit`, log `ratio_limit`)); tokens with |A| > `advantage_limit` (0: no limit)
are left out; loss = 1/S sum_i 1/T_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + `kl_coeff` k3, where
k3 = m/p - log(m/p) - 1 estimates the divergence from the sampling policy.
Tinker's loss of this name has no published formula; its `kl_coeff` is taken as this one.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Option, Terms, clipped_surrogate, k3

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """StableReinforce of each token."""
    options = terms.options
    limit = math.log(options["ratio_limit"])
    ratios = (terms.new - terms.old).clamp(-limit, limit).exp()
    losses = clipped_surrogate(replace(terms, ratios=ratios))
    if options["advantage_limit"]:
        losses = losses * (terms.advantages.abs() <= options["advantage_limit"])
    return losses + options["kl_coeff"] * k3(terms.new, terms.old) if options["kl_coeff"] else losses


STABLE_REINFORCE = Loss(
    "stable_reinforce",
    per_token,
    aggregation="sequence_mean",
    bounds=(0.2, None),
    options={"ratio_limit": Option(1e3, 1.0, is_open=True), "advantage_limit": Option(3.0), "kl_coeff": Option(0.0)},
)
