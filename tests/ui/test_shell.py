"""The frame around every page."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

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

WRITTEN = """async (module) => {
    const { bytes, duration, exact, money, plural, when } = await import(module);
    const noon = Date.UTC(2020, 4, 30, 12) / 1000;
    return [
        [59.999, 119.7, 3599.6, 7199, 0.99996, 0.00099996, -5, 0].map(duration),
        [0.0000025, -0.0000025, 0.0099999, 999.999, -0.5, 0].map(money),
        [999_950, 999, 1_000_000].map(bytes),
        [0, 1, 2, 1234].map((count) => plural(count, "call")),
        plural(1, "reply", "replies"), plural(2, "reply", "replies"),
        when(noon).includes("2020"), when(Date.now()).includes(String(new Date().getFullYear())), exact(noon),
    ];
}"""
"""How numbers at the edges of units, small amounts, nouns and times of another year are written."""
LONG = "a_name_that_goes_on_without_any_spaces_" * 9


def test_an_unknown_page_says_so_and_leads_back(page: Page, project: str, watched: Watched) -> None:
    answer = page.goto(f"/{project}/weave/nowhere")
    assert answer is not None and answer.status == 404
    watched.allow("404")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    look(page, "missing")
    expect(page.get_by_role("main").get_by_role("link", name="All projects")).to_be_visible()


@pytest.mark.parametrize(("status", "told"), [(429, "Too many requests"), (403, "Not allowed")])
def test_a_page_that_may_not_read_keeps_its_heading_and_says_why(
    page: Page, project: str, watched: Watched, status: int, told: str
) -> None:
    watched.allow(str(status))
    answer = {"reason": "Wait a second."}
    page.route(re.compile("/(objs|replays)/query"), lambda route: route.fulfill(status=status, json=answer))
    for address, heading in (("dashboards/shop", "Dashboard"), ("replays", "Replays")):
        page.goto(f"/{project}/weave/{address}")
        expect(page.get_by_role("alert")).to_contain_text(told)
        expect(page.get_by_role("alert")).to_contain_text("Wait a second.")
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        expect(page.get_by_role("table")).to_have_count(0)


def test_what_is_written_keeps_to_its_units_nouns_and_zones(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/settings")
    script = page.locator("script[src]").get_attribute("src")
    assert script is not None
    *told, is_dated, is_dated_now, exact = page.evaluate(WRITTEN, script.replace("app.js", "lib/format.js"))
    assert told == [
        ["1m 0s", "2m 0s", "1h 0m", "2h 0m", "1.00 s", "1 ms", "−5.00 s", "0 s"],
        ["< $0.00001", "> −$0.00001", "$0.01", "$1,000", "−$0.50", "$0"],
        ["1 MB", "999 B", "1 MB"],
        ["0 calls", "1 call", "2 calls", "1,234 calls"],
        "1 reply",
        "2 replies",
    ]
    assert (is_dated, is_dated_now) == (True, False)
    assert exact.startswith("Sat") and "2020" in exact and ("UTC" in exact or "GMT" in exact)


def test_a_long_title_is_cut_and_nothing_beside_it(page: Page, wire: Wire) -> None:
    stored = {**call("long"), "display_name": LONG, "project_id": wire.project, "attributes": {}}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[stored])
    for width in (1440, 1101, 390):
        page.set_viewport_size({"width": width, "height": 860})
        page.goto(f"/{wire.project}/weave/traces/t?call=long")
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_have_text(LONG)
        for part in (page.locator(".top .crumb"), heading, page.locator(".top .stat").last):
            expect(part).to_be_in_viewport(ratio=1)
        top = [page.locator(part).bounding_box() for part in (".top .crumb", ".top h1")]
        assert all(top) and abs(top[0]["y"] - top[1]["y"]) < top[1]["height"]  # type: ignore[index]
    heading.hover()
    expect(heading).to_have_attribute("title", LONG)
    # Nothing in this trace used tokens or money.
    expect(page.locator(".used:visible")).to_have_count(0)


def test_a_page_is_printed_whole_and_without_what_is_pressed(page: Page, wire: Wire) -> None:
    lines = "\n".join(f"line {number}" for number in range(200))
    stored = {**call("long"), "output": lines, "project_id": wire.project, "attributes": {}}
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[stored])
    page.goto(f"/{wire.project}/weave/traces/t?call=long")
    expect(page.get_by_text("line 199")).to_be_attached()
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    expect(page.locator(".rail")).to_be_hidden()
    height = page.get_by_text("line 199").bounding_box()
    assert height and page.evaluate("document.documentElement.scrollHeight") >= height["y"] + height["height"]
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


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
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Discard what you entered?").get_by_role("button", name="Cancel").click()
    expect(dialog.get_by_label("Name")).to_have_value("greeting")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Discard").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="New prompt").click()
    expect(dialog).to_be_visible()
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="Datasets", exact=True)).to_be_visible()

    page.go_forward()
    page.get_by_role("button", name="New prompt").click()
    dialog.get_by_label("Name").fill("greeting")
    dialog.get_by_label("Text of message 2").fill("Say hello")
    created: list[Route] = []
    page.route("**/obj/create", lambda route: created.append(route))
    dialog.locator("form").evaluate("form => { form.requestSubmit(); form.requestSubmit(); }")
    expect(dialog.locator("form")).to_have_attribute("aria-busy", "true")
    created[0].continue_()
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


TABLES = """async (module) => {
    const { table } = await import(module);
    const [opened, chosen] = [[], []];
    globalThis.open = (...given) => { opened.push(given); };
    const cellOf = (more) => {
        const made = table({ label: "Rows", keyboard: false, rows: () => ["one"], key: (row) => row,
            columns: () => [{ key: "name", label: "Name", render: (row) => row }], ...more });
        document.body.append(made);
        return made.querySelector("tbody td");
    };
    cellOf({ href: () => null }).dispatchEvent(new MouseEvent("auxclick", { button: 1, bubbles: true }));
    const pressed = new MouseEvent("click", { ctrlKey: true, bubbles: true });
    cellOf({ onopen: (row) => { chosen.push(row); } }).dispatchEvent(pressed);
    return [opened, chosen];
}"""

LATER = """async (module) => {
    const { later } = await import(module);
    let loads = 0;
    const load = () => (++loads === 1 ? Promise.reject(new Error("lost")) : Promise.resolve({}));
    const content = later(load, () => "there");
    for (let turn = 0; turn < 5; turn++) await null;
    content().querySelector("button").click();
    for (let turn = 0; turn < 5; turn++) await null;
    dispatchEvent(new Event("heddle:retry"));
    return [loads, content()()];
}"""


def test_parts_of_pages_do_what_they_say(page: Page, project: str) -> None:
    """A row without an address opens no empty tab; what came when it was tried again is not loaded once more."""
    page.goto(f"/{project}/weave/settings")
    script = page.locator("script[src]").get_attribute("src")
    assert script is not None
    assert page.evaluate(TABLES, script.replace("app.js", "lib/table.js")) == [[], ["one"]]
    assert page.evaluate(LATER, script.replace("app.js", "lib/parts.js")) == [2, "there"]
