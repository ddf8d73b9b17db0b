"""What must not change an update (training.md, section 5), from trajectories to rows."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.training.config import RlConfig
from heddle.training.sequences import sequences
from heddle.training.trainer.packing import pack
from tests.support.trajectories import END, Json, choice, group, prepared, tiny_renderer, trajectory, user

Rewards = list[list[float]]
GROUPS: Any = st.lists(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=6), min_size=1, max_size=4)
CONFIGS: Any = st.fixed_dictionaries(
    {"scale_rewards": st.booleans(), "advantage_balance": st.sampled_from([0.0, 0.5, -0.5])}
)


def groups_of(rewards: Rewards) -> list[Json]:
    """A trajectory for each reward; no two answers are alike, and longer ones come with higher numbers."""
    return [
        group(
            *(
                trajectory(
                    user(f"ask {place}"), choice("x", [*[100 + 10 * place + index] * (index + 1), END]), reward=reward
                )
                for index, reward in enumerate(members)
            )
        )
        for place, members in enumerate(rewards)
    ]


def update(groups: Sequence[Json], config: dict[str, Any]) -> dict[int, float]:
    """What each answer (named by its first token) adds to the gradient of the one row: advantage * weight / tokens."""
    made = prepared(*groups, **config).sequences
    rows = pack(made, RlConfig(**config), 2048, "job", 0)
    if not rows:
        return {}
    (row,) = rows
    parts = row.advantages * row.weights / row.mask.sum()
    added: Counter[int] = Counter()
    for segment in sorted(set(row.segments[row.mask].tolist())):
        inside = (row.segments == segment) & row.mask
        added[int(row.tokens[inside][0])] += parts[inside].sum()
    return dict(added)


@given(GROUPS, CONFIGS, st.floats(-100, 100))
@settings(max_examples=60, deadline=None)
def test_a_shift_of_all_rewards_changes_nothing(rewards: Rewards, config: dict[str, Any], shift: float) -> None:
    shifted = [[reward + shift for reward in members] for members in rewards]
    assert update(groups_of(shifted), config) == pytest.approx(update(groups_of(rewards), config), rel=1e-6, abs=1e-9)


@given(GROUPS, CONFIGS, st.floats(0.1, 1000))
@settings(max_examples=60, deadline=None)
def test_a_positive_scale_of_all_rewards_changes_nothing(
    rewards: Rewards, config: dict[str, Any], scale: float
) -> None:
    """The 1e-6 beside the standard deviation is all that remains of the scale."""
    scaled = [[reward * scale for reward in members] for members in rewards]
    assert update(groups_of(scaled), config) == pytest.approx(update(groups_of(rewards), config), rel=1e-4, abs=1e-9)


@given(GROUPS, CONFIGS, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_trajectories_and_groups_changes_nothing(
    rewards: Rewards, config: dict[str, Any], random: Any
) -> None:
    groups = groups_of(rewards)
    mixed = [group(*random.sample(members["trajectories"], len(members["trajectories"]))) for members in groups]
    random.shuffle(mixed)
    assert update(mixed, config) == pytest.approx(update(groups, config), rel=1e-9, abs=1e-12)


@given(GROUPS, CONFIGS)
@settings(max_examples=60, deadline=None)
def test_all_groups_twice_is_the_same_step(rewards: Rewards, config: dict[str, Any]) -> None:
    groups = groups_of(rewards)
    assert update([*groups, *groups], config) == pytest.approx(update(groups, config), rel=1e-9, abs=1e-12)


@given(GROUPS, CONFIGS)
@settings(max_examples=60, deadline=None)
def test_the_step_has_size_one(rewards: Rewards, config: dict[str, Any]) -> None:
    added = update(groups_of(rewards), config)
    assert sum(map(abs, added.values())) == pytest.approx(1.0 if added else 0.0)


@given(GROUPS, st.integers(40, 200), st.text(max_size=8))
@settings(max_examples=60, deadline=None)
def test_rows_hold_every_token_that_is_trained_once(rewards: Rewards, capacity: int, seed: str) -> None:
    config = RlConfig(packed_sequence_length=capacity)
    made = sequences(groups_of(rewards), tiny_renderer(), config, 2048).sequences
    rows = pack(made, config, 2048, seed, 0)
    trained = Counter(
        int(token) for member in made for token, flag in zip(member.ids, member.mask, strict=True) if flag
    )
    assert Counter(int(token) for row in rows for token in row.tokens[row.mask]) == trained
    assert all(len(row.tokens) <= capacity for row in rows)
    assert sum(row.sequences for row in rows) == len(made)
    weights = numpy.concatenate([row.weights[row.mask] for row in rows]) if rows else numpy.ones(1)
    assert weights.mean() == pytest.approx(1.0)
