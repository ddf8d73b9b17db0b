"""PPO's clipped surrogate (Schulman et al., arXiv:1707.06347), as ART computes it.

loss = -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), r = exp(log p - log m); every trajectory counts once.
"""

from heddle.training.losses.base import Loss, clipped_surrogate

PPO = Loss(
    "ppo",
    clipped_surrogate,
    aggregation="trajectory",
    bounds=(0.2, None),
    levels=("token", "sequence", "average", "geometric_average"),
)
