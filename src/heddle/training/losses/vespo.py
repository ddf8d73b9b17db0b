"""VESPO: a smooth weight of the whole sequence's ratio instead of a clip (arXiv:2602.10693), as TRL computes it.

w = exp(sum over the sequence of (log p - log m)), phi(w) = exp(l) w^k exp(-l w) without a gradient, (k, l) =
(`k_pos`, `lambda_pos`) where A >= 0, else (`k_neg`, `lambda_neg`); loss = 1/N sum_i sum_t -phi(w) A log p.
Logarithms stay within [-20, 20], log w within [log 1e-8, 20]; weights of `importance_correction` are factors of w.
"""

import math
from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Option, Terms, sum_segments

if TYPE_CHECKING:
    from torch import Tensor

LOWEST, HIGHEST = math.log(1e-8), 20.0


def per_token(terms: Terms) -> "Tensor":
    """VESPO of each token."""
    logarithms = (terms.new - terms.old).detach().clamp(-HIGHEST, HIGHEST)
    if terms.correction is not None:
        logarithms = logarithms + terms.correction.log().clamp(LOWEST, HIGHEST)
    logarithm = sum_segments(logarithms, terms.segments, terms.mask)[0].clamp(LOWEST, HIGHEST)
    is_good = (terms.advantages >= 0).to(terms.new.dtype)
    options = terms.options
    power = is_good * options["k_pos"] + (1 - is_good) * options["k_neg"]
    decay = (is_good * options["lambda_pos"] + (1 - is_good) * options["lambda_neg"]).clamp(min=1e-4)
    weights = (decay + power * logarithm - decay * logarithm.exp()).exp()
    return -weights.nan_to_num(posinf=0.0) * terms.advantages * terms.new


VESPO = Loss(
    "vespo",
    per_token,
    aggregation="job_token_mean",
    options={"k_pos": Option(2.0), "lambda_pos": Option(3.0), "k_neg": Option(3.0), "lambda_neg": Option(2.0)},
    corrects_itself=True,
)
