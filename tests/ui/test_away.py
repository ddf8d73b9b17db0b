"""A server that is stopped while its pages are open."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.server import HeddleProcess
from tests.ui.support import Watched

AWAY = "The server cannot be reached. Trying again…"


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[HeddleProcess]:
    """A server of its own, for the test to stop."""
    with HeddleProcess(tmp_path / "data") as process:
        yield process


def test_pages_say_that_the_server_is_away_and_go_on_when_it_is_back(
    page: Page, stopped: HeddleProcess, watched: Watched
) -> None:
    watched.allow(f"ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|another host: {stopped.url}")
    page.goto(f"{stopped.url}/team/one/weave/queues")
    page.get_by_role("button", name="New queue").first.click()
    dialog = page.get_by_role("dialog", name="New queue")
    dialog.get_by_label("Name", exact=True).fill("typed before")
    dialog.get_by_role("textbox", name="Field name").fill("Correct")
    dialog.get_by_role("textbox", name="Choices").fill("yes, no")
    stopped.terminate()
    dialog.get_by_role("button", name="Create queue").click()
    expect(dialog.get_by_text("The server cannot be reached", exact=True)).to_be_visible()
    expect(page.get_by_text(AWAY)).to_be_visible()
    stopped.start()
    expect(page.get_by_text(AWAY)).to_be_hidden()
    dialog.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("heading", name="typed before")).to_be_visible()


@pytest.mark.thorough
def test_a_page_opened_meanwhile_loads_by_itself_and_one_that_was_shown_stays(
    page: Page, project: str, watched: Watched
) -> None:
    watched.allow("502")
    page.goto(f"/{project}/weave/alerts")
    teaching = page.get_by_role("heading", name="No alerts yet")
    expect(teaching).to_be_visible()
    is_down = True

    def answer(route: Route) -> None:
        """What nginx says for a server that is down."""
        if is_down:
            route.fulfill(status=502, content_type="text/html", body="<html><h1>502 Bad Gateway</h1></html>")
        else:
            route.continue_()

    page.route(lambda url: "/_ui/" not in url or "/_ui/api/" in url, answer)
    expect(page.get_by_text(AWAY)).to_be_visible()
    expect(teaching).to_be_visible()
    page.get_by_role("link", name="Errors").click()
    expect(page.get_by_role("alert").filter(has_text="The server cannot be reached")).to_be_visible()
    is_down = False
    expect(page.get_by_text(AWAY)).to_be_hidden()
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("heading", name="No failed calls in this time range")).to_be_visible()
