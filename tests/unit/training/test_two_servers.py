"""Two supervisors over the same tables and folder, as two servers have them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from heddle.errors import Unavailable
from heddle.jobs.metrics import JobMetrics
from heddle.store.control.repository import Instance
from heddle.store.control.training import OPEN, TrainJobs
from heddle.training.queue.events import TrainingMetrics
from heddle.training.queue.process import ProcessOptions
from heddle.training.queue.supervisor import Supervisor
from tests.support.training_bench import MODULE, PATIENCE, ROOT, Bench


class Server:
    """One of the servers."""

    def __init__(self, bench: Bench) -> None:
        store, settings = bench.store, bench.settings
        self.jobs = TrainJobs(store.train_jobs._executor, Instance(is_shared=True))
        options = ProcessOptions(1, settings.training_lease, MODULE)
        registry = CollectorRegistry()
        figures = TrainingMetrics(registry, JobMetrics(registry))
        self.supervisor = Supervisor(
            settings, store.train_models, self.jobs, bench.host, store.blobs.path, figures, options
        )

    def die(self) -> None:
        """From now on as killed: its end gives nothing back."""

        async def nothing(_job_id: str | None = None) -> int:
            return 0

        self.jobs.let_go = nothing  # type: ignore[method-assign]


@asynccontextmanager
async def servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Bench, Server, Server]]:
    """Two servers that have not started."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with Bench.open(folder, training_lease=2) as bench:
        both = Server(bench), Server(bench)
        try:
            yield (bench, *both)
        finally:
            for server in both:
                await server.supervisor.stop()


async def ended(bench: Bench, server: Server, job_id: str) -> str:
    """The state of a job when it is done, as a server hears of it."""
    async with asyncio.timeout(PATIENCE):
        await server.supervisor.wait_until_ended(job_id)
    state = (await bench.find(job_id)).state
    assert state not in OPEN
    return state


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_job_goes_on_at_the_other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    async def main() -> None:
        async with servers(tmp_path, monkeypatch) as (bench, one, other):
            model, gate = await bench.model(), tmp_path / "gate"
            job_id = await bench.job(model, wait_for=str(gate))
            await one.supervisor.start()
            await bench.has_events(job_id, 2)
            assert (await bench.find(job_id)).lease_owner == one.jobs.instance.owner
            if is_killed:
                one.die()
            await one.supervisor.stop()
            gate.touch()
            await other.supervisor.start()
            assert await ended(bench, other, job_id) == "succeeded"
            assert [event.seq for event in await bench.events(job_id)] == list(range(5))
            assert (await bench.find(job_id)).step == 1

    asyncio.run(main())


def test_work_that_came_to_one_server_is_done_by_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with servers(tmp_path, monkeypatch) as (bench, one, other):
            await one.supervisor.start()
            job_id = await bench.job(await bench.model())
            events = await other.supervisor.events.wait(job_id, -1, PATIENCE)
            assert events[0].type == "training_started", "told by the server that does not run it"
            assert await ended(bench, other, job_id) == "succeeded"

    asyncio.run(main())


def test_an_outage_while_there_is_nothing_to_do_ends_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with servers(tmp_path, monkeypatch) as (bench, one, _):
            look, failed = one.jobs.is_any_free, asyncio.Event()

            async def fail_once(now: int) -> bool:
                if failed.is_set():
                    return await look(now)
                failed.set()
                raise Unavailable("PostgreSQL does not answer")

            monkeypatch.setattr(one.jobs, "is_any_free", fail_once)
            await one.supervisor.start()
            await asyncio.wait_for(failed.wait(), PATIENCE)
            assert await ended(bench, one, await bench.job(await bench.model())) == "succeeded"

    asyncio.run(main())


@pytest.mark.thorough
def test_a_job_is_cancelled_through_the_other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with servers(tmp_path, monkeypatch) as (bench, one, other):
            model, gate = await bench.model(), tmp_path / "gate"
            running, waiting = await bench.job(model, wait_for=str(gate)), await bench.job(model)
            await one.supervisor.start()
            await bench.has_events(running, 2)
            for job_id in (waiting, running):
                assert await other.supervisor.cancel(job_id)
                assert await ended(bench, other, job_id) == "cancelled"
            assert not await other.supervisor.cancel(running)

    asyncio.run(main())


def test_a_server_that_slept_stops_and_finishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with servers(tmp_path, monkeypatch) as (bench, one, other):
            model, gate = await bench.model(), tmp_path / "gate"
            job_id = await bench.job(model, wait_for=str(gate))
            await one.supervisor.start()
            await bench.has_events(job_id, 2)
            (pid,) = one.supervisor.pids()
            # As after a sleep: the lease has ended, and the other server was quicker.
            change = bench.store.train_jobs._executor
            taken = None
            while taken is None:
                await change.write(lambda connection: connection.exec_driver_sql("UPDATE train_jobs SET lease_until=1"))
                taken = await other.jobs.lease(1, 60)
            await bench.until(lambda: _is_gone(pid))
            assert (await bench.find(job_id)).lease_owner == other.jobs.instance.owner
            assert len(await bench.events(job_id)) == 2

    asyncio.run(main())


async def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
