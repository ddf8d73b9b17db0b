"""A stream that meets damage after it has begun."""

import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from heddle.store.sqlite.database import DATABASE, PAGE_SIZE
from tests.support import scale
from tests.support.chat import until
from tests.support.server import HeddleProcess

pytestmark = scale.on_sqlite


def test_it_is_cut_off_and_the_log_says_why(tmp_path: Path) -> None:
    data, project = tmp_path / "data", "team/p"
    named = {"project_id": project, "trace_id": "t", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
    with HeddleProcess(data, model="none") as process:
        for batch in range(20):
            items = [
                {
                    "mode": "start",
                    "req": {
                        "start": {**named, "id": f"{batch}-{number}", "attributes": {}, "inputs": {"text": "a" * 999}}
                    },
                }
                for number in range(200)
            ]
            httpx.post(f"{process.url}/call/upsert_batch", json={"batch": items}, timeout=60).raise_for_status()
    database = data / DATABASE
    with closing(sqlite3.connect(database)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = [page for (page,) in raw.execute("SELECT pageno FROM dbstat WHERE name = 'body_in' ORDER BY pageno")]
    with database.open("r+b") as file:
        for page in pages[len(pages) // 3 : len(pages) // 2]:
            file.seek((page - 1) * PAGE_SIZE)
            file.write(bytes(PAGE_SIZE))
    with HeddleProcess(data, model="none") as process:
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream(
                "POST", f"{process.url}/calls/stream_query", json={"project_id": project}, timeout=60
            ) as answer,
        ):
            assert answer.status_code == 200
            for _ in answer.iter_lines():
                pass
        until(lambda: "was interrupted: The database heddle.db is damaged" in process.log(), "the log says why")
        assert "Traceback" not in process.log()
        assert httpx.get(f"{process.url}/ready").status_code == 200
