"""Loading in the background: what may pass is tried again, what cannot stays as the failure."""

import asyncio
from collections.abc import Iterator

import pytest

from heddle.errors import InvalidRequest, Unavailable
from heddle.inference import served_model
from heddle.inference.engine.base import EngineFailed
from heddle.inference.served_model import ModelLoader


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "RETRY_SECONDS", 0.0)


def run(outcomes: list[Exception | None], waits_for_engine: bool = False) -> tuple[list[str | None], int]:
    """The problems that were seen while these came one after the other, the last one at the end; and how many did."""
    seen: list[str | None] = []
    left: Iterator[Exception | None] = iter(outcomes)
    tries = 0

    async def load() -> None:
        nonlocal tries
        tries += 1
        seen.append(subject.problem)
        if (outcome := next(left)) is not None:
            raise outcome

    async def go() -> None:
        assert subject.problem is None
        subject.start()
        assert subject._task is not None
        await asyncio.wait([subject._task])
        seen.append(subject.problem)
        subject.succeeded()
        assert subject.problem is None
        await subject.stop()

    subject = ModelLoader(load, waits_for_engine)
    asyncio.run(go())
    return seen, tries


def test_an_outage_is_waited_for() -> None:
    away = Unavailable("PostgreSQL is away")
    assert run([away, away, None]) == (["The model is loading", "PostgreSQL is away", "PostgreSQL is away", None], 3)


def test_servers_that_others_run_are_waited_for_and_an_engine_of_ours_is_not() -> None:
    failed = EngineFailed("no server answers")
    assert run([failed, None], waits_for_engine=True) == (["The model is loading", "no server answers", None], 2)
    assert run([failed, None]) == (["The model is loading", "no server answers"], 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [(InvalidRequest("no adapter"), "no adapter"), (ZeroDivisionError("oh"), "Loading the model failed: oh")],
)
def test_what_cannot_go_well_stays(error: Exception, said: str) -> None:
    assert run([error, None]) == (["The model is loading", said], 1)
