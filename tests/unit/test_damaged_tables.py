"""A table that cannot be read is named in one sentence by what looks at the file: commands end without a traceback."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from heddle import settings
from heddle.cli import main
from heddle.errors import HeddleError
from heddle.store import open as stores
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import open_store


def damage(folder: Path, table: str) -> Path:
    """A database, one of whose tables begins with a page of zeros, as its indexes do."""

    async def make() -> None:
        await (await open_store(settings.load({"data": str(folder)}, {}))).close()

    asyncio.run(make())
    database = folder / DATABASE
    with closing(sqlite3.connect(database)) as raw:
        pages = raw.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = ?", (table,)).fetchall()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * size)
            file.write(bytes(size))
    return database


def test_adapters_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"heddle\.db cannot be read: database disk image is malformed"):
        stores.policy_folders(damage(tmp_path, "adapters"))


@pytest.mark.parametrize(
    ("command", "table"),
    [
        (["check"], "adapters"),
        (["check"], "api_keys"),
        (["keys", "list"], "api_keys"),
        (["keys", "create", "--user", "ada", "--scope", "read"], "api_keys"),
    ],
)
def test_commands_say_it_in_one_line(
    command: list[str], table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(tmp_path, table)
    monkeypatch.setattr("sys.argv", ["heddle", *command, "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 1
    assert "malformed" in told.out + told.err and "Traceback" not in told.err
