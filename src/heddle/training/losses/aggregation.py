"""How the losses of tokens become the loss of a gradient step; `Aggregation` says what each name means."""

from heddle.training.losses.base import Aggregation

SMALL = 1e-6
"""Beside ART's counts of tokens."""


def trajectory_weight(tokens: int) -> float:
    """What each token counts, so that every trajectory counts once; `tokens` are the trained ones of all histories."""
    return 1.0 / (tokens + SMALL)


def weigh_tokens(aggregation: Aggregation, own: int, trajectory: int) -> float:
    """What each of a sequence's `own` trained tokens counts; `trajectory` is their number in all its histories."""
    if aggregation == "trajectory":
        return trajectory_weight(trajectory)
    return 1.0 / max(own, 1) if aggregation == "sequence_mean" else 1.0


def find_divisor(aggregation: Aggregation, tokens: float, sequences: int, job_tokens: float, length: float) -> float:
    """What the sum over a step's weighted tokens is divided by.

    `tokens` and `sequences` of the step, `job_tokens` per step on average, `length` the constant of Dr. GRPO.
    """
    if aggregation == "trajectory":
        return tokens + SMALL
    if aggregation == "token_mean":
        return max(tokens, 1.0)
    if aggregation == "job_token_mean":
        return max(job_tokens, 1.0)
    return max(sequences * (length if aggregation == "constant" else 1.0), 1.0)
