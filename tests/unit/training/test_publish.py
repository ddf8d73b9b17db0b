"""Publishing a checkpoint: the order, a crash at any place, promotion by an evaluation, and taking a step back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from heddle.errors import InvalidRequest, NotFound, StorageFull
from heddle.store.control.training import PUBLISHING, JobRow
from heddle.store.control.training_models import ModelRow
from heddle.training.queue import supervisor as supervisor_module
from heddle.training.queue.publish import Verdict
from heddle.training.queue.supervisor import Supervisor
from heddle.wire.training import PolicyName
from tests.support.training_bench import Bench

POLICY = PolicyName("team", "project", "policy")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.01)


def play(folder: Path, test: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a test with a bench."""

    async def run() -> None:
        async with Bench.open(folder / "data") as bench:
            await test(bench)

    asyncio.run(run())


class Observer:
    """Remembers the ends of jobs."""

    def __init__(self) -> None:
        self.jobs: list[JobRow] = []

    async def ended(self, model: ModelRow, job: JobRow) -> None:
        assert model.name == "policy"
        self.jobs.append(job)


class Judge:
    """Gives one verdict, or raises it; `held` keeps it waiting."""

    def __init__(self, verdict: Verdict | Exception, held: bool = False) -> None:
        self.verdict = verdict
        self.asked: list[tuple[int, int]] = []
        self.held = held

    async def judge(self, model: ModelRow, job: JobRow, candidate: int, latest: int) -> Verdict:
        self.asked.append((candidate, latest))
        if self.held:
            await asyncio.Event().wait()
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def with_judge(judge: Judge) -> Callable[[Supervisor], None]:
    """Sets the judge of a supervisor."""

    def prepare(supervisor: Supervisor) -> None:
        supervisor.publisher.judge = judge.judge

    return prepare


def test_a_step_is_listed_and_served_before_the_end_is_told(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, order = await bench.model(), list[str]()
        job_id = await bench.job(model)

        async def before(verb: str) -> None:
            rows = await bench.store.train_models.checkpoints(model.id)
            last = (await bench.events(job_id))[-1].type
            order.append(f"{verb}: {[row.step for row in rows]}, {last}, {(await bench.find(job_id)).state}")

        bench.host.before = before
        async with bench.supervisor() as supervisor:
            await bench.ended(supervisor, job_id)
        assert order == [f"{verb}: [0, 1], gradient_step, publishing" for verb in ("offer", "point")]

    play(tmp_path, test)


def test_an_observer_that_breaks_holds_up_nobody(tmp_path: Path) -> None:
    class Broken:
        async def ended(self, model: ModelRow, job: JobRow) -> None:
            raise KeyError(job.id)

    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor(lambda it: it.publisher.observers.append(Broken().ended)) as supervisor:
            assert (await bench.ended(supervisor, await bench.job(model))).state == "succeeded"

    play(tmp_path, test)


def test_observers_hear_the_end_once(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, observer = await bench.model(), Observer()
        async with bench.supervisor(lambda it: it.publisher.observers.append(observer.ended)) as supervisor:
            await bench.ended(supervisor, await bench.job(model))
            await bench.ended(supervisor, await bench.job(model, fail="no"))
        assert [(job.state, job.error, job.metrics) for job in observer.jobs] == [
            ("succeeded", None, {"loss/train": 0.5}),
            ("failed", "no", {}),
        ]
        assert all(job.ended_at for job in observer.jobs)

    play(tmp_path, test)


@pytest.mark.parametrize("place", ["offer", "point", "ended"])
def test_a_crash_while_publishing_is_continued(tmp_path: Path, place: str) -> None:
    async def test(bench: Bench) -> None:
        model, crashed = await bench.model(), asyncio.Event()
        job_id = await bench.job(model)

        async def crash(verb: str) -> None:
            if verb == place:
                crashed.set()
                raise asyncio.CancelledError

        class Crashing:
            async def ended(self, model: ModelRow, job: JobRow) -> None:
                await crash("ended")

        bench.host.before = crash
        async with bench.supervisor(lambda it: it.publisher.observers.append(Crashing().ended)):
            await crashed.wait()
        assert (await bench.find(job_id)).state == PUBLISHING
        bench.host.before = None
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, job_id)
            assert supervisor.pids() == [], "nothing was trained again"
        assert job.state == "succeeded"
        assert bench.host.pointers[POLICY] == 1
        assert [event.seq for event in await bench.events(job_id)] == list(range(5))
        assert [row.step for row in await bench.store.train_models.checkpoints(model.id)] == [0, 1]

    play(tmp_path, test)


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model, refused = await bench.model(), list[str]()

        async def full(verb: str) -> None:
            if len(refused) < 2:
                refused.append(verb)
                raise StorageFull("The disk is full")

        bench.host.before = full
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, await bench.job(model))
        assert (job.state, refused) == ("succeeded", ["offer", "offer"])

    play(tmp_path, test)


def test_a_checkpoint_that_does_not_fit_fails_the_job(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()

        async def refuse(verb: str) -> None:
            raise InvalidRequest("the adapter has rank 4")

        bench.host.before = refuse
        async with bench.supervisor() as supervisor:
            job_id = await bench.job(model)
            job = await bench.ended(supervisor, job_id)
        assert (job.state, job.error) == ("failed", "step 1 cannot be published: the adapter has rank 4")
        assert [row.step for row in await bench.store.train_models.checkpoints(model.id)] == [0]
        assert sorted(path.name for path in (bench.folder / "training" / model.id / "checkpoints").iterdir()) == [
            "0000"
        ]

    play(tmp_path, test)


@pytest.mark.parametrize(
    ("verdict", "latest", "reason", "figures"),
    [
        (Verdict(True, {"promotion/promoted": 1.0, "promotion/score_new": 0.7}), 1, None, 1.0),
        (Verdict(False, {"promotion/promoted": 0.0}), 0, None, 0.0),
        (NotFound("The evaluation is gone"), 0, "not promoted: The evaluation is gone", 0.0),
        (KeyError("a row"), 0, "not promoted: the evaluation failed: KeyError('a row')", 0.0),
    ],
)
def test_an_evaluation_decides(
    tmp_path: Path, verdict: Verdict | Exception, latest: int, reason: str | None, figures: float
) -> None:
    async def test(bench: Bench) -> None:
        model, judge = await bench.model(), Judge(verdict)
        async with bench.supervisor(with_judge(judge)) as supervisor:
            job_id = await bench.job(model, promotion={"evaluation": "weave:///team/project/object/e:1"})
            job = await bench.ended(supervisor, job_id)
            following = await bench.ended(supervisor, await bench.job(model))
        assert judge.asked == [(1, 0)]
        assert (job.state, job.error) == ("succeeded", reason)
        assert (await bench.events(job_id))[-1].data["promotion/promoted"] == figures
        assert (following.parent_step, following.step) == (latest, 2), "training goes on from the promoted policy"
        assert bench.host.pointers[POLICY] == 2, "a job that names no evaluation is promoted"

    play(tmp_path, test)


def test_a_server_without_evaluations_promotes_nothing_unseen(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        model = await bench.model()
        async with bench.supervisor() as supervisor:
            job = await bench.ended(supervisor, await bench.job(model, promotion={"evaluation": "weave:///e"}))
        assert job.error == "not promoted: this server runs no evaluations"
        assert bench.host.pointers[POLICY] == 0

    play(tmp_path, test)


def test_a_job_cancelled_while_it_is_judged_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        model, judge = await bench.model(), Judge(Verdict(True), held=True)
        async with bench.supervisor(with_judge(judge)) as supervisor:
            job_id = await bench.job(model, promotion={"evaluation": "weave:///e"})
            supervisor.wake()

            async def judging() -> bool:
                return bool(judge.asked)

            await bench.until(judging)
            assert await supervisor.cancel(job_id)
            job = await bench.ended(supervisor, job_id)
        assert (job.state, job.error) == ("cancelled", "cancelled")
        assert [row.step for row in await bench.store.train_models.checkpoints(model.id)] == [0]
        assert list(bench.host.offered) == [(POLICY, 0)]
        assert not (bench.folder / "training" / model.id / "checkpoints" / "0001").exists()

    play(tmp_path, test)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
