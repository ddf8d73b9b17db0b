"""Making and taking away models: nothing is left of a failure anywhere, and a crash in between is made good."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import LOCAL, Caller
from heddle.errors import Conflict, InvalidRequest, NotFound, StorageFull
from heddle.store.control.coordination import CANCELLED
from heddle.training import files
from heddle.training.models import TrainableModels
from heddle.training.queue.supervisor import Supervisor
from heddle.training.schemas.requests import CreateModel
from heddle.wire.training import PolicyName
from tests.support.models import make_model
from tests.support.training_bench import Bench

ROOT = Path(__file__).parents[3]
CALLER = Caller("somebody", LOCAL.grants)
POLICY = PolicyName("somebody", "lab", "writer")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def wanted(**fields: Any) -> CreateModel:
    """A request for a model."""
    return CreateModel.model_validate({"project": "lab", "name": "writer", "base_model": "tiny", **fields})


def play(folder: Path, test: Callable[[Bench, TrainableModels, Supervisor], Awaitable[None]]) -> None:
    """Run a test with the models of a bench."""

    async def run() -> None:
        async with Bench.open(folder / "data") as bench, bench.supervisor() as supervisor:
            bench.host.folder = make_model(folder / "model")
            store = bench.store
            await test(bench, TrainableModels(bench.settings, store, bench.host, supervisor), supervisor)

    asyncio.run(run())


def failing(verb: str, error: BaseException) -> Callable[[str], Awaitable[None]]:
    """Raises when a verb of the policy host is reached."""

    async def before(reached: str) -> None:
        if reached == verb:
            raise error

    return before


def folders_of(bench: Bench) -> list[str]:
    """What lies below the training folder."""
    return [path.name for path in (bench.folder / "training").glob("*/checkpoints/*")]


@pytest.mark.parametrize("verb", ["offer", "point"])
@pytest.mark.parametrize("error", [InvalidRequest("does not fit"), StorageFull("full"), asyncio.CancelledError()])
def test_a_failure_leaves_nothing(verb: str, error: BaseException, tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        bench.host.before = failing(verb, error)
        with pytest.raises(type(error)):
            await models.create(wanted(), CALLER)
        assert await bench.store.train_models.all() == [] and folders_of(bench) == []
        assert bench.host.pointers == {}
        bench.host.before = None
        row = await models.create(wanted(), CALLER)
        assert bench.host.pointers == {POLICY: 0} and row.entity == "somebody"

    play(tmp_path, test)


def test_one_name_is_one_model_however_many_ask_at_once(tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        asked = [models.create(wanted(return_existing=True), CALLER) for _ in range(5)]
        rows = await asyncio.gather(*asked)
        assert len({row.id for row in rows}) == 1 and folders_of(bench) == ["0000"]
        results = await asyncio.gather(
            *(models.create(wanted(name="other"), CALLER) for _ in range(5)), return_exceptions=True
        )
        assert sorted(isinstance(result, Conflict) for result in results) == [False, True, True, True, True]

    play(tmp_path, test)


@pytest.mark.parametrize("error", [None, OSError("no space"), asyncio.CancelledError()], ids=repr)
def test_who_comes_second_takes_nothing_from_the_first(error: BaseException | None, tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        row = await models.create(wanted(), CALLER)

        def make(folder: Path) -> None:
            folder.mkdir(parents=True)
            (folder / "adapter_model.safetensors").write_bytes(b"second")
            if error is not None:
                raise error

        with pytest.raises(Conflict if error is None else type(error)):
            await models.add(replace(row, id="second"), make)
        assert await bench.store.train_models.all() == [row] and folders_of(bench) == ["0000"]
        assert bench.host.pointers == {POLICY: 0} and (POLICY, 0) in bench.host.offered

    play(tmp_path, test)


def test_another_base_model_is_a_conflict(tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        await models.create(wanted(), CALLER)
        bench.host.base_ids = ("tiny", "large")
        with pytest.raises(Conflict, match="with the base model 'tiny'"):
            await models.create(wanted(base_model="large", return_existing=True), CALLER)
        bench.host.base_ids = ("large",)
        with pytest.raises(InvalidRequest, match="available: large"):
            await models.create(wanted(return_existing=True), CALLER)

    play(tmp_path, test)


def test_a_creation_that_a_crash_cut_is_finished_when_it_is_asked_again(tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        row = await models.create(wanted(), CALLER)
        bench.host.pointers.clear()  # as if the server had died before the name was made to mean anything
        bench.host.offered.clear()
        assert (await models.create(wanted(return_existing=True), CALLER)).id == row.id
        assert bench.host.pointers == {POLICY: 0} and (POLICY, 0) in bench.host.offered

    play(tmp_path, test)


def test_a_creation_that_a_full_disk_cut_can_be_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the way back was possible; the name is not lost for that."""

    async def full(*_: object) -> None:
        raise StorageFull("full")

    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(bench.store.train_models, "delete", full)
            bench.host.before = full
            with pytest.raises(StorageFull):
                await models.create(wanted(), CALLER)
        bench.host.before = None
        assert len(await bench.store.train_models.all()) == 1
        row = await models.create(wanted(), CALLER)
        assert bench.host.pointers == {POLICY: 0} and folders_of(bench) == ["0000"]
        with pytest.raises(Conflict):
            await models.create(wanted(), CALLER)
        assert [model.id for model in await bench.store.train_models.all()] == [row.id]

    play(tmp_path, test)


def test_a_creation_that_a_crash_cut_is_finished_at_the_start(tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        await models.create(wanted(), CALLER)
        await models.create(wanted(name="whole"), CALLER)
        bench.host.pointers.pop(POLICY)  # as if the server had died before the name was made to mean anything
        bench.host.offered.pop((POLICY, 0))
        await models.finish()
        assert bench.host.pointers[POLICY] == 0 and (POLICY, 0) in bench.host.offered

    play(tmp_path, test)


def test_a_deletion_ends_jobs_and_frees_everything(tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        model = await bench.model()
        first, second = await bench.job(model, steps=10**6), await bench.job(model)
        supervisor.wake()
        await bench.has_events(first, 1)
        assert await models.delete(model, "somebody") == 1
        for job_id in (first, second):
            job = await bench.find(job_id)
            assert (job.state, job.payload) == (CANCELLED, ""), job
        assert not (bench.folder / "training" / model.id).exists()
        assert bench.host.pointers == {} and models.ending == set()
        with pytest.raises(NotFound):
            await models.find(model.id, CALLER)

    play(tmp_path, test)


def test_a_model_is_gone_though_the_disk_refuses_to_remove_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        model = await bench.model()

        def refuse(*_: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with monkeypatch.context() as patch:
            patch.setattr("heddle.training.files.shutil.rmtree", refuse)
            assert await models.delete(model, "somebody") == 1
        assert "the next start will try again" in caplog.text and folders_of(bench) == ["0000"]
        with pytest.raises(NotFound):
            await models.find(model.id, CALLER)
        assert files.sweep(bench.folder, set(), 0) and folders_of(bench) == []

    play(tmp_path, test)


def test_retention_and_a_rollback_wait_for_each_other(tmp_path: Path) -> None:
    """The step that a name is pointed at by hand is not the one that retention takes away at the same time."""

    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        model = await bench.model()
        async with models._changing:
            waiting = [asyncio.ensure_future(models.roll_back(model, 0))]
            waiting.append(asyncio.ensure_future(models.retain(model)))
            await asyncio.wait(waiting, timeout=0.05)
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)

    play(tmp_path, test)


def test_what_retention_keeps(tmp_path: Path) -> None:
    async def test(bench: Bench, models: TrainableModels, supervisor: Supervisor) -> None:
        model = await bench.model()
        rows = await bench.store.train_models.checkpoints(model.id)
        assert set(await models._needed_steps(model, rows)) == {0}
        await models.retain(model)
        assert len(await bench.store.train_models.checkpoints(model.id)) == 1, "0 keeps all"

    play(tmp_path, test)
