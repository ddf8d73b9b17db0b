"""Dr. GRPO: no division by a length or a standard deviation (Liu et al., arXiv:2503.20783).

loss = 1/(S L) sum_i sum_t -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A), A = reward - mean of its group.
L is `max_completion_length`; 0 stands for the most trained tokens of a sequence of the job.
"""

from heddle.training.losses.base import Loss, Option, clipped_surrogate

DR_GRPO = Loss(
    "dr_grpo",
    clipped_surrogate,
    aggregation="constant",
    bounds=(0.2, None),
    options={"max_completion_length": Option(0.0)},
    scales_rewards=False,
)
