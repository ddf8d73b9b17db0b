"""The frame around every page."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from heddle.ui.pages import PAGES, assets
from tests.conftest import Wire
from tests.support.calls import call
from tests.ui.support import Watched, look

PARTS = """async (module) => {
    const { effect, flush, h, signal } = await import(module);
    const count = signal(0);
    const part = () => {
        if (count.value % 2 === 0) throw new Error(`broken at ${count.value}`);
        return count.value;
    };
    effect(() => {
        if (count.value === 2) throw new Error("no element at 2");
    });
    const element = h("p", "start ", part, " end");
    const texts = [element.innerText];
    for (const next of [1, 2]) {
        count.value = next;
        flush();
        texts.push(element.innerText);
    }
    return texts;
}"""
"""What an element shows one part of which fails when a count is even, beside an effect that fails at 2."""
SELECTED = """async (module) => {
    const { flush, h, signal } = await import(module);
    const count = signal(0);
    const value = () => h("i", h("u", "its value"), count.value);
    const name = h("p", () => h("b", `the name ${count.value}`), " and ", value);
    document.querySelector("main").append(name);
    getSelection().setBaseAndExtent(name.querySelector("b").firstChild, 4, name.querySelector("u").firstChild, 3);
    count.value = 1;
    flush();
    return [getSelection().toString(), name.innerText];
}"""
"""The text that is selected, from within one part to within another, after both were drawn again."""


def test_an_unknown_page_says_so_and_leads_back(page: Page, project: str, watched: Watched) -> None:
    answer = page.goto(f"/{project}/weave/nowhere")
    assert answer is not None and answer.status == 404
    watched.allow("404")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    look(page, "missing")
    expect(page.get_by_role("main").get_by_role("link", name="All projects")).to_be_visible()


def test_a_part_that_fails_says_so_and_stops_no_other(page: Page, project: str, watched: Watched) -> None:
    page.goto(f"/{project}/weave/settings")
    script = page.locator("script[src]").get_attribute("src")
    assert script is not None
    module = script.replace("app.js", "lib/dom.js")
    texts = page.evaluate(PARTS, module)
    assert page.evaluate(SELECTED, module) == ["name 1 and its", "the name 1 and its value1"]
    assert texts == ["start Cannot be shown: broken at 0 end", "start 1 end", "start Cannot be shown: broken at 2 end"]
    assert watched.take() == ["page error: broken at 0", "page error: no element at 2", "page error: broken at 2"]


@pytest.mark.parametrize(
    "fields", [{}, {"columns": None, "scorers": {"a": 1}, "op_names": "x"}, {"columns": [None, 5]}]
)
def test_objects_of_another_shape_are_listed(page: Page, wire: Wire, fields: dict[str, Any]) -> None:
    for kind in ("Leaderboard", "Monitor"):
        value = {"_type": kind, "_class_name": kind, "_bases": ["Object", "BaseModel"], **fields}
        wire.post("/obj/create", obj={"project_id": wire.project, "object_id": f"odd-{kind}", "val": value})
    page.goto(f"/{wire.project}/weave/leaderboards")
    page.get_by_role("link", name="odd-Leaderboard").click()
    expect(page.get_by_role("heading", name="odd-Leaderboard")).to_be_visible()
    page.goto(f"/{wire.project}/weave/scorers")
    page.get_by_role("tab", name="Monitors").click()
    expect(page.get_by_role("link", name="odd-Monitor")).to_be_visible()


def test_counts_that_are_no_numbers_are_not_shown_as_such(page: Page, wire: Wire) -> None:
    usage = {"m": {"requests": {}, "prompt_tokens": "many", "completion_tokens": "7", "prompt_tokens_details": {}}}
    odd = {**call("odd"), "project_id": wire.project, "attributes": {}, "summary": {"usage": usage}}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[odd])
    page.goto(f"/{wire.project}/r/call/odd")
    page.get_by_role("tab", name="Usage").click()
    row = page.get_by_role("table", name="Usage of this call").locator("tbody tr").first
    assert row.inner_text().split() == ["m", "0", "0", "7", "0", "no", "price"]


def test_exceptions_of_another_shape_are_shown(page: Page, wire: Wire) -> None:
    told = {
        "frames": ('{"message": "broken", "traceback": [null, {"filename": 5}]}', "broken"),
        "message": ('{"message": {"code": 7}, "traceback": "none"}', '{"message": {"code": 7}, "traceback": "none"}'),
    }
    for name, (exception, shown) in told.items():
        failed = {**call(name), "project_id": wire.project, "attributes": {}, "exception": exception}
        wire.post(f"/v2/{wire.project}/calls/complete", batch=[failed])
        page.goto(f"/{wire.project}/r/call/{name}")
        expect(page.get_by_role("group", name="Error").locator("p").first).to_have_text(shown)


def test_a_form_is_sent_once_and_lost_by_no_stray_click_and_closes_with_its_page(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/datasets")
    page.get_by_role("link", name="Prompts & objects").click()
    page.get_by_role("button", name="New prompt").click()
    dialog = page.get_by_role("dialog", name="New prompt")
    dialog.get_by_label("Name").fill("greeting")
    dialog.get_by_label("Text of message 2").fill("Say hello")
    page.mouse.click(5, 5)
    expect(dialog).to_be_visible()
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="Datasets", exact=True)).to_be_visible()

    page.go_forward()
    page.get_by_role("button", name="New prompt").click()
    dialog.get_by_label("Name").fill("greeting")
    dialog.get_by_label("Text of message 2").fill("Say hello")
    created = []
    page.on("request", lambda request: created.append(request.url) if request.url.endswith("/obj/create") else None)
    dialog.locator("form").evaluate("form => { form.requestSubmit(); form.requestSubmit(); }")
    expect(page.get_by_role("heading", name="greeting")).to_be_visible()
    assert len(created) == 1


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
