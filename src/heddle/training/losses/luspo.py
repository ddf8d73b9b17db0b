"""LUSPO: GSPO's ratio without the division by the length, which favours short answers (arXiv:2602.05261).

loss = 1/S sum_i sum_t -min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A), s = exp(mean_t(log p - log m)).
"""

from heddle.training.losses.base import Loss, clipped_surrogate

LUSPO = Loss("luspo", clipped_surrogate, aggregation="sequence_sum", bounds=(0.2, None), levels=("sequence",))
