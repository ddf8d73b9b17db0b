"""Requests of Tinker's protocol that meet a fault each time they are begun."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from heddle.inference.engine.base import RequestRefused
from heddle.jobs.runner import Attempt
from heddle.settings import Settings
from heddle.training.tinker.runner import Requests, SampleRequests, TrainingRequests


class Failing(Requests):
    """Meets the same fault each time."""

    name = queue = "failing"
    fault: Exception

    async def perform(self, row: Any) -> Any:
        raise self.fault


def begin(fault: Exception, attempts: int) -> AsyncMock:
    """The rows after one more attempt than there were; raises what begins the request again."""
    rows = AsyncMock()
    failing = Failing(Mock(requests=rows, settings=Settings(training_attempts=3), wake={}), 1)
    failing.fault = fault
    row: Any = SimpleNamespace(id="session:sample:0:1", attempts=attempts, cancel_asked=None)
    asyncio.run(failing._work(Attempt(row)))
    return rows


@pytest.mark.parametrize("fault", [TypeError("of ours"), OverflowError(), KeyError("x")], ids=repr)
def test_a_fault_that_comes_each_time_ends_a_request(fault: Exception) -> None:
    for attempts in (0, 1):
        with pytest.raises(type(fault)):
            begin(fault, attempts)
    rows = begin(fault, 2)
    assert rows.count_attempt.await_count == 1
    [ended] = rows.finish.await_args_list
    assert ended.args[2:] == (None, "Internal server error", False)


def test_what_the_engine_refuses_is_not_begun_again() -> None:
    rows = begin(RequestRefused("the model's logits are not numbers"), 0)
    [ended] = rows.finish.await_args_list
    assert ended.args[2:] == (None, "the model's logits are not numbers", True)


def test_a_fault_that_passes_does_not_count() -> None:
    with pytest.raises(OSError, match="disk"):
        begin(OSError("disk"), 2)


@pytest.mark.parametrize("kind", [SampleRequests, TrainingRequests])
def test_what_waits_ends_with_the_key_of_its_session(kind: type[Requests]) -> None:
    why = "The key of user 'ann', which started this, was revoked"
    rows = AsyncMock()
    tinker = Mock(requests=rows, rows=AsyncMock(), models=AsyncMock(), settings=Settings(), wake={})
    tinker.sessions.find_problem = AsyncMock(return_value=why)
    given = (tinker, Mock(), Mock()) if kind is TrainingRequests else (tinker,)
    row: Any = SimpleNamespace(
        id="session:train:0:1", target="session:train:0", kind="x", body=b"{}", cancel_asked=None
    )
    asyncio.run(kind(*given)._work(Attempt(row)))
    [ended] = rows.finish.await_args_list
    assert ended.args[2:] == (None, why, True)
