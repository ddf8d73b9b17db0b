"""Distillation: a student reaches the held-out score of a step trained on rewards, with a fifth of its rollouts."""

from pathlib import Path

import pytest

from tests.support.distillation import COURSES, learn_from_rewards, learn_from_teacher
from tests.support.server import ParentProcess
from tests.support.training import TrainingWire
from tests.support.trajectories import group, said, trajectory, user


@pytest.mark.thorough
def test_a_fifth_of_the_rollouts(project: str, tmp_path: Path) -> None:
    course = COURSES["preference"]
    with ParentProcess(tmp_path / "data") as process:
        taught = learn_from_rewards(process, project, course, 0)
        assert taught.after >= taught.before + 0.2
        most = taught.rollouts // 5 // (course.teacher_groups[0] * course.teacher_groups[1])
        told = learn_from_teacher(process, project, course, 1, taught.address, taught.after, most)
    assert told.before == taught.before and told.after >= taught.after
    assert 5 * told.rollouts <= taught.rollouts


def test_the_distance_to_a_teacher_of_equal_weights_is_zero(training: TrainingWire) -> None:
    """Without a reward, and with one trajectory in the group: neither is needed."""
    other = training.model()
    groups = [group(trajectory(user("Say yes, no or maybe."), said("yes")))]
    config = {"loss_fn": "reverse_kl", "learning_rate": 1e-3}
    address = f"wandb-artifact:///{other['entity']}/lab/{other['name']}:step0"
    for reference in ({}, {"kl_ref_adapter_path": address}):
        job = training.train(training.model(), groups, experimental_config=config | reference)
        assert job["gradient_steps"] == 1
        assert job["metrics"]["loss/kl_policy_ref"] == 0.0
