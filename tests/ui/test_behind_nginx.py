"""The web interface below a path of a real nginx, over TLS: pages, links, files, streams, the cookie."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from tests.conftest import Wire
from tests.support.hostile import Hostile, write
from tests.support.nginx import PATH, Site, missing, serve_site
from tests.ui.support import Watched, look
from tests.ui.test_login import log_in
from tests.ui.test_safety import GONE, addresses, visit

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
_LINKS = "() => [...document.querySelectorAll('a[href], img[src], link[href], script[src], use[href]')]" + (
    ".map((element) => new URL(element.getAttribute('href') ?? element.getAttribute('src'), location))"
    ".filter((url) => url.origin === location.origin).map((url) => url.pathname)"
)


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    """The certificate is nobody's."""
    return {**browser_context_args, "ignore_https_errors": True}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server of deploy/nginx/site.conf."""
    with serve_site(tmp_path_factory.mktemp("behind-nginx") / "data") as site:
        yield site


@pytest.fixture(scope="module")
def written(site: Site) -> Hostile:
    """A project with something on every page."""
    wire = Wire(site.server.url, "team/shown")
    wire.client.auth = ("api", site.key)
    return write(wire)


@pytest.fixture(autouse=True)
def watched(page: Page, site: Site) -> Iterator[Watched]:
    """Fail on errors of the page, and on requests beside the path."""
    watched = Watched(page, site.url)
    yield watched
    assert watched.problems() == []


def test_pages_links_and_files_stay_below_the_path(page: Page, site: Site, written: Hostile, watched: Watched) -> None:
    visit_all(page, site, written, watched, {"projects", "trace", "object"})
    page.goto(f"{site.url}/inference")
    live = page.locator(".livebadge")
    expect(live).to_contain_text(re.compile(r"\w"))
    expect(live).not_to_contain_text("reconnecting")
    look(page, "behind-nginx")


@pytest.mark.thorough
def test_every_page_stays_below_the_path(page: Page, site: Site, written: Hostile, watched: Watched) -> None:
    visit_all(page, site, written, watched)


def visit_all(page: Page, site: Site, written: Hostile, watched: Watched, only: set[str] | None = None) -> None:
    """Log in, and open the pages one after the other."""
    watched.allow(GONE)
    page.goto(f"{site.url}/settings")
    log_in(page, site.key)
    expect(page.get_by_role("tab", name="Keys")).to_be_visible()
    cookies = [cookie for cookie in page.context.cookies() if cookie["name"] == "heddle_session"]
    assert [(cookie["path"], cookie["secure"], cookie["httpOnly"]) for cookie in cookies] == [(PATH, True, True)]
    problems: dict[str, Any] = {}
    for shown, path in addresses(written.project, written.parts):
        if only is not None and shown not in only:
            continue
        try:
            visit(page, site.url + path)
            found = [link for link in page.evaluate(_LINKS) if not f"{link}/".startswith(f"{PATH}/")]
        except Error as error:
            found = [str(error).splitlines()[0]]
        found += watched.take()
        if found:
            problems[path] = found
    assert not problems, json.dumps(problems, indent=1)[:6000]
