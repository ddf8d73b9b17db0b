"""From SQLite to ClickHouse and PostgreSQL and back: the same answers and the same rows everywhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from heddle import settings
from heddle.transfer.archive_import import import_archive
from heddle.transfer.export import export
from tests.support import scale
from tests.support.inprocess import running_services
from tests.support.moved import answers, control_rows, fill_project, fill_tables

PROJECT = "team/source"
pytestmark = pytest.mark.skipif(scale.missing() is not None, reason=str(scale.missing()))


async def everything(folder: Path, **stores: str) -> tuple[dict[str, str], Any]:
    """What a server on these stores answers, and its rows."""
    async with running_services(folder, **stores) as (services, client):
        return await answers(client, PROJECT), await control_rows(services.store)


@pytest.mark.thorough
def test_there_and_back(tmp_path: Path) -> None:
    large = scale.new_databases()

    def of(folder: str, **stores: str) -> settings.Settings:
        return settings.load({"data": str(tmp_path / folder), **stores}, {})

    async def run() -> None:
        async with running_services(tmp_path / "small") as (services, client):
            await fill_project(client, PROJECT)
            await fill_tables(services.store, tmp_path / "small")
        before = await everything(tmp_path / "small")
        await export(of("small"), tmp_path / "one.heddle", (), False)
        first = await import_archive(of("large", **large), tmp_path / "one.heddle", ())
        again = await import_archive(of("large", **large), tmp_path / "one.heddle", ())
        assert set(again.new.values()) == {0} and again.known == first.new
        moved = await everything(tmp_path / "large", **large)
        assert moved[0] == before[0]
        assert moved[1] == before[1]
        await export(of("large", **large), tmp_path / "two.heddle", (), False)
        await import_archive(of("back"), tmp_path / "two.heddle", ())
        assert await everything(tmp_path / "back") == before

    asyncio.run(run())
