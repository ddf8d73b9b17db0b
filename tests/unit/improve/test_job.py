"""What an improvement does to the name of a model that others change meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heddle.errors import Conflict
from heddle.evals.jobs import Later
from heddle.improve.job import Improvements
from heddle.improve.timeline import Loop


class Models:
    """A model whose name means a step; somebody publishes step 7 before it is pointed elsewhere for the first time."""

    def __init__(self, latest: int, publishes: bool) -> None:
        self.meant, self.publishes = latest, publishes

    async def latest(self, _model: object) -> int:
        return self.meant

    async def roll_back(self, _model: object, step: int, instead_of: int | None = None) -> None:
        if self.publishes:
            self.meant, self.publishes = 7, False
        if instead_of is not None and self.meant != instead_of:
            raise Conflict("it means another step")
        self.meant = step


def improvements(models: Models) -> Any:
    """The jobs over these models, with scores of a monitor that are all 0."""
    made = Improvements.__new__(Improvements)
    made._training = cast(Any, SimpleNamespace(models=models))

    async def read_scores(*_: object) -> list[float]:
        return [0.0]

    made._read_scores = read_scores  # type: ignore[method-assign]
    return made


WATCH = SimpleNamespace(calls=1, below=0.5, monitor="m", hours=1)
LOOP = cast(Loop, SimpleNamespace(model=None, asked=SimpleNamespace(watch=WATCH)))


@pytest.mark.parametrize(
    ("latest", "publishes", "meant", "is_promoted"),
    [(1, False, 2, True), (2, False, 2, True), (3, False, 3, False), (1, True, 7, False)],
)
def test_a_promotion_leaves_what_was_published_meanwhile(
    latest: int, publishes: bool, meant: int, is_promoted: bool
) -> None:
    models = Models(latest, publishes)
    promoted = asyncio.run(improvements(models)._promote(LOOP, 1, 2))
    assert models.meant == meant and (promoted["reason"] is None) == is_promoted
    assert is_promoted or f"means step {meant} by now" in promoted["reason"]


def test_a_promotion_is_not_taken_back_from_what_was_published_meanwhile() -> None:
    """The scores are read for a while; step 7, which was published behind that, lost the name."""
    models = Models(2, publishes=True)
    with pytest.raises(Later):
        asyncio.run(improvements(models)._watch(LOOP, 1, 2, 0))
    seen = asyncio.run(improvements(models)._watch(LOOP, 1, 2, 0))
    assert models.meant == 7 and not seen["rolled_back"] and "means step 7" in seen["reason"]
    models = Models(2, publishes=False)
    assert asyncio.run(improvements(models)._watch(LOOP, 1, 2, 0))["rolled_back"] and models.meant == 1
