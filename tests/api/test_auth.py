"""Keys on the wire: who is let in, how far each key reaches, and how soon a revoked one stops working."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle import __version__
from tests.support import scale
from tests.support.cli import heddle, make_key
from tests.support.description import openapi
from tests.support.server import HeddleProcess

START = {
    "op_name": "secret-op",
    "started_at": "2026-01-01T00:00:00Z",
    "attributes": {},
    "inputs": {"word": "hidden-elsewhere"},
}
BEARER_ROUTE = "/inference/nvidia/v2/hardware"
SIGNED_ROUTES = ("/files/download", "/api/v1/external_weights")
"""Their addresses carry their own permission (/files/resolve_url, external_weights_urls)."""
OPEN_ROUTES = (
    "/health",
    "/v1/health",
    "/ready",
    "/version",
    "/geolocate",
    "/server_info",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/inference/analysis/artificialanalysis/models",
    "/inference/router/openrouter/models",
    "/inference/catalog/models",
    "/inference/modelsdev/models",
)


@dataclass(frozen=True)
class Guarded:
    """A server that needs keys, and one key of each sort."""

    process: HeddleProcess
    keys: dict[str, str]

    def post(self, who: str | None, path: str, **body: Any) -> httpx.Response:
        """POST with one of the keys."""
        auth = ("api", self.keys[who]) if who else None
        return httpx.post(self.process.url + path, json=body, auth=auth, timeout=30)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with --auth on and keys for the projects of the entity `team`."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    keys = {
        "root": make_key(data, "root", "--scope", "admin"),
        "reader": make_key(data, "reader", "--scope", "read"),
        "writer": make_key(data, "writer", "--scope", "write"),
        "one": make_key(data, "one", "--project", "team/one"),
        "team": make_key(data, "team", "--entity", "team"),
    }
    with HeddleProcess(data, auth="on") as process:
        guarded = Guarded(process, keys)
        for project in ("team/one", "team/two", "other/one"):
            answer = guarded.post("root", "/call/start", start={**START, "project_id": project})
            assert answer.status_code == 200, answer.text
        yield guarded


def test_auth_cannot_be_off_where_others_can_call(tmp_path: Path) -> None:
    done = heddle("serve", "--port", "0", "--data", tmp_path / "data", "--host", "0.0.0.0", "--auth", "off")
    assert done.returncode == 1
    assert "auth = 'off' is allowed only on a loopback address, but host is '0.0.0.0'" in done.stderr


def test_keys_have_the_form_that_sdks_accept(guarded: Guarded) -> None:
    for key in guarded.keys.values():
        assert re.fullmatch(r"heddle-[0-9a-f]{64}", key)
        assert len(key.rsplit("-", 1)[1]) >= 40


@pytest.mark.parametrize("path", OPEN_ROUTES)
def test_open_routes_need_no_key(path: str, guarded: Guarded) -> None:
    assert httpx.get(guarded.process.url + path).status_code == 200


def test_every_other_route_needs_a_key(guarded: Guarded) -> None:
    asked = 0
    for path, methods in openapi()["paths"].items():
        for method in methods:
            if path not in (*OPEN_ROUTES, *SIGNED_ROUTES):
                answer = httpx.request(method, guarded.process.url + re.sub(r"{\w+}", "x", path), json={})
                assert answer.status_code == 401, f"{method} {path}: {answer.status_code} {answer.text}"
                if path == BEARER_ROUTE:
                    assert "Authorization: Bearer" in answer.json()["reason"]
                elif path.startswith("/v1/"):
                    assert "Authorization: Bearer" in answer.text
                    assert "www-authenticate" in answer.headers
                else:
                    assert "requires an API key" in answer.text, f"{path}: {answer.text}"
                    assert answer.headers["www-authenticate"].startswith("Basic")
                asked += 1
    assert asked >= 40


def test_each_way_to_send_a_key(guarded: Guarded) -> None:
    key = guarded.keys["reader"]
    body = {"project_id": "team/one"}
    for headers in ({"authorization": f"Bearer {key}"}, {"wandb-api-key": key}, {"x-api-key": key}):
        assert httpx.post(guarded.process.url + "/calls/query_stats", json=body, headers=headers).json()["count"] == 1
    for user in ("api", "anybody", ""):
        answer = httpx.post(guarded.process.url + "/calls/query_stats", json=body, auth=(user, key))
        assert answer.json()["count"] == 1


def test_wrong_keys_are_told_so(guarded: Guarded) -> None:
    answer = httpx.post(guarded.process.url + "/calls/query_stats", json={}, auth=("api", "heddle-" + "0" * 64))
    assert (answer.status_code, answer.json()["reason"]) == (401, "The API key is not known to this server")


def test_scopes(guarded: Guarded) -> None:
    start = {**START, "project_id": "team/scopes"}
    assert guarded.post("reader", "/call/start", start=start).status_code == 403
    assert guarded.post("writer", "/call/start", start=start).status_code == 200
    refused = guarded.post("writer", "/calls/query_stats", project_id="team/scopes")
    assert refused.status_code == 403
    assert refused.json()["reason"] == "This requires a key with scope 'read'; the key of user 'writer' has: write"
    assert guarded.post("reader", "/calls/query_stats", project_id="team/scopes").json()["count"] == 1
    for who, status in (("reader", 403), ("writer", 403), ("one", 403), ("root", 200)):
        answer = guarded.post(who, "/project/ttl_settings/update", project_id="team/one", retention_days=None)
        assert answer.status_code == status, who


def test_a_key_reaches_its_project_or_entity_only(guarded: Guarded) -> None:
    def sees(who: str, project: str) -> int:
        answer = guarded.post(who, "/calls/query_stats", project_id=project)
        assert answer.status_code in (200, 403), answer.text
        return int(answer.json()["count"]) if answer.status_code == 200 else -1

    projects = ("team/one", "team/two", "other/one")
    assert [sees("one", project) for project in projects] == [1, -1, -1]
    assert [sees("team", project) for project in projects] == [1, 1, -1]
    assert [sees("root", project) for project in projects] == [1, 1, 1]
    refused = guarded.post("one", "/calls/query_stats", project_id="team/two")
    assert refused.json()["reason"] == "The key of user 'one' is bound to team/one and cannot access 'team/two'"


@pytest.mark.parametrize("who", ["one", "team"])
def test_a_key_writes_within_its_reach_only(who: str, guarded: Guarded) -> None:
    whole = {**START, "trace_id": "t", "id": "i", "ended_at": "2026-01-01T00:00:01Z", "summary": {}}
    outside = {**whole, "project_id": "other/one"}
    for path, body in (
        ("/call/start", {"start": {**START, "project_id": "other/one"}}),
        (
            "/call/end",
            {"end": {"project_id": "other/one", "id": "i", "ended_at": "2026-01-01T00:00:01Z", "summary": {}}},
        ),
        ("/call/upsert_batch", {"batch": [{"mode": "start", "req": {"start": {**START, "project_id": "other/one"}}}]}),
        ("/v2/other/one/calls/complete", {"batch": [outside]}),
        ("/v2/team/one/calls/complete", {"batch": [outside]}),
        ("/v2/other/one/call/start", {"start": {**START, "project_id": "other/one"}}),
        ("/obj/create", {"obj": {"project_id": "other/one", "object_id": "o", "val": 1}}),
        ("/table/create", {"table": {"project_id": "other/one", "rows": [{}]}}),
        ("/calls/delete", {"project_id": "other/one", "call_ids": ["i"]}),
        (
            "/graphql",
            {"query": 'mutation { upsertModel(input: {name: "one", entityName: "other"}) { model { name } } }'},
        ),
    ):
        answer = guarded.post(who, path, **body)
        assert answer.status_code in (400, 403) or "PERMISSION_ERROR" in answer.text, f"{path}: {answer.text}"
    assert guarded.post("root", "/calls/query_stats", project_id="other/one").json()["count"] == 1
    assert guarded.post("root", "/objs/query", project_id="other/one").json()["objs"] == []


def test_refs_lead_nowhere_outside_the_reach(guarded: Guarded) -> None:
    made = guarded.post(
        "root", "/obj/create", obj={"project_id": "other/one", "object_id": "safe", "val": {"in": "vault"}}
    )
    ref = f"weave:///other/one/object/safe:{made.json()['digest']}"
    assert guarded.post("root", "/refs/read_batch", refs=[ref]).json() == {"vals": [{"in": "vault"}]}
    assert "vault" not in guarded.post("one", "/refs/read_batch", refs=[ref]).text
    start = {**START, "project_id": "team/one", "id": "holds-a-ref", "trace_id": "t", "inputs": {"it": ref}}
    assert guarded.post("one", "/call/start", start=start).status_code == 200
    read = {"project_id": "team/one", "filter": {"call_ids": ["holds-a-ref"]}}
    for extra in (
        {"expand_columns": ["inputs.it"]},
        {
            "query": {"$expr": {"$eq": [{"$getField": "inputs.it.in"}, {"$literal": "vault"}]}},
            "expand_columns": ["inputs.it"],
        },
    ):
        answer = guarded.post("one", "/calls/stream_query", **read, **extra)
        assert "vault" not in answer.text, answer.text
    found = guarded.post("one", "/calls/stream_query", **read, **extra)
    assert "holds-a-ref" not in found.text
    deleted = guarded.post("root", "/calls/delete", project_id="team/one", call_ids=["holds-a-ref"])
    assert deleted.status_code == 200


def test_calls_are_stored_under_the_keys_user(guarded: Guarded) -> None:
    start = {**START, "project_id": "team/users", "wb_user_id": "somebody-else"}
    assert guarded.post("writer", "/call/start", start=start).status_code == 200
    calls = guarded.post("root", "/calls/stream_query", project_id="team/users").text
    assert '"wb_user_id":"writer"' in calls
    assert "somebody-else" not in calls


def test_a_revoked_key_stops_working_within_a_second_and_it_is_audited(guarded: Guarded) -> None:
    data = guarded.process.data
    key = make_key(data, "leaver")
    ask = {"json": {"project_id": "team/one"}, "auth": ("api", key)}
    assert httpx.post(guarded.process.url + "/calls/query_stats", **ask).status_code == 200
    listed = heddle("keys", "list", "--data", data).stdout
    assert "leaver" in listed and key not in listed and key[7:] not in listed
    rows = json.loads(heddle("keys", "list", "--json", "--data", data).stdout)
    key_id = next(row["id"] for row in rows if row["user"] == "leaver")
    done = heddle("keys", "revoke", key_id, "--data", data)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 120
    while (answer := httpx.post(guarded.process.url + "/calls/query_stats", **ask)).status_code == 200:
        assert time.monotonic() < deadline
    assert (answer.status_code, answer.json()["reason"]) == (401, "The API key was revoked")


def test_the_log_and_the_database_hold_no_key(guarded: Guarded) -> None:
    stored = b"".join(path.read_bytes() for path in guarded.process.data.iterdir() if path.is_file())
    for key in guarded.keys.values():
        assert key.encode() not in stored
        assert key not in guarded.process.log()


def test_without_auth_any_key_or_none_is_the_local_user(server: HeddleProcess, project: str) -> None:
    for auth in (None, ("api", "whatever"), ("api", "")):
        start = {**START, "project_id": project}
        assert httpx.post(server.url + "/call/start", json={"start": start}, auth=auth).status_code == 200
    answer = httpx.post(server.url + "/calls/stream_query", json={"project_id": project})
    assert answer.text.count('"wb_user_id":"local"') == 3


def test_without_auth_pages_of_other_origins_are_refused(server: HeddleProcess, project: str) -> None:
    own, foreign = server.url, "https://evil.example"
    body = {"start": {**START, "project_id": project}}
    for headers in ({"origin": foreign}, {"origin": "null"}, {"origin": own, "host": "evil.example:80"}):
        assert httpx.post(server.url + "/call/start", json=body, headers=headers).status_code == 403
    rebound = {"host": "evil.example", "sec-fetch-site": "same-origin"}
    assert httpx.get(server.url + "/openapi.json", headers=rebound).status_code == 403
    assert httpx.post(server.url + "/call/start", json=body, headers={"origin": own}).status_code == 200
    assert httpx.post(server.url + "/calls/query_stats", json={"project_id": project}).json()["count"] == 1


def test_a_server_without_keys_says_how_the_first_is_made(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", auth="on") as server:
        refused = httpx.post(server.url + "/calls/query_stats", json={"project_id": "team/app"}, auth=("api", "k" * 40))
        assert refused.status_code == 401 and "heddle keys create" in refused.json()["reason"]
        assert "heddle keys create" in server.log() and "HEDDLE_BOOTSTRAP_KEY" in server.log()
        key = make_key(server.data, "ann")
        told = httpx.post(server.url + "/calls/query_stats", json={"project_id": "team/app"}, auth=("api", key))
        assert told.status_code == 200


@pytest.mark.thorough
@scale.on_sqlite
def test_a_beginning_that_keys_share_revokes_none(tmp_path: Path) -> None:
    for user in ("ann", "ben"):
        make_key(tmp_path, user)
    ids = [row["id"] for row in json.loads(heddle("keys", "list", "--json", "--data", tmp_path).stdout)]
    refused = heddle("keys", "revoke", ids[0][:2], "--data", tmp_path)
    assert refused.returncode == 1 and all(each in refused.stderr for each in ids)
    rows = json.loads(heddle("keys", "list", "--json", "--data", tmp_path).stdout)
    assert [row["revoked_at"] for row in rows] == [None, None]
    assert heddle("--version").stdout == f"heddle {__version__}\n"


def test_the_first_key_is_made_once_and_stays_revoked(tmp_path: Path) -> None:
    key, path = "k" * 40, tmp_path / "key"
    path.write_text(key + "\n", encoding="utf-8")

    def asked(server: HeddleProcess) -> list[dict[str, Any]] | int:
        answer = httpx.get(server.url + "/_ui/api/keys", headers={"Authorization": f"Bearer {key}"})
        return list(answer.json()["keys"]) if answer.status_code == 200 else answer.status_code

    with HeddleProcess(tmp_path / "data", auth="on", bootstrap_key=key) as server:
        (row,) = asked(server)
        assert (row["user"], row["roles"]) == ("admin", ["admin"])
        assert key not in server.log()
    with HeddleProcess(tmp_path / "data", auth="on", bootstrap_key_file=path) as server:
        assert [found["id"] for found in asked(server)] == [row["id"]]
        assert heddle("keys", "revoke", row["id"], "--data", str(server.data)).returncode == 0
    with HeddleProcess(tmp_path / "data", auth="on", bootstrap_key_file=path) as server:
        assert asked(server) == 401
