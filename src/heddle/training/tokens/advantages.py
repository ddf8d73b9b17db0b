"""From rewards to what a token's gradient is multiplied with (training.md, section 2).

A trajectory is compared with its group only. Weights and advantages are then normalised over the whole job, so that
the absolute scale of rewards never matters.
"""

import math
from collections.abc import Sequence

from heddle.training.base import TokenSequence
from heddle.wire.jsontypes import Json

SMALL = 1e-6
GHOST = 1e-9
"""A distance from the mean below this part of the group's range is rounding."""


def group_advantages(rewards: Sequence[float], scaled: bool) -> list[float]:
    """Reward minus the mean of its group, divided by the population standard deviation when `scaled`.

    Exactly 0.0 for whoever has the mean, and so for everybody in a group of equal rewards.
    """
    extent = max(rewards) - min(rewards)
    if not extent:
        return [0.0] * len(rewards)
    mean, deviation = _spread(rewards)
    ghost = GHOST * extent
    divisor = deviation + SMALL if scaled else 1.0
    return [0.0 if abs(reward - mean) <= ghost else (reward - mean) / divisor for reward in rewards]


def trajectory_weight(tokens: int) -> float:
    """What each of its tokens counts, so that every trajectory counts once; `tokens` are the trained ones."""
    return 1.0 / (tokens + SMALL)


def normalised(sequences: Sequence[TokenSequence], balance: float) -> list[tuple[float, float]]:
    """Advantage and weight of each sequence's tokens: the mean weight is 1, and so is the mean of |advantage| * weight.

    Means are over trained tokens. `balance` > 0 shrinks advantages that are not positive by that part, < 0 those that
    are not negative.
    """
    counts = [sum(sequence.mask) for sequence in sequences]
    mean_weight = _mean([sequence.weight for sequence in sequences], counts) or 1.0
    weights = [sequence.weight / mean_weight for sequence in sequences]
    advantages = [_balanced(sequence.advantage, balance) for sequence in sequences]
    sizes = [abs(advantage) * weight for advantage, weight in zip(advantages, weights, strict=True)]
    mean_size = _mean(sizes, counts) or 1.0
    return [(advantage / mean_size, weight) for advantage, weight in zip(advantages, weights, strict=True)]


def reward_spread(groups: Sequence[Json]) -> float | None:
    """The mean over groups of at least two of their rewards' population standard deviation; None without such."""
    rewards = [[rollout.get("reward", 0.0) for rollout in group["trajectories"]] for group in groups]
    spreads = [_spread(values)[1] for values in rewards if len(values) > 1]
    return math.fsum(spreads) / len(spreads) if spreads else None


def learning_rate_multiplier(history: Sequence[tuple[int, float]]) -> float:
    """How the reward spread has changed since step 0, for `scale_learning_rate_by_reward_std_dev`.

    `history` holds (step, spread), oldest first. A straight line is laid through it (least squares); the answer is its
    value at the last step over its value at step 0, never below 0, and 1 where the line says nothing.
    """
    count = len(history)
    steps = [float(step) for step, _ in history]
    mean_step = math.fsum(steps) / count if count else 0.0
    variation = math.fsum((step - mean_step) ** 2 for step in steps)
    if not variation:
        return 1.0
    mean_spread = math.fsum(spread for _, spread in history) / count
    slope = math.fsum((step - mean_step) * (spread - mean_spread) for step, spread in history) / variation
    at_zero = mean_spread - slope * mean_step
    return max(0.0, (at_zero + slope * steps[-1]) / at_zero) if at_zero > 0 else 1.0


def _spread(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation; fsum, so that the order of the rewards changes nothing."""
    mean = math.fsum(rewards) / len(rewards)
    return mean, math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))


def _mean(values: Sequence[float], counts: Sequence[int]) -> float:
    total = sum(counts)
    return math.fsum(value * count for value, count in zip(values, counts, strict=True)) / total if total else 0.0


def _balanced(advantage: float, balance: float) -> float:
    if balance > 0 and advantage <= 0:
        return advantage * (1 - balance)
    if balance < 0 and advantage >= 0:
        return advantage * (1 + balance)
    return advantage
