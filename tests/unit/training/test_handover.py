"""Jobs handed over as folders, to workers that nobody of the server started; with real processes and no torch."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heddle.training import handover
from heddle.training.messages import Task
from tests.support.training_bench import MODULE, ROOT, Bench


def play(folder: Path, test: Callable[[Bench], Awaitable[None]], **settings: object) -> None:
    """Run a test with a bench whose server offers its jobs."""

    async def run() -> None:
        async with Bench.open(folder / "data", trainer="torchrun", **settings) as bench:
            await test(bench)

    asyncio.run(run())


@asynccontextmanager
async def worker(bench: Bench) -> "AsyncIterator[subprocess.Popen[bytes]]":
    """A worker that watches the bench's folder, started by hand."""
    command = [sys.executable, "-m", MODULE, "--watch", str(bench.folder / handover.ROOT)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def undisturbed(folder: Path, job_id: str, **orders: object) -> bytes:
    """The adapter that a job makes in a process of the server when nothing happens."""
    async with Bench.open(folder / "undisturbed") as bench, bench.supervisor() as supervisor:
        model = await bench.model()
        await bench.ended(supervisor, await bench.job(model, job_id, **orders))
        return bench.adapter(model, 1)


def offered(bench: Bench) -> list[Path]:
    """What lies in the folder that workers watch."""
    return list((bench.folder / handover.ROOT).glob("*"))


def test_a_worker_does_what_a_process_of_the_server_does(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, job_id = await bench.model(), str(uuid.uuid4())
        expected = await undisturbed(tmp_path, job_id)
        async with bench.supervisor() as supervisor, worker(bench):
            job = await bench.ended(supervisor, await bench.job(model, job_id))
            failed = await bench.ended(supervisor, await bench.job(model, fail="the data was wrong"))
            following = await bench.ended(supervisor, await bench.job(model))
            assert supervisor.pids() == []
        assert (job.state, job.step, job.progress) == ("succeeded", 1, 3)
        assert bench.adapter(model, 1) == expected
        assert (failed.state, failed.error) == ("failed", "the data was wrong")
        assert (following.state, following.parent_step) == ("succeeded", 1)
        assert (await bench.events(job_id))[0].type == "training_started"
        assert offered(bench) == []

    play(tmp_path, test)


def test_a_job_waits_until_there_is_a_worker(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model)
            supervisor.wake()

            async def is_offered() -> bool:
                return len(offered(bench)) == 1

            await bench.until(is_offered)
            async with worker(bench):
                assert (await bench.ended(supervisor, job_id)).state == "succeeded"

    play(tmp_path, test, training_lease=1)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_another_worker_goes_on_where_one_was_lost(tmp_path: Path, number: signal.Signals) -> None:
    async def test(bench: Bench) -> None:
        gate, job_id = tmp_path / "gate", str(uuid.uuid4())
        gate.touch()
        expected = await undisturbed(tmp_path, job_id, steps=4, wait_for=str(gate))
        gate.unlink()
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            await bench.job(model, job_id, steps=4, wait_for=str(gate))
            supervisor.wake()
            async with worker(bench) as first:
                await bench.has_events(job_id, 2)
                first.send_signal(number)
                gate.touch()
                async with worker(bench):
                    job = await bench.ended(supervisor, job_id)
        assert job.state == "succeeded"
        assert bench.adapter(model, 1) == expected
        assert [event.seq for event in await bench.events(job_id)] == list(range(6))

    play(tmp_path, test, training_lease=2)


def test_a_worker_outlives_the_server(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        gate, job_id = tmp_path / "gate", str(uuid.uuid4())
        model = await bench.model()
        async with worker(bench) as process:
            async with bench.supervisor() as supervisor:
                await bench.job(model, job_id, steps=4, wait_for=str(gate))
                supervisor.wake()
                await bench.has_events(job_id, 2)
            gate.touch()
            async with bench.supervisor() as supervisor:
                job = await bench.ended(supervisor, job_id)
            assert process.poll() is None
        assert (job.state, job.progress) == ("succeeded", 4)

    play(tmp_path, test)


def test_a_job_can_be_cancelled_with_and_without_a_worker(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        gate = tmp_path / "gate"
        async with bench.supervisor() as supervisor:
            untaken = await bench.job(model)
            supervisor.wake()

            async def is_offered() -> bool:
                return len(offered(bench)) == 1

            await bench.until(is_offered)
            await supervisor.cancel(untaken)
            assert (await bench.ended(supervisor, untaken)).state == "cancelled"
            async with worker(bench):
                running = await bench.job(model, wait_for=str(gate))
                supervisor.wake()
                await bench.has_events(running, 2)
                await supervisor.cancel(running)
                gate.touch()
                assert (await bench.ended(supervisor, running)).state == "cancelled"
                assert (await bench.ended(supervisor, await bench.job(model))).state == "succeeded"
        assert offered(bench) == []

    play(tmp_path, test)


def test_a_crashing_worker_is_told(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor, worker(bench):
            job = await bench.ended(supervisor, await bench.job(model, break_at=0))
        assert job.error == "the worker failed: OSError: No space left on device; 1 attempts ended without progress"

    play(tmp_path, test, training_attempts=1)


def task_in(data: Path) -> Task:
    """A task whose folders lie below a data folder."""
    (data / "work").mkdir(parents=True)
    places = {name: str(data / name) for name in ("payload", "parent", "target", "work")}
    return Task("job", "rl", "/models/base", config={}, step=1, lora={}, device="cpu", dtype="float32", **places)


def test_only_one_worker_gets_a_job(tmp_path: Path) -> None:
    root = tmp_path / handover.ROOT
    folder = handover.offer(root, task_in(tmp_path), 1)
    with ThreadPoolExecutor(8) as pool:
        claims = [pool.submit(handover.claim, root) for _ in range(32)]
    assert [claim.result() for claim in claims if claim.result() is not None] == [folder]
    again = handover.offer(root, task_in(tmp_path / "again"), 1)
    assert not folder.exists(), "an earlier attempt is withdrawn"
    assert handover.claim(root) == again


def test_paths_are_right_wherever_the_data_folder_is(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "mounted" / "elsewhere"
    folder = handover.offer(data / handover.ROOT, task_in(data), 1)
    shutil.copytree(data, elsewhere)
    task = handover.read(elsewhere / handover.ROOT / folder.name)
    assert (task.target, task.work) == (str(elsewhere / "target"), str(elsewhere / "work"))
    assert (task.base_folder, task.kl_reference) == ("/models/base", None)


def test_what_no_server_waits_for_is_not_done(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    folder = handover.offer(tmp_path / handover.ROOT, task, 1)
    Path(task.work).rmdir()
    assert handover.claim(tmp_path / handover.ROOT) is None
    assert not folder.exists()
