"""Advantages, weights and their normalisation: recorded numbers and cases made by hand."""

from typing import Any

import pytest

from heddle.training.losses.base import trajectory_weight
from heddle.training.sequences import (
    TokenSequence,
    group_advantages,
    learning_rate_multiplier,
    normalise,
    reward_spread,
)
from tests.support.vectors import VECTORS, needs_vectors


def sequence(tokens: int, advantage: float, weight: float) -> TokenSequence:
    return TokenSequence([0] * tokens, [True] * tokens, [0.0] * tokens, 0, 0, advantage=advantage, weight=weight)


@needs_vectors
@pytest.mark.parametrize("case", VECTORS["advantages"], ids=lambda case: case["name"])
def test_recorded_advantages(case: dict[str, Any]) -> None:
    found = [
        value for rewards in case["rewards"] for value in group_advantages(rewards, case["scale_rewards"]) if value
    ]
    assert found == pytest.approx([result["advantage"] for result in case["results"]], abs=1e-12)
    weights = [trajectory_weight(sum(result["assistant_mask"])) for result in case["results"]]
    assert weights == pytest.approx([result["weight"] for result in case["results"]], abs=1e-12)


def test_by_hand() -> None:
    assert group_advantages([1.0, 0.0, 0.0], scaled=False) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert group_advantages([4.0, 0.0], scaled=True) == pytest.approx([2 / (2 + 1e-6), -2 / (2 + 1e-6)])
    assert group_advantages([1.0, 2.0, 3.0], scaled=True)[1] == 0.0


@pytest.mark.parametrize("rewards", [[3.0], [0.1] * 10, [0.7, 0.7, 0.7], [-1e-300] * 3])
@pytest.mark.parametrize("scaled", [True, False])
def test_equal_rewards_are_exactly_nothing(rewards: list[float], scaled: bool) -> None:
    """A sum of ten times 0.1 divided by ten is not 0.1; no such ghost survives."""
    assert group_advantages(rewards, scaled) == [0.0] * len(rewards)


@pytest.mark.parametrize("rewards", [[0.1, 0.3, 0.5], [0.7, 1.4, 2.1], [1000.1, 1000.2, 1000.3], [0.1, 1.1, 2.1]])
@pytest.mark.parametrize("scaled", [True, False])
def test_who_has_the_mean_gets_nothing_wherever_the_mean_lies(rewards: list[float], scaled: bool) -> None:
    """The mean of 0.1, 0.3 and 0.5 is no 0.3: rounding must not make the one in the middle trainable."""
    low, middle, high = group_advantages(rewards, scaled)
    assert low < middle == 0.0 < high


def test_a_small_difference_is_no_ghost() -> None:
    low, high = group_advantages([1.0, 1.0 + 1e-12], scaled=False)
    assert low < 0 < high


def test_normalised_means_are_one() -> None:
    sequences = [sequence(2, 1.5, 0.5), sequence(3, -0.5, 1 / 3), sequence(1, -2.0, 1.0)]
    values = normalise(sequences, 0.0)
    tokens = [2, 3, 1]
    assert sum(n * weight for n, (_, weight) in zip(tokens, values, strict=True)) / 6 == pytest.approx(1.0)
    sizes = [n * abs(advantage) * weight for n, (advantage, weight) in zip(tokens, values, strict=True)]
    assert sum(sizes) / 6 == pytest.approx(1.0)


@pytest.mark.parametrize(("balance", "ratio"), [(0.0, 1.0), (0.5, 2.0), (-0.5, 0.5)])
@pytest.mark.parametrize("size", [0.25, 1.0, 4.0])
def test_balance(balance: float, ratio: float, size: float) -> None:
    (up, _), (down, _) = normalise([sequence(1, size, 1.0), sequence(1, -size, 1.0)], balance)
    assert up / -down == pytest.approx(ratio)


def test_a_balance_that_leaves_nothing_divides_nothing() -> None:
    assert normalise([sequence(2, -1.0, 0.5)], 1.0) == [(-0.0, 1.0)]
    assert normalise([sequence(2, 1.0, 0.5)], -1.0) == [(0.0, 1.0)]


def test_reward_spread() -> None:
    groups = [[0.0, 2.0], [5.0], [], [1.0, 1.0]]
    asked = [{"trajectories": [{"reward": reward} for reward in rewards]} for rewards in groups]
    assert reward_spread(asked) == pytest.approx(0.5)
    assert reward_spread([{"trajectories": [{}, {"reward": 2.0}]}]) == pytest.approx(1.0)
    assert reward_spread([{"trajectories": [{"reward": 1.0}]}]) is None


def test_learning_rate_multiplier() -> None:
    assert learning_rate_multiplier([]) == learning_rate_multiplier([(3, 0.5)]) == 1.0
    assert learning_rate_multiplier([(2, 0.5), (2, 0.7)]) == 1.0
    assert learning_rate_multiplier([(0, 1.0), (1, 0.8), (2, 0.6)]) == pytest.approx(0.6)
    assert learning_rate_multiplier([(1, 0.9), (2, 0.6), (3, 0.3)]) == pytest.approx(0.25)
    assert learning_rate_multiplier([(1, 0.5), (2, 0.0), (4, 0.0)]) == 0.0
    assert learning_rate_multiplier([(1, 1.0), (2, 2.0)]) == 1.0, "the line says nothing at step 0"
    assert learning_rate_multiplier([(1, 0.1), (2, 1.0), (3, 1.9)]) == 1.0, "the line says less than nothing at step 0"
