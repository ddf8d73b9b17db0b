"""Cross-entropy of given tokens, as fine-tuning and Tinker's `cross_entropy` minimise it: loss = -w log p.

Fine-tuning: w = 1 and a mean over the step's trained tokens.
"""

from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Terms

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """The surprise of each token."""
    return -terms.new


CROSS_ENTROPY = Loss("cross_entropy", per_token, aggregation="token_mean")
