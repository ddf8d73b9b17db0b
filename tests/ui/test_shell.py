"""The frame around every page."""

from playwright.sync_api import Page, expect

from heddle.ui.pages import PAGES, assets
from tests.ui.support import Watched, look


def test_an_unknown_page_says_so_and_leads_back(page: Page, project: str, watched: Watched) -> None:
    answer = page.goto(f"/{project}/weave/nowhere")
    assert answer is not None and answer.status == 404
    watched.allow("404")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    look(page, "missing")
    expect(page.get_by_role("main").get_by_role("link", name="All projects")).to_be_visible()


def test_what_a_page_is_made_of_is_small() -> None:
    """Compressed, with the font: of the 150 KiB of a first visit some are left for what the page shows."""
    found = assets()
    sizes = {name: len(file.compressed or file.body) for name, file in found.files.items()}
    frame = sizes["app.css"] + sizes["inter.woff2"]
    assert sizes["inter.woff2"] <= 60 * 1024
    weights = {}
    for page in {name for _, name in PAGES}:
        modules = found.modules(page)
        styles = [name.replace(".js", ".css") for name in modules if name.replace(".js", ".css") in sizes]
        weights[page] = frame + sum(sizes[name] for name in {*modules, *styles} - {"app.css"})
    assert {page: weight for page, weight in weights.items() if weight > 137 * 1024} == {}
