"""Retention really deletes: what is too old goes, at once and as time passes; all else stays; the audit log tells."""

import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.support import scale
from tests.support.chat import until
from tests.support.server import HeddleProcess


def start(project: str, age: timedelta) -> dict[str, Any]:
    """A call that started so long ago."""
    started = (datetime.now(UTC) - age).isoformat()
    return {
        "project_id": project,
        "op_name": "o",
        "started_at": started,
        "attributes": {},
        "inputs": {"text": "x" * 100},
    }


def count(url: str, project: str) -> int:
    """How many calls the project holds."""
    return int(httpx.post(url + "/calls/query_stats", json={"project_id": project}).json()["count"])


def wait_for_count(url: str, project: str, wanted: int) -> None:
    """Poll until the project holds so many calls."""
    deadline = time.monotonic() + 30
    while (found := count(url, project)) != wanted:
        assert time.monotonic() < deadline, f"{found} calls instead of {wanted}"
        time.sleep(0.02)


def audited(data: Path, action: str) -> list[tuple[str, str]]:
    """User and details of the audit rows of one action."""
    database = sqlite3.connect(data / "heddle.db")
    try:
        return database.execute("SELECT user, details FROM audit_log WHERE action = ?", (action,)).fetchall()
    finally:
        database.close()


@scale.on_sqlite
def test_old_calls_are_deleted_right_after_the_update(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as server, httpx.Client(base_url=server.url) as client:
        for project in ("team/short", "team/long"):
            for days in (0, 10, 20, 40, 400):
                body = {"start": start(project, timedelta(days=days, minutes=1))}
                assert client.post("/call/start", json=body).status_code == 200
        before = client.post("/project/stats", json={"project_id": "team/short"}).json()["trace_storage_size_bytes"]
        update = {"project_id": "team/short", "retention_days": 20}
        assert client.post("/project/ttl_settings/update", json=update).json() == {"retention_days": 20}
        wait_for_count(server.url, "team/short", 2)
        assert count(server.url, "team/long") == 5
        after = client.post("/project/stats", json={"project_id": "team/short"}).json()["trace_storage_size_bytes"]
        assert after * 5 == before * 2
        assert audited(server.data, "retention.update") == [("local", '{"before":null,"after":20}')]
        until(lambda: bool(audited(server.data, "retention.purge")), "the deletion is in the audit log")
        ((user, details),) = audited(server.data, "retention.purge")
        assert user == "heddle" and '"calls":3' in details
    with HeddleProcess(tmp_path / "data") as again:
        assert (count(again.url, "team/short"), count(again.url, "team/long")) == (2, 5)


def test_calls_that_grow_old_are_deleted_as_time_passes(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", retention_interval=1) as server, httpx.Client(base_url=server.url) as client:
        update = {"project_id": "team/later", "retention_days": 1}
        assert client.post("/project/ttl_settings/update", json=update).status_code == 200
        for age in (timedelta(days=2), timedelta(hours=1)):
            body = {"start": start("team/later", age)}
            assert client.post("/call/start", json=body).status_code == 200
        wait_for_count(server.url, "team/later", 1)


@scale.on_sqlite
def test_a_call_that_expires_after_the_last_year_is_read(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as server, httpx.Client(base_url=server.url) as client:
        update = {"project_id": "team/late", "retention_days": 20}
        assert client.post("/project/ttl_settings/update", json=update).status_code == 200
        body = {"start": {**start("team/late", timedelta()), "started_at": "9999-12-20T00:00:00Z"}}
        assert client.post("/call/start", json=body).status_code == 200
        call = client.post("/calls/stream_query", json={"project_id": "team/late"}).json()
        assert call["expire_at"] == "9999-12-31T23:59:59.999999Z"
