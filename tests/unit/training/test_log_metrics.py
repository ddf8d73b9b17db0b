"""Figures of logged trajectories: the client's own formula, by hand."""

from statistics import pstdev
from typing import Any

import pytest

from heddle.training.schemas.trajectories import TrajectoryGroup, log_metrics


def groups(*values: dict[str, Any]) -> list[TrajectoryGroup]:
    """Groups as a body holds them."""
    return [TrajectoryGroup.model_validate(value) for value in values]


def test_every_figure() -> None:
    found = log_metrics(
        "val",
        groups(
            {
                "trajectories": [
                    {"reward": 1.0, "metrics": {"correct": True, "turns": 3}},
                    {"reward": 0.0, "metrics": {"correct": False}},
                ],
                "exceptions": [{"type": "E", "message": "m"}],
                "metrics": {"judge": 0.25},
            },
            {"trajectories": [{"reward": 4.0}], "metrics": {"judge": 0.75}},
            {"trajectories": [{"reward": 1.0}, {"reward": 1.0}, {"reward": 4.0}]},
            {"trajectories": [], "metrics": {"judge": 100.0}},
        ),
    )
    assert found == pytest.approx(
        {
            "val/reward": 11 / 6,
            "val/correct": 0.5,
            "val/turns": 3.0,
            "val/group_judge": 0.5,
            "val/exception_rate": 1 / 7,
            "val/reward_std_dev": (0.5 + pstdev([1, 1, 4])) / 2,
        }
    )


def test_without_rollouts_there_is_no_mean() -> None:
    assert log_metrics("train", []) == {"train/reward_std_dev": 0.0}
    assert log_metrics("train", groups({"trajectories": []})) == {"train/reward_std_dev": 0.0}
    failed = log_metrics("train", groups({"trajectories": [], "exceptions": [{}]}))
    assert failed == {"train/exception_rate": 1.0, "train/reward_std_dev": 0.0}


def test_a_metric_named_reward_does_not_mix_with_the_rewards() -> None:
    found = log_metrics("val", groups({"trajectories": [{"reward": 1.0, "metrics": {"reward": 9.0}}]}))
    assert found["val/reward"] == 1.0


def test_figures_beyond_the_range_of_floats_are_left_out() -> None:
    found = log_metrics("val", groups({"trajectories": [{"reward": 1.7e308}, {"reward": -1.7e308}]}))
    assert found == {"val/exception_rate": 0.0, "val/reward": 0.0}
    equal = log_metrics("val", groups({"trajectories": [{"reward": 1.5e308}] * 2}))
    assert equal == {"val/exception_rate": 0.0, "val/reward": 1.5e308, "val/reward_std_dev": 0.0}
