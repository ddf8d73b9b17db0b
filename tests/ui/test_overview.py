"""The overview of a project: figures against the time before, charts to brush, what failed and what runs."""

import random
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.otlp import PROTOBUF, Exporter, request, span
from tests.support.server import HeddleProcess
from tests.ui.support import look

LONG = "answer_with_a_name_that_goes_on_" * 3


@pytest.fixture(scope="module")
def busy(server: HeddleProcess) -> str:
    """A project with 600 calls of two weeks, errors among them, usage of four models and feedback."""
    project = f"team/busy-{uuid.uuid4().hex[:8]}"
    chance, now = random.Random(7), datetime.now(UTC)
    calls = [call(project, chance, now - timedelta(days=chance.random() ** 2 * 13.5)) for _ in range(600)]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post(f"/v2/{project}/calls/complete", json={"batch": calls})
        assert answer.status_code == 200, answer.text
        for item in calls[:30]:
            note = {"feedback_type": "wandb.note.1", "payload": {"note": "good"}}
            body = {"project_id": project, "weave_ref": f"weave:///{project}/call/{item['id']}", **note}
            assert client.post("/feedback/create", json=body).status_code == 200
    return project


def call(project: str, chance: random.Random, at: datetime) -> dict[str, Any]:
    """One finished call."""
    failed = chance.random() < 0.05
    model = chance.choice(["gpt-4o", "gpt-4o-mini", "claude-sonnet-4-5", "my-own-model"])
    tokens = {"prompt_tokens": chance.randint(100, 4000), "completion_tokens": chance.randint(10, 900), "requests": 1}
    return {
        "project_id": project,
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": LONG if failed else "answer",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=chance.lognormvariate(0, 1))).isoformat(),
        "attributes": {},
        "inputs": {},
        "output": None,
        "exception": "ValueError: انتهت المهلة 🕰️\n  at line 3" if failed else None,
        "summary": {"usage": {model: tokens}},
    }


def tile(page: Page, name: str) -> Any:
    """The tile with a label."""
    return page.get_by_role("main").get_by_text(name, exact=True).locator("..")


def test_figures_charts_and_errors(page: Page, busy: str) -> None:
    page.goto(f"/{busy}/weave")
    expect(tile(page, "Calls").first).to_contain_text("vs before")
    expect(tile(page, "Cost")).to_contain_text("$")
    for name in ("Calls and errors over time", "Latency over time", "Cost by model over time", "Feedback over time"):
        expect(page.get_by_role("img", name=name)).to_be_visible()
    expect(page.get_by_text("claude-sonnet-4-5")).to_be_visible()
    look(page, "overview", narrow=True)
    page.get_by_role("link", name=LONG).first.click()
    expect(page).to_have_url(re.compile(r"/errors\?.*show="))
    page.go_back()
    expect(page.get_by_role("heading", name="Newest errors")).to_be_visible()


def test_a_dragged_range_opens_the_calls_in_it(page: Page, busy: str) -> None:
    page.goto(f"/{busy}/weave?t=30d")
    chart = page.get_by_role("img", name="Calls and errors over time")
    expect(chart).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"/traces\?t0=.*t1="))


def test_a_bar_opens_the_calls_it_counts(page: Page, busy: str) -> None:
    """By pointer the part that was hit, by keyboard the whole bucket; the list holds as many as the bar says."""
    page.goto(f"/{busy}/weave?t=30d")
    chart = page.get_by_role("group", name="Calls and errors over time")
    chart.focus()
    page.keyboard.press("End")
    told = chart.locator(".tip div").filter(has_text="total").locator("span")
    count = told.inner_text()
    errors = chart.locator(".tip div").filter(has_text="errors").locator("span").inner_text()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/traces\?t0=.*t1=.*roots=0"))
    expect(page.get_by_role("status", name=f"{count} calls")).to_be_visible()
    page.go_back()
    chart.locator("rect[data-series=errors]").last.click()
    expect(page).to_have_url(re.compile("status=error"))
    expect(page.get_by_role("status", name=re.compile(f"^{errors} calls?"))).to_be_visible()


def test_the_range_is_in_the_address(page: Page, busy: str) -> None:
    page.goto(f"/{busy}/weave")
    expect(tile(page, "Calls").first).to_be_visible()
    page.get_by_role("button", name="1h", exact=True).click()
    expect(page).to_have_url(re.compile("t=1h"))
    page.reload()
    expect(page.get_by_role("button", name="1h", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="All", exact=True).click()
    expect(tile(page, "Calls").first).to_contain_text("600")


def test_rejected_telemetry_is_told(page: Page, server: HeddleProcess, project: str) -> None:
    """Beside the calls, and where there are none yet."""
    exporter = Exporter(server.url, project, "/v1/traces")
    exporter.export(request({**span(1, name="odd"), "span_id": b"x"}))
    page.goto(f"/{project}/weave")
    note = page.get_by_role("note", name="Rejected telemetry")
    expect(note).to_contain_text("1 span rejected: invalid id, last just now")
    expect(page.get_by_role("heading", name="No traces yet")).to_be_visible()
    exporter.export(request(span(2), {**span(3), "trace_id": bytes(16)}))
    page.reload()
    expect(note).to_contain_text("2 spans rejected: invalid id")
    expect(tile(page, "Calls").first).to_be_visible()
    note.get_by_text("2 spans rejected").click()
    expect(note.get_by_text("trace_id must not be all zeros")).to_be_visible()
    look(page, "overview-rejected")


def test_telemetry_without_a_project_is_told_with_the_projects(page: Page, server: HeddleProcess) -> None:
    body = request(span(1), resource={"host.name": "h"}).SerializeToString()
    assert Exporter(server.url, None, "/v1/traces").send(body, PROTOBUF).status_code == 400
    page.goto("/")
    note = page.get_by_role("note", name="Rejected telemetry")
    expect(note).to_contain_text("rejected: no project, last just now")
    note.get_by_text("rejected: no project").click()
    expect(note).to_contain_text("set OTEL_SERVICE_NAME")
    look(page, "projects-rejected")


@pytest.mark.thorough
def test_one_call_alone_looks_fine(page: Page, wire: Wire, project: str) -> None:
    page.goto(f"/{project}/weave")
    expect(page.get_by_role("heading", name="No traces yet")).to_be_visible()
    expect(page.locator("pre")).to_contain_text(f'weave.init("{project}")')
    look(page, "overview-empty")
    one = call(project, random.Random(1), datetime.now(UTC))
    answer = wire.client.post(f"/v2/{project}/calls/complete", json={"batch": [one]})
    assert answer.status_code == 200, answer.text
    expect(tile(page, "Calls").first).to_contain_text("1", timeout=15_000)
    look(page, "overview-one")


def test_ranges_with_a_name(page: Page, busy: str) -> None:
    """Yesterday by the reader's calendar; it stays relative in the address."""
    page.clock.set_fixed_time(datetime.now(UTC))
    page.goto(f"/{busy}/weave/traces?roots=0")
    status = page.get_by_role("status", name=re.compile(r"^[\d,]+ calls?$"))
    expect(status).to_have_text("600")
    page.get_by_role("button", name="Other time ranges").click()
    look(page, "time-range")
    page.get_by_role("dialog", name="Time range").get_by_role("button", name="Yesterday").click()
    expect(page).to_have_url(re.compile(r"t=yesterday"))
    expect(page.get_by_text("Yesterday", exact=True)).to_be_visible()
    midnight = page.evaluate("() => new Date(new Date().setHours(0, 0, 0, 0)).getTime() / 1000")
    expect(status).not_to_have_text("600")
    by_name = status.inner_text()
    page.goto(f"/{busy}/weave/traces?roots=0&t0={midnight - 86_400}&t1={midnight}")
    expect(status).to_have_text(by_name)


def test_outliers_flatten_nothing_and_axes_have_one_form(page: Page, wire: Wire, project: str) -> None:
    now, chance = datetime.now(UTC), random.Random(2)
    calls = [call(project, chance, now - timedelta(hours=12 * step, minutes=5)) for step in range(28) for _ in range(3)]
    calls += [call(project, chance, now - timedelta(days=2)) for _ in range(300)]
    for item in calls:
        began = datetime.fromisoformat(item["started_at"])
        item |= {"ended_at": (began + timedelta(seconds=0.2)).isoformat(), "exception": None, "op_name": "answer"}
    calls[0]["ended_at"] = (datetime.fromisoformat(calls[0]["started_at"]) + timedelta(seconds=90)).isoformat()
    calls[0]["op_name"] = calls[40]["op_name"] = "ask"
    fine = {"op_name": "answer", "exception": None}
    early = [call(project, chance, now - timedelta(days=16)) | fine for _ in range(3)]
    answer = wire.client.post(f"/v2/{project}/calls/complete", json={"batch": [*calls, *early]})
    assert answer.status_code == 200, answer.text
    page.goto(f"/{project}/weave?t=14d")
    # 3 calls before, 384 now: a change of many thousands in a hundred says less than what was before.
    expect(tile(page, "Calls").first).to_contain_text("▲ from 3 vs before")
    tile(page, "Calls").first.get_by_role("link").click()
    expect(page.get_by_role("status", name="384 calls")).to_be_visible()
    page.go_back()
    bars = page.get_by_role("img", name="Calls and errors over time")
    latencies = page.get_by_role("img", name="Latency over time")
    for chart, text in ((bars, "1 beyond the scale: show all"), (latencies, "1 beyond the scale: show all")):
        expect(chart.locator(".beyond")).not_to_have_count(0)
        box = chart.locator("..")
        # Beside the bars, not over them.
        ends = box.get_by_role("button", name=text).bounding_box(), chart.bounding_box()
        assert ends[0] is not None and ends[1] is not None and ends[0]["y"] + ends[0]["height"] <= ends[1]["y"]
        box.get_by_role("button", name=text).click()
        expect(chart.locator(".beyond")).to_have_count(0)
        box.get_by_role("button", name="Cut off outliers").click()
        expect(chart.locator(".beyond")).not_to_have_count(0)
    base = page.evaluate("document.querySelector('script[src]').src.replace(/app\\.js$/, '')")
    script = """async (base) => {
      const { axisTexts, compact, duration, money, percent, number } = await import(`${base}lib/format.js`);
      const { ticks } = await import(`${base}lib/chart.js`);
      return [axisTexts(money, [0, 0.2, 0.8, 1]), axisTexts(number, [0, 2.5, 5, 7.5, 10]),
        axisTexts(duration, [0, 0.5, 1, 1.5]), axisTexts(compact, [0, 10000, 20000, 25000]),
        axisTexts(percent, [0, 0.005, 0.01]), ticks(0, 10, 4, true), duration(0), duration(2e-7)];
    }"""
    assert page.evaluate(script, base) == [
        ["$0", "$0.20", "$0.80", "$1.00"],
        ["0", "2.5", "5.0", "7.5", "10.0"],
        ["0", "0.5 s", "1.0 s", "1.5 s"],
        ["0", "10K", "20K", "25K"],
        ["0 %", "0.5 %", "1.0 %"],
        [0, 5, 10],
        "0 s",
        "< 1 µs",
    ]
