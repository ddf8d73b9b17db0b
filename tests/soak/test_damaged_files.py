"""Files of a stopped or killed server that are missing, cut off or changed: `heddle check` names it, and nothing else.

Each round damages one file of a folder with real content by one seed, asks `heddle check`, starts the server and reads
everything. A failure prints the seed; `HEDDLE_FAULT_SEED=17 pytest tests/soak/test_damaged_files.py` runs it again.
"""

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle import paths
from heddle.store.integrity import SPAN_CHECKSUM
from heddle.store.sqlite import call_bodies, row_checksums
from heddle.store.sqlite.database import PAGE_SIZE
from heddle.store.sqlite.schema import CHECKED
from tests.soak.load import Item, Load, lost
from tests.support import old_data, scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess
from tests.support.tenants import Tenant

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
ONE_SEED = os.environ.get("HEDDLE_FAULT_SEED")
SEEDS = [int(ONE_SEED)] if ONE_SEED else list(range(100 if SOAK else 2))
KINDS = ("missing", "truncated", "flipped", "torn", "zeroed")
DATABASE, LOG = "heddle.db", "heddle.db-wal"
OF_THE_FOLDER = {"GET /_ui/api/settings"}
"""Answers that tell the sizes of files."""
REASONS = {404, 409, 410, 422, 501, 503, 507}
SETTINGS: dict[str, Any] = {**old_data.SETTINGS, "auth": "off", "model": "none", "store": "", "control": ""}
UNCHECKED = ("sqlite_stat1", "sqlite_stat4")
"""Tables in which not every flipped bit is found; a page that is torn or zeroed is found in any."""

pytestmark = [pytest.mark.soak, scale.on_sqlite]


@dataclass(frozen=True)
class Written:
    """A data folder, an older state of its database, and what is read of it while it is whole."""

    folder: Path
    older: bytes
    tenant: Tenant
    items: list[Item]
    answers: dict[str, tuple[int, str]]


def server_of(folder: Path) -> HeddleProcess:
    """A server on a folder of these tests."""
    return HeddleProcess(folder, **{name: value for name, value in SETTINGS.items() if value != ""})


def ask(process: HeddleProcess, tenant: Tenant, routes: Collection[str]) -> dict[str, tuple[int, str]]:
    """Status and text of routes that read."""
    with httpx.Client(base_url=process.url, timeout=60) as client:
        return old_data.ask_everything(client, tenant, routes)


def add_sums(data: Path) -> None:
    """What an older heddle wrote gets the checksums that a newer one writes."""
    with closing(sqlite3.connect(data / DATABASE)) as raw:
        call_bodies.add_functions(raw)
        trials = {"eval_trials": row_checksums.columns_of(raw, "eval_trials")}
        for table, columns in (
            {name: dict.fromkeys(names, "TEXT") for name, names in CHECKED.items()} | trials
        ).items():
            raw.execute(f"UPDATE {table} SET {call_bodies.COLUMN} = {call_bodies.checksum_sql(columns)}")
        raw.execute(f"UPDATE agent_spans SET crc = checksum({SPAN_CHECKSUM})")
        raw.commit()
    for weights in data.rglob("adapter_model.safetensors"):
        paths.write_sums(weights.parent)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Everything that a project can hold, and more that was written until a kill, so that a log is left."""
    folder = tmp_path_factory.mktemp("written")
    told = old_data.unpack(old_data.FOLDER / "18063b9-sqlite.tar.gz", folder, {})
    data, tenant, items = folder / "data", Tenant(old_data.PROJECT, "canary", told["ids"]), list[Item]()
    for number in range(2):
        with server_of(data) as process:
            load = Load(process.url, number).start()
            load.wait_for(100)
            load.stop()
            items += load.acknowledged
        if not number:
            add_sums(data)
            older = (data / DATABASE).read_bytes()
    process = server_of(data).start()
    load = Load(process.url, 2).start()
    load.wait_for(60)
    process.kill()
    load.stop()
    assert (data / LOG).stat().st_size > 0
    with server_of(Path(shutil.copytree(data, folder / "copy"))) as process:
        first, second = (ask(process, tenant, told["answers"]) for _ in range(2))
    same = {name: answer for name, answer in first.items() if answer == second[name] and answer[0] < 500}
    same = {name: answer for name, answer in same.items() if name not in OF_THE_FOLDER}
    assert len(same) >= 90
    return Written(data, older, tenant, items + load.acknowledged, same)


def damage(written: Written, data: Path, kind: str, seed: int) -> str | None:
    """Damage a file of a copy of the folder; returns its name, None where this kind of damage cannot be known."""
    chance = random.Random(f"{kind} {seed}")
    found = sorted(path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file())
    others = [
        name
        for name in found
        if not name.endswith(("lock", "-shm", DATABASE, LOG)) and (data / name).stat().st_size > 0
    ]
    name = chance.choice((DATABASE, LOG, chance.choice(others))) if kind != "torn" else DATABASE
    path = data / name
    content = bytearray(path.read_bytes())
    # A log that is gone, or ends early, is that of a server that was killed before.
    if name == LOG and kind in ("missing", "truncated"):
        return None
    if kind == "missing":
        path.unlink()
        return name
    if kind == "truncated":
        del content[chance.randrange(len(content)) :]
    elif kind == "flipped":
        at = chance.randrange(len(content)) if name != DATABASE else chance.choice(checked_bytes(path, chance))
        content[at] ^= 1 << chance.randrange(8)
    else:
        at = chance.randrange(0, max(1, min(len(content), len(written.older)) // PAGE_SIZE)) * PAGE_SIZE
        other = written.older[at : at + PAGE_SIZE] if kind == "torn" else bytes(PAGE_SIZE)
        content[at : at + PAGE_SIZE] = other[: len(content) - at]
    path.write_bytes(content)
    return name


def checked_bytes(database: Path, chance: random.Random) -> range:
    """The bytes of a page of a table whose rows have checksums."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as raw:
        marks = ", ".join("?" * len(UNCHECKED))
        tables = f"SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ({marks})"
        query = f"SELECT pageno FROM dbstat WHERE name IN ({tables}) ORDER BY pageno"
        pages = raw.execute(query, UNCHECKED).fetchall()
    # Newer pages are in the log.
    begin = (chance.choice([page for (page,) in pages if page * PAGE_SIZE <= database.stat().st_size]) - 1) * PAGE_SIZE
    return range(begin, begin + PAGE_SIZE)


@pytest.fixture
def copy(written: Written, tmp_path: Path) -> Iterator[Path]:
    """A copy of the folder."""
    data = tmp_path / "data"
    shutil.copytree(written.folder, data)
    yield data
    shutil.rmtree(data, ignore_errors=True)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_damage_is_named_and_the_rest_is_answered(written: Written, copy: Path, kind: str, seed: int) -> None:
    what = f"seed {seed}, {kind}"
    name = damage(written, copy, kind, seed)
    if name is None:
        pytest.skip("no damage: it is the log of a server that was killed earlier")
    checked = heddle("check", "--full", "--port", 0, "--data", copy)
    assert "Traceback" not in checked.stderr, f"{what} {name}: {checked.stderr}"
    process = server_of(copy)
    try:
        process.start()
    except RuntimeError as refusal:
        told = process.log()
        assert checked.returncode == 1, f"{what} {name}: check finds nothing, and the server does not start: {told}"
        assert "Traceback" not in told and DATABASE in told, f"{what} {name}: {refusal}"
        print(f"{what}: {name}: refused: {told.splitlines()[-1]}")
        return
    try:
        answers = ask(process, written.tenant, written.answers)
        assert "Traceback" not in process.log(), f"{what} {name}: {process.log()[-4000:]}"
        changed = {route for route, answer in written.answers.items() if answers[route] != answer}
        for route in sorted(changed):
            status, text = answers[route]
            # Damage that is met behind the first part of an answer can only cut it off.
            is_cut = not status and "incomplete" in text and "was interrupted" in process.log()
            assert is_cut or 0 < status < 400 or (status in REASONS and json.loads(text)), (
                f"{what} {name}: {route}: {status} {text}"
            )
        try:
            gone = lost(process.url, written.items)
        except json.JSONDecodeError:
            gone = written.items
        except httpx.HTTPStatusError as refused:
            assert refused.response.status_code == 503 and refused.response.json(), f"{what} {name}: {refused}"
            gone = written.items
    finally:
        process.kill()
    told = [line for line in checked.stdout.splitlines() if line.startswith(("✗", "! write-ahead log"))]
    print(f"{what}: {name}: {len(changed)} of {len(written.answers)} answers differ, {len(gone)} items gone; {told}")
    assert told or not (changed or gone), f"{what} {name}: {sorted(changed)} {gone[:1]} differ, and check finds nothing"
