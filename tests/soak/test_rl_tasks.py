"""Arithmetic that the tiny model cannot do is learned from right and wrong alone; held-out problems tell."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.art import tasks
from tests.support.art import SOAK
from tests.support.rl import Trainer, children_seconds, learn
from tests.support.server import HeddleProcess, ParentProcess

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


def check_learning(
    process: HeddleProcess, project: str, draw: tasks.Draw, held: int, gain: float, steps: int, **settings: Any
) -> None:
    """Train on problems that are not held out; the greedy accuracy on those that are must rise by `gain`."""
    left_alone = tasks.held_out(draw, held)
    chance = random.Random(0)
    with Trainer(process.url, project) as trainer:
        before = trainer.accuracy(list(left_alone.values()))
        started, seconds = time.monotonic(), children_seconds(process)
        told = learn(trainer, lambda: tasks.another(draw, chance, left_alone), steps, **settings)
        after = trainer.accuracy(list(left_alone.values()))
        wall, cpu = time.monotonic() - started, children_seconds(process) - seconds
        original = trainer.accuracy(list(left_alone.values()), step=0)
    print(
        f"\n{draw.__name__}: held-out accuracy {before:.3f} -> {after:.3f}, mean reward {told[0][0]:.3f} -> "
        f"{told[-1][0]:.3f}, {steps} steps, {cpu:.0f} CPU-s of the server, {wall:.0f} s"
    )
    assert after >= before + gain, [reward for reward, _ in told]
    assert original == pytest.approx(before, abs=0.03)
    for _, gradient_steps in told:
        if gradient_steps:
            assert gradient_steps[0]["offpolicy/ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert "Traceback" not in process.log()


def test_comparing_numbers_of_three_digits(project: str, tmp_path: Path) -> None:
    with ParentProcess(tmp_path / "data") as process:
        check_learning(process, project, tasks.compare, 100, 0.15, 10, groups=8, size=8, learning_rate=5e-3)


def test_calling_a_tool(project: str, tmp_path: Path) -> None:
    with ParentProcess(tmp_path / "data") as process:
        check_learning(process, project, tasks.tool_sum, 32, 0.15, 4, groups=8, size=8, learning_rate=3e-3)


@pytest.mark.skipif(not SOAK, reason="takes minutes: HEDDLE_SOAK=1")
def test_doubling_numbers_of_two_digits(project: str, tmp_path: Path) -> None:
    with ParentProcess(tmp_path / "data") as process:
        check_learning(process, project, tasks.double, 60, 0.15, 40, groups=24, size=8, learning_rate=4e-3)
