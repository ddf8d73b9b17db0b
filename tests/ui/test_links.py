"""What the SDKs print opens the right page; every address means the same to the server and to the browser."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from heddle.ui.pages import PAGES, find_page
from tests.conftest import SDK_VERSIONS, Client, Wire, python_client
from tests.support.calls import call
from tests.support.server import HeddleProcess
from tests.ui.support import Watched

MATCHED = """async ([script, addresses]) => {
    const { match } = await import(script);
    return addresses.map((address) => match(new URL(address, location.origin).pathname)?.page ?? null);
}"""


@pytest.fixture(scope="module")
def told(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The addresses that the SDK has printed."""
    folder = tmp_path_factory.mktemp("links")
    client: Client = python_client(SDK_VERSIONS[0], server, "team/links", folder)
    return client.run("printed_links.py", WEAVE_PRINT_CALL_LINK="true")


def test_each_kind_of_address_is_printed(told: dict[str, Any], server: HeddleProcess) -> None:
    assert all(address.startswith(server.url) for address in told["printed"])
    for kind in ("project", "call", "dataset", "prompt", "board", "op"):
        assert any(address.startswith(told[kind]) for address in told["printed"]), kind


def test_a_printed_call_is_shown_in_its_trace(page: Page, told: dict[str, Any]) -> None:
    page.goto(told["call"])
    expect(page).to_have_url(re.compile(rf"/team/links/weave/traces/[^/]+\?(.*&)?call={told['call_id']}"))
    expect(page.get_by_role("main").get_by_text("answer_question").first).to_be_visible()
    expect(page.get_by_role("main").get_by_text("WHY").first).to_be_visible()


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("project", "Overview"),
        ("op", "answer_question"),
        ("dataset", "questions"),
        ("prompt", "my-prompt"),
        ("board", "board"),
        ("conversation", "talk about a/b"),
        ("view", "Calls"),
    ],
)
def test_printed_addresses_show_what_they_name(
    page: Page, told: dict[str, Any], watched: Watched, kind: str, seen: str
) -> None:
    answer = page.goto(told[kind])
    assert answer is not None and answer.status == 200, told[kind]
    expect(page.get_by_role("heading", level=1)).to_contain_text(seen)
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)


@pytest.mark.thorough
def test_going_back_leads_through_the_pages(page: Page, told: dict[str, Any]) -> None:
    rail = page.get_by_role("navigation", name="Main")
    page.goto(told["project"])
    for name in ("Calls", "Datasets", "Settings"):
        rail.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
        expect(rail.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(page.get_by_role("heading", name="Datasets", level=1)).to_be_visible()
    page.go_back()
    page.go_forward()
    expect(page.get_by_role("heading", name="Datasets", level=1)).to_be_visible()


def test_server_and_browser_agree_on_addresses(page: Page, server: HeddleProcess) -> None:
    page.goto("/settings")
    addresses = [re.sub(r"[:*]\w+", "a%20b%2Fc", pattern) for pattern, _ in PAGES]
    addresses += [f"{address}/" for address in addresses if address != "/"]
    addresses += ["/a/b/weave/nowhere", "/a/b", "/a/b/weave/threads/x/y"]
    script = page.locator("script[src]").get_attribute("src")
    assert script is not None
    module = script.replace("app.js", "lib/router.js")
    found = page.evaluate(MATCHED, [module, addresses])
    assert found == [find_page(address) for address in addresses]


def test_an_id_with_a_slash_has_an_address(page: Page, project: str, wire: Wire) -> None:
    wire.post(
        f"/v2/{project}/calls/complete",
        batch=[{**call("a/b<i>"), "trace_id": "a/b<i>", "project_id": project, "attributes": {}}],
    )
    for address in ("r/call/a%2Fb%3Ci%3E", "weave/calls/a%2Fb%3Ci%3E", "weave/traces/a%2Fb%3Ci%3E"):
        page.goto(f"/{project}/{address}")
        expect(page.locator("h2", has_text="rollout")).to_be_visible()
