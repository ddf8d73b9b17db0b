"""CISPO: the clipped ratio weighs the logprob and has no gradient (MiniMax-M1, arXiv:2506.13585).

loss = -sg(clip(r, 1 - epsilon, 1 + epsilon_high)) A log p, r = exp(log p - log m). ART's objective and default:
epsilon 1 and epsilon_high 4 keep the ratio within [0, 5]; every trajectory counts once.
"""

from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Terms

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """CISPO of each token."""
    return -terms.ratios.detach().clamp(terms.low, terms.high) * terms.advantages * terms.new


CISPO = Loss(
    "cispo",
    per_token,
    aggregation="trajectory",
    bounds=(1.0, 4.0),
    levels=("token", "sequence", "average", "geometric_average"),
)
