"""The durable queue: jobs run with their caller's rights, go on after a restart, are tried again, and can be ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from heddle.auth import LOCAL, Caller, Grant
from heddle.errors import Busy, Forbidden, InvalidRequest, NotFound, QuotaReached, StorageFull, Unavailable
from heddle.evals import jobs as job_queue
from heddle.evals.jobs import JobRun, Jobs
from heddle.jobs.metrics import JobMetrics
from heddle.jobs.runner import TaskGroup
from heddle.settings import Settings
from heddle.store.control.eval_jobs import JobRow
from heddle.store.sqlite.store import SqliteStore, open_store

PROJECT = "team/queue"
ANN = Caller("ann", (Grant.parse("editor:team"),), key_id="key-1")
Json = dict[str, Any]
Work = Callable[[JobRow, JobRun], Awaitable[Json]]


@asynccontextmanager
async def queue(folder: Path, **settings: Any) -> AsyncIterator[tuple[Jobs, SqliteStore]]:
    """A queue over a folder, not yet started; stopped at the end."""
    chosen = Settings(data=str(folder), **settings)
    store = await open_store(chosen)
    jobs = Jobs(chosen, store.eval_jobs, JobMetrics(CollectorRegistry()))
    try:
        yield jobs, store
    finally:
        await jobs.stop()
        await store.close()


async def done(jobs: Jobs, job: JobRow) -> JobRow:
    """The job when it has ended."""
    async with asyncio.timeout(30):
        return await jobs.wait(job.project_id, job.id)


async def echo(job: JobRow, run: JobRun) -> Json:
    """A worker that tells what it was given."""
    await run.progress({"seen": 1})
    return {"body": job.body, "user": run.caller.user, "reach": run.caller.reach, "key": run.caller.key_id}


def test_a_job_runs_with_the_rights_of_its_caller(tmp_path: Path) -> None:
    async def main() -> None:
        async with queue(tmp_path) as (jobs, _):
            jobs.register("echo", echo)
            await jobs.start()
            ended = await done(jobs, await jobs.submit("echo", ANN, PROJECT, {"a": [1]}))
            assert (ended.state, ended.error, ended.progress) == ("succeeded", None, {"seen": 1})
            assert ended.result == {"body": {"a": [1]}, "user": "ann", "reach": "team", "key": "key-1"}
            assert ended.started_at is not None and ended.ended_at is not None
            with pytest.raises(Forbidden):
                await jobs.submit("echo", ANN, "other/project", {})
            reader = Caller("eve", (Grant.parse("viewer"),))
            with pytest.raises(Forbidden):
                await jobs.submit("echo", reader, PROJECT, {})

    asyncio.run(main())


def test_a_job_ends_when_its_person_has_lost_roles(tmp_path: Path) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def endless(_job: JobRow, _run: JobRun) -> Json:
            begun.set()
            await asyncio.Event().wait()
            return {}

        async with queue(tmp_path) as (jobs, store):
            jobs.register("slow", endless)
            jobs.find_problems = store.keys.problems
            await jobs.start()
            person = await store.keys.sign_in("issuer/ann", "ann", ANN.grants)
            job = await jobs.submit("slow", Caller.of(person), PROJECT, {})
            await begun.wait()
            await store.keys.sign_in("issuer/ann", "ann", (Grant.parse("viewer:team"),))
            ended = await done(jobs, job)
            why = "The sign-in of user 'ann', which started this, has lost roles since"
            assert (ended.state, ended.error) == ("cancelled", why)

    asyncio.run(main())


def test_the_same_id_is_the_same_job_and_no_other_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with queue(tmp_path, evaluation_queue=2) as (jobs, _):
            first = await jobs.submit("echo", LOCAL, PROJECT, {"n": 1}, job_id="one")
            again = await jobs.submit("echo", LOCAL, PROJECT, {"n": 2}, job_id="one")
            assert again == first
            with pytest.raises(InvalidRequest, match="another job"):
                await jobs.submit("else", LOCAL, PROJECT, {}, job_id="one")
            await jobs.submit("echo", LOCAL, PROJECT, {})
            with pytest.raises(Busy):
                await jobs.submit("echo", LOCAL, PROJECT, {})
            await jobs.submit("echo", LOCAL, "team/elsewhere", {})
            assert len(await jobs.query(PROJECT)) == 2

    asyncio.run(main())


def test_what_a_stopped_or_killed_server_had_begun_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def endless(_job: JobRow, run: JobRun) -> Json:
            await run.progress({"rows": 3})
            begun.set()
            await asyncio.Event().wait()
            return {}

        async with queue(tmp_path) as (jobs, store):
            jobs.register("slow", endless)
            await jobs.start()
            job = await jobs.submit("slow", LOCAL, PROJECT, {})
            await begun.wait()
            await jobs.stop()
            stopped = await jobs.read(PROJECT, job.id)
            assert stopped is not None
            assert (stopped.state, stopped.progress, stopped.attempts) == ("queued", {"rows": 3}, 0)
            # As a killed server leaves it: nobody put it back.
            assert (await store.eval_jobs.take(["slow"], 2**60)) is not None

        async def quick(job: JobRow, _run: JobRun) -> Json:
            return {"had": job.progress}

        async with queue(tmp_path) as (jobs, _):
            jobs.register("slow", quick)
            await jobs.start()
            ended = await done(jobs, job)
            assert (ended.state, ended.result) == ("succeeded", {"had": {"rows": 3}})

    asyncio.run(main())


def test_a_cancelled_job_is_interrupted_and_closed(tmp_path: Path) -> None:
    async def main() -> None:
        begun, closed = asyncio.Event(), list[tuple[str, str]]()

        async def endless(_job: JobRow, _run: JobRun) -> Json:
            begun.set()
            await asyncio.Event().wait()
            return {}

        async def closing(job: JobRow, _run: JobRun, problem: str) -> None:
            closed.append((job.id, problem))

        async with queue(tmp_path, evaluation_workers=1) as (jobs, _):
            jobs.register("slow", endless, closing)
            await jobs.start()
            running = await jobs.submit("slow", LOCAL, PROJECT, {})
            await begun.wait()
            waiting = await jobs.submit("slow", LOCAL, PROJECT, {})
            assert (await jobs.cancel(PROJECT, waiting.id)).cancel_asked
            assert (await done(jobs, waiting)).state == "cancelled", "it needs no free place"
            await jobs.cancel(PROJECT, running.id)
            ended = await done(jobs, running)
            assert (ended.state, ended.error) == ("cancelled", "cancelled")
            assert closed == [(waiting.id, "cancelled"), (running.id, "cancelled")]
            assert (await jobs.cancel(PROJECT, running.id)).state == "cancelled", "once more changes nothing"
            with pytest.raises(NotFound):
                await jobs.cancel("team/other", running.id)

    asyncio.run(main())


def test_a_job_ends_even_if_it_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "FIRST_PAUSE", 1000)

    async def main() -> None:
        closings: dict[str, int] = {}

        async def wrong(_job: JobRow, _run: JobRun) -> Json:
            raise InvalidRequest("no such thing")

        async def closing(job: JobRow, _run: JobRun, _problem: str) -> None:
            closings[job.id] = closings.get(job.id, 0) + 1
            if job.body["closing"] == "never":
                raise InvalidRequest("nothing to close")
            if closings[job.id] < 3 or job.body["closing"] == "busy":
                raise Busy("later")

        async with queue(tmp_path) as (jobs, _):
            jobs.register("wrong", wrong, closing)
            await jobs.start()
            for kind, times_closed in (("never", 1), ("soon", 3), ("busy", job_queue.ATTEMPTS + 1)):
                ended = await done(jobs, await jobs.submit("wrong", LOCAL, PROJECT, {"closing": kind}))
                assert ended.state == "failed" and closings[ended.id] == times_closed

    asyncio.run(main())


def test_what_may_pass_is_tried_again_and_what_cannot_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "FIRST_PAUSE", 1000)

    async def main() -> None:
        tries: dict[str, int] = {}

        async def refuse() -> None:
            raise Busy("full")

        async def work(job: JobRow, _run: JobRun) -> Json:
            tries[job.id] = tries.get(job.id, 0) + 1
            if job.body["fails"] == "always":
                raise Unavailable("nobody answers")
            if job.body["fails"] == "bug":
                raise ZeroDivisionError("secret")
            if job.body["fails"] == "twice" and tries[job.id] < 3:
                raise Busy("full")
            if job.body["fails"] == "in a task" and tries[job.id] < 2:
                async with TaskGroup(1) as group:
                    group.add(refuse)
            if job.body["fails"] == "wrong":
                raise InvalidRequest("no such evaluation")
            return {"tries": tries[job.id]}

        async with queue(tmp_path) as (jobs, _):
            jobs.register("work", work)
            await jobs.start()
            ended = {
                fails: await done(jobs, await jobs.submit("work", LOCAL, PROJECT, {"fails": fails}))
                for fails in ("twice", "always", "wrong", "bug", "in a task")
            }
            assert ended["twice"].result == {"tries": 3} and ended["in a task"].result == {"tries": 2}
            assert (ended["always"].state, ended["always"].error) == ("failed", "nobody answers")
            assert ended["always"].attempts == job_queue.ATTEMPTS
            assert (ended["wrong"].state, ended["wrong"].error) == ("failed", "no such evaluation")
            assert tries[ended["wrong"].id] == 1
            assert (ended["bug"].state, ended["bug"].error) == ("failed", "Internal server error")
            assert [job.id for job in await jobs.query(PROJECT, states=["failed"], limit=2, offset=1)] == [
                ended["wrong"].id,
                ended["always"].id,
            ]
            with pytest.raises(InvalidRequest, match="Unknown state"):
                await jobs.query(PROJECT, states=["lost"])

    asyncio.run(main())


def test_so_many_run_at_once_and_every_project_gets_its_turn(tmp_path: Path) -> None:
    async def main() -> None:
        order, most, at_work = list[str](), 0, 0
        go_on = asyncio.Event()

        async def work(job: JobRow, _run: JobRun) -> Json:
            nonlocal at_work, most
            order.append(job.project_id)
            at_work += 1
            most = max(most, at_work)
            await go_on.wait()
            at_work -= 1
            return {}

        async with queue(tmp_path, evaluation_workers=2) as (jobs, _):
            many = [await jobs.submit("work", LOCAL, "team/many", {}) for _ in range(4)]
            few = await jobs.submit("work", LOCAL, "team/few", {})
            jobs.register("work", work)
            await jobs.start()
            async with asyncio.timeout(30):
                while len(order) < 2:
                    await asyncio.sleep(0.005)
            assert sorted(order) == ["team/few", "team/many"]
            go_on.set()
            for job in (*many, few):
                assert (await done(jobs, job)).state == "succeeded"
            assert most == 2

    asyncio.run(main())


def test_a_fault_of_the_queue_ends_neither_the_taking_nor_the_keeping_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with queue(tmp_path) as (jobs, store):
            monkeypatch.setattr("heddle.jobs.runner.LOOK_SECONDS", 0.01)
            failed: dict[str, asyncio.Event] = {}

            def spoil(name: str, right: Callable[..., Awaitable[Any]]) -> None:
                failed[name] = asyncio.Event()

                async def once_wrong(*given: Any, **named: Any) -> Any:
                    if not failed[name].is_set():
                        failed[name].set()
                        raise RuntimeError("a fault of ours")
                    return await right(*given, **named)

                monkeypatch.setattr(store.eval_jobs, name, once_wrong)

            spoil("take", store.eval_jobs.take)
            spoil("read_held", store.eval_jobs.read_held)

            async def endless(job: JobRow, run: JobRun) -> Json:
                await asyncio.Event().wait()
                return {}

            jobs.register("endless", endless)
            await jobs.start()
            job = await jobs.submit("endless", ANN, PROJECT, {})
            async with asyncio.timeout(30):
                await asyncio.gather(*(event.wait() for event in failed.values()))
            # As another server asks for it: the loop that keeps the leases must see it.
            await store.eval_jobs.ask_to_cancel(PROJECT, job.id)
            assert (await done(jobs, job)).state == "cancelled"

    asyncio.run(main())


def test_a_job_that_takes_the_server_with_it_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with queue(tmp_path) as (jobs, store):
            job = await jobs.submit("fatal", LOCAL, PROJECT, {})
            for _ in range(job_queue.CRASHES):
                assert (await store.eval_jobs.take(["fatal"], 2**60)) is not None
                assert await store.eval_jobs.begin(job.id)
                await store.eval_jobs.put_back_all()
            begun: list[str] = []

            async def fatal(job: JobRow, _run: JobRun) -> Json:
                begun.append(job.id)
                return {}

            jobs.register("fatal", fatal)
            await jobs.start()
            ended = await done(jobs, job)
            assert ended.state == "failed" and "Gave up: the server ended 2 times" in str(ended.error)
            assert begun == [], "it was not run again"

    asyncio.run(main())


def test_beyond_a_quota_a_job_leaves_its_place_and_goes_on_with_the_next_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "QUOTA_SECONDS", 0.01)
    waiting: list[tuple[str, str | None, int]] = []

    async def main() -> None:
        async with queue(tmp_path, evaluation_workers=1) as (jobs, _):

            async def ask(job: JobRow, _run: JobRun) -> Json:
                waiting.append((job.state, job.error, job.attempts))
                if len(waiting) < 2 * job_queue.ATTEMPTS:
                    async with TaskGroup(2) as group:
                        for _ in range(2):
                            group.add(refuse)
                return {}

            async def refuse() -> None:
                raise QuotaReached("Quota reached: it is used up", 3600)

            jobs.register("ask", ask)
            await jobs.start()
            ended = await done(jobs, await jobs.submit("ask", LOCAL, PROJECT, {}))
            assert (ended.state, ended.error) == ("succeeded", None)
            reason = "Quota reached: it is used up"
            assert waiting == [("running", None, 1), *[("running", reason, 1)] * (2 * job_queue.ATTEMPTS - 1)]

    asyncio.run(main())


def test_a_job_that_stores_ends_where_its_project_is_full_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "FIRST_PAUSE", 1000)
    rooms: list[str] = []

    async def main() -> None:
        async with queue(tmp_path) as (jobs, _):

            def check_room(project_id: str) -> None:
                rooms.append(project_id)
                if len(rooms) > 1:
                    raise StorageFull("Quota reached: it may store 1KiB; delete something first")

            jobs.check_room = check_room
            jobs.register("echo", echo)
            jobs.register("purge", echo, is_storing=False)
            await jobs.start()
            job = await jobs.submit("echo", LOCAL, PROJECT, {})
            ended = await done(jobs, job)
            assert (ended.state, ended.error) == ("failed", "Quota reached: it may store 1KiB; delete something first")
            assert ended.progress == {"seen": 1} and set(rooms) == {PROJECT}
            count = len(rooms)
            assert (await done(jobs, await jobs.submit("purge", LOCAL, PROJECT, {}))).state == "succeeded"
            assert len(rooms) == count

    asyncio.run(main())
