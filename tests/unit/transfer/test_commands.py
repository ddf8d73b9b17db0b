"""`heddle export` and `heddle import archive` as they are typed."""

import asyncio
import contextlib
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.cli import heddle
from tests.support.inprocess import running_services
from tests.support.moved import answers, fill_project
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

PROJECT = "team/source"
_CALLS = 4000


async def fill_many(client: httpx.AsyncClient) -> None:
    await fill_project(client, PROJECT)
    for first in range(0, _CALLS, 1000):
        batch = []
        for number in range(first, first + 1000):
            start = {"project_id": PROJECT, "id": f"many-{number:05}", "trace_id": f"t{number}", "op_name": "op"}
            start |= {"started_at": f"2026-02-01T00:00:00.{number:06}Z", "attributes": {}, "inputs": {"n": number}}
            batch.append({"mode": "start", "req": {"start": start}})
        answer = await client.post("/call/upsert_batch", json={"batch": batch})
        assert answer.status_code == 200, answer.text


def stored(data: Path) -> int:
    """How many calls a data folder holds now; 0 while there is none."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{data / 'heddle.db'}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM calls").fetchone()[0])
    except sqlite3.Error:
        return 0


def kill_at(words: list[str], data: Path, calls: int) -> None:
    """Run an import and `kill -9` it once so many calls are stored."""
    process = subprocess.Popen([sys.executable, "-m", "heddle", *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while stored(data) < calls and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.thorough
def test_an_import_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    archive, target = tmp_path / "moved.heddle", tmp_path / "target"
    with HeddleProcess(tmp_path / "source", model="none") as server:

        async def run() -> dict[str, str]:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                await fill_many(client)
                return await answers(client, PROJECT)

        before = asyncio.run(run())
        made = heddle("export", archive, "--data", server.data, **server_settings(server))
        refused = heddle("export", archive, "--data", server.data, **server_settings(server))
    assert made.returncode == 0 and f"calls: {_CALLS + 5}" in made.stdout, made.stderr
    assert refused.returncode == 1 and "already exists" in refused.stderr
    words = ["import", "archive", str(archive), "--data", str(target)]
    for calls in (1, 1500):
        kill_at(words, target, calls)
    killed_at = stored(target)
    done = heddle(*words)
    assert done.returncode == 0, done.stderr
    counted = re.search(r"calls: (\d+) stored(?:, (\d+) already there)?", done.stdout)
    assert counted and int(counted[1]) + int(counted[2] or 0) == _CALLS + 5
    assert int(counted[2] or 0) == killed_at

    async def ask() -> dict[str, str]:
        async with running_services(target) as (_, client):
            return await answers(client, PROJECT)

    assert asyncio.run(ask()) == before


def server_settings(server: HeddleProcess) -> dict[str, object]:
    """What a command needs to find the store of a server."""
    return {name: server.settings[name] for name in ("store", "control") if name in server.settings}


def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path) -> None:
    for words, problem in (
        (("export", tmp_path / "a", "--data", tmp_path / "none"), "nothing to export"),
        (("import", "archive", tmp_path / "none", "--data", tmp_path / "b"), "cannot be read"),
        (("import", "archive", __file__, "--data", tmp_path / "b"), "not a complete archive"),
        (("import", "langfuse", tmp_path, "--into", "team/x"), "it has no observations"),
        (("import", "phoenix", "--server", "http://127.0.0.1:9", "--project", "p", "--into", "bad"), "entity/project"),
    ):
        done = heddle(*words)
        assert done.returncode == 1 and problem in done.stderr, (words, done.stdout, done.stderr)
        assert done.stderr.startswith("heddle: ") and len(done.stderr.splitlines()) == 1


def test_unknown_projects_are_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_services(tmp_path / "source") as (_, client):
            await fill_project(client, PROJECT)

    asyncio.run(run())
    done = heddle("export", tmp_path / "a", "--data", tmp_path / "source", "--project", "team/other")
    assert done.returncode == 1 and "project 'team/other' not found; available: team/source" in done.stderr
    made = heddle("export", tmp_path / "a", "--data", tmp_path / "source", "--project", PROJECT, "--json")
    assert made.returncode == 0, made.stderr
    renamed = heddle("import", "archive", tmp_path / "a", "--data", tmp_path / "target", "--project", "team/other=x/y")
    assert renamed.returncode == 1 and "has no project 'team/other'; it contains team/source" in renamed.stderr


_SIGNALLED = """
import asyncio, os, signal, sqlite3, sys
from heddle.cli import main
from heddle.store import backup
from heddle.transfer.export import Export

async def write(self):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(3600)

def copy(*_):
    # SQLite passes over what is raised inside a function of its own.
    raw = sqlite3.connect(":memory:")
    raw.create_function("end", 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    raw.execute("SELECT end()")

Export.write, backup._copy = write, copy
main()
"""


_IN_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""As shells begin what is not to be ended by Ctrl-C."""


@pytest.mark.parametrize(
    ("words", "before"),
    with_breadth(
        [
            (("export", "made/a", "--json"), _IN_BACKGROUND),
            (("export", "made/a", "--json"), ()),
            (("backup", "made/{time}", "--every", "1d"), _IN_BACKGROUND),
            (("backup", "made/{time}", "--every", "1d"), ()),
        ]
    ),
)
def test_sigterm_ends_a_command_in_order(tmp_path: Path, words: tuple[str, ...], before: tuple[str, ...]) -> None:
    with HeddleProcess(tmp_path / "data", model="none"):
        pass
    command = [*before, sys.executable, "-c", _SIGNALLED, *words, "--data", "data"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "heddle: terminated by SIGTERM\n")
    assert [path.name for path in (tmp_path / "made").iterdir() if path.name != ".lock"] == []
