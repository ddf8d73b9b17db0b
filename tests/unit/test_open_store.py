"""What keeps a store from being opened: settings that do not go together, files of a newer heddle, an old SQLite."""

import asyncio
import logging
from pathlib import Path

import pytest

from heddle import settings
from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.open import check, open_direct, opened_store, policy_folders, schema_version, usable_keys
from heddle.store.sqlite import store as sqlite_store
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.migrations import CURRENT
from heddle.store.sqlite.store import open_file

POSTGRES, CLICKHOUSE = "postgresql://host/db", "clickhouse://host/db"


def load(folder: Path, **given: str) -> Settings:
    return settings.load({"data": str(folder), **given}, {})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"control": POSTGRES}, "requires store = clickhouse://"),
        ({"store_cluster": "main"}, "store_cluster requires store = clickhouse"),
        (
            {"store": CLICKHOUSE, "control": POSTGRES, "max_database_bytes": "1000000000"},
            "max_database_bytes only applies to SQLite",
        ),
        ({"store": CLICKHOUSE, "control": POSTGRES, "workers": "2"}, "workers only applies to SQLite on one machine"),
    ],
)
def test_stores_that_do_not_go_together_are_refused(tmp_path: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(HeddleError, match=why):
        check(load(tmp_path, **given))
    check(load(tmp_path))
    check(load(tmp_path, store=CLICKHOUSE, control=POSTGRES))


def test_a_file_of_a_newer_heddle_is_refused_and_one_that_is_missing_is_made(tmp_path: Path) -> None:
    database = tmp_path / DATABASE
    assert (schema_version(database), usable_keys(load(tmp_path)), policy_folders(database)) == (0, 0, [])
    open_direct(load(tmp_path))
    assert (schema_version(database), usable_keys(load(tmp_path)), policy_folders(database)) == (CURRENT, 0, [])
    session = open_file(load(tmp_path), database)
    session.raw.execute(f"PRAGMA user_version = {CURRENT + 1}")
    session.close()
    with pytest.raises(HeddleError, match=f"a newer heddle \\(schema {CURRENT + 1}\\)"):
        open_direct(load(tmp_path))
    with pytest.raises(HeddleError, match="newer heddle"):
        open_file(load(tmp_path), database)


def test_a_folder_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def opened() -> None:
        async with opened_store(load(tmp_path / "data")):
            pass

    asyncio.run(opened())
    assert "other users" not in caplog.text
    (tmp_path / "data" / DATABASE).chmod(0o644)
    (tmp_path / "data").chmod(0o755)
    with caplog.at_level(logging.WARNING):
        asyncio.run(opened())
    assert "other users of this machine can read the data folder" in caplog.text


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store.sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(HeddleError, match=r"is too old; heddle needs 3\.38"):
        open_file(load(tmp_path), tmp_path / DATABASE)
    assert not (tmp_path / DATABASE).exists()
