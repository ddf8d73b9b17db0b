"""REINFORCE with importance sampling: the ratio is not bounded (Tinker's `importance_sampling`).

loss = -r A, r = exp(log p - log m), summed over tokens, and a mean over sequences; on policy its gradient is that of
-A log p (Williams, 1992).
"""

from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Terms

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """The weighted advantage of each token."""
    return -terms.ratios * terms.advantages


IMPORTANCE_SAMPLING = Loss("importance_sampling", per_token, aggregation="sequence_sum", levels=("token", "sequence"))
