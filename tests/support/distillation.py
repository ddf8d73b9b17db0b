"""The same task learned twice: from rewards, and then by a fresh adapter from the step that this has trained."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.clients.art import tasks
from tests.support.rl import Trainer, children_seconds
from tests.support.server import HeddleProcess


@dataclass(frozen=True)
class Course:
    """A task with its held-out problems, and the rollouts and learning rate of a step of each kind."""

    draw: tasks.Draw
    held: int
    steps: int
    """Of reinforcement learning, 8 groups of 8 each."""
    learning_rate: float
    teacher_groups: tuple[int, int] = (16, 1)
    """Problems of a step of distillation, and the answers to each."""
    teacher_learning_rate: float = 1e-2
    row_tokens: int | None = None
    """Of a gradient step of distillation; None is all of a job."""


COURSES = {
    "preference": Course(tasks.choice, 16, 25, 2e-3),
    "comparing": Course(tasks.compare, 100, 25, 5e-3, (32, 1), 5e-3, 512),
    "calling a tool": Course(tasks.tool_sum, 32, 10, 3e-3),
}


@dataclass(frozen=True)
class Learned:
    """How a student came to its held-out score; `seconds` are CPU seconds of the server without the tests."""

    address: str
    before: float
    after: float
    steps: int
    rollouts: int
    seconds: float


def learn_from_rewards(process: HeddleProcess, project: str, course: Course, seed: int) -> Learned:
    """So many steps on rewards."""

    def is_done(step: int, score: Callable[[], float]) -> bool:
        del score
        return step == course.steps

    return _learn(process, project, course, seed, (8, 8), is_done, learning_rate=course.learning_rate)


def learn_from_teacher(
    process: HeddleProcess, project: str, course: Course, seed: int, teacher: str, goal: float, most: int
) -> Learned:
    """Steps on a teacher's logprobs until the held-out score is `goal`, at most so many; no reward is looked at."""

    def is_done(step: int, score: Callable[[], float]) -> bool:
        return step == most or score() >= goal

    fields = {
        "loss_fn": "reverse_kl",
        "kl_ref_adapter_path": teacher,
        "learning_rate": course.teacher_learning_rate,
        "packed_sequence_length": course.row_tokens,
    }
    return _learn(process, project, course, seed, course.teacher_groups, is_done, **fields)


def _learn(
    process: HeddleProcess,
    project: str,
    course: Course,
    seed: int,
    shape: tuple[int, int],
    is_done: Callable[[int, Callable[[], float]], bool],
    **settings: Any,
) -> Learned:
    left_alone = tasks.held_out(course.draw, course.held)
    problems = list(left_alone.values())
    chance, (groups, size) = random.Random(seed), shape
    with Trainer(process.url, project) as trainer:
        before = trainer.accuracy(problems)
        step, seconds = 0, 0.0
        while True:
            began = children_seconds(process)
            drawn = [tasks.another(course.draw, chance, left_alone) for _ in range(groups)]
            trainer.train(trainer.rollouts(drawn, size), **settings)
            seconds += children_seconds(process) - began
            step += 1
            if is_done(step, lambda: trainer.accuracy(problems)):
                break
        after = trainer.accuracy(problems)
    return Learned(f"{trainer.name}:step{step}", before, after, step, step * groups * size, seconds)
