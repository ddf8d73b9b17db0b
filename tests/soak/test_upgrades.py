"""Folders of each earlier schema, written by the source of its time, open here and read back as acknowledged."""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

from heddle.store.sqlite import migrations
from tests.soak.load import Load, lost
from tests.soak.test_crash import assert_sound
from tests.support import scale
from tests.support.cli import heddle
from tests.support.patience import strain
from tests.support.server import HeddleProcess

ROOT = Path(__file__).parents[2]
STEPS = "src/heddle/store/sqlite/migrations.py"
WRITTEN = 100

pytestmark = [
    pytest.mark.soak,
    scale.on_sqlite,
    pytest.mark.skipif(not os.environ.get("HEDDLE_SOAK"), reason="with HEDDLE_SOAK=1 (make soak)"),
]


def git(*words: str) -> bytes:
    """What git prints; nothing where this is no checkout."""
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, check=False).stdout


def earlier_schemas() -> dict[int, list[str]]:
    """The commits of the history with each schema before this one, the newest first."""
    found: dict[int, list[str]] = {}
    newest, began = 0, ""
    for commit in git("log", "--first-parent", "--reverse", "--format=%h", "--", STEPS).decode().split():
        number = max(map(int, re.findall(r"Migration\(\s*(\d+)", git("show", f"{commit}:{STEPS}").decode())), default=0)
        if number > newest:
            if newest:
                later = git("log", "--first-parent", "--format=%h", f"{began}..{commit}^").decode().split()
                found[newest] = [*later, began]
            newest, began = number, commit
    return found


def unpack_newest(commits: list[str], folder: Path) -> str:
    """Unpack the source of the first of these commits that can be imported; which one it is."""
    for commit in commits:
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src"))) as packed:
            packed.extractall(folder, filter="data")
        environment = os.environ | {"PYTHONPATH": str(folder / "src")}
        command = [sys.executable, "-c", "import heddle.app"]
        if subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode == 0:
            return commit
    raise AssertionError(f"none of {', '.join(commits)} can be imported")


@pytest.mark.parametrize(("schema", "commits"), earlier_schemas().items() if os.environ.get("HEDDLE_SOAK") else ())
def test_what_an_earlier_schema_holds_is_read_back(
    schema: int, commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = unpack_newest(commits, tmp_path / "older")
    data = tmp_path / "data"
    older = HeddleProcess(data, model="none")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "older" / "src"))
        older.start(60 * strain())
    try:
        load = Load(older.url, schema).start()
        load.wait_for(WRITTEN, 60 * strain())
        load.stop()
        assert older.terminate(60 * strain()) == 0
    finally:
        older.kill()
    with closing(connect(data / "heddle.db")) as raw:
        assert migrations.version(raw) == schema
    newer = HeddleProcess(data, model="none").start(60 * strain())
    try:
        assert lost(newer.url, load.acknowledged) == []
        assert "Traceback" not in newer.log()
    finally:
        newer.terminate(60 * strain())
    with closing(connect(data / "heddle.db")) as raw:
        assert migrations.version(raw) == migrations.CURRENT
    assert_sound(data)
    checked = heddle("check", "--full", "--port", 0, "--data", data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    kinds = sorted({item.kind for item in load.acknowledged})
    print(f"schema {schema} ({commit}): {len(load.acknowledged)} of {', '.join(kinds)}; refused {len(load.refused)}")
