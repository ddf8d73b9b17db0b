"""GRPO: group relative advantages, and a mean over sequences of their means (DeepSeekMath, arXiv:2402.03300).

loss = 1/S sum_i 1/T_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A). At the level `sequence` r is that of
GSPO with the gradient through the mean.
"""

from heddle.training.losses.base import Loss, clipped_surrogate

GRPO = Loss("grpo", clipped_surrogate, aggregation="sequence_mean", bounds=(0.2, None), levels=("token", "sequence"))
