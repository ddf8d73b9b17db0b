"""GSPO: the ratio of a whole sequence, clipped as one (Zheng et al., arXiv:2507.18071, sections 4.1 and 4.3).

s = exp(mean over the sequence of (log p - log m)); s_t = sg(s) p / sg(p), which has the value of s and the gradient
of its own token (GSPO-token), so that advantages may differ within a sequence; with equal ones it is GSPO.
loss = 1/S sum_i 1/T_i sum_t -min(s_t A, clip(s_t, 1 - 3e-4, 1 + 4e-4) A).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Terms, clipped_surrogate

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """GSPO-token of each token."""
    ratios = terms.ratios.detach() * (terms.new - terms.new.detach()).exp()
    return clipped_surrogate(replace(terms, ratios=ratios))


GSPO = Loss("gspo", per_token, aggregation="sequence_mean", bounds=(3e-4, 4e-4), levels=("sequence",))
