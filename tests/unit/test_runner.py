"""Who runs jobs ends them with their leases, whatever the database answers."""

import asyncio
import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.jobs.runner import Attempt, Runner
from heddle.store.control.repository import Looks
from tests.simulation.loop import VirtualLoop

LEASE = 30.0
JOB = SimpleNamespace(id="a", cancel_asked=False, key_id=None)


class Queue:
    """Renews as many leases as it is told to; from the first time on it does not say which."""

    def __init__(self, kept: int) -> None:
        self.instance = SimpleNamespace(is_shared=True, looks=Looks())
        self.kept = kept
        self.renewed: list[float] = []

    async def is_any_free(self, _: int) -> bool:
        """Always."""
        return True

    async def renew(self, _ids: Collection[str], _seconds: float) -> int:
        """How many are still this server's."""
        self.renewed.append(asyncio.get_running_loop().time())
        return self.kept

    async def read_held(self) -> dict[str, bool]:
        """Those of this server."""
        if self.renewed:
            await asyncio.get_running_loop().create_future()
        return {"a": False}

    async def find_unended(self, job_ids: Collection[str]) -> set[str]:
        """Those of another one."""
        return set(job_ids)


class OneJob(Runner[Any]):
    """Works on one job without an end."""

    logger = logging.getLogger("heddle.test")
    name = "test"
    waiting = 1

    async def _next(self, is_full: bool) -> Any:
        taken = None if is_full or not self.waiting else JOB
        self.waiting -= taken is not None
        return taken

    async def _work(self, attempt: Attempt[Any]) -> None:
        await asyncio.get_running_loop().create_future()

    async def _rest(self) -> float:
        return 1.0


@pytest.mark.parametrize("kept", [1, 0], ids=["its own", "another server's"])
def test_a_job_ends_with_the_lease_that_is_known_to_be_held(kept: int) -> None:
    queue, loop = Queue(kept), VirtualLoop()
    ended: list[float] = []

    async def is_open() -> bool:
        return False

    async def main() -> None:
        runner = OneJob(queue, 1, LEASE)  # type: ignore[arg-type]
        await runner.start()
        await asyncio.sleep(1.0)
        await runner.ended("a", is_open)
        ended.append(loop.time())
        await runner.stop()

    loop.run(main())
    assert ended == [pytest.approx((queue.renewed[0] if kept else 0.0) + LEASE)]
