"""DPO: preferences between two answers, without a reward model (Rafailov et al., arXiv:2305.18290).

loss = -log sigmoid(beta (log p(c) - log q(c) - (log p(r) - log q(r)))), a mean over pairs; log p(c) is the sum over the
tokens of the chosen answer under the policy, q the policy that the job starts from, r the rejected answer.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def per_pair(chosen: "Tensor", rejected: "Tensor", beta: float) -> "Tensor":
    """DPO of each pair, from the sums of log p - log q over the tokens of its two answers."""
    margins = beta * (chosen - rejected)
    return margins.new_zeros(margins.shape).logaddexp(-margins)
