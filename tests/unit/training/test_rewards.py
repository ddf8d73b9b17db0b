"""Where the reward of a traced rollout is found."""

from typing import Any

import pytest

from heddle.training import Reward, trajectory_groups
from heddle.training.calls import collect
from tests.support.calls import USER, call, chat, feedback, sampled, with_feedback

Json = Any


def only(groups: list[Json]) -> Json:
    """The one trajectory of the one group."""
    (group,) = groups
    (trajectory,) = group["trajectories"]
    return trajectory


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ({"feedback_type": "wandb.runnable.judge", "path": "output.score"}, 0.75),
        ({"feedback_type": "wandb.runnable.plain"}, 2.0),
        ("wandb.runnable.plain", 2.0),
        ({"feedback_type": "wandb.annotation.good"}, 1.0),
        ({"feedback_type": "wandb.reaction.1", "values": {"👍": 1, "👎": -1}}, -1.0),
        ({"feedback_type": "wandb.annotation.good", "values": {"true": 5}}, 5.0),
        (Reward("output.deep.0.reward"), 0.5),
        ({"path": "output.missing", "default": -2}, -2.0),
    ],
)
def test_rewards_come_from_feedback_or_from_the_call(reward: Json, expected: float) -> None:
    subject = with_feedback(
        call("root", output={"deep": [{"reward": 0.5}]}),
        feedback("wandb.runnable.judge", {"output": {"score": 0.75}}),
        feedback("wandb.runnable.plain", {"output": 1}, "2026-01-01"),
        feedback("wandb.runnable.plain", {"output": 2}, "2026-01-02"),
        feedback("wandb.annotation.good", {"value": True}),
        feedback("wandb.reaction.1", {"emoji": "👎"}),
    )
    made = only(trajectory_groups([subject, chat("a", "root", 1, [USER], sampled("x", 1))], reward))
    assert made["reward"] == expected


def test_feedback_on_a_call_below_counts_where_the_subject_has_none() -> None:
    below = with_feedback(chat("a", "root", 1, [USER], sampled("x", 1)), feedback("wandb.runnable.s", {"output": 0.3}))
    assert only(trajectory_groups([call("root"), below], "wandb.runnable.s"))["reward"] == 0.3
    above = with_feedback(call("root"), feedback("wandb.runnable.s", {"output": 0.9}))
    assert only(trajectory_groups([above, below], "wandb.runnable.s"))["reward"] == 0.9


@pytest.mark.parametrize("reward", [{}, {"path": ""}, {"path": "reward"}, {"path": "id"}])
def test_a_reward_that_no_call_has_is_refused(reward: Json) -> None:
    with pytest.raises(ValueError, match="feedback_type"):
        trajectory_groups([], reward)


@pytest.mark.parametrize("value", ["0.5", None, [1], {"a": 1}, float("nan"), 10**400])
def test_what_is_no_number_is_no_reward(value: Json) -> None:
    calls = [call("root", output={"score": value}), chat("a", "root", 1, [USER], sampled("x", 1))]
    found = collect(calls, "output.score")
    assert (found.counts["without_reward"], found.groups) == (1, [])
