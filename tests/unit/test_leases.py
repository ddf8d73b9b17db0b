"""Several servers over the same control tables: each piece of work is one server's; of a dead one it is taken over."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from heddle.auth import LOCAL
from heddle.errors import Conflict, InvalidRequest, NotFound, Unavailable
from heddle.evals.jobs import JobRun, Jobs
from heddle.inference.adapters import FILES, Adapters, Address
from heddle.inference.engine.base import AdapterRef
from heddle.jobs.metrics import JobMetrics
from heddle.settings import Settings
from heddle.store import base
from heddle.store.base import ControlGroups, Store
from heddle.store.blobs.base import Named
from heddle.store.control.coordination import ADAPTERS, LIMITS, MONITORS, SUCCEEDED, Changes, Leases, leases
from heddle.store.control.eval_jobs import EvalJobs, eval_jobs
from heddle.store.control.eval_jobs import JobRow as EvalJob
from heddle.store.control.inference import AdapterRow
from heddle.store.control.monitors import AlertRow, DeliveryRow, alert_deliveries
from heddle.store.control.objects import NewVersion
from heddle.store.control.training import JobRow, LeaseLost, train_jobs
from heddle.store.control.training_models import CheckpointRow, ModelRow
from tests.support.patience import strain
from tests.support.postgres import postgres
from tests.support.servers import Two, end_leases, two, until

__all__ = ["postgres", "two"]

FAR = 2**60


async def queued(rows: EvalJobs, count: int) -> set[str]:
    """So many evaluation jobs of four projects; their ids."""
    made = [
        EvalJob(id=f"job-{n}", kind="kind", project_id=f"team/p{n % 4}", body={}, caller={}, created_at=n)
        for n in range(count)
    ]
    for row in made:
        await rows.add(row, 1000)
    return {row.id for row in made}


def test_no_evaluation_job_is_taken_twice(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            wanted = await queued(one.eval_jobs, 60)
            taken: Counter[str] = Counter()

            async def work(rows: EvalJobs) -> None:
                while (job := await rows.take(["kind"], FAR)) is not None:
                    taken[job.id] += 1
                    assert await rows.finish(job.id, SUCCEEDED, 1, result={}, error=None)

            await asyncio.gather(*(work(server.eval_jobs) for server in (one, other) for _ in range(3)))
            assert set(taken) == wanted and set(taken.values()) == {1}
            assert await one.eval_jobs.count_open() == {}

    asyncio.run(main())


@pytest.mark.parametrize("two", ["postgresql"], indirect=True)
def test_a_job_that_another_server_is_taking_is_passed_over_and_no_other(two: Two) -> None:
    """SQLite has one writer, so that nobody looks while a job is taken."""

    async def main() -> None:
        async with two.open() as (one, other):
            await queued(one.eval_jobs, 2)
            taken, may_commit = threading.Event(), threading.Event()

            def take(connection: sa.Connection) -> EvalJob | None:
                jobs = one.eval_jobs
                job = jobs._take(connection, jobs._next, FAR, 30, kinds=["kind"], held=[])
                taken.set()
                assert may_commit.wait(60)
                return job

            first = asyncio.create_task(one.eval_jobs._executor.write(take))
            await asyncio.to_thread(taken.wait, 60)
            try:
                async with asyncio.timeout(30):
                    second = await other.eval_jobs.take(["kind"], FAR)
            finally:
                may_commit.set()
            assert [job and job.id for job in (await first, second)] == ["job-0", "job-1"]

    asyncio.run(main())


def test_a_dead_servers_job_is_taken_over_and_it_can_write_no_more(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            await queued(one.eval_jobs, 1)
            job = await one.eval_jobs.take(["kind"], FAR)
            assert job is not None and await other.eval_jobs.take(["kind"], FAR) is None
            assert await other.eval_jobs.put_back_all() == 0, "a start takes nothing from a server that lives"
            await end_leases(one, eval_jobs)
            assert await one.eval_jobs.take(["kind"], FAR, held=[job.id]) is None
            again = await other.eval_jobs.take(["kind"], FAR)
            assert again is not None and (again.id, again.attempts) == (job.id, 2)
            assert again.started_at == job.started_at is not None, "when it began stays"
            assert await one.eval_jobs.find_unended([job.id, "unknown"]) == {job.id}
            assert await one.eval_jobs.find_unended([]) == set()
            assert await one.eval_jobs.read_held() == {} and await other.eval_jobs.read_held() == {job.id: False}
            await one.eval_jobs.note(job.id, {"rows": 9})
            assert not await one.eval_jobs.finish(job.id, SUCCEEDED, 1, result={}, error=None)
            assert not await one.eval_jobs.put_back(job.id)
            found = await one.eval_jobs.ask_to_cancel("team/p0", job.id)
            assert found is not None and (found.state, found.progress) == ("running", {})
            assert await other.eval_jobs.read_held() == {job.id: True}, "asked for through the other server"
            assert await other.eval_jobs.put_back(job.id, begun=False)
            assert await one.eval_jobs.take(["kind"], FAR) is not None, "given back, it goes on at once"

    asyncio.run(main())


def test_only_what_was_begun_counts_as_a_crash(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            await queued(one.eval_jobs, 1)
            crashes = []
            for server, is_begun in ((one, True), (other, False), (one, False), (other, True), (one, True)):
                job = await server.eval_jobs.take(["kind"], FAR)
                assert job is not None
                crashes.append(job.crashes)
                if is_begun:
                    assert await server.eval_jobs.begin(job.id)
                await end_leases(one, eval_jobs)
            assert crashes == [0, 1, 1, 1, 2], "a lease that ends before the work begins is no crash"
            assert not await other.eval_jobs.begin(job.id), "it is another server's"
            await one.eval_jobs.put_back(job.id)
            again = await other.eval_jobs.take(["kind"], FAR)
            assert again is not None and again.crashes == 0, "a server that gave it back did not end"
            await other.eval_jobs.begin(job.id)
            await other.eval_jobs.note(job.id, {"rows": 9})
            await end_leases(one, eval_jobs)
            last = await one.eval_jobs.take(["kind"], FAR)
            assert last is not None and last.crashes == 1, "behind its progress it counts anew"

    asyncio.run(main())


def test_a_job_that_a_server_took_without_learning_of_it_is_taken_over(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            await queued(one.eval_jobs, 2)
            known, lost = await one.eval_jobs.take(["kind"], FAR), await one.eval_jobs.take(["kind"], FAR)
            assert known is not None and lost is not None
            await end_leases(one, eval_jobs)
            await one.eval_jobs.renew([known.id], 30)
            again = await other.eval_jobs.take(["kind"], FAR)
            assert again is not None and again.id == lost.id
            assert await other.eval_jobs.take(["kind"], FAR) is None, "the other one was kept"

    asyncio.run(main())


def test_what_a_server_took_without_learning_of_it_waits_again(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            await queued(one.eval_jobs, 3)
            known, lost, third = [await one.eval_jobs.take(["kind"], FAR) for _ in range(3)]
            assert known is not None and lost is not None and third is not None
            await one.eval_jobs.put_back_unknown([known.id, third.id])
            assert await one.eval_jobs.count_open() == {("kind", "queued"): 1, ("kind", "running"): 2}
            again = await other.eval_jobs.take(["kind"], FAR)
            assert again is not None and (again.id, again.attempts) == (lost.id, 1), "the lost attempt does not count"
            await other.eval_jobs.put_back_unknown([])
            assert set(await one.eval_jobs.read_held()) == {known.id, third.id}, "those of another server stay"

            await training_jobs(one, 1, 1)
            job = await one.train_jobs.lease(1, 30)
            assert job is not None
            await one.train_jobs.update(job.id, state="publishing")
            await one.train_jobs.put_back_unknown([])
            published = await other.train_jobs.lease(1, 30)
            assert published is not None and published.state == "publishing", "only its publication is left to do"

    asyncio.run(main())


def test_leases_end_by_job_and_by_server(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            await queued(one.eval_jobs, 3)
            first, second = await one.eval_jobs.take(["kind"], FAR), await one.eval_jobs.take(["kind"], FAR)
            theirs = await other.eval_jobs.take(["kind"], FAR)
            assert first is not None and second is not None and theirs is not None
            assert await one.eval_jobs.release_leases(second.id) == 1
            again = await other.eval_jobs.take(["kind"], FAR)
            assert again is not None and (again.id, again.attempts) == (second.id, 2)
            assert await other.eval_jobs.take(["kind"], FAR) is None, "the others keep theirs"
            alone = EvalJobs(one.eval_jobs._executor)
            assert await one.eval_jobs.release_all_leases() == 0 and await alone.release_all_leases() == 3
            assert await one.eval_jobs.take(["kind"], FAR) is not None

    asyncio.run(main())


async def training_jobs(server: ControlGroups, models: int, each: int) -> set[str]:
    """Jobs of some new models; their ids."""
    for name in (f"model-{n}" for n in range(models)):
        first = CheckpointRow(name, name, 0, None, None, name, "", 1, {}, 1)
        await server.train_models.create(ModelRow(name, "team", "one", name, "base", None, {}, 1, "me"), first)
    made = [
        JobRow(
            id=f"job-{n}",
            model_id=f"model-{n % models}",
            kind="rl",
            config={},
            payload="",
            created_at=n,
            created_by="me",
        )
        for n in range(models * each)
    ]
    for row in made:
        await server.train_jobs.add(row, 64)
    return {row.id for row in made}


def test_no_training_job_is_taken_twice_and_of_a_model_one_at_a_time(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            wanted = await training_jobs(one, 3, 5)
            taken, busy = Counter[str](), set[str]()

            async def work(server: ControlGroups) -> None:
                while await server.train_jobs.is_any_free(1):
                    job = await server.train_jobs.lease(1, 30)
                    if job is None:
                        continue
                    assert job.model_id not in busy
                    busy.add(job.model_id)
                    taken[job.id] += 1
                    await server.train_jobs.update(job.id, state="publishing")
                    busy.discard(job.model_id)
                    assert await server.train_jobs.finish(job.id, "succeeded", job.id, "training_ended", {}, 2)

            await asyncio.gather(*(work(server) for server in (one, other) for _ in range(2)))
            assert set(taken) == wanted and set(taken.values()) == {1}

    asyncio.run(main())


def test_a_training_job_that_was_taken_over_is_finished_by_one_server(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            await training_jobs(one, 1, 1)
            job = await one.train_jobs.lease(1, 30)
            assert job is not None and await other.train_jobs.lease(1, 30) is None
            assert (
                await other.train_jobs.claim(job.id, 1, 30) is None and await other.train_jobs.release_all_leases() == 0
            )
            await end_leases(one, train_jobs)
            assert await one.train_jobs.lease(1, 30, held=[job.id]) is None
            assert (await other.train_jobs.lease(1, 30)) is not None
            with pytest.raises(LeaseLost):
                await one.train_jobs.update(job.id, attempts=1)
            with pytest.raises(LeaseLost):
                await one.train_jobs.require_lease(job.id)
            with pytest.raises(LeaseLost):
                await one.train_jobs.finish(job.id, "failed", "x", "training_failed", {}, 2)
            await one.train_jobs.ask_to_cancel(job.id)
            assert await other.train_jobs.read_held() == {job.id: True}
            assert await one.train_jobs.release_leases() == 0 and await other.train_jobs.release_leases() == 1
            assert (await one.train_jobs.lease(1, 30)) is not None, "given back, it goes on at once"

    asyncio.run(main())


def test_one_server_at_a_time_has_a_name(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            several = await asyncio.gather(*(server.leases.take("files", 60) for server in (one, other) * 3))
            assert sorted(several) in ([False] * 3 + [True] * 3,)
            owner, loser = (one, other) if several[0] else (other, one)

            async def require(server: ControlGroups) -> None:
                await server.leases._executor.write(lambda connection: server.leases.require(connection, "files"))

            await require(owner)
            with pytest.raises(Unavailable):
                await require(loser)
            await end_leases(one, leases)
            with pytest.raises(Unavailable):
                await require(owner)
            assert await loser.leases.take("files", 60)
            assert not await owner.leases.take("files", 60)
            alone = Leases(one.leases._executor)
            assert await alone.take("files", 60), "a server that is alone has every name"
            await alone._executor.write(lambda connection: alone.require(connection, "files"))
            await loser.leases.give_back()
            assert await owner.leases.take("files", 60)

    asyncio.run(main())


def test_a_message_is_in_the_hands_of_one_server(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            rule = AlertRow(
                id="a",
                project="p",
                name="slow",
                is_enabled=True,
                rule={"webhook_url": "https://x"},
                secret="s",
                created_at=1,
                created_by="me",
            )
            assert await one.alerts.create(rule, 10)
            rule.state = "firing"
            tellers = (
                DeliveryRow(
                    id=f"m{n}", alert_id="a", project="p", event="alert.firing", body="{}", created_at=1, next_at=1
                )
                for n in (1, 2)
            )
            for server, message in zip((one, other), tellers, strict=True):
                await server.alerts.save_check(rule, [message], "quiet")
            mine, theirs = one.alert_deliveries, other.alert_deliveries
            assert [row.id for row in await mine.query("p", "a", 10, 0)] == ["m1"], "told of once"
            due = await asyncio.gather(*(queue.take(FAR) for queue in (mine, theirs)))
            assert sorted(row is not None for row in due) == [False, True]
            await end_leases(one, alert_deliveries)
            message = await theirs.take(FAR)
            assert message is not None
            await theirs.finish(message, "succeeded", FAR)
            assert await mine.take(FAR) is None and await mine.next_due() is None

    asyncio.run(main())


def test_a_change_is_seen_by_the_other_server(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, other):
            before = await other.changes.number(LIMITS)
            await one.inference.set_limit("project", "team/p", 1, None, "me")
            assert await other.changes.number(LIMITS) == before + 1
            await one.inference.set_limit("project", "team/p", 2, None, "me")
            assert await other.changes.number(LIMITS) == before + 2
            await one.adapters.add(AdapterRow("team", "p", "policy", 3, "base", "training/m/3", 1, "me"))
            before = await other.changes.number(ADAPTERS)
            await one.adapters.point(("team", "p", "policy"), 3)
            assert await other.changes.number(ADAPTERS) > before
            # Also while the server stops, and nothing observes its objects any more.
            one.objects.observers.clear()
            await one.objects.create(NewVersion("p", "object", "m", "d", "{}", 2, "Monitor", None, "me"))
            assert await other.changes.number(MONITORS) == 1
            await one.objects.create(NewVersion("p", "object", "o", "d", "{}", 2, "Dataset", None, "me"))
            assert await other.changes.number(MONITORS) == 1
            await one.objects.delete("p", "m", [], "me")
            assert await other.changes.number(MONITORS) == 2

    asyncio.run(main())


def test_a_server_that_is_alone_counts_its_own_changes(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, _):
            shared, alone = one.changes, Changes(one.changes._executor)
            before = await shared.number(ADAPTERS)
            assert [await alone.number(name) for name in (ADAPTERS, LIMITS)] == [0, 0]
            for expected in (1, 2):
                await alone.count(ADAPTERS)
                assert [await alone.number(name) for name in (ADAPTERS, LIMITS)] == [expected, 0]
                assert await shared.number(ADAPTERS) == before + expected, "it is stored for others, too"
            await shared.count(ADAPTERS)
            assert (await alone.number(ADAPTERS), await shared.number(ADAPTERS)) == (2, before + 3)

    asyncio.run(main())


def adapters_of(server: ControlGroups, folder: Path) -> Adapters:
    """The adapters as a server knows them, on the folder that all share."""
    return Adapters(server.adapters, folder, server.changes)


def test_a_published_step_answers_at_every_server_at_once(two: Two, tmp_path: Path) -> None:
    policy = ("team", "p", "policy")

    async def ready(ref: AdapterRef) -> None:
        assert ref.path.is_dir()

    async def main() -> None:
        async with two.open() as servers:
            one, other = (adapters_of(server, tmp_path) for server in servers)
            for adapters in (one, other):
                await adapters.open("base")
            for step in range(3):
                folder = tmp_path / f"training/m/{step}"
                folder.mkdir(parents=True)
                for name in FILES:
                    (folder / name).write_text("{}")
                await one.offer(AdapterRow(*policy, step, "base", f"training/m/{step}", step, "me"), ready)
                await one.point(policy, step)
                # What a request does that comes to the other server now.
                assert await other.look() == []
                found = other.find(Address("policy", None, "team", "p"), LOCAL)
                assert found is not None and found.row.step == step
            await other.point(policy, 1)
            assert await one.pointed(policy) == 1
            await other.withdraw(policy, [2], "me")
            assert [version.row.step for version in await one.look()] == [2]
            assert one.find(Address("policy", 2, "team", "p"), LOCAL) is None

    asyncio.run(main())


def test_of_a_rollback_and_a_deletion_at_another_server_one_is_refused(two: Two, tmp_path: Path) -> None:
    policy = ("team", "p", "policy")

    async def ready(ref: AdapterRef) -> None:
        assert ref.path.is_dir()

    async def main() -> None:
        async with two.open() as servers:
            one, other = (adapters_of(server, tmp_path) for server in servers)
            for adapters in (one, other):
                await adapters.open("base")
            steps = {0}
            for step in range(12):
                folder = tmp_path / f"training/m/{step}"
                folder.mkdir(parents=True)
                for name in FILES:
                    (folder / name).write_text("{}")
                await one.offer(AdapterRow(*policy, step, "base", f"training/m/{step}", step, "me"), ready)
                if step == 0:
                    await one.point(policy, 0)
                    continue
                await other.look()
                ended = await asyncio.gather(
                    one.withdraw(policy, [step], "me"), other.point(policy, step), return_exceptions=True
                )
                deletion, rollback = (isinstance(each, Conflict | NotFound) for each in ended)
                assert deletion != rollback, ended
                steps |= set() if rollback else {step}
                rows, meant = await servers[0].adapters.snapshot()
                assert {row.step for row in rows} == steps and meant[policy] in steps

    asyncio.run(main())


def test_a_step_that_another_server_published_meanwhile_is_published(two: Two) -> None:
    """A server stands still between its look and its write; the other one finishes the job's publication."""

    async def main() -> None:
        async with two.open() as (one, other):
            row = AdapterRow("team", "p", "policy", 1, "base", "training/m/1", 1, "me")
            await other.adapters.add(row)
            await one.adapters.add(row)
            assert len(await one.adapters.all()) == 1
            with pytest.raises(InvalidRequest, match="already exists"):
                await one.adapters.add(AdapterRow("team", "p", "policy", 1, "base", "training/other/1", 2, "me"))

    asyncio.run(main())


def test_a_runner_goes_on_with_the_jobs_of_a_dead_server(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.jobs.runner.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("heddle.store.control.eval_jobs.LEASE_SECONDS", 1.0)
    monkeypatch.setattr("heddle.evals.jobs.LEASE_SECONDS", 1.0)

    async def main() -> None:
        began = list[str]()

        async def hang(job: EvalJob, _run: JobRun) -> dict[str, object]:
            began.append(job.id)
            await asyncio.Event().wait()
            return {}

        async def quick(job: EvalJob, _run: JobRun) -> dict[str, object]:
            await asyncio.sleep(0)
            return {"by": "the other"}

        async with two.open() as (one, other):
            dead, alive = (
                Jobs(Settings(), one.eval_jobs, JobMetrics(CollectorRegistry())),
                Jobs(Settings(), other.eval_jobs, JobMetrics(CollectorRegistry())),
            )
            dead.register("kind", hang)
            alive.register("kind", quick)
            await dead.start()
            job = await dead.submit("kind", LOCAL, "team/p", {})
            await until(lambda: _is(lambda: began == [job.id]))
            for loop in (dead._taker, dead._holder):  # as a killed server: nobody renews, nothing is put back
                await loop.stop()
            await alive.start()
            ended = await asyncio.wait_for(alive.wait("team/p", job.id), 30)
            assert (ended.state, ended.result) == ("succeeded", {"by": "the other"})
            second = await alive.submit("kind", LOCAL, "team/p", {})
            assert (await asyncio.wait_for(dead.wait("team/p", second.id), 30)).state == "succeeded"
            await dead.stop()
            await alive.stop()
            assert (await alive.read("team/p", job.id)) == ended, "the dead server's end changes nothing"

    asyncio.run(main())


def test_a_job_is_cancelled_through_another_server(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.jobs.runner.LOOK_SECONDS", 0.05)

    async def main() -> None:
        began = asyncio.Event()

        async def hang(_job: EvalJob, _run: JobRun) -> dict[str, object]:
            began.set()
            await asyncio.Event().wait()
            return {}

        async with two.open() as (one, other):
            works, asks = (
                Jobs(Settings(), one.eval_jobs, JobMetrics(CollectorRegistry())),
                Jobs(Settings(), other.eval_jobs, JobMetrics(CollectorRegistry())),
            )
            works.register("kind", hang)
            await works.start()
            job = await asks.submit("kind", LOCAL, "team/p", {})
            await asyncio.wait_for(began.wait(), 30 * strain())
            await asks.cancel("team/p", job.id)
            assert (await asyncio.wait_for(asks.wait("team/p", job.id), 30)).state == "cancelled"
            await works.stop()

    asyncio.run(main())


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


def test_files_are_removed_by_one_at_a_time(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    async def name_none(*_: Sequence[str]) -> set[str]:
        return set()

    monkeypatch.setattr(base, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(ControlGroups, "named_blobs", name_none, raising=False)
    steps: list[int] = []

    def remove(number: int, named: Named) -> None:
        steps.append(number)
        for _ in range(20):
            named([])
        steps.append(number)

    async def main() -> None:
        async with two.open() as servers:
            removals = enumerate((*servers, *servers))
            await asyncio.gather(*(Store._remove_blobs(cast(Store, s), partial(remove, n)) for n, s in removals))
            assert steps[::2] == steps[1::2] and sorted(steps[::2]) == [0, 1, 2, 3]
            assert await servers[0].leases._executor.read(lambda c: c.execute(sa.select(leases)).all()) == []

    asyncio.run(main())
