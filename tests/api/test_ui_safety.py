"""The routes of the pages against callers who may not, who send nonsense, or whose browser was led here."""

import csv
import io
import json
import random
import socket
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.app import served_routes
from heddle.auth import session_token
from tests.conftest import Wire
from tests.support import scale
from tests.support.cli import make_key
from tests.support.server import HeddleProcess

Json = dict[str, Any]
READS: tuple[tuple[str, str, Json], ...] = (
    ("GET", "/_ui/api/overview?project={project}", {}),
    ("GET", "/_ui/api/costs?project={project}", {}),
    ("GET", "/_ui/api/prices?project={project}", {}),
    ("GET", "/_ui/api/ops?project={project}", {}),
    ("GET", "/_ui/api/training?project={project}", {}),
    ("GET", "/_ui/api/threads/{project}", {}),
    ("GET", "/_ui/api/trace/{project}/{trace}", {}),
    ("GET", "/_ui/api/evaluation_values/{project}?runs=x", {}),
    ("GET", '/_ui/api/calls/export?chosen={{"project_id":"{project}"}}', {}),
    ("POST", "/_ui/api/calls", {"project_id": "{project}"}),
    ("POST", "/_ui/api/calls/summary", {"project_id": "{project}"}),
    ("POST", "/_ui/api/calls/facets", {"project_id": "{project}"}),
    ("POST", "/_ui/api/errors", {"project_id": "{project}"}),
    ("POST", "/_ui/api/values", {"project_id": "{project}"}),
)
SERVER_WIDE = frozenset(
    f"/_ui/api/{name}"
    for name in ("projects", "settings", "storage", "keys", "keys/{key_id}", "inference", "inference/live")
)
WRITES = frozenset(f"/_ui/api/{name}" for name in ("calls/change", "projects/example", "projects/example/delete"))
WRITES |= {f"/_ui/api/keys/{{key_id}}/{change}" for change in ("rotate", "restore")}
"""test_tenant_matrix.py asks for those."""
OF_MODELS = ["/_ui/api/training/", "/_ui/api/trajectories"]
"""Their project is that of the model; test_ui_reads.py asks for those."""


def call(project: str, **fields: Any) -> Json:
    """A finished call."""
    at = datetime.now(UTC) - timedelta(minutes=1)
    times = {"started_at": at.isoformat(), "ended_at": at.isoformat()}
    body = {"attributes": {}, "inputs": {}, "output": "it", "summary": {}}
    return {
        "project_id": project,
        "id": str(uuid.uuid4()),
        "trace_id": "t1",
        "op_name": "answer",
        **times,
        **body,
        **fields,
    }


def store(client: httpx.Client, project: str, *calls: Json) -> None:
    """Write whole calls."""
    answer = client.post(f"/v2/{project}/calls/complete", json={"batch": list(calls)})
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Client]]:
    """A server that needs keys, asked with one key of each sort."""
    data = tmp_path_factory.mktemp("safety") / "data"
    words = {
        "root": ("--scope", "admin"),
        "writer": ("--scope", "write"),
        "elsewhere": ("--scope", "admin", "--project", "team/open"),
        "stranger": ("--scope", "admin", "--entity", "others"),
    }
    keys = {who: make_key(data, who, *flags) for who, flags in words.items()}
    with HeddleProcess(data, auth="on") as process:
        clients = {who: httpx.Client(base_url=process.url, auth=("api", key), timeout=30) for who, key in keys.items()}
        store(clients["root"], "team/secret", call("team/secret"))
        yield clients


def ask(client: httpx.Client, method: str, path: str, body: Json, project: str) -> httpx.Response:
    """One of the reads for a project."""
    filled = {name: value.format(project=project) for name, value in body.items()}
    return client.request(method, path.format(project=project, trace="t1"), json=filled or None)


def test_every_read_of_a_project_is_known_here() -> None:
    known = {path.partition("?")[0].format(project="x/y", trace="z") for _, path, _ in READS}
    for route in served_routes():
        if route.path.startswith("/_ui/api/") and route.path not in SERVER_WIDE | WRITES:
            found = any(route.path_regex.match(path) for path in known)
            assert found or route.path.startswith(tuple(OF_MODELS)), f"{route.path} is not asked for below"


@pytest.mark.parametrize(("method", "path", "body"), READS)
def test_nobody_reads_beyond_a_key(guarded: dict[str, httpx.Client], method: str, path: str, body: Json) -> None:
    assert ask(guarded["root"], method, path, body, "team/secret").status_code == 200
    for who in ("writer", "elsewhere", "stranger"):
        answer = ask(guarded[who], method, path, body, "team/secret")
        assert answer.status_code == 403 and "answer" not in answer.text, f"{who}: {answer.text}"


def test_what_is_of_the_whole_server_is_kept_from_bound_keys(guarded: dict[str, httpx.Client]) -> None:
    for path in ("projects", "settings", "storage", "keys", "inference"):
        assert guarded["writer"].get(f"/_ui/api/{path}").status_code == 403, path
    for who in ("elsewhere", "stranger"):
        assert guarded[who].get("/_ui/api/storage").status_code == 403
        assert "secret" not in guarded[who].get("/_ui/api/projects").text
        assert [key["user"] for key in guarded[who].get("/_ui/api/keys").json()["keys"]] == [who]
        told = guarded[who].get("/_ui/api/settings").json()
        assert not told["is_operator"] and "data" not in {row["name"] for row in told["given"]}


def test_headers_of_pages_are_no_key(guarded: dict[str, httpx.Client]) -> None:
    page = {b"x-heddle-ui": b"1", b"sec-fetch-site": b"same-origin"}
    odd = ("", '"', "a\\073b", "=", "x" * 60_000, '"' + "\\" * 50_000 + '"', "\u00ff")
    with httpx.Client(base_url=guarded["root"].base_url) as nobody:
        for path in ("/_ui/api/projects", "/v1/models", "/inference/models", "/_ui/api/keys"):
            assert nobody.get(path, headers=page).status_code in (401, 404), path
        for value in odd:
            cookie = f"other={{a b}}; heddle_session={value}".encode("latin-1")
            answer = nobody.get("/_ui/api/projects", headers={**page, b"cookie": cookie})
            assert answer.status_code in (400, 401, 431), answer.text
            # What is no session of ours never comes back in a cookie, also where a key is known.
            shown = guarded["root"].get("/", headers={b"cookie": cookie})
            assert "set-cookie" not in shown.headers or value == ""


@pytest.mark.parametrize(
    ("cookie", "token"),
    [
        (b"heddle_session=a-b_1", "a-b_1"),
        (b'of another={"x": [1 2}; @/=; heddle_session=a1 ;b="', "a1"),
        (b"heddle_session=first; heddle_session=second", "first"),
        (b"heddle_session=", None),
        (b'heddle_session="a\\073 Domain=x"', None),
        (b"heddle_session=" + b"a" * 101, None),
        (b"not_heddle_session=a", None),
    ],
)
def test_a_session_is_found_beside_cookies_of_others(cookie: bytes, token: str | None) -> None:
    assert session_token({b"cookie": cookie}, "GET") == token


def test_a_name_that_leads_here_reads_nothing_without_keys(server: HeddleProcess) -> None:
    by_name = {"host": "evil.test:8470", "user-agent": "Mozilla/5.0 (X11)", "accept-language": "en"}
    for path in ("/", "/_ui/api/projects", "/_ui/session", "/team/one/weave", "/_ui/api/settings"):
        assert httpx.get(server.url + path, headers=by_name).status_code == 403, path
    # Programs may reach a server by whatever name.
    assert httpx.get(server.url + "/_ui/api/projects", headers={"host": "host.docker.internal:8470"}).status_code == 200


ODD = ({"from": 1e300}, {"to": -1e300}, {"from": "NaN"}, {"cost": {"op": "gt", "dollars": "inf"}})
ODD_PLACES = ("²_x", "--5_x", "99999999999999999999_x", "9223372036854775807_x", "5_", "_x", "NaN_x")


def test_nonsense_is_refused_with_a_reason(wire: Wire) -> None:
    for route in ("/_ui/api/calls", "/_ui/api/calls/summary"):
        for odd in ODD:
            answer = wire.client.post(route, json={"project_id": wire.project, **odd})
            assert answer.status_code == 422, f"{route} {odd}: {answer.text}"
    for place in ODD_PLACES:
        for side in ("after", "before"):
            answer = wire.client.post("/_ui/api/calls", json={"project_id": wire.project, side: place})
            assert answer.status_code == 400 and "Invalid place" in answer.text, f"{place}: {answer.text}"
    store(wire.client, wire.project, call(wire.project, inputs={"list": [1]}))
    columns = ["inputs.list.²", "inputs.list.99999999999999999999", "inputs.list." + "9" * 5000, "scores", "."]
    answer = wire.client.post("/_ui/api/calls", json={"project_id": wire.project, "columns": columns})
    assert answer.status_code == 200, answer.text


def test_a_huge_address_is_refused(server: HeddleProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as link:
        link.settimeout(120)
        head = b"GET /_ui/api/costs?project=a/b&x=" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            link.sendall(head)
            said = link.recv(200)
        except OSError:
            said = b""
    assert not said.startswith(b"HTTP/1.1 5"), said


def test_exports_take_any_name_and_run_no_formula(server: HeddleProcess) -> None:
    project = f'team-{uuid.uuid4().hex[:6]}/żółw "x"'
    names = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", 'say "a", b', "a;b\n=c", "\u202e"]
    with httpx.Client(base_url=server.url, timeout=30) as client:
        made = [call(project, display_name=name) for name in names]
        store(client, project, *made)
        for kind in ("csv", "jsonl", "parquet"):
            asked = {"format": kind, "chosen": json.dumps({"project_id": project})}
            found = client.get("/_ui/api/calls/export", params=asked)
            assert found.status_code == 200 and found.headers["content-disposition"].isascii(), found.text
            if kind == "csv":
                shown = {row["name"] for row in csv.DictReader(io.StringIO(found.text, newline=""))}
    assert shown == {name if name in names[7:] else f"'{name}" for name in names}


def counted(data: Path) -> tuple[list[Any], list[Any]]:
    """The blocks of a database, and what they should be."""
    with closing(sqlite3.connect(f"file:{data / 'heddle.db'}?mode=ro", uri=True)) as raw:
        raw.execute("BEGIN")
        kept = raw.execute("SELECT * FROM call_blocks WHERE calls <> 0").fetchall()
        rows = raw.execute(
            """SELECT project, started_at, op, parent_id IS NULL, status FROM calls
            WHERE started_at IS NOT NULL AND deleted_at IS NULL"""
        ).fetchall()
    real = Counter(
        (width, row[0], row[1] // width, *row[2:]) for row in rows for width in (600_000_000, 86_400_000_000)
    )
    return sorted(kept), sorted((*key, calls) for key, calls in real.items())


def halves(chance: random.Random, ids: list[str]) -> list[Json]:
    """Starts and ends in any order, again and again, of calls from before 1970 until now."""
    batch: list[Json] = []
    for _ in range(20):
        call_id = chance.choice(ids)
        at = datetime.fromtimestamp(
            chance.choice((-2e6, 1e9, time.time() - 1e6)) + chance.random() * 1e6, UTC
        ).isoformat()
        start: Json = {"project_id": "team/random", "id": call_id, "trace_id": "t", "op_name": chance.choice("ab")}
        start |= {"started_at": at, "attributes": {}, "inputs": {}, "parent_id": chance.choice([None, ids[0]])}
        end: Json = {"project_id": "team/random", "id": call_id, "ended_at": at, "summary": {}}
        end |= {"exception": chance.choice([None, "no"])}
        batch.append(chance.choice(({"mode": "start", "req": {"start": start}}, {"mode": "end", "req": {"end": end}})))
    return batch


@scale.on_sqlite
def test_counts_stay_exact_whatever_happens(tmp_path: Path) -> None:
    chance = random.Random(6)
    ids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(150)]
    with HeddleProcess(tmp_path / "data") as process:
        with httpx.Client(base_url=process.url, timeout=30) as client:
            for turn in range(20):
                answer = client.post("/call/upsert_batch", json={"batch": halves(chance, ids)})
                assert answer.status_code == 200, answer.text
                if turn % 5 == 0:
                    gone = {"project_id": "team/random", "call_ids": chance.sample(ids, 5)}
                    assert client.post("/calls/delete", json=gone).status_code == 200
        kept, real = counted(process.data)
        assert kept == real and kept[0][2] < 0 < kept[-1][2]
        keep = {"project_id": "team/random", "retention_days": 30}
        assert httpx.post(f"{process.url}/project/ttl_settings/update", json=keep, timeout=30).status_code == 200
        deadline = time.monotonic() + 30
        while (found := counted(process.data))[0][0][2] < 10_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found[0] == found[1]
        with ThreadPoolExecutor(2) as pool:
            url = f"{process.url}/call/upsert_batch"
            pending = [pool.submit(httpx.post, url, json={"batch": halves(chance, ids)}) for _ in range(30)]
            pending[5].result()
            process.kill()
    kept, real = counted(process.data)
    assert kept == real


def test_a_live_answer_ends_with_its_key(guarded: dict[str, httpx.Client]) -> None:
    root = guarded["root"]
    made = root.post("/_ui/api/keys", json={"user": "short", "scopes": ["read"]}).json()
    url, auth = str(root.base_url.join("/_ui/api/inference/live")), ("api", made["key"])
    with httpx.stream("GET", url, auth=auth, timeout=120) as live:
        parts = live.iter_bytes()
        assert b"data:" in next(parts)
        assert root.delete(f"/_ui/api/keys/{made['id']}").status_code == 200
        assert sum(1 for _ in parts) < 5


def test_a_new_session_takes_the_place_of_the_old(guarded: dict[str, httpx.Client]) -> None:
    url = str(guarded["root"].base_url)
    key = guarded["root"].post("/_ui/api/keys", json={"user": "twice", "scopes": ["read"]}).json()["key"]
    page = {"x-heddle-ui": "1", "origin": url.rstrip("/"), "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=url, headers=page, timeout=30) as browser:
        assert browser.post("/_ui/session", json={"key": key}).status_code == 200
        first = browser.cookies["heddle_session"]
        assert browser.post("/_ui/session", json={"key": key}).status_code == 200
        assert browser.get("/_ui/session").json()["user"] == "twice"
    assert httpx.get(f"{url}/_ui/session", headers={"cookie": f"heddle_session={first}"}).json()["user"] is None
