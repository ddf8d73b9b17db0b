"""Versions of adapters on disk: one id from the load to the last request, and nothing left behind."""

import asyncio
from pathlib import Path

import pytest

from heddle.auth import LOCAL
from heddle.inference.adapters import FOLDER, Adapters, Address
from heddle.store.control.adapters import AdapterRow

ADDRESS = Address("tuned", None, "team", "project")


class Table:
    """Rows in memory."""

    def __init__(self) -> None:
        self.rows: list[AdapterRow] = []

    async def add(self, row: AdapterRow) -> None:
        self.rows.append(row)

    async def remove(self, row: AdapterRow, at: int, user: str) -> None:
        self.rows.remove(row)

    async def all(self) -> list[AdapterRow]:
        return self.rows


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
    adapters = Adapters(Table(), tmp_path)
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
    adapters = Adapters(Table(), tmp_path)

    async def fail() -> None:
        async with adapters.adding(ADDRESS, source, "base", "me", next_step=False):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(fail())
    assert folders(tmp_path) == set() and adapters.find(ADDRESS, LOCAL) is None
    (tmp_path / FOLDER / ".new-left").mkdir()
    asyncio.run(adapters.open("base"))
    assert folders(tmp_path) == set()
