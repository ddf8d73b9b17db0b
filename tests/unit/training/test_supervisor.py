"""The queue of training jobs: order, attempts, cancellation, restarts; with real processes and no torch."""

import asyncio
import itertools
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from heddle.store.control.coordination import QUEUED, RUNNING
from heddle.training import files, routes
from heddle.training.queue import process
from heddle.wire import times
from tests.support.training_bench import Bench


def play(folder: Path, test: Callable[[Bench], Awaitable[None]], **settings: object) -> None:
    """Run a test with a bench."""

    async def run() -> None:
        async with Bench.open(folder / "data", **settings) as bench:
            await test(bench)

    asyncio.run(run())


async def undisturbed(folder: Path, job_id: str, **orders: object) -> bytes:
    """The adapter that a job makes when nothing happens."""
    async with Bench.open(folder / "undisturbed") as bench, bench.supervisor() as supervisor:
        model = await bench.model()
        await bench.ended(supervisor, await bench.job(model, job_id, **orders))
        return bench.adapter(model, 1)


def test_events_of_a_removed_job_end() -> None:
    """A purge removes a job with its last event; who follows it was kept waiting."""

    async def nothing(*_: object) -> list[object]:
        return []

    async def gone(_: str) -> None:
        return None

    training = SimpleNamespace(supervisor=SimpleNamespace(events=SimpleNamespace(wait=nothing)))
    state = SimpleNamespace(stopping=False, store=SimpleNamespace(train_jobs=SimpleNamespace(find=gone)))

    async def follow() -> bytes | None:
        job: Any = SimpleNamespace(id="job", state=QUEUED)
        async for event in routes._sent_events(cast("Any", training), cast("Any", state), job, -1):
            return event
        return None

    assert asyncio.run(follow()) is None


def test_a_job_becomes_a_served_step(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model)
            job = await bench.ended(supervisor, job_id)
        assert (job.state, job.parent_step, job.step, job.error, job.progress) == ("succeeded", 0, 1, None, 3)
        events = await bench.events(job_id)
        kinds = ["training_started", *["gradient_step"] * 3, "training_ended"]
        assert [(event.seq, event.type) for event in events] == list(enumerate(kinds))
        assert events[0].data == {"num_sequences": 3, "num_trainable_tokens": 7.0}
        assert events[2].data == {"loss/train": 1.0, "loss/probs_corr": 0.9}, "a figure that is no number is left out"
        assert events[4].data["step"] == 1 and events[4].data["loss/train"] == 0.5
        assert len({event.id for event in events}) == 5
        (_, row) = await bench.store.train_models.checkpoints(model.id)
        assert (row.step, row.parent_step, row.job_id, row.bytes) == (1, 0, job_id, 32)
        assert row.metrics == {"loss/train": 0.5}
        assert bench.host.pointers[next(iter(bench.host.pointers))] == 1
        assert not (bench.folder / files.work_folder(model.id, job_id)).exists()
        text = bench.metrics()
        assert 'heddle_jobs_ended_total{kind="train_rl",state="succeeded"} 1.0' in text
        assert "heddle_training_steps_total 3.0" in text
        assert "heddle_training_mismatch 1.0" in text
        assert await bench.store.train_jobs.count_open() == {}

    play(tmp_path, test)


def test_a_killed_process_costs_nothing(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        gate, job_id = tmp_path / "gate", str(uuid.uuid4())
        expected = await undisturbed(tmp_path, job_id, steps=4)
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            await bench.job(model, job_id, steps=4, wait_for=str(gate))
            supervisor.wake()
            await bench.has_events(job_id, 2)
            (pid,) = supervisor.pids()
            os.kill(pid, signal.SIGKILL)
            gate.touch()
            job = await bench.ended(supervisor, job_id)
        assert job.state == "succeeded"
        assert bench.adapter(model, 1) == expected
        assert [event.seq for event in await bench.events(job_id)] == list(range(6))

    play(tmp_path, test)


def test_a_silent_process_is_killed(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, await bench.job(model, freeze_at=1))
        assert (job.state, job.progress) == ("succeeded", 3)

    play(tmp_path, test, training_lease=2)


def test_attempts_without_progress_end_a_job(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model, die_at=0, times=99)
            job = await bench.ended(supervisor, job_id)
            following = await bench.ended(supervisor, await bench.job(model))
        assert (job.state, job.attempts) == ("failed", 3)
        assert job.error is not None and "it died as it was told" in job.error
        events = await bench.events(job_id)
        assert [event.type for event in events] == ["training_started", "training_failed"]
        assert events[-1].data == {"error_message": job.error}
        assert (following.state, following.parent_step, following.step) == ("succeeded", 0, 1)
        assert "heddle_training_attempts_lost_total 3.0" in bench.metrics()

    play(tmp_path, test)


def test_an_error_of_the_process_is_told(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, await bench.job(model, break_at=0))
        reason = "the training process failed: OSError: No space left on device"
        assert job.error == f"{reason}; 2 attempts ended without progress"

    play(tmp_path, test, training_attempts=2)


def test_a_job_waits_for_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often its process meets a full disk."""
    monkeypatch.setattr("heddle.training.queue.supervisor.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("heddle.training.queue.supervisor.LONGEST_PAUSE", 0.01)

    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as running:
            job_id = await bench.job(model, full=3)
            job = await bench.ended(running, job_id)
        assert (job.state, job.attempts, job.error) == ("succeeded", 0, None)
        events = await bench.events(job_id)
        assert [event.type for event in events][:: len(events) - 1] == ["training_started", "training_ended"]

    play(tmp_path, test, training_attempts=2)


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_job_that_breaks_the_server_holds_up_nobody(
    tmp_path: Path, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(process, "MESSAGE_BYTES", 8 << 20)

    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            with monkeypatch.context() as patch:
                if is_ours:
                    patch.setattr(process.Slot, "attempt", broken)
                job = await bench.ended(supervisor, await bench.job(model, babble=9 << 20))
            following = await bench.ended(supervisor, await bench.job(model))
        reason = "the server failed: KeyError" if is_ours else "the training process failed: it sent more than"
        assert job.state == "failed" and job.error is not None and job.error.startswith(reason)
        assert following.state == "succeeded"

    play(tmp_path, test)


def test_a_failed_job_leaves_no_half_made_checkpoint(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            target = bench.folder / files.checkpoint_folder(model.id, 1)
            begun = target.parent / f".{target.name}.earlier.tmp"
            begun.mkdir()
            await bench.ended(supervisor, await bench.job(model, fail="the disk was full"))
        assert [path.name for path in begun.parent.glob("*")] == ["0000"]

    play(tmp_path, test)


def test_progress_begins_the_count_of_attempts_again(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, await bench.job(model, die_at=2, times=2))
        assert (job.state, job.progress) == ("succeeded", 3)

    play(tmp_path, test, training_attempts=2)


def test_bad_data_fails_at_once_and_the_process_goes_on(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model, fail="group 0, trajectory 1: no")
            job = await bench.ended(supervisor, job_id)
            first = supervisor.pids()
            await bench.ended(supervisor, await bench.job(model))
            assert supervisor.pids() == first and first
        assert (job.state, job.error, job.attempts) == ("failed", "group 0, trajectory 1: no", 0)
        (event,) = await bench.events(job_id)
        assert (event.seq, event.type) == (0, "training_failed")

    play(tmp_path, test)


def test_an_idle_process_ends(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            await bench.ended(supervisor, await bench.job(model))

            async def none() -> bool:
                return supervisor.pids() == []

            await bench.until(none)
            job = await bench.ended(supervisor, await bench.job(model))
        assert job.step == 2

    play(tmp_path, test, training_idle=0)


def test_a_process_is_prepared_before_the_first_job(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            supervisor.warm(bench.folder, "cpu", "float32")

            async def warm() -> bool:
                return (bench.folder / "warm").exists()

            await bench.until(warm)
            (pid,) = supervisor.pids()
            if sys.platform == "linux":
                assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "800", (
                    "the first that the kernel takes"
                )
            await bench.ended(supervisor, await bench.job(model))
            assert supervisor.pids() == [pid]
            os.kill(pid, signal.SIGKILL)

            async def dead() -> bool:
                return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE if psutil.pid_exists(pid) else True

            await bench.until(dead)
            job = await bench.ended(supervisor, await bench.job(model))
        assert (job.state, job.attempts) == ("succeeded", 0), "the death of an idle process is no attempt"
        assert "heddle_training_attempts_lost_total 0.0" in bench.metrics()

    play(tmp_path, test)


def test_cancel_a_job_that_waits(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, gate = await bench.model(), tmp_path / "gate"
        async with bench.supervisor() as supervisor:
            running = await bench.job(model, wait_for=str(gate))
            supervisor.wake()
            await bench.has_events(running, 2)
            waiting = await bench.job(model)
            assert await supervisor.cancel(waiting)
            job = await bench.find(waiting)
            assert (job.state, job.error) == ("cancelled", "cancelled")
            (event,) = await bench.events(waiting)
            assert (event.type, event.data) == ("training_failed", {"error_message": "cancelled"})
            assert not await supervisor.cancel(waiting)
            gate.touch()
            assert (await bench.ended(supervisor, running)).state == "succeeded"

    play(tmp_path, test)


@pytest.mark.parametrize("deaf", [False, True])
def test_cancel_a_job_that_runs(tmp_path: Path, deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GIVE_UP_SECONDS", 0.3 if deaf else 60.0)

    async def test(bench: Bench) -> None:
        model, gate = await bench.model(), tmp_path / "gate"
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model, wait_for=str(gate), deaf=deaf)
            supervisor.wake()
            await bench.has_events(job_id, 2)
            before = supervisor.pids()
            assert await supervisor.cancel(job_id)
            if not deaf:
                gate.touch()
            job = await bench.ended(supervisor, job_id)
            assert (job.state, job.error) == ("cancelled", "cancelled")
            assert (await bench.events(job_id))[-1].data == {"error_message": "cancelled"}
            assert not (bench.folder / files.checkpoint_folder(model.id, 1)).exists()
            assert (supervisor.pids() == before) is not deaf, "a process that obeys is kept"
            gate.touch()
            following = await bench.ended(supervisor, await bench.job(model))
            assert (following.state, following.step) == ("succeeded", 1)

    play(tmp_path, test)


def test_jobs_of_a_model_go_one_after_the_other(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        ids = [await bench.job(model) for _ in range(3)]
        async with bench.supervisor() as supervisor:
            jobs = [await bench.ended(supervisor, job_id) for job_id in ids]
        assert [(job.parent_step, job.step) for job in jobs] == [(0, 1), (1, 2), (2, 3)]
        assert all(a.ended_at <= b.started_at for a, b in itertools.pairwise(jobs))

    play(tmp_path, test, training_workers=2)


def test_two_models_train_at_the_same_time(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        places = [str(tmp_path / name) for name in ("a", "b")]
        models = [await bench.model("a"), await bench.model("b")]
        ids = [await bench.job(models[0], meet=places), await bench.job(models[1], meet=places[::-1])]
        async with bench.supervisor() as supervisor:
            jobs = [await bench.ended(supervisor, job_id) for job_id in ids]
        assert [job.state for job in jobs] == ["succeeded", "succeeded"]
        assert max(job.started_at for job in jobs) < min(job.ended_at for job in jobs)

    play(tmp_path, test, training_workers=2)


def test_a_jump_of_the_clock_gives_no_job_to_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        model, gate = await bench.model(), tmp_path / "gate"
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model, wait_for=str(gate))
            supervisor.wake()
            await bench.has_events(job_id, 2)
            real = times.now
            monkeypatch.setattr(times, "now", lambda: real() + 3_600_000_000)
            other = await bench.job(await bench.model("other"))
            await bench.ended(supervisor, other)
            assert (await bench.find(job_id)).state == RUNNING
            assert len(supervisor.pids()) == 2
            last = await bench.job(model)
            gate.touch()
            assert (await bench.ended(supervisor, job_id)).state == "succeeded"
            assert (await bench.ended(supervisor, last)).step == 2
        assert "heddle_training_attempts_lost_total 0.0" in bench.metrics()

    play(tmp_path, test, training_workers=2)


def test_a_restart_goes_on_and_counts_no_attempt(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, gate = await bench.model(), tmp_path / "gate"
        job_id = await bench.job(model, wait_for=str(gate))
        async with bench.supervisor() as supervisor:
            await bench.has_events(job_id, 2)
            (pid,) = supervisor.pids()
        job = await bench.find(job_id)
        assert (job.state, job.attempts) == (RUNNING, 0)
        assert not Path(f"/proc/{pid}").exists()
        gate.touch()
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, job_id)
        assert (job.state, job.attempts) == ("succeeded", 0)
        assert [event.seq for event in await bench.events(job_id)] == list(range(5))

    play(tmp_path, test, training_attempts=1)


def test_a_job_that_cannot_be_done_says_why(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            bench.host.base_ids = ("other",)
            job = await bench.ended(supervisor, await bench.job(model))
            assert job.error == "the base model tiny is no longer served (served: other)"
            bench.host.base_ids = ("tiny",)
            await bench.store.train_models.delete_checkpoints(model.id, [0], 0, "somebody")
            job = await bench.ended(supervisor, await bench.job(model))
            assert job.error == "the step to start from: step 0 not found; it was deleted or never existed"
            job_id = await bench.job(await bench.model("gone"))
            gone = await bench.find(job_id)
            found = await bench.store.train_models.find(gone.model_id)
            assert found is not None
            await bench.store.train_models.delete(found, 0, "somebody")
            job = await bench.ended(supervisor, job_id)
            assert (job.error, job.payload) == ("the model was deleted", "")

    play(tmp_path, test)


def test_what_nothing_names_is_swept(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, other = await bench.model(), str(uuid.uuid4())
        waiting = await bench.job(model)
        leftovers = [
            files.checkpoint_folder(model.id, 5),
            f"training/{model.id}/checkpoints/.0001.tmp",
            files.work_folder(model.id, str(uuid.uuid4())),
            files.checkpoint_folder(other, 0),
        ]
        for name in [*leftovers, files.work_folder(model.id, waiting)]:
            (bench.folder / name).mkdir(parents=True)
            (bench.folder / name / "file").touch()
        async with bench.supervisor():
            pass
        assert [name for name in leftovers if (bench.folder / name).exists()] == []
        assert not (bench.folder / "training" / other).exists()
        assert bench.adapter(model, 0) == b"step 0"
        assert (bench.folder / files.work_folder(model.id, waiting)).exists()
        assert (await bench.find(waiting)).state == QUEUED

    play(tmp_path, test, training="off")


def test_nobody_misses_an_event(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        job_id = await bench.job(model)
        async with bench.supervisor() as supervisor:
            seen: list[int] = []
            while len(seen) < 5:
                events = await supervisor.events.wait(job_id, seen[-1] if seen else -1, 60)
                assert events
                seen += [event.seq for event in events]
            assert seen == list(range(5))
            assert await supervisor.events.wait(job_id, 4, 0.01) == []

    play(tmp_path, test)
