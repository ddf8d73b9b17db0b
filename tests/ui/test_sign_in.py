"""Signing in at a provider of OpenID Connect: roles of groups, sessions, who stays out, what the audit log says."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.cli import make_key
from tests.support.oidc import ROLES, SECRET, require_provider, running_provider
from tests.support.server import HeddleProcess, free_port
from tests.ui.support import Watched, look


@dataclass(frozen=True)
class Site:
    """A server, the provider that people sign in with, and a key of an admin."""

    url: str
    issuer: str
    key: str

    def ask(self, method: str, path: str, **given: Any) -> Any:
        """The answer to a request with the key."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **given).raise_for_status().json()

    def people(self) -> dict[str, Any]:
        """Who has signed in so far, by name."""
        return {row["user"]: row for row in self.ask("GET", "/_ui/api/keys")["keys"] if row["is_person"]}

    def actions(self, user: str) -> list[str]:
        """What the audit log says of somebody, oldest first."""
        rows = self.ask("GET", "/audit_log", params={"user": user})["rows"]
        return [row["action"] for row in reversed(rows)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Both, running."""
    require_provider()
    data: Path = tmp_path_factory.mktemp("sign-in") / "data"
    key, port = make_key(data, "root", "--role", "admin"), free_port()
    with running_provider(f"http://127.0.0.1:{port}") as issuer:
        given = {"oidc_issuer": issuer, "oidc_client_id": "heddle", "oidc_client_secret": SECRET, "oidc_roles": ROLES}
        with HeddleProcess(data, port=port, **given) as process:
            yield Site(process.url, issuer, key)


@pytest.fixture(autouse=True)
def watched(page: Page, site: Site) -> Iterator[Watched]:
    """Fail on errors of our pages; those of the provider are its own."""
    watched = Watched(page, site.url)
    watched.allow(re.escape(site.issuer))
    watched.allow("https://")
    yield watched
    assert watched.problems() == []


def sign_in(page: Page, site: Site, name: str, path: str = "/") -> None:
    """As a person does it."""
    page.goto(site.url + path)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_placeholder("Enter any login").fill(name)
    page.get_by_placeholder("and password").fill("anything")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_an_admin_signs_in_sees_who_may_do_what_and_signs_out(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/settings")
    expect(page.get_by_role("button", name="Sign in", exact=True)).to_be_visible()
    look(page, "sign-in", narrow=True)
    sign_in(page, site, "ann", "/settings")
    expect(page.get_by_role("button", name="Log out ann@example.com")).to_be_visible()
    assert urlsplit(page.url).path == "/settings"
    assert page.evaluate("document.cookie") == ""
    people = page.get_by_role("table", name="People who sign in")
    expect(people.get_by_role("row").filter(has_text="ann@example.com")).to_contain_text("admin everywhere")
    expect(page.get_by_role("table", name="What each role may do")).to_contain_text("annotator")
    look(page, "people-and-keys", narrow=True)
    page.get_by_role("tab", name="Audit log").click()
    log = page.get_by_role("table", name="Audit log")
    expect(log.get_by_role("row").filter(has_text="login").first).to_contain_text("127.0.0.1")
    look(page, "audit-log", narrow=True)
    page.get_by_label("Actions").select_option(label="People")
    expect(log.get_by_role("row")).to_have_count(2)
    expect(log).to_contain_text("person.create")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert '"action":"person.create"' in download.value.path().read_text()
    page.get_by_role("button", name="Log out ann@example.com").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    expect(page.get_by_role("button", name="Sign in", exact=True)).to_be_visible()
    assert site.actions("ann@example.com") == ["login", "logout"]


def test_groups_have_roles_in_their_projects(page: Page, site: Site, watched: Watched) -> None:
    sign_in(page, site, "bob")
    expect(page.get_by_role("button", name="Log out bob@example.com")).to_be_visible()
    assert site.people()["bob@example.com"]["roles"] == ["viewer:shared", "editor:team/website"]
    watched.allow("403")
    asked = """async ([path, body]) => (await fetch(path, { method: "POST", body: JSON.stringify(body),
        headers: { "x-heddle-ui": "1", "content-type": "application/json" } })).status"""
    table = {"rows": [{"a": 1}]}
    wanted = [
        ("/table/create", {"table": {"project_id": "team/website", **table}}, 200),
        ("/table/create", {"table": {"project_id": "shared/one", **table}}, 403),
        ("/table/create", {"table": {"project_id": "team/other", **table}}, 403),
        ("/calls/query_stats", {"project_id": "shared/one"}, 200),
        ("/calls/delete", {"project_id": "team/website", "call_ids": ["x"]}, 403),
    ]
    assert [page.evaluate(asked, [path, body]) for path, body, _ in wanted] == [status for *_, status in wanted]


def test_who_is_kept_out_is_logged_out_and_stays_out(page: Page, site: Site, watched: Watched) -> None:
    sign_in(page, site, "bob", "/settings")
    expect(page.get_by_role("button", name="Log out bob@example.com")).to_be_visible()
    person = site.people()["bob@example.com"]["id"]
    site.ask("DELETE", f"/_ui/api/keys/{person}")
    watched.allow("401")
    page.goto(f"{site.url}/settings")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("an admin of this server has blocked you")
    site.ask("POST", f"/_ui/api/keys/{person}/restore", json={})
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("button", name="Log out bob@example.com")).to_be_visible()


def test_somebody_without_a_role_is_told_so(page: Page, site: Site) -> None:
    sign_in(page, site, "eve")
    expect(page.get_by_role("alert").first).to_contain_text("none of your groups has a role here")
    assert "eve@example.com" not in site.people()


def begun(site: Site, **headers: str) -> httpx.Response:
    """The answer to the beginning of a sign-in."""
    own = {"x-heddle-ui": "1", "origin": site.url} | headers
    return httpx.post(f"{site.url}/_ui/sign_in", json={"next": "https://evil.test/"}, headers=own)


def test_a_sign_in_belongs_to_the_browser_that_began_it(site: Site) -> None:
    begin = begun(site)
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begin.json()["url"]).query).items()}
    assert asked["code_challenge_method"] == "S256" and {"state", "nonce", "code_challenge"} <= asked.keys()
    cookie = begin.headers["set-cookie"]
    assert "HttpOnly; SameSite=Lax" in cookie and "Path=/_ui/sign_in" in cookie
    kept = {"cookie": cookie.partition(";")[0]}
    back = f"{site.url}/_ui/sign_in/callback"
    attacks = [
        ({}, {"state": asked["state"], "code": "x"}),
        (kept, {"state": "other", "code": "x"}),
        (kept, {"code": "x"}),
        (kept, {"state": asked["state"]}),
        (kept, {"state": asked["state"], "error": "access_denied", "error_description": "<b>no</b>"}),
        (kept, {"state": asked["state"], "code": "not-a-code"}),
        ({"cookie": "heddle_sign_in=x.%%%"}, {"state": asked["state"], "code": "x"}),
    ]
    for headers, params in attacks:
        answer = httpx.get(back, params=params, headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/?sign_in=failed"), params
        assert "heddle_session" not in str(answer.headers.multi_items())
    assert begun(site, origin="https://evil.test").status_code == 403
    assert httpx.post(f"{site.url}/_ui/sign_in", json={"next": "/"}).status_code == 403
