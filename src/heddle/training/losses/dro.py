"""DRO: a squared pull towards the sampling policy instead of a ratio (arXiv:2405.19107, arXiv:2501.12599).

loss = -(A log p - beta / 2 (log p - log m)^2), summed over tokens, and a mean over sequences. Tinker's `dro`.
"""

from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Option, Terms

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """DRO of each token."""
    return terms.options["beta"] / 2 * (terms.new - terms.old).square() - terms.advantages * terms.new


DRO = Loss("dro", per_token, aggregation="sequence_sum", options={"beta": Option(0.05)})
