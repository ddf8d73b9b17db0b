"""Logging in where the server needs keys: the page, wrong keys, sessions that end, a proxy in front."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from tests.support.cli import make_key
from tests.support.proxy import PrefixProxy
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

PREFIX = "/tools/heddle"
WANTED = "/team/one/weave/traces?roots=all"


@dataclass(frozen=True)
class Guarded:
    """A server that needs keys, and a key."""

    process: HeddleProcess
    key: str

    def end_sessions(self) -> None:
        """What happens when nobody has used them for a while."""
        with sqlite3.connect(self.process.data / "heddle.db", timeout=10) as database:
            database.execute("UPDATE sessions SET expires_at = 1")


@dataclass(frozen=True)
class Proxied:
    """Where a proxy listens, and a key of the server behind it."""

    url: str
    key: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with --auth on."""
    data = tmp_path_factory.mktemp("login") / "data"
    key = make_key(data, "ann", "--scope", "admin")
    with HeddleProcess(data, auth="on") as process:
        yield Guarded(process, key)


@pytest.fixture
def address(guarded: Guarded) -> str:
    """Where that server is."""
    return guarded.process.url


@pytest.fixture(autouse=True)
def watched(page: Page, address: str) -> Iterator[Watched]:
    """Fail on errors of the page, as everywhere."""
    watched = Watched(page, address)
    yield watched
    assert watched.problems() == []


def log_in(page: Page, key: str) -> None:
    """Type the key."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()


def test_a_key_opens_the_page_that_was_wanted(page: Page, guarded: Guarded, watched: Watched) -> None:
    page.goto(guarded.process.url + WANTED)
    expect(page.get_by_role("heading", name="Log in to heddle")).to_be_visible()
    expect(page.get_by_label("API key")).to_be_focused()
    page.get_by_text("I have no key").click()
    expect(page.get_by_text("heddle keys create --user NAME")).to_be_visible()
    watched.allow("401")
    log_in(page, "heddle-wrong")
    expect(page.get_by_role("alert")).to_have_text("This key is unknown, expired or revoked")
    look(page, "login", narrow=True)
    log_in(page, guarded.key)
    expect(page.get_by_role("navigation", name="Main").get_by_role("link", name="Overview")).to_be_visible()
    assert page.url.endswith(WANTED)
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect(page.get_by_role("button", name="Log out ann")).to_be_visible()
    page.get_by_role("button", name="Log out ann").click()
    expect(page.get_by_role("heading", name="Log in to heddle")).to_be_visible()


def test_a_session_that_ends_is_renewed_where_one_was(page: Page, guarded: Guarded, watched: Watched) -> None:
    page.goto(f"{guarded.process.url}/settings")
    log_in(page, guarded.key)
    expect(page.get_by_role("cell", name="ann").first).to_be_visible()
    guarded.end_sessions()
    while page.request.get(f"{guarded.process.url}/_ui/session").json()["user"]:
        pass
    watched.allow("401")
    dialog = page.get_by_role("dialog", name="Your session has ended")
    page.get_by_role("tab", name="Storage").click()
    expect(dialog).to_be_visible()
    look(page, "login-again")
    log_in(page, guarded.key)
    expect(dialog).to_be_hidden()
    expect(page.get_by_text("heddle backup")).to_be_visible()
    assert page.url.endswith("/settings?tab=storage")


def test_a_link_from_another_site_finds_the_session(page: Page, guarded: Guarded) -> None:
    page.goto(f"{guarded.process.url}/settings")
    log_in(page, guarded.key)
    expect(page.get_by_role("tab", name="People and keys")).to_be_visible()
    # What a click in a mail does: the first request comes without the strict cookie.
    page.route("**/settings", lambda route: route.continue_(headers={**route.request.headers, "cookie": ""}))
    page.goto(f"{guarded.process.url}/settings")
    expect(page.get_by_role("tab", name="People and keys")).to_be_visible()
    expect(page.get_by_role("button", name="Log out ann")).to_be_visible()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A server behind a proxy."""
    data = tmp_path_factory.mktemp("proxied") / "data"
    key = make_key(data, "ann", "--scope", "admin")
    with HeddleProcess(data, auth="on", root_path=PREFIX) as process, PrefixProxy(process.port, PREFIX) as proxy:
        yield Proxied(proxy.url, key)


class TestBehindAProxy:
    """The same where a proxy shows the server under a path."""

    @pytest.fixture
    def address(self, proxied: Proxied) -> str:
        """The proxy, as nothing may go beside it."""
        return proxied.url + PREFIX

    def test_everything_loads_and_the_session_holds(self, page: Page, address: str, proxied: Proxied) -> None:
        page.goto(f"{address}/settings")
        log_in(page, proxied.key)
        expect(page.get_by_role("cell", name="ann").first).to_be_visible()
        page.get_by_role("link", name="heddle", exact=True).click()
        expect(page).to_have_url(f"{address}/")
        page.go_back()
        expect(page.get_by_role("tab", name="People and keys")).to_be_visible()
        page.reload()
        expect(page.get_by_role("button", name="Log out ann")).to_be_visible()
