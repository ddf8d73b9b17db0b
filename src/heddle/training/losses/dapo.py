"""DAPO: clip higher, and a mean over the tokens of the whole job (Yu et al., arXiv:2503.14476).

loss = 1/N sum_i sum_t -min(r A, clip(r, 1 - 0.2, 1 + 0.28) A), with N the job's mean of tokens per gradient step.
"""

from heddle.training.losses.base import Loss, clipped_surrogate

DAPO = Loss("dapo", clipped_surrogate, aggregation="job_token_mean", bounds=(0.2, 0.28))
