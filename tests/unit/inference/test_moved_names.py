"""Names that mean another step while a request for them begins."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heddle.errors import InvalidRequest, NotFound
from heddle.inference.service import Inference


class Racing(Inference):
    """A service whose name means one policy after the other, of which those before the last were deleted."""

    def __init__(self, *policies: str | None) -> None:
        self.left = list(policies)
        self.begun: list[str] = []

    async def admit(self, wire: Any, body: Any, arrival: Any) -> Any:
        """A request for what the name means now."""
        named = await self.resolve(None, arrival)
        return SimpleNamespace(policy=named.policy, parsed=SimpleNamespace(chat=SimpleNamespace(model="name")))

    async def begin_generation(self, running: Any) -> None:
        """Begins, unless the policy is deleted just now."""
        self.begun.append(running.policy)
        if len(self.left) > 1:
            self.left.pop(0)
            raise InvalidRequest(f"adapter {running.policy} is not there any more")

    async def resolve(self, name: str | None, arrival: Any) -> Any:
        """What the name means."""
        if self.left[0] is None:
            raise NotFound("The model `name` does not exist.")
        return SimpleNamespace(policy=self.left[0])


def begin(service: Racing) -> str:
    return asyncio.run(service.begin(cast(Any, None), {}, cast(Any, None))).policy


def test_a_step_that_is_deleted_after_a_rollback_does_not_cost_the_request() -> None:
    service = Racing("m@3", "m@2", "m@1")
    assert begin(service) == "m@1" and service.begun == ["m@3", "m@2", "m@1"]


def test_what_else_is_wrong_is_said_at_once() -> None:
    service = Racing("m@3", "m@3", "m@3")
    with pytest.raises(InvalidRequest, match="m@3 is not there any more"):
        begin(service)
    assert service.begun == ["m@3"]


def test_a_model_that_went_is_not_there() -> None:
    service = Racing("m@3", None)
    with pytest.raises(NotFound):
        begin(service)
