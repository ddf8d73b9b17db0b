"""On-policy distillation: the reverse divergence from a teacher, token by token, on what the policy itself sampled.

A = `coef` (log q - log m) for the teacher q, loss = -r A, r = exp(log p - log m), a mean over the step's tokens: the
gradient is that of `coef` KL(p || q) at each state (Agarwal et al., arXiv:2306.13649; Gu et al., arXiv:2306.08543; Lu,
"On-Policy Distillation", 2025). `reward_coef` (0) times the advantage of the rewards is added to A.
"""

from typing import TYPE_CHECKING

from heddle.training.losses.base import Loss, Option, Terms

if TYPE_CHECKING:
    from torch import Tensor


def per_token(terms: Terms) -> "Tensor":
    """Distillation of each token."""
    assert terms.reference is not None
    advantages = terms.options["coef"] * (terms.reference - terms.old)
    if terms.options["reward_coef"]:
        advantages = advantages + terms.options["reward_coef"] * terms.advantages
    return -terms.ratios * advantages


REVERSE_KL = Loss(
    "reverse_kl",
    per_token,
    aggregation="token_mean",
    options={"coef": Option(1.0, is_open=True), "reward_coef": Option(0.0)},
    needs_reference=True,
)
