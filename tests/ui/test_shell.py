"""The frame around every page."""

from playwright.sync_api import Page, expect

from tests.ui.support import Watched, look


def test_an_unknown_page_says_so_and_leads_back(page: Page, project: str, watched: Watched) -> None:
    answer = page.goto(f"/{project}/weave/nowhere")
    assert answer is not None and answer.status == 404
    watched.allow("404")
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    look(page, "missing")
    expect(page.get_by_role("main").get_by_role("link", name="All projects")).to_be_visible()
