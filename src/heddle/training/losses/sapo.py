"""SAPO: a soft gate instead of a clip (Gao et al., arXiv:2511.20347).

loss = 1/S sum_i 1/T_i sum_t -f(r) A, f(r) = 4 sigmoid(t (r - 1)) / t, with the temperature t `temperature_pos` where
A > 0 and `temperature_neg` elsewhere.
"""

from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Option, Terms

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """SAPO of each token."""
    is_good = (terms.advantages > 0).to(terms.new.dtype)
    options = terms.options
    temperatures = is_good * options["temperature_pos"] + (1 - is_good) * options["temperature_neg"]
    return -(temperatures * (terms.ratios - 1)).sigmoid() * 4 / temperatures * terms.advantages


SAPO = Loss(
    "sapo",
    per_token,
    aggregation="sequence_mean",
    levels=("token", "sequence"),
    options={"temperature_pos": Option(1.0, is_open=True), "temperature_neg": Option(1.05, is_open=True)},
)
