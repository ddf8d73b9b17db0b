"""BNPO as TRL names it: the clipped surrogate with a mean over the tokens of the gradient step.

loss = 1/N sum_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), with N the step's tokens (TRL, loss_type
"bnpo"; the name is from Xiao et al., arXiv:2506.02864, whose Beta normalisation of rewards is not part of it).
"""

from heddle.training.losses.base import Loss, clipped_surrogate

BNPO = Loss("bnpo", clipped_surrogate, aggregation="token_mean", bounds=(0.2, None))
