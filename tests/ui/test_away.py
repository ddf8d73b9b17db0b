"""A server that is stopped while its pages are open."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Wire
from tests.support.calls import call
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


def test_answers_that_are_cut_or_come_from_something_else_are_told_and_asked_for_again(
    page: Page, wire: Wire, watched: Watched
) -> None:
    stored = {**call("one"), "project_id": wire.project, "attributes": {}}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[stored])
    answers = [
        {"status": 200, "content_type": "text/html; charset=utf-8", "body": "<h1>Sign in</h1>"},
        {"status": 500, "content_type": "text/html", "body": "<h1>Internal error</h1>"},
        {"status": 200, "content_type": "application/json", "body": '{"rows": {"id": ["on'},
    ]
    watched.allow("500")
    page.route("**/_ui/api/calls", lambda route: route.fulfill(**answers.pop(0)) if answers else route.continue_())
    page.goto(f"/{wire.project}/weave/traces?roots=0")
    told = page.get_by_role("region", name="List of calls").get_by_role("alert")
    expect(told).to_contain_text("A web page came instead of the server's answer")
    told.get_by_role("button", name="Try again").click()
    expect(told).to_contain_text("The server answered 500 Internal Server Error")
    told.get_by_role("button", name="Try again").click()
    expect(page.get_by_text(AWAY)).to_be_visible()
    # Once the server answers, the list comes by itself.
    expect(page.get_by_role("table", name="Calls").get_by_role("row")).to_have_count(2)
    assert answers == []


def test_parts_of_a_page_that_do_not_come_say_so_and_can_be_tried_again(
    page: Page, wire: Wire, watched: Watched
) -> None:
    watched.allow("ERR_FAILED|503")
    thing = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "thing", "val": {"a": 1}})
    ref = f"weave:///{wire.project}/object/thing:{thing['digest']}"
    stored = {**call("one"), "project_id": wire.project, "attributes": {}, "inputs": {"thing": ref}}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[stored])
    failing = {"call_usage", "palette", "alerts", "values"}

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2].removesuffix(".js")
        if name not in failing:
            route.continue_()
        elif name == "values":
            route.fulfill(status=503, json={"reason": "Busy"})
        else:
            route.abort()

    page.route(re.compile(r"/(call_usage|palette|alerts)\.js|/api/values"), answer)
    with page.expect_response("**/api/values"):
        page.goto(f"/{wire.project}/weave/traces/t?call=one")
    link = page.get_by_role("link", name="thing")
    expect(link).to_be_visible()
    expect(page.get_by_text("no longer exists")).to_have_count(0)
    failing.remove("values")
    with page.expect_response("**/api/values"):
        page.evaluate("dispatchEvent(new Event('heddle:retry'))")
    page.get_by_role("tab", name="Usage").click()
    told = page.get_by_role("tabpanel").get_by_role("alert")
    expect(told).to_contain_text("A part of this page could not be loaded")
    expect(told.get_by_role("button", name="Try again")).to_be_visible()
    failing.remove("call_usage")
    expect(page.get_by_role("tabpanel")).to_contain_text("It used no tokens of its own")
    for _ in range(2):
        page.keyboard.press("?")
    expect(page.get_by_role("status").get_by_text("A part of this page could not be loaded")).to_have_count(1)
    page.get_by_role("link", name="Alerts").click()
    expect(page.get_by_role("alert")).to_contain_text("A part of this page could not be loaded")
    failing.remove("alerts")
    expect(page.get_by_role("heading", name="No alerts yet")).to_be_visible()


def test_a_live_page_goes_on_after_a_proxy_has_refused_its_events(page: Page, project: str, watched: Watched) -> None:
    watched.allow("502")
    answers = [{"status": 502, "content_type": "text/html", "body": "<h1>502 Bad Gateway</h1>"}]
    page.route("**/inference/live", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())
    with page.expect_response(lambda response: response.url.endswith("/live") and response.status == 200):
        page.goto(f"/{project}/weave/inference")
    assert answers == []
    expect(page.get_by_text("reconnecting")).to_have_count(0)
