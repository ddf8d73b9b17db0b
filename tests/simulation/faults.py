"""Faults that heddle once had, or that its code guards against, to be planted: each must be found by a simulation."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from heddle.evals import monitors
from heddle.evals.monitors import Monitors
from heddle.jobs.runner import Loop, Runner
from heddle.store.clickhouse.call_writes import Watched
from heddle.store.control import inference
from heddle.store.control.coordination import NO_LEASE, QUEUED, RUNNING, JobQueue, Leases
from heddle.store.control.eval_jobs import EvalJobs, eval_jobs
from heddle.store.control.monitors import Alerts

Patches = list[tuple[Any, str, Any]]


def loops_end_with_their_first_error() -> Patches:
    """Slots of training once ended silently, in an outage while there was nothing to do."""

    async def run(self: Loop) -> None:
        while True:
            self._news.clear()
            pause = await self._work()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()

    return [(Loop, "run", run)]


def jobs_at_work_are_taken_again() -> Patches:
    """Whoever looks takes what another server works on."""

    def is_free(self: Any, held: Any = ()) -> Any:
        return sa.and_(self.jobs.c.state.in_((QUEUED, *self.at_work)), self.jobs.c.id.not_in(list(held)))

    return [(JobQueue, "_is_free", is_free)]


def jobs_of_dead_servers_are_nobodys() -> Patches:
    """What a killed server had begun waits for ever."""
    return [(JobQueue, "_is_free", lambda self, held=(): self.jobs.c.state == QUEUED)]


def lost_jobs_are_ended_all_the_same() -> Patches:
    """A server that slept writes the end of a job that another one has by now."""

    def is_mine(self: Any) -> Any:
        is_anybodys = sa.bindparam("me", type_=sa.Text).is_not(None)
        is_one = self.jobs.c.id.in_(sa.bindparam("ids", expanding=True))
        return sa.and_(self.jobs.c.state.in_(self.at_work), is_anybodys, is_one)

    return [(JobQueue, "_is_mine", property(is_mine)), (Runner, "_hold", lambda self: asyncio.sleep(0, 5.0))]


def monitors_hold_at_one_server() -> Patches:
    """Servers did not hear of a monitor that was made through another one, and noted no calls for it."""

    async def see(self: Monitors, changes: int) -> None:
        return None

    def among(self: Watched, connection: sa.Connection, keys: Any) -> Any:
        return [key for key in keys if key[0] in self.projects]

    return [(Monitors, "_see", see), (Watched, "among", among)]


def busy_queues_lose_calls() -> Patches:
    """Calls that could not be scored now, as the store or the queue was busy, were never scored."""
    return [(monitors, "_may_pass", lambda error: False)]


def alerts_are_stored_before_their_messages() -> Patches:
    """A crash between the two, and nobody is told."""
    save = Alerts.save_check

    async def save_check(self: Any, row: Any, messages: Any, before: str) -> None:
        await save(self, row, (), before)
        await save(self, row, messages, row.state)

    return [(Alerts, "save_check", save_check)]


def every_server_tells_alerts() -> Patches:
    """Each server that looked told the change again."""

    take, save = Leases.take, Alerts.save_check

    async def take_alerts(self: Leases, name: str, seconds: float) -> bool:
        return name == "alerts" or await take(self, name, seconds)

    async def save_check(self: Any, row: Any, messages: Any, before: str) -> None:
        found = await self.read(row.project, row.id)
        await save(self, row, messages, found.state if found is not None else before)

    return [(Leases, "take", take_alerts), (Alerts, "save_check", save_check)]


def published_steps_are_not_announced() -> Patches:
    """Other servers went on answering with the step that a name meant before."""
    return [(inference, "count_change", lambda connection, name: None)]


def starting_servers_take_everything() -> Patches:
    """A server that started queued what others were working on."""

    async def put_back_all(self: EvalJobs) -> int:
        change = eval_jobs.update().where(eval_jobs.c.state == RUNNING)
        return await self._execute(change.values(state=QUEUED, **NO_LEASE))

    return [(EvalJobs, "put_back_all", put_back_all)]


FAULTS: list[Callable[[], Patches]] = [
    published_steps_are_not_announced,
    jobs_at_work_are_taken_again,
    monitors_hold_at_one_server,
    loops_end_with_their_first_error,
    jobs_of_dead_servers_are_nobodys,
    lost_jobs_are_ended_all_the_same,
    busy_queues_lose_calls,
    alerts_are_stored_before_their_messages,
    every_server_tells_alerts,
    starting_servers_take_everything,
]


@contextlib.contextmanager
def planted(fault: Callable[[], Patches]) -> Iterator[None]:
    """The product with a fault."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in fault():
            stack.enter_context(patch.object(owner, name, value))
        yield
