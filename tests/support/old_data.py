"""Folders and databases that an older heddle wrote, packed into one file each, and what it answered about them."""

import gzip
import io
import json
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx

from tests.support import postgres
from tests.support.tenant_requests import request_for
from tests.support.tenants import Asked, Tenant, asked_routes

FOLDER = Path(__file__).parent.parent / "data" / "old"
PROJECT = "team/old"
SETTINGS: dict[str, object] = {
    "auth": "on",
    "alert_webhooks": "http://127.0.0.1:9",
    "alert_interval": 86_400,
    "access_log": "off",
}
_PLACE, _DATABASE = "@FOLDER@", "@DATABASE@"
_SQLITE, _POSTGRES, _CLICKHOUSE, _TOLD = "heddle.db.sql", "postgres.sql", "clickhouse.json", "told.json"
_SKIPPED = (".lock", "-wal", "-shm", ".sock")
_STREAMS = ("/live", "/stream")


def wait_until_ready(client: httpx.Client, seconds: float = 120) -> None:
    """Return when `/ready` answers 200; raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server is not ready")


def ask_everything(
    client: httpx.Client, tenant: Tenant, only: Collection[str] | None = None
) -> dict[str, tuple[int, str]]:
    """Status and text of every route that reads and ends, or only of those with these names; 0 for one cut off."""
    asked = [each for each in asked_routes() if each.scope == "read" and not each.template.endswith(_STREAMS)]
    return {str(each): _ask(client, each, tenant) for each in asked if only is None or str(each) in only}


def _ask(client: httpx.Client, asked: Asked, tenant: Tenant) -> tuple[int, str]:
    asking = request_for(asked, tenant)
    body = {"json": asking.body} if asking.body is not None else {}
    try:
        answer = client.request(asking.method, asking.path, params=asking.params, headers=asking.headers, **body)
    except httpx.RemoteProtocolError as error:
        return 0, str(error)
    return answer.status_code, answer.text


def pack(target: Path, folder: Path, databases: dict[str, str], told: dict[str, Any]) -> None:
    """Write one file of a stopped server's folder, its databases as text, and what was told of it."""
    texts = {_TOLD: json.dumps(told, indent=1)}
    if databases:
        texts[_POSTGRES] = _dump_postgres(databases["control"])
        texts[_CLICKHOUSE] = _dump_clickhouse(databases["store"])
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as tar:
        for path in sorted(path for path in (folder / "data").rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            if name == "data/heddle.db":
                with sqlite3.connect(path) as raw:
                    version = raw.execute("PRAGMA user_version").fetchone()[0]
                    texts[_SQLITE] = "\n".join([f"PRAGMA user_version = {version};", *raw.iterdump()])
            elif not name.endswith(_SKIPPED) and ".before-" not in name:
                _add(tar, name, path.read_bytes())
        for name, text in texts.items():
            _add(tar, name, text.replace(str(folder), _PLACE).encode())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def unpack(source: Path, folder: Path, databases: dict[str, str]) -> dict[str, Any]:
    """Put everything where a server finds it; returns what was told of it."""
    with tarfile.open(source) as tar:
        tar.extractall(folder, filter="data")
    texts = {}
    for name in (_TOLD, _SQLITE, _POSTGRES, _CLICKHOUSE):
        if (path := folder / name).exists():
            texts[name] = path.read_text().replace(_PLACE, str(folder))
    if _SQLITE in texts:
        with sqlite3.connect(folder / "data" / "heddle.db") as raw:
            raw.executescript(texts[_SQLITE])
    if databases:
        _restore_postgres(databases["control"], texts[_POSTGRES])
        _restore_clickhouse(databases["store"], texts[_CLICKHOUSE])
    return dict(json.loads(texts[_TOLD]))


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _program(name: str) -> str:
    found = postgres.programs()
    assert found is not None
    return str(found / name)


def _dump_postgres(address: str) -> str:
    command = [_program("pg_dump"), "--no-owner", "--inserts", address]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _restore_postgres(address: str, text: str) -> None:
    command = [_program("psql"), "--quiet", "--set", "ON_ERROR_STOP=1", address]
    subprocess.run(command, check=True, capture_output=True, text=True, input=text)


def _clickhouse(address: str, statement: str) -> str:
    server = "http://" + address.removeprefix("clickhouse://").rpartition("/")[0]
    answer = httpx.post(server, content=statement.encode(), timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def _dump_clickhouse(address: str) -> str:
    database = address.rpartition("/")[2]
    # Views come last, of tables that hold their rows already.
    order = "ORDER BY engine = 'MaterializedView', name"
    tables = _clickhouse(address, f"SELECT name FROM system.tables WHERE database = '{database}' {order}").split()
    dumped = []
    for table in tables:
        made = _clickhouse(address, f"SHOW CREATE TABLE {database}.{table} FORMAT TSVRaw")
        is_view = made.startswith("CREATE MATERIALIZED VIEW")
        rows = "" if is_view else _clickhouse(address, f"SELECT * FROM {database}.{table} FORMAT JSONEachRow")
        dumped.append([table, made.replace(database, _DATABASE), rows])
    return json.dumps(dumped, indent=1)


def _restore_clickhouse(address: str, text: str) -> None:
    database = address.rpartition("/")[2]
    for table, made, rows in json.loads(text):
        _clickhouse(address, made.replace(_DATABASE, database))
        if rows:
            _clickhouse(address, f"INSERT INTO {database}.{table} FORMAT JSONEachRow {rows}")
