"""Dashboards: templates, charts that are made, moved, resized and deleted, and the calls behind every point."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, keep_screen, look

CITIES = ["Kiel", "Ulm", "Ulm", "Rom", "Rom", "Rom"]


@pytest.fixture(scope="module")
def made(server: HeddleProcess) -> Iterator[Wire]:
    """Calls of the last hours, some of which failed, with usage of two models and scores."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/boards")
    now = datetime.now(UTC)
    batch = []
    for number in range(48):
        started = now - timedelta(minutes=9 * number + 2)
        model = ("gpt-4o", "gpt-4o-mini")[number % 2]
        batch.append(
            {
                "project_id": wire.project,
                "id": f"018f0000-0000-7000-8000-{number:012d}",
                "trace_id": str(uuid.uuid4()),
                "op_name": ("answer", "search", "rank")[number % 3],
                "started_at": started.isoformat(),
                "ended_at": (started + timedelta(milliseconds=40 + 13 * number)).isoformat(),
                "attributes": {},
                "inputs": {"city": CITIES[number % 6], "size": number},
                "output": {"ok": number % 4 > 0},
                "summary": {"usage": {model: {"prompt_tokens": 1000 + number, "completion_tokens": 50, "requests": 1}}},
                "exception": "ValueError: no" if number % 8 == 0 else None,
            }
        )
    wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch}).raise_for_status()
    for call in batch[:9]:
        wire.post(
            "/feedback/create",
            weave_ref=f"weave:///{wire.project}/call/{call['id']}",
            feedback_type="wandb.runnable.tone",
            payload={"output": {"kind": 0.5}},
            runnable_ref=f"weave:///{wire.project}/object/tone:{'a' * 43}",
        )
    yield wire
    wire.client.close()


def stored(wire: Wire, name: str) -> list[dict]:
    """The versions of a dashboard."""
    found = wire.post("/objs/query", filter={"base_object_classes": ["Dashboard"], "object_ids": [name]})
    return [item["val"] for item in found["objs"]]


def test_a_template_is_a_dashboard_at_a_click(page: Page, made: Wire) -> None:
    page.goto(f"/{made.project}/weave/dashboards")
    expect(page.get_by_role("button", name="Costs")).to_be_visible()
    look(page, "dashboards-empty")
    for name, charts in (("Costs", 5), ("Quality", 4), ("Latency", 5)):
        page.goto(f"/{made.project}/weave/dashboards")
        if name != "Costs":
            page.get_by_role("button", name="New dashboard").click()
        page.get_by_role("button", name=re.compile(f"^{name}")).click()
        expect(page).to_have_url(re.compile(f"/dashboards/{name}"))
        expect(page.locator("[data-chart]")).to_have_count(charts)
        expect(page.locator(".chartview[aria-busy=true]")).to_have_count(0)
        expect(page.locator(".chartview .failure")).to_have_count(0)
        look(page, f"dashboard-{name.lower()}", narrow=True)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep_screen(page, "dashboard-390")
    page.goto(f"/{made.project}/weave/dashboards")
    expect(page.get_by_role("link", name="Quality")).to_be_visible()
    look(page, "dashboards")


def board(wire: Wire, name: str, charts: list[dict]) -> str:
    """A stored dashboard; its address."""
    value = {"name": name, "period": "24h", "charts": charts}
    obj = {"project_id": wire.project, "object_id": name, "val": value, "builtin_object_class": "Dashboard"}
    wire.post("/obj/create", obj=obj)
    return f"/{wire.project}/weave/dashboards/{name}"


def chart(name: str, kind: str, field: str, group: str | None = None, aggregation: str | None = None) -> dict:
    """A chart with one measure."""
    measures = [{"field": field, "aggregation": aggregation}]
    return {"id": name, "title": name, "kind": kind, "measures": measures, "group_by": group}


def test_every_figure_leads_to_its_calls(page: Page, made: Wire) -> None:
    """Each link of the figures of a chart opens as many calls as it says."""
    charts = [
        chart("by-city", "bar", "calls", "inputs.city"),
        chart("errors", "stacked", "errors", "op_name"),
        chart("by-model", "table", "calls", "model"),
        chart("truth", "table", "calls", "output.ok"),
        chart("sizes", "histogram", "inputs.size"),
        chart("two", "table", "calls", "op_name") | {"limit": 2},
    ]
    address = board(made, "links", charts)
    page.goto(address)
    for shown in ("errors", "sizes"):
        card = page.locator(f"[data-chart={shown}]")
        card.get_by_role("button", name=f"More for {shown}").click()
        card.get_by_role("menuitem", name="Show table").click()
        expect(card.get_by_role("table")).to_be_visible()
    links: list[tuple[str, int]] = []
    for item in charts:
        card = page.locator(f"[data-chart={item['id']}]")
        expect(card.locator(".chartview a").first).to_be_visible()
        for anchor in card.locator(".chartview a").all():
            said = int(re.findall(r"\d+", anchor.inner_text())[-1])
            links.append((anchor.get_attribute("href") or "", said))
    assert len(links) > 25
    for href, said in [*links[:4], *links[4:20:4], *links[20:]]:
        page.goto(href)
        expect(page.get_by_text(re.compile(f" of {said} calls|^{said} call$")).first).to_be_visible()


def test_a_chart_is_made_with_a_preview_and_saved_as_a_version(page: Page, made: Wire) -> None:
    page.goto(board(made, "mine", []))
    page.get_by_role("button", name="Add chart").first.click()
    dialog = page.get_by_role("dialog", name="Chart")
    preview = dialog.get_by_label("Preview")
    dialog.get_by_label(re.compile("^Chart")).select_option("table")
    dialog.get_by_label("Figure", exact=True).select_option("other")
    dialog.get_by_label("Field", exact=True).fill("inputs.size")
    dialog.get_by_label("Aggregation").select_option("max")
    dialog.get_by_label("Group by").select_option("op_name")
    expect(preview.get_by_role("row", name=re.compile("rank"))).to_contain_text("47")
    dialog.get_by_role("button", name="Filter").click()
    inner = dialog.get_by_role("group", name="Add filter")
    inner.get_by_label("Filter field").fill("inputs.city")
    inner.get_by_label("Value").fill("Ulm")
    inner.get_by_role("button", name="Apply").click()
    expect(preview.get_by_role("row", name=re.compile("rank"))).to_contain_text("44")
    expect(preview.get_by_role("row", name=re.compile("answer"))).to_have_count(0)
    look(page, "dashboard-editor")
    dialog.get_by_label("Title").fill("Largest")
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("[data-chart]").get_by_role("row", name=re.compile("rank"))).to_contain_text("44")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Dashboard saved")).to_be_visible()
    [_, saved] = stored(made, "mine")
    assert saved["charts"][0]["measures"][0]["field"] == "inputs.size" and saved["charts"][0]["title"] == "Largest"
    page.reload()
    expect(page.get_by_role("heading", name="Largest")).to_be_visible()
    page.goto(f"/{made.project}/weave/dashboards/mine?v=0")
    expect(page.get_by_text("not the latest")).to_be_visible()
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("/dashboards$"))
    assert stored(made, "mine") == []


def test_changes_of_others_are_not_overwritten_unasked(page: Page, made: Wire, watched: Watched) -> None:
    watched.allow("409")
    address = board(made, "both", [chart("Calls", "number", "calls")])
    page.goto(address)
    page.get_by_role("button", name="More for Calls").click()
    page.get_by_role("menuitem", name="Duplicate").click()
    board(made, "both", [chart("Theirs", "number", "errors")])
    # The changes began before theirs, also where the page is looked at anew.
    page.get_by_role("link", name="Dashboards").first.click()
    page.get_by_role("link", name="both", exact=True).click()
    page.get_by_role("button", name="Save").click()
    dialog = page.get_by_role("dialog", name="Overwrite other changes?")
    dialog.get_by_role("button", name="Cancel").click()
    assert [len(value["charts"]) for value in stored(made, "both")] == [1, 1]
    page.get_by_role("button", name="Save").click()
    dialog.get_by_role("button", name="Save mine").click()
    expect(page.get_by_text("Dashboard saved")).to_be_visible()
    assert [len(value["charts"]) for value in stored(made, "both")] == [1, 1, 2]


def test_charts_are_moved_resized_copied_and_deleted(page: Page, made: Wire) -> None:
    charts = [chart(name, "number", "calls") for name in ("one", "two", "three")]
    page.goto(board(made, "layout", charts))
    cards = page.locator("[data-chart] h2")
    expect(cards).to_have_text(["one", "two", "three"])
    page.get_by_role("button", name="Move one").focus()
    page.keyboard.press("ArrowRight")
    expect(cards).to_have_text(["two", "one", "three"])
    expect(page.get_by_role("button", name="Move one")).to_be_focused()
    handle, goal = page.get_by_role("button", name="Move three"), page.locator("[data-chart=two]")
    handle.hover()
    page.mouse.down()
    goal.hover()
    goal.hover(position={"x": 30, "y": 30})
    page.mouse.up()
    expect(cards).to_have_text(["three", "two", "one"])
    page.get_by_role("button", name="Resize two").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    card = page.locator("[data-chart=two]")
    card.get_by_role("button", name="More for two").click()
    card.get_by_role("menuitem", name="Duplicate").click()
    expect(cards).to_have_text(["three", "two", "two", "one"])
    page.locator("[data-chart=one]").get_by_role("button", name="More for one").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(cards).to_have_text(["three", "two", "two"])
    page.get_by_role("button", name="Undo").click()
    expect(cards).to_have_text(["three", "two", "two", "one"])
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Dashboard saved")).to_be_visible()
    saved = stored(made, "layout")[-1]["charts"]
    assert [(item["title"], item["width"], item["height"]) for item in saved] == [
        ("three", 2, 1),
        ("two", 3, 2),
        ("two", 3, 2),
        ("one", 2, 1),
    ]


def test_a_dashboard_travels_as_json(page: Page, made: Wire, watched: Watched) -> None:
    watched.allow("400")
    page.goto(board(made, "travels", [chart("c", "line", "latency_ms", None, "p95")]))
    page.get_by_role("button", name="More", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Export as JSON").click()
    exported = json.loads(download.value.path().read_text())
    assert exported["charts"][0]["measures"][0]["aggregation"] == "p95"
    page.goto(f"/{made.project}/weave/dashboards")
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog", name="Import dashboard")
    dialog.get_by_label("JSON").fill(json.dumps({**exported, "charts": [{**exported["charts"][0], "kind": "pie"}]}))
    dialog.get_by_role("button", name="Import").click()
    expect(dialog.get_by_role("alert")).to_contain_text("charts.0.kind")
    dialog.get_by_label("JSON").fill(json.dumps({**exported, "name": "Arrived"}))
    dialog.get_by_role("button", name="Import").click()
    expect(page).to_have_url(re.compile("/dashboards/Arrived"))
    expect(page.locator("[data-chart=c] svg.chart")).to_be_visible()
