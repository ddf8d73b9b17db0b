"""What the page of settings reads and changes: keys within one's own reach, sizes, settings without secrets."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import make_key
from tests.support.server import HeddleProcess

PROVIDERS = "openai=https://user:secret@api.example.com/v1,TEST_PROVIDER_KEY; own=http://127.0.0.1:9000/v1"


@dataclass(frozen=True)
class Guarded:
    """A server that needs keys, and one key of each sort."""

    process: HeddleProcess
    keys: dict[str, str]

    def ask(self, who: str, method: str, path: str, **body: Any) -> httpx.Response:
        """Ask with one of the keys."""
        url, auth = self.process.url + path, ("api", self.keys[who])
        return httpx.request(method, url, json=body if body else None, auth=auth, timeout=30)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with providers and webhooks."""
    data: Path = tmp_path_factory.mktemp("settings") / "data"
    keys = {
        "root": make_key(data, "root", "--scope", "admin"),
        "team": make_key(data, "team", "--scope", "admin", "--entity", "team"),
        "one": make_key(data, "one", "--scope", "admin", "--project", "team/one"),
        "reader": make_key(data, "reader", "--scope", "read"),
    }
    webhooks = "https://hooks.example.com/services/SECRET"
    vllm = {"vllm_urls": "http://ann:SECRET@gpu.example.com:8000/v1", "vllm_arguments": "--api-key SECRET"}
    with HeddleProcess(data, auth="on", providers=PROVIDERS, alert_webhooks=webhooks, **vllm) as process:
        yield Guarded(process, keys)


def users(guarded: Guarded, who: str) -> list[str]:
    """Whose keys somebody sees."""
    return sorted(key["user"] for key in guarded.ask(who, "GET", "/_ui/api/keys").json()["keys"])


def test_a_key_is_made_used_and_revoked(guarded: Guarded) -> None:
    made = guarded.ask("root", "POST", "/_ui/api/keys", user=" ann ", scopes=["read"], project="team/one").json()
    assert (made["user"], made["roles"], made["is_person"]) == ("ann", ["viewer:team/one"], False)
    guarded.keys["made"] = made["key"]
    assert guarded.ask("made", "POST", "/calls/query_stats", project_id="team/one").status_code == 200
    assert guarded.ask("made", "POST", "/calls/query_stats", project_id="team/two").status_code == 403
    shown = next(key for key in guarded.ask("root", "GET", "/_ui/api/keys").json()["keys"] if key["id"] == made["id"])
    assert "key" not in shown and "hash" not in shown
    assert (shown["created_by"], shown["is_own"], shown["revoked_at"]) == ("root", False, None)
    assert guarded.ask("root", "DELETE", f"/_ui/api/keys/{made['id']}").status_code == 200
    assert guarded.ask("made", "POST", "/calls/query_stats", project_id="team/one").status_code == 401
    assert guarded.ask("root", "DELETE", f"/_ui/api/keys/{made['id'][:8]}").status_code == 404


def test_a_bound_admin_makes_and_sees_no_key_beyond_its_binding(guarded: Guarded) -> None:
    assert {"one", "reader", "root", "team"} <= set(users(guarded, "root"))
    assert "root" not in users(guarded, "team") and {"one", "team"} <= set(users(guarded, "team"))
    assert "team" not in users(guarded, "one")
    for who, bound in (("team", {}), ("team", {"entity": "other"}), ("team", {"project": "other/one"}), ("one", {}),
                       ("one", {"entity": "team"}), ("one", {"project": "team/two"})):  # fmt: skip
        answer = guarded.ask(who, "POST", "/_ui/api/keys", user="x", scopes=["admin"], **bound)
        assert answer.status_code == 403, (who, bound)
    assert guarded.ask("team", "POST", "/_ui/api/keys", user="x", scopes=["read"], entity="team").status_code == 200
    root = next(key for key in guarded.ask("root", "GET", "/_ui/api/keys").json()["keys"] if key["user"] == "root")
    assert guarded.ask("team", "DELETE", f"/_ui/api/keys/{root['id']}").status_code == 404
    assert guarded.ask("reader", "GET", "/_ui/api/keys").status_code == 403


@pytest.mark.parametrize(
    "body", [{"user": "x", "scopes": ["root"]}, {"user": "", "scopes": ["read"]}, {"user": "x", "scopes": []}]
)
def test_impossible_keys_are_refused(guarded: Guarded, body: dict[str, Any]) -> None:
    assert guarded.ask("root", "POST", "/_ui/api/keys", **body).status_code == 400


def test_settings_name_their_source_and_no_secret(guarded: Guarded) -> None:
    answer = guarded.ask("root", "GET", "/_ui/api/settings")
    given = {row["name"]: row for row in answer.json()["given"]}
    assert given["auth"]["value"] == "on" and given["auth"]["source"] == "variable HEDDLE_AUTH"
    assert given["port"]["source"] == "flag --port"
    assert given["alert_webhooks"]["value"] == "https://hooks.example.com"
    assert given["vllm_urls"]["value"] == "http://gpu.example.com:8000"
    listed = guarded.ask("root", "GET", "/inference/providers").json()["providers"]
    assert {row["base_url"] for row in listed} == {"https://api.example.com/v1", "http://127.0.0.1:9000/v1"}
    assert {row.get("has_key") for row in listed} == {False, None}
    for who in ("reader", "team"):
        shown = "".join(guarded.ask(who, "GET", path).text for path in ("/_ui/api/settings", "/inference/providers"))
        assert not any(word in shown for word in ("example.com", "TEST_PROVIDER_KEY", str(guarded.process.data)))
    assert not any(words in answer.text for words in ("services/SECRET", "ann:SECRET"))
    told = httpx.get(guarded.process.url + "/server_info").text
    assert "SECRET" not in told and "example.com" not in told


def test_sizes_are_for_admins_of_the_whole_server(guarded: Guarded) -> None:
    told = guarded.ask("root", "GET", "/_ui/api/storage").json()
    sizes = {part["name"]: part["bytes"] for part in told["parts"]}
    assert sizes["database"] > 0 and told["folder"] == str(guarded.process.data) and told["disk_free"] > 0
    assert [guarded.ask(who, "GET", "/_ui/api/storage").status_code for who in ("team", "one", "reader")] == [403] * 3
