"""Providers that are entered while the server runs: encrypted, never shown again, used at once, gone when deleted."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.cli import heddle, make_key
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess

ON_BOTH_STORES = True

KEY = "sk-secret-0123456789abcd"


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """Another server, which knows one key."""
    with FakeProvider() as opened:
        opened.key = KEY
        yield opened


def ask(wire: Wire, model: str) -> Any:
    """A completion."""
    inputs = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    return wire.post("/completions/create", inputs=inputs)["response"]


def test_a_provider_is_used_at_once_and_its_key_never_shown(wire: Wire, fake: FakeProvider) -> None:
    client, path = wire.client, "/inference/providers/acme"
    saved = client.put(path, json={"base_url": fake.url + "/", "api_key": KEY})
    assert saved.status_code == 200, saved.text
    assert saved.json()["key_hint"] == "abcd" and saved.json()["has_key"] is True
    assert ask(wire, "acme/word")["choices"][0]["message"]["content"] == "HI"
    assert fake.requests[-1]["headers"]["Authorization"] == f"Bearer {KEY}"
    listed = client.get("/inference/providers")
    assert "acme" in {row["name"] for row in listed.json()["providers"]}
    shown = "".join([saved.text, listed.text, client.get("/_ui/api/settings").text])
    assert KEY not in shown
    tried = client.post(f"{path}/test", json={})
    assert tried.json() == {"ok": True, "message": "It answers and lists 2 models", "models": ["a", "b"]}
    assert client.post(f"{path}/test", json={"model": "word"}).json()["ok"] is True
    # A new key takes the place of the old one; without one it stays, but never for another address.
    assert client.put(path, json={"base_url": fake.url, "api_key": "sk-other-key-000000"}).status_code == 200
    assert client.put(path, json={"base_url": fake.url}).json()["key_hint"] == "0000"
    refused = client.post(f"{path}/test", json={}).json()
    assert refused["ok"] is False and "Incorrect API key" in refused["message"]
    moved = client.put(path, json={"base_url": "http://127.0.0.1:9/v1"})
    assert moved.status_code == 400 and "api_key" in moved.text
    assert client.delete(path).status_code == 200
    assert client.delete(path).status_code == 404
    assert "acme" not in client.get("/inference/providers").text


@pytest.mark.parametrize(
    ("name", "body", "place"),
    [
        ("a b", {"base_url": "http://x/v1", "api_key": ""}, "name"),
        ("a", {"base_url": "ftp://x", "api_key": ""}, "base_url"),
        ("a", {"base_url": "http://user:pass@x/v1", "api_key": ""}, "base_url"),
        ("a", {"base_url": "http://x/v1", "api_key": "my sécret key"}, "api_key"),
        ("a", {"base_url": "http://x/v1"}, "api_key"),
        ("a", {"api_key": KEY}, "base_url"),
    ],
)
def test_what_cannot_be_a_provider_is_refused(wire: Wire, name: str, body: dict[str, str], place: str) -> None:
    answer = wire.client.put(f"/inference/providers/{name}", json=body)
    assert answer.status_code in (400, 422) and place in answer.text
    assert "sécret" not in answer.text and "pass@" not in answer.text and KEY not in answer.text
    assert wire.client.post("/inference/providers/unknown/test", json={}).status_code == 404


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a server with keys."""
    return tmp_path_factory.mktemp("secrets") / "data"


def test_keys_lie_encrypted_and_outlive_restarts_but_no_backup(folder: Path, fake: FakeProvider) -> None:
    headers = {}
    with HeddleProcess(folder, auth="on", model="none") as server:
        root = make_key(folder, "root", "--scope", "admin")
        bound = make_key(folder, "eve", "--scope", "admin", "--project", "team/p")
        headers = {"authorization": f"Bearer {root}"}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            body = {"base_url": fake.url, "api_key": KEY}
            refused = client.put("/inference/providers/acme", json=body, headers={"authorization": f"Bearer {bound}"})
            assert refused.status_code == 403
            assert client.put("/inference/providers/acme", json=body, headers=headers).status_code == 200
            names = client.get("/inference/providers", headers={"authorization": f"Bearer {bound}"}).json()
            assert names == {"providers": [{"name": "acme"}]}
    for path in folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert (folder / "secrets.key").stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(folder / "heddle.db") as raw:
        details = [row[0] for row in raw.execute("SELECT details FROM audit_log WHERE action = 'provider.save'")]
    assert details == ['{"name":"acme"}']
    with HeddleProcess(folder, auth="on", model="none") as server:
        tried = httpx.post(f"{server.url}/inference/providers/acme/test", json={}, headers=headers, timeout=60)
        assert tried.json()["ok"] is True
    heddle("backup", str(folder.parent / "copy"), "--data", str(folder))
    heddle("restore", str(folder.parent / "copy"), "--data", str(folder.parent / "restored"))
    with HeddleProcess(folder.parent / "restored", auth="on", model="none") as server:
        tried = httpx.post(f"{server.url}/inference/providers/acme/test", json={}, headers=headers, timeout=60)
        assert tried.json()["ok"] is False and "HEDDLE_SECRETS_KEY" in tried.json()["message"]
