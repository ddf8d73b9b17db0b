"""Versions of adapters on disk: one id from the load to the last request, and nothing left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa

from heddle.auth import LOCAL
from heddle.errors import Conflict, InvalidRequest, Unavailable
from heddle.inference.adapters import FOLDER, Adapters, Address
from heddle.inference.engine.base import AdapterRef
from heddle.store.control.inference import AdapterRow
from heddle.store.control.inference import Adapters as AdapterRows
from tests.support.memory import MemoryExecutor

T = TypeVar("T")
ADDRESS = Address("tuned", None, "team", "project")


class Meanwhile(MemoryExecutor):
    """Does something behind its first read."""

    work: Callable[[], Awaitable[None]] | None = None

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        found = await super().read(work, is_long=is_long)
        if self.work is not None:
            self.work, work_once = None, self.work
            await work_once()
        return found


def table() -> AdapterRows:
    """The table in memory."""
    return AdapterRows(MemoryExecutor())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "peft"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def folders(data: Path) -> set[str]:
    return {path.name for path in (data / FOLDER).iterdir()}


def test_the_loaded_version_is_the_served_one_and_loads_at_once_take_steps(tmp_path: Path, source: Path) -> None:
    adapters = Adapters(table(), tmp_path)
    loaded = []

    async def load() -> None:
        async with adapters.adding(ADDRESS, source, "base", "me", next_step=True) as version:
            await asyncio.sleep(0)
            loaded.append(version.ref.id)

    async def both() -> None:
        await asyncio.gather(load(), load())

    asyncio.run(both())
    found = [adapters.find(Address("tuned", step, "team", "project"), LOCAL) for step in (0, 1)]
    assert [version and version.ref.id for version in found] == loaded
    assert len(folders(tmp_path)) == 2


def test_a_version_that_fails_leaves_nothing_and_a_start_sweeps(tmp_path: Path, source: Path) -> None:
    adapters = Adapters(table(), tmp_path)

    async def fail() -> None:
        async with adapters.adding(ADDRESS, source, "base", "me", next_step=False):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(fail())
    assert folders(tmp_path) == set() and adapters.find(ADDRESS, LOCAL) is None
    (tmp_path / FOLDER / ".new-left").mkdir()
    asyncio.run(adapters.open("base"))
    assert folders(tmp_path) == set()


@pytest.mark.parametrize("error", [Unavailable("the answer to the commit was lost"), None])
def test_a_version_that_was_stored_keeps_its_files(tmp_path: Path, source: Path, error: Exception | None) -> None:
    """Without the answer to the commit, as when the server stopped, the row stayed and its folder went."""

    class Lost(MemoryExecutor):
        """Commits, and then the answer is lost or nobody waits for it any more."""

        async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
            done = await super().write(work, size)
            if error is not None:
                raise error
            adding.cancel()
            await asyncio.sleep(0)
            return done

    rows = AdapterRows(Lost())

    async def add() -> None:
        async with Adapters(rows, tmp_path).adding(ADDRESS, source, "base", "me", next_step=False):
            pass

    async def main() -> list[AdapterRow]:
        nonlocal adding
        adding = asyncio.create_task(add())
        with pytest.raises(asyncio.CancelledError if error is None else Unavailable):
            await adding
        return await rows.all()

    adding: asyncio.Task[None]
    assert {Path(row.folder).name for row in asyncio.run(main())} == folders(tmp_path) != set()


def checkpoint(data: Path, step: int) -> str:
    """The folder of a trainable model's step, relative to the data folder."""
    folder = data / "training" / "model" / "checkpoints" / f"{step:04d}"
    folder.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_text("{}")
    return str(folder.relative_to(data))


def step_of(data: Path, step: int) -> AdapterRow:
    """The row that training offers."""
    return AdapterRow("team", "project", "policy", step, "base", checkpoint(data, step), step + 1, "me")


async def nothing(_: AdapterRef) -> None:
    """An engine that does not run."""


def test_folders_of_training_are_never_removed(tmp_path: Path, source: Path) -> None:
    rows = table()
    adapters = Adapters(rows, tmp_path)
    key = ("team", "project", "policy")

    async def work() -> None:
        async with adapters.adding(ADDRESS, source, "base", "me", next_step=True):
            pass
        for step in range(3):
            await adapters.offer(step_of(tmp_path, step), nothing)
            await adapters.point(key, step)
        (version,) = await adapters.withdraw(key, [0], "me")
        await adapters.discard(version)
        await adapters.open("base")
        assert await adapters.withdraw(key, None, "me") != []
        await adapters.open("base")

    asyncio.run(work())
    assert len(list((tmp_path / "training").rglob("adapter_model.safetensors"))) == 3
    assert (
        len(folders(tmp_path)) == 1
        and [row.name for row in asyncio.run(rows.all())] == ["tuned"]
        and asyncio.run(rows.pointers()) == {}
    )


def test_a_name_is_pointed_elsewhere_only_from_the_step_that_it_means(tmp_path: Path) -> None:
    adapters, key = Adapters(table(), tmp_path), ("team", "project", "policy")

    async def work() -> None:
        for step in range(3):
            await adapters.offer(step_of(tmp_path, step), nothing)
        with pytest.raises(Conflict):
            await adapters.point(key, 1, instead_of=0)
        await adapters.point(key, 0)
        await adapters.point(key, 1, instead_of=0)
        with pytest.raises(Conflict, match="'policy' does not mean step 0 any more"):
            await adapters.point(key, 2, instead_of=0)
        assert await adapters.pointed(key) == 1

    asyncio.run(work())


def test_a_name_has_a_step_while_another_server_publishes_one(tmp_path: Path) -> None:
    executor = Meanwhile()
    rows, adapters = AdapterRows(executor), Adapters(AdapterRows(executor), tmp_path)

    async def publish(step: int) -> None:
        await rows.add(step_of(tmp_path, step))
        await rows.point(("team", "project", "policy"), step)

    async def main() -> None:
        await publish(0)
        executor.work = lambda: publish(1)
        await adapters.open("base")

    asyncio.run(main())
    found = adapters.find(Address("policy"), LOCAL)
    assert found is not None and found.row.step == 0
    asyncio.run(adapters.open("base"))
    found = adapters.find(Address("policy"), LOCAL)
    assert found is not None and found.row.step == 1


def test_a_step_whose_files_were_lost_can_be_made_again(tmp_path: Path) -> None:
    rows = table()
    row = step_of(tmp_path, 0)

    async def work() -> None:
        adapters = Adapters(rows, tmp_path)
        await adapters.offer(row, nothing)
        (tmp_path / row.folder / "adapter_model.safetensors").unlink()
        await adapters.open("base")
        assert adapters.find(Address("policy", 0), LOCAL) is None
        with pytest.raises(InvalidRequest):
            await adapters.offer(row, nothing)
        (tmp_path / row.folder / "adapter_model.safetensors").touch()
        await adapters.offer(row, nothing)
        assert adapters.find(Address("policy", 0), LOCAL) is not None

    asyncio.run(work())
    assert len(asyncio.run(rows.all())) == 1


def test_a_base_model_that_is_not_served_keeps_its_steps(tmp_path: Path) -> None:
    """They are left aside, can be deleted all the same, and answer again with their base model."""
    rows = table()

    async def work() -> None:
        adapters = Adapters(rows, tmp_path)
        for step in range(2):
            await adapters.offer(step_of(tmp_path, step), nothing)
        await adapters.point(("team", "project", "policy"), 1)
        await adapters.open("another")
        assert adapters.find(Address("policy"), LOCAL) is None
        assert await adapters.pointed(("team", "project", "policy")) == 1
        assert await adapters.withdraw(("team", "project", "policy"), [0], "me") == []
        await adapters.open("base")
        found = adapters.find(Address("policy"), LOCAL)
        assert found is not None and found.row.step == 1

    asyncio.run(work())
    assert [row.step for row in asyncio.run(rows.all())] == [1]


@pytest.mark.parametrize("text", ["a/b", "a//b/c", "a/b/c/d", "wandb-artifact:///a/b", "weave:///a/b/c", "n:x", "n@-1"])
def test_what_is_no_address(text: str) -> None:
    assert Address.parse(text) is None
