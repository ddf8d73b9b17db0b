"""Keys over their life: they end, rotate, say where they were used, and end what they started; the audit log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.inference.served_model import TINY
from tests.support.cli import heddle, make_key
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess
from tests.support.traffic import until
from tests.support.training import TrainingWire, two_rollouts

PROJECT = "team/one"
Json = dict[str, Any]


@dataclass(frozen=True)
class Guarded:
    """A server that needs keys."""

    process: HeddleProcess
    root: str

    def ask(self, key: str, method: str, path: str, **given: Any) -> httpx.Response:
        """The answer to a request with a key."""
        headers = {"authorization": f"Bearer {key}"}
        return httpx.request(method, self.process.url + path, headers=headers, timeout=60, **given)

    def key(self, user: str, *roles: str, **more: Any) -> Json:
        """A new key."""
        answer = self.ask(self.root, "POST", "/_ui/api/keys", json={"user": user, "roles": roles, **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def rotate(self, made: Json, **given: Any) -> Json:
        """The same key with another secret."""
        answer = self.ask(self.root, "POST", f"/_ui/api/keys/{made['id']}/rotate", json=given)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def count(self, key: str, project: str = PROJECT) -> tuple[int, str]:
        """Status and text of a request that reads."""
        answer = self.ask(key, "POST", "/calls/query_stats", json={"project_id": project})
        return answer.status_code, answer.text

    def log(self, key: str, **params: Any) -> list[Json]:
        """Rows of the audit log."""
        answer = self.ask(key, "GET", "/audit_log", params=params)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["rows"])


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """Its model-hangs answers when it is let go."""
    with FakeProvider() as fake:
        yield fake
        fake.let_go.set()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[Guarded]:
    """A server with a provider."""
    data: Path = tmp_path_factory.mktemp("keys") / "data"
    root = make_key(data, "root", "--role", "admin")
    with HeddleProcess(data, auth="on", providers=f"fake={provider.url}") as process:
        yield Guarded(process, root)


def test_a_key_ends_by_itself(guarded: Guarded) -> None:
    made = guarded.key("short", f"viewer:{PROJECT}", expires="2s")
    assert guarded.count(made["key"])[0] == 200
    until(lambda: guarded.count(made["key"])[0] == 401)
    assert "The API key expired on 20" in guarded.count(made["key"])[1]
    (row,) = [
        row for row in guarded.ask(guarded.root, "GET", "/_ui/api/keys").json()["keys"] if row["id"] == made["id"]
    ]
    assert row["problem"].startswith("expired on") and row["revoked_at"] is None


def test_a_rotated_key_keeps_what_it_is_and_the_old_secret_counts_for_a_while(guarded: Guarded) -> None:
    made = guarded.key("ci", f"editor:{PROJECT}", expires="90d")
    second = guarded.rotate(made, overlap="1h")
    assert second["id"] == made["id"] and second["roles"] == made["roles"] and second["key"] != made["key"]
    assert second["previous_until"] is not None and second["expires_at"] > made["expires_at"]
    assert [guarded.count(key)[0] for key in (made["key"], second["key"])] == [200, 200]
    third = guarded.rotate(made, overlap="0s", expires="7d")
    assert third["expires_at"] < second["expires_at"] and third["previous_until"] is None
    assert [guarded.count(each["key"])[0] for each in (made, second, third)] == [401, 401, 200]
    assert "was rotated; this secret is no longer valid" in guarded.count(second["key"])[1]
    guarded.ask(guarded.root, "DELETE", f"/_ui/api/keys/{made['id']}")
    refused = guarded.ask(guarded.root, "POST", f"/_ui/api/keys/{made['id']}/rotate", json={})
    assert refused.status_code == 400 and "was revoked" in refused.text
    actions = [row["action"] for row in guarded.log(guarded.root) if row["details"].get("key") == made["id"]]
    assert actions == ["key.revoke", "key.rotate", "key.rotate", "key.create"]


@pytest.mark.parametrize(
    "body",
    [
        {"user": "x"},
        {"user": "x", "roles": ["owner"]},
        {"user": "x", "roles": ["viewer:team/one/two"]},
        {"user": "x", "roles": ["viewer"], "expires": "soon"},
        {"user": "x", "roles": ["viewer"], "expires": "0s"},
        {"user": "x", "roles": ["viewer:"] * 3 + ["viewer:a\u0000/b"]},
        {"user": "", "roles": ["viewer"]},
    ],
)
def test_what_is_no_key_is_refused(guarded: Guarded, body: Json) -> None:
    before = len(guarded.ask(guarded.root, "GET", "/_ui/api/keys").json()["keys"])
    assert guarded.ask(guarded.root, "POST", "/_ui/api/keys", json=body).status_code == 400
    assert len(guarded.ask(guarded.root, "GET", "/_ui/api/keys").json()["keys"]) == before


def test_an_admin_of_a_project_gives_no_more_than_it_has(guarded: Guarded) -> None:
    admin = guarded.key("head", f"admin:{PROJECT}", "editor:team/two")["key"]
    for roles in (["viewer"], ["viewer:team"], ["viewer:team/two"], [f"viewer:{PROJECT}", "viewer:other/one"]):
        refused = guarded.ask(admin, "POST", "/_ui/api/keys", json={"user": "x", "roles": roles})
        assert refused.status_code == 403 and "goes beyond that" in refused.text, roles
    made = guarded.ask(admin, "POST", "/_ui/api/keys", json={"user": "x", "roles": [f"editor+delete:{PROJECT}"]}).json()
    assert made["roles"] == [f"editor+delete:{PROJECT}"]
    both = guarded.key("both", f"viewer:{PROJECT}", "viewer:other/one")
    rows = {row["id"]: row for row in guarded.ask(admin, "GET", "/_ui/api/keys").json()["keys"]}
    assert rows[both["id"]]["roles"] == [f"viewer:{PROJECT}"] and not rows[both["id"]]["is_whole"]
    for method, path in (("DELETE", ""), ("POST", "/rotate")):
        assert guarded.ask(admin, method, f"/_ui/api/keys/{both['id']}{path}", json={}).status_code == 404
    assert guarded.ask(admin, "DELETE", f"/_ui/api/keys/{made['id']}").status_code == 200


def test_the_log_says_who_did_what_from_where(guarded: Guarded) -> None:
    editor = guarded.key("deleter", f"editor+delete:{PROJECT}", "admin:team/two")
    for project, user in ((PROJECT, "deleter"), ("other/one", "root")):
        key = editor["key"] if user == "deleter" else guarded.root
        start = {"project_id": project, "id": f"call-{user}", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
        start |= {"trace_id": "t", "attributes": {}, "inputs": {}}
        assert guarded.ask(key, "POST", "/call/start", json={"start": start}).status_code == 200
        deleted = guarded.ask(key, "POST", "/calls/delete", json={"project_id": project, "call_ids": [f"call-{user}"]})
        assert deleted.status_code == 200, deleted.text
    (row,) = guarded.log(guarded.root, action="calls.delete", user="deleter")
    assert (row["project"], row["address"]) == (PROJECT, "127.0.0.1") and row["details"]["call_ids"] == ["call-deleter"]
    own = guarded.key("head", f"admin:{PROJECT}")["key"]
    assert {row["project"] for row in guarded.log(own)} == {PROJECT}
    assert guarded.ask(own, "GET", "/audit_log", params={"project": "other/one"}).status_code == 403
    assert guarded.ask(editor["key"], "GET", "/audit_log", params={"project": PROJECT}).status_code == 403
    everything = guarded.log(guarded.root, limit=1000)
    pages = [guarded.log(guarded.root, limit=2), guarded.log(guarded.root, limit=2, before=everything[1]["number"])]
    assert [row["number"] for page in pages for row in page] == [row["number"] for row in everything[:4]]
    exported = guarded.ask(guarded.root, "GET", "/audit_log/export")
    assert exported.headers["content-type"].startswith("application/jsonl")
    assert [json.loads(line) for line in exported.text.splitlines()] == everything
    assert guarded.ask(guarded.root, "GET", "/audit_log", params={"since": "yesterday"}).status_code == 400
    assert guarded.log(guarded.root, until=everything[-1]["at"]) == []


def test_a_job_ends_with_the_key_that_started_it(guarded: Guarded, provider: FakeProvider) -> None:
    made = guarded.key("leaver", "editor:team/jobs")
    message = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
    call = {
        "project_id": "team/jobs",
        "id": "c",
        "trace_id": "c",
        "op_name": "chat",
        "attributes": {},
        "inputs": message,
    }
    call |= {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z", "summary": {}, "output": {}}
    stored = guarded.ask(made["key"], "POST", "/v2/team/jobs/calls/complete", json={"batch": [call]})
    assert stored.status_code == 200, stored.text
    wanted = {"project_id": "team/jobs", "filter": {"call_ids": ["c"]}, "model": "fake/model-hangs"}
    replay = guarded.ask(made["key"], "POST", "/replays/create", json=wanted).json()["id"]
    with TrainingWire(guarded.process.url, bearer=made["key"]) as wire:
        model = wire.model(entity="team", project="jobs")
        # One after the other: the last one has not ended when the key has.
        job = [wire.job(model, two_rollouts() * 8) for _ in range(8)][-1]
    until(lambda: any((each["body"] or {}).get("model") == "model-hangs" for each in provider.requests))
    assert guarded.ask(guarded.root, "DELETE", f"/_ui/api/keys/{made['id']}").status_code == 200
    asked = {"project_id": "team/jobs", "id": replay}

    def read() -> Json:
        return dict(guarded.ask(guarded.root, "POST", "/replays/read", json=asked).json()["replay"])

    until(lambda: read()["state"] == "cancelled")
    why = "The key of user 'leaver', which started this, was revoked"
    assert read()["error"] == why
    with TrainingWire(guarded.process.url, bearer=guarded.root) as wire:
        assert wire.until_ended(job)[-1]["data"] == {"error_message": why}
        assert wire.get(f"/training-jobs/{job}")["state"] == "cancelled"


def test_every_event_stream_ends_with_its_key(guarded: Guarded) -> None:
    """Those of training jobs and of responses in the background, which went on until their work had ended."""
    sent = {"openai-project": "team/streams", "authorization": f"Bearer {guarded.root}"}
    root = httpx.Client(base_url=guarded.process.url, headers=sent, timeout=120)

    def follow(path: str) -> str:
        """What a stream tells after the key that reads it was revoked."""
        made = guarded.key("follower", "viewer:team/streams")
        with root.stream("GET", path, headers={"authorization": f"Bearer {made['key']}"}) as stream:
            assert stream.status_code == 200
            parts = stream.iter_text()
            assert "event: " in next(parts)
            assert root.delete(f"/_ui/api/keys/{made['id']}").status_code == 200
            return "".join(parts)

    with root, TrainingWire(guarded.process.url, bearer=guarded.root) as wire:
        asked = {"model": TINY, "input": "Go on", "max_output_tokens": 1900, "ignore_eos": True, "background": True}
        response = root.post("/v1/responses", json=asked).json()
        assert "[DONE]" not in follow(f"/v1/responses/{response['id']}?stream=true")
        model = wire.model(entity="team", project="streams")
        jobs = [wire.job(model) for _ in range(4)]
        assert "training_ended" not in follow(f"/v1/preview/training-jobs/{jobs[-1]}/events/stream")
        wire.until_ended(jobs[-1])


def test_where_keys_were_used_and_what_was_refused_is_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = make_key(data, "ann", "--role", "viewer:team/one", "--role", "admin:team/two", "--expires", "90d")
    ask = {"json": {"project_id": "team/one"}, "timeout": 30}
    with HeddleProcess(data, auth="on") as process:
        for _ in range(3):
            httpx.post(f"{process.url}/calls/query_stats", auth=("api", "heddle-unknown"), **ask)
        assert httpx.post(f"{process.url}/calls/query_stats", auth=("api", key), **ask).status_code == 200
    (row,) = json.loads(heddle("keys", "list", "--json", "--data", data).stdout)
    assert row["last_used_from"] == "127.0.0.1" and row["last_used_at"] is not None
    assert row["roles"] == ["viewer:team/one", "admin:team/two"] and row["expires_at"] > row["created_at"]
    rotated = heddle("keys", "rotate", row["id"][:13], "--overlap", "1h", "--quiet", "--data", data).stdout.strip()
    root = make_key(data, "root", "--role", "admin")
    with HeddleProcess(data, auth="on") as process:
        for secret in (key, rotated):
            assert httpx.post(f"{process.url}/calls/query_stats", auth=("api", secret), **ask).status_code == 200
        log = httpx.get(f"{process.url}/audit_log", auth=("api", root), params={"action": "key.refused"}).json()["rows"]
    assert [(row["address"], row["user"], row["details"]["count"]) for row in log] == [("127.0.0.1", "", 3)]


@pytest.mark.parametrize("command", [("list",), ("revoke", "01a"), ("rotate", "01a")])
def test_a_folder_without_keys_stays_as_it_is(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = heddle("keys", *command, "--data", tmp_path / "typo")
    assert (done.returncode, done.stdout) == (1, "")
    database = tmp_path / "typo" / "heddle.db"
    assert done.stderr == f"heddle: There are no keys: {database} does not exist; create it with `heddle keys create`\n"
    assert not (tmp_path / "typo").exists()
