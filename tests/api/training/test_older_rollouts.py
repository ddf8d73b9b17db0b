"""Asynchronous loops: rollouts of an older step are trained later, and the job says how far off the policy they are."""

import random
from typing import Any

import pytest

from tests.clients.art import tasks
from tests.support.rl import Trainer
from tests.support.server import HeddleProcess

RATIO, LARGEST, LAG = "offpolicy/ratio_mean", "offpolicy/ratio_max", "offpolicy/lag_mean"


def rollouts(trainer: Trainer, step: int | None, says: int | None) -> list[dict[str, Any]]:
    """Rollouts of a step, with rewards that differ within each group; each says which step sampled it."""
    problems = [tasks.choice(random.Random(number)) for number in range(4)]
    groups = trainer.rollouts(problems, 8, step=step)
    for group in groups:
        for number, trajectory in enumerate(group["trajectories"]):
            trajectory["reward"] = float(number % 2)
            trajectory["initial_policy_version"] = trajectory["final_policy_version"] = says
    return groups


def test_rollouts_of_an_older_step(server: HeddleProcess, project: str) -> None:
    with Trainer(server.url, project) as trainer:
        old = rollouts(trainer, step=None, says=0)
        for number in range(3):
            (fresh,) = trainer.train(rollouts(trainer, step=None, says=number), learning_rate=1e-2)
            assert fresh[RATIO] == pytest.approx(1, abs=1e-4) and fresh[LAG] == 0
            assert fresh[LARGEST] == pytest.approx(1, abs=1e-2)
        (late,) = trainer.train(old, learning_rate=1e-2)
        assert late[LAG] == 3 and late[LARGEST] > 1.01

        pinned = rollouts(trainer, step=1, says=None)
        (unnamed,) = trainer.train(pinned, learning_rate=1e-2)
        assert LAG not in unnamed and unnamed[LARGEST] > 1.01
        assert trainer.get(f"/v1/preview/models/{trainer.model['id']}")["latest_step"] == 5
