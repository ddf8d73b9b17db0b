"""Sessions of browsers: a cookie stands for a key, for pages of this server only, and ends with the key."""

import itertools
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from heddle.app import served_routes
from heddle.auth import Scope, hash_key
from tests.support import scale
from tests.support.cli import heddle, make_key
from tests.support.server import HeddleProcess
from tests.support.traffic import until

DAY = 86_400


class Browser:
    """What a browser with a page of the server open sends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=30)
        self.own = {"x-heddle-ui": "1", "origin": url, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}

    def log_in(self, key: str, **headers: str) -> httpx.Response:
        """POST /_ui/session."""
        return self.client.post("/_ui/session", json={"key": key}, headers={**self.own, **headers})

    def user(self) -> Any:
        """Whom the server takes this browser for."""
        return self.client.get("/_ui/session", headers=self.own).json()["user"]

    def count(self, **headers: str) -> int:
        """The status of a POST that reads."""
        body = {"project_id": "team/one"}
        return self.client.post("/calls/query_stats", json=body, headers=headers).status_code


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that needs keys, shown by a proxy under /heddle."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    make_key(data, "root", "--scope", "admin")
    with HeddleProcess(data, auth="on", root_path="/heddle") as process:
        yield process


@pytest.fixture
def visitor(guarded: HeddleProcess) -> Iterator[Browser]:
    """A browser without cookies."""
    visitor = Browser(guarded.url)
    with visitor.client:
        yield visitor


@pytest.fixture(scope="module")
def key(guarded: HeddleProcess) -> str:
    """A key that reads and writes."""
    return make_key(guarded.data, "ann")


def set_cookie_path(visitor: Browser) -> None:
    """The test speaks to the server behind the proxy, where the path of the cookie does not fit."""
    kept = [cookie.value or "" for cookie in visitor.client.cookies.jar]
    visitor.client.cookies.clear()
    for value in kept:
        visitor.client.cookies.set("heddle_session", value)


@scale.on_sqlite
def test_a_key_becomes_a_cookie_that_only_the_browser_sees(visitor: Browser, key: str, guarded: HeddleProcess) -> None:
    answer = visitor.log_in(f" {key} ")
    grants = [["", ["annotate", "delete", "read", "write"]]]
    assert (answer.status_code, answer.json()) == (200, {"user": "ann", "admin": False, "grants": grants})
    assert answer.headers["cache-control"] == "no-store"
    found = re.fullmatch(
        r"heddle_session=([\w-]{43}); Path=/heddle; Max-Age=1209600; HttpOnly; SameSite=Strict",
        answer.headers["set-cookie"],
    )
    assert found
    with sqlite3.connect(guarded.data / "heddle.db") as database:
        stored = [row[0] for row in database.execute("SELECT hash FROM sessions")]
    assert hash_key(found[1]) in stored and found[1] not in stored
    secure = visitor.log_in(key, **{"x-forwarded-proto": "https"}).headers["set-cookie"]
    assert secure.endswith("; SameSite=Strict; Secure")


def test_the_cookie_counts_for_pages_of_this_server_only(visitor: Browser, key: str) -> None:
    visitor.log_in(key)
    set_cookie_path(visitor)
    origin = visitor.url
    foreign = "http://127.0.0.1:1"
    accepted: list[dict[str, str]] = [
        visitor.own,
        {"x-heddle-ui": "1", "origin": origin},
        {"x-heddle-ui": "1", "sec-fetch-site": "same-origin"},
        {"x-heddle-ui": "1", "origin": "https://traces.example.org", "x-forwarded-host": "traces.example.org"},
    ]
    refused: list[dict[str, str]] = [
        {},
        {"origin": origin},
        {"x-heddle-ui": "1"},
        {"x-heddle-ui": "1", "origin": foreign},
        {"x-heddle-ui": "1", "origin": "null"},
        {"x-heddle-ui": "1", "origin": origin, "sec-fetch-site": "same-site"},
        {"x-heddle-ui": "1", "origin": origin, "sec-fetch-site": "cross-site"},
    ]
    assert [visitor.count(**headers) for headers in accepted] == [200] * len(accepted)
    assert [visitor.count(**headers) for headers in refused] == [401] * len(refused)
    for site, status in (("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401)):
        answer = visitor.client.get("/tags?project_id=team/one", headers={"sec-fetch-site": site})
        assert (answer.status_code == 401) == (status == 401), site


def test_routes_that_want_a_bearer_know_pages_too(visitor: Browser, key: str) -> None:
    assert visitor.client.get("/v1/usage", headers=visitor.own).status_code == 401
    visitor.log_in(key)
    set_cookie_path(visitor)
    assert visitor.client.get("/v1/usage", headers=visitor.own).status_code == 200
    assert visitor.client.get("/v1/usage").status_code == 401


def test_a_key_of_a_header_wins_over_the_cookie(visitor: Browser, key: str) -> None:
    visitor.log_in(key)
    set_cookie_path(visitor)
    assert visitor.count(authorization="Bearer heddle-unknown", **visitor.own) == 401
    other = {"authorization": f"Bearer {key}"}
    assert visitor.client.get("/_ui/session", headers={**other, "cookie": "heddle_session=no"}).json()["user"] == "ann"


def test_pages_are_not_asked_for_a_password_by_the_browser(visitor: Browser) -> None:
    answer = visitor.client.post("/calls/query_stats", json={"project_id": "a/b"}, headers=visitor.own)
    assert answer.status_code == 401 and "www-authenticate" not in answer.headers
    assert "www-authenticate" in visitor.client.post("/calls/query_stats", json={"project_id": "a/b"}).headers


def test_logging_out_ends_the_session_at_once(visitor: Browser, key: str) -> None:
    visitor.log_in(key)
    set_cookie_path(visitor)
    kept = dict(visitor.client.cookies)
    assert visitor.user() == "ann"
    refused = visitor.client.delete("/_ui/session", headers={"origin": "http://evil.test", "x-heddle-ui": "1"})
    assert refused.status_code == 403
    gone = visitor.client.delete("/_ui/session", headers=visitor.own)
    assert gone.headers["set-cookie"].startswith("heddle_session=; Path=/heddle; Max-Age=0")
    visitor.client.cookies.clear()
    visitor.client.cookies.update(kept)
    assert visitor.user() is None


def test_revoking_the_key_ends_its_sessions(visitor: Browser, guarded: HeddleProcess) -> None:
    short = make_key(guarded.data, "short")
    visitor.log_in(short)
    set_cookie_path(visitor)
    assert visitor.user() == "short"
    listed = heddle("keys", "list", "--data", guarded.data).stdout
    found = re.search(r"^(\S+) +short ", listed, re.MULTILINE)
    assert found
    heddle("keys", "revoke", found[1], "--data", guarded.data)
    # What was found about a key is believed for half a second.
    until(lambda: visitor.user() is None)
    assert "revoked" in visitor.client.post("/calls/query_stats", json={}, headers=visitor.own).json()["reason"]


@scale.on_sqlite
def test_a_session_slides_and_ends_when_it_is_not_used(visitor: Browser, guarded: HeddleProcess) -> None:
    slow = make_key(guarded.data, "slow")
    token = visitor.log_in(slow).cookies["heddle_session"]
    set_cookie_path(visitor)

    def at(change: int | None = None) -> int:
        with sqlite3.connect(guarded.data / "heddle.db", timeout=10) as database:
            if change is not None:
                text = "UPDATE sessions SET expires_at = expires_at + ? WHERE hash = ?"
                database.execute(text, (change * 1_000_000, hash_key(token)))
            query = "SELECT expires_at FROM sessions WHERE hash = ?"
            return int(database.execute(query, (hash_key(token),)).fetchone()[0])

    end = at()
    assert visitor.user() == "slow"
    assert at() == end, "reading does not write each time"
    at(-5 * DAY)
    fresh = {"heddle_session": token}
    with httpx.Client(base_url=guarded.url, cookies=fresh) as other:
        while at() < end:
            assert other.get("/_ui/session").json()["user"] == "slow"
        at(-20 * DAY)
        while other.get("/_ui/session").json()["user"] is not None:
            pass


def test_a_page_keeps_the_cookie_alive_and_knows_its_user(visitor: Browser, key: str) -> None:
    visitor.log_in(key)
    set_cookie_path(visitor)
    page = visitor.client.get("/team/one/weave")
    assert "Max-Age=1209600; HttpOnly" in page.headers["set-cookie"]
    assert "&quot;user&quot;:&quot;ann&quot;" in page.text
    visitor.client.cookies.clear()
    page = visitor.client.get("/team/one/weave")
    assert page.status_code == 200 and "set-cookie" not in page.headers
    assert "&quot;user&quot;:null" in page.text


def test_wrong_keys_say_one_thing_and_are_slowed_down(guarded: HeddleProcess) -> None:
    visitor = Browser(guarded.url)
    gone = make_key(guarded.data, "gone")
    listed = heddle("keys", "list", "--data", guarded.data).stdout
    found = re.search(r"^(\S+) +gone ", listed, re.MULTILINE)
    assert found
    heddle("keys", "revoke", found[1], "--data", guarded.data)
    # What a client says of where it is counts only from a proxy that the settings name.
    elsewhere = ({"x-forwarded-for": f"192.0.2.{number}"} for number in itertools.count(1))
    reasons = {visitor.log_in(wrong, **next(elsewhere)).text for wrong in (gone, "heddle-" + "0" * 64, "", "x" * 999)}
    assert reasons == {'{"reason":"This key is unknown, expired or revoked"}'}
    statuses = [visitor.log_in("wrong", **next(elsewhere)).status_code for _ in range(8)]
    assert statuses == [401] * 6 + [429] * 2
    slowed = visitor.log_in("wrong", **next(elsewhere))
    assert 0 < int(slowed.headers["retry-after"]) <= 60
    # Who has a key is not kept out by others at the same address.
    assert visitor.log_in(make_key(guarded.data, "late")).status_code == 200


def test_other_sites_cannot_log_a_browser_in(visitor: Browser, key: str) -> None:
    for headers in ({}, {"origin": visitor.url}, {"x-heddle-ui": "1", "origin": "http://evil.test"}):
        answer = visitor.client.post("/_ui/session", json={"key": key}, headers=headers)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_internal_reads_need_a_key(visitor: Browser) -> None:
    asked = 0
    for route in served_routes():
        if not route.path.startswith("/_ui/api/"):
            continue
        for method in route.methods or ():
            answer = visitor.client.request(method, re.sub(r"{[\w:]+}", "x", route.path), json={})
            assert answer.status_code == 401, f"{method} {route.path}: {answer.status_code}"
            asked += 1
    assert asked >= 5


def test_without_keys_there_is_nothing_to_log_in_to(server: HeddleProcess) -> None:
    visitor = Browser(server.url)
    assert visitor.user() == "local"
    answer = visitor.log_in("anything")
    grants = [["", sorted(Scope)]]
    assert answer.json() == {"user": "local", "admin": True, "grants": grants} and "set-cookie" not in answer.headers
