"""The list of calls: filters, pages, columns, views, what is done with several calls, and what the page may cost."""

import csv
import json
import random
import re
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Client, Wire
from tests.support.server import HeddleProcess
from tests.ui.support import Budget, Watched, look

Json = dict[str, Any]
LONG = "triage.with_a_very_long_operation_name_" * 4
ASKED = ("Where is my order?", "ما هو موعد القطار القادم؟ 🚆", "Reset my password", "Refund the invoice of May " * 20)
MODELS = ("gpt-4o-mini", "claude-sonnet-4-5", "my.own-model")


def trace_of(project: str, number: int, at: datetime, chance: random.Random) -> list[Json]:
    """A root that calls a model; every ninth fails."""
    model, question = MODELS[number % 3], ASKED[number % 4]
    failed = number % 9 == 4
    usage = {model: {"requests": 1, "prompt_tokens": chance.randint(100, 4000), "completion_tokens": 50}}
    whole: Json = {"project_id": project, "trace_id": str(uuid.uuid4()), "summary": {"usage": usage}}
    root = {
        **whole,
        "id": str(uuid.uuid4()),
        "op_name": f"weave:///{project}/op/{LONG if number % 7 == 0 else 'answer_ticket'}:{'a' * 43}",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=chance.lognormvariate(0, 1.5))).isoformat(),
        "attributes": {"weave": {"kind": "agent"}, "release": "1.2"},
        "inputs": {"question": question, "customer": {"tier": "pro" if number % 2 else "free"}, "number": number},
        "output": None if failed else {"answer": f"Answer {number}", "confidence": number / 100},
        "exception": "Traceback …\nTimeoutError: no answer within 5 s" if failed else None,
        "thread_id": f"thread-{number % 5}",
    }
    child = {
        **whole,
        "id": str(uuid.uuid4()),
        "parent_id": root["id"],
        "op_name": "openai.chat.completions.create",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=0.4)).isoformat(),
        "attributes": {"weave": {"kind": "llm"}},
        "inputs": {"model": model, "messages": [{"role": "user", "content": question}]},
        "output": {"choices": [{"message": {"role": "assistant", "content": f"Answer {number}"}}]},
    }
    return [root, child]


def fill(server: HeddleProcess, project: str, traces: int) -> None:
    """Write traces of the last two days, evenly spread."""
    chance, now = random.Random(1), datetime.now(UTC)
    ages = [timedelta(minutes=30 * number + 1) for number in range(traces)]
    calls = [call for number in range(traces) for call in trace_of(project, number, now - ages[number], chance)]
    answer = httpx.post(f"{server.url}/v2/{project}/calls/complete", json={"batch": calls}, timeout=60)
    assert answer.status_code == 200, answer.text
    search = {"project_id": project, "query": {"$expr": {"$search": {"text": "openai.chat.completions.create"}}}}
    deadline = time.monotonic() + 30
    while httpx.post(f"{server.url}/calls/query_stats", json=search).json()["count"] < traces:
        assert time.monotonic() < deadline, "the calls are not searchable"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def filled(server: HeddleProcess) -> str:
    """A project of 90 traces that tests only read."""
    project = f"acme/support-{uuid.uuid4().hex[:6]}"
    fill(server, project, 90)
    return project


@pytest.fixture
def own(server: HeddleProcess, project: str) -> str:
    """A project of 12 traces that a test may change."""
    fill(server, project, 12)
    return project


def row(page: Page, number: int) -> Locator:
    """A row of the list, the first is 1."""
    return page.get_by_role("table", name="Calls").get_by_role("row").nth(number)


def counted(page: Page, number: int) -> Locator:
    """The count beside the title."""
    return page.get_by_role("status", name="1 call" if number == 1 else f"{number} calls", exact=True)


def open_calls(page: Page, project: str, search: str = "") -> None:
    """The list with its first row."""
    page.goto(f"/{project}/weave/traces{search}")
    expect(row(page, 1).get_by_role("link").first).to_be_visible()


@pytest.mark.thorough
def test_pages_orders_and_back(page: Page, filled: str) -> None:
    open_calls(page, filled)
    expect(page.get_by_text("40 of 90 calls")).to_be_visible()
    expect(row(page, 5)).to_contain_text("TimeoutError: no answer within 5 s")
    expect(row(page, 2)).to_contain_text("Answer 1")
    look(page, "calls", narrow=True)
    page.keyboard.press("]")
    expect(row(page, 2)).to_contain_text("Answer 41")
    expect(page).to_have_url(re.compile("after="))
    page.reload()
    expect(row(page, 1)).to_contain_text("TimeoutError")
    page.keyboard.press("]")
    expect(page.get_by_text("10 of 90 calls")).to_be_visible()
    page.keyboard.press("[")
    expect(page.get_by_text("40 of 90 calls")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("10 of 90 calls")).to_be_visible()
    page.get_by_role("button", name="Started").click()
    expect(row(page, 1)).to_contain_text("Answer 89")
    page.get_by_role("button", name="Latency").click()
    expect(page.get_by_role("columnheader", name="Latency")).to_have_attribute("aria-sort", "descending")
    expect(page).to_have_url(re.compile("sort=slowest"))


def test_filters_live_in_the_address(page: Page, filled: str) -> None:
    open_calls(page, filled)
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_label("Field").fill("inputs.customer.tier")
    page.get_by_label("Value", exact=True).fill("pro")
    look(page, "calls-filter")
    page.get_by_role("button", name="Apply").click()
    expect(counted(page, 45)).to_be_visible()
    page.get_by_role("button", name="Error", exact=True).click()
    expect(counted(page, 5)).to_be_visible()
    page.get_by_role("searchbox").fill("password")
    expect(counted(page, 0)).to_be_visible()
    page.get_by_role("searchbox").fill("order")
    expect(page).to_have_url(re.compile("search=order"))
    page.get_by_role("searchbox").fill("")
    expect(counted(page, 5)).to_be_visible()
    page.reload()
    expect(counted(page, 5)).to_be_visible()
    page.get_by_role("button", name="Remove inputs.customer.tier is pro").click()
    expect(counted(page, 10)).to_be_visible()
    page.go_back()
    expect(counted(page, 5)).to_be_visible()
    for condition, expected in (
        (["model", "is", "my.own-model"], 30),
        (["thread", "in", "thread-1,thread-2"], 36),
        (["op", "is", "answer_ticket"], 77),
        (["kind", "is", "agent"], 90),
        (["inputs.number", "lt", "10"], 10),
        (["output.answer", "contains", "answer 8"], 10),
        (["feedback", "exists"], 0),
        (["cost", "lt", "1000"], 90),
        (["duration", "lte", "1000"], 90),
    ):
        page.goto(f"/{filled}/weave/traces?f={json.dumps([condition])}")
        expect(counted(page, expected)).to_be_visible()
    page.goto(f"/{filled}/weave/traces?kind=llm&roots=0")
    expect(counted(page, 90)).to_be_visible()


def test_a_change_of_one_control_leaves_the_others_and_the_focus(page: Page, filled: str) -> None:
    open_calls(page, filled, "?roots=1")
    page.get_by_role("button", name="Error", exact=True).click()
    expect(counted(page, 10)).to_be_visible()
    expect(page.get_by_role("button", name="All traces")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Any", exact=True).click()
    expect(counted(page, 90)).to_be_visible()
    page.get_by_role("button", name="Latency").press("Enter")
    expect(page.get_by_role("columnheader", name="Latency")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("table", name="Calls")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("button", name="Latency")).to_be_focused()
    page.get_by_role("searchbox").press_sequentially("order ")
    expect(page).to_have_url(re.compile("search=order"))
    expect(page.get_by_role("searchbox")).to_have_value("order ")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Calls").click()
    expect(page.get_by_role("searchbox")).to_have_value("")
    page.goto(f"/{filled}/weave/traces?search=nothing-like-this")
    page.get_by_role("button", name="Show all calls").click()
    expect(counted(page, 180)).to_be_visible()


def test_search_covers_errors_and_what_is_inside(page: Page, filled: str) -> None:
    """A text of an exception, of a call inside the trace, and a phrase; hits are marked, and lead to the call."""
    open_calls(page, filled)
    box = page.get_by_role("searchbox")
    box.fill("TimeoutError")
    expect(counted(page, 10)).to_be_visible()
    expect(row(page, 1).locator("mark")).to_have_text("TimeoutError")
    expect(row(page, 1)).to_contain_text("exception")
    box.fill('"completions.create" my.own-model')
    expect(counted(page, 30)).to_be_visible()
    inside = row(page, 1).get_by_role("link").nth(1)
    expect(inside.locator("mark").first).to_have_text("my.own-model")
    look(page, "calls-search")
    expect(page).to_have_url(re.compile("search="))
    page.reload()
    expect(counted(page, 30)).to_be_visible()
    inside.click()
    expect(page).to_have_url(re.compile("call="))
    page.go_back()
    box.fill("5s answer")
    expect(page.get_by_text("No calls match")).to_be_visible()
    box.fill('"Reset my password"')
    expect(counted(page, 22)).to_be_visible()
    page.get_by_role("button", name="Relevance").click()
    expect(row(page, 1).locator("mark")).to_have_text("Reset my password")
    expect(page).to_have_url(re.compile("sort=relevance"))


def test_filters_are_changed_where_they_stand(page: Page, filled: str) -> None:
    """Fields are those of the calls that the other filters leave."""
    open_calls(page, filled, '?f=[["op","is","openai.chat.completions.create"]]&roots=0')
    page.get_by_role("button", name="Filter", exact=True).click()
    editor = page.get_by_role("group", name="Add filter")
    offered = editor.locator("datalist").first
    expect(offered.locator('option[value="output.choices"]')).to_be_attached()
    expect(offered.locator('option[value="inputs.customer.tier"]')).to_have_count(0)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(editor.get_by_label("Filter field")).to_be_focused()
    page.keyboard.type("Model")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("my.own-model")
    page.keyboard.press("Enter")
    expect(counted(page, 30)).to_be_visible()
    page.get_by_role("button", name="Model is my.own-model", exact=True).click()
    page.get_by_label("Value", exact=True).fill("gpt-4o-mini")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Model is my.own-model", exact=True)).to_be_visible()
    page.get_by_role("button", name="Model is my.own-model", exact=True).click()
    page.get_by_label("Value", exact=True).fill("nobody")
    page.get_by_role("button", name="Apply").click()
    expect(counted(page, 0)).to_be_visible()


def test_any_text_is_found_from_everywhere(page: Page, filled: str) -> None:
    page.goto(f"/{filled}/weave/threads")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("TimeoutError")
    results = page.get_by_role("listbox", name="Results")
    expect(results.locator("mark").first).to_have_text("TimeoutError")
    look(page, "palette-search")
    results.get_by_text("Calls with “TimeoutError”").click()
    expect(page).to_have_url(re.compile("traces.*search=TimeoutError"))
    expect(counted(page, 10)).to_be_visible()


@pytest.mark.thorough
def test_a_range_is_dragged_on_the_histogram(page: Page, filled: str) -> None:
    open_calls(page, filled)
    strip = page.get_by_role("img", name="Calls over time")
    box = strip.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"t0=\d+&t1=\d+"))
    expect(page.get_by_role("status", name=re.compile("^2[0-9] calls$"))).to_be_visible()
    page.get_by_role("button", name="24h").click()
    expect(counted(page, 48)).to_be_visible()


@pytest.mark.thorough
def test_columns_are_chosen_from_the_data(page: Page, filled: str) -> None:
    open_calls(page, filled)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="inputs.customer.tier").check()
    page.get_by_role("checkbox", name="User", exact=True).uncheck()
    look(page, "calls-columns")
    page.get_by_label("Add a path").fill("output.confidence")
    page.get_by_label("Add a path").press("Enter")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("columnheader", name="inputs.customer.tier")).to_be_visible()
    page.reload()
    expect(row(page, 2).get_by_role("cell", name="pro", exact=True)).to_be_visible()
    expect(row(page, 2).get_by_role("cell", name="0.01", exact=True)).to_be_visible()
    expect(page.get_by_role("columnheader", name="User")).to_have_count(0)


@pytest.mark.thorough
def test_the_keyboard_looks_beside_and_opens(page: Page, filled: str) -> None:
    open_calls(page, filled)
    for key in ("j", "j", " "):
        page.keyboard.press(key)
    drawer = page.get_by_role("dialog", name="Call")
    expect(drawer.get_by_text("Answer 1")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press(" ")
    expect(drawer.get_by_text("Answer 2")).to_be_visible()
    look(page, "calls-peek")
    page.reload()
    expect(drawer.get_by_text("Answer 2")).to_be_visible()
    drawer.get_by_role("button", name="Close").click()
    expect(page).not_to_have_url(re.compile("peek"))
    for key in ("j", "j", "x", "Enter"):
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile(r"/traces/[0-9a-f-]+$"))


def test_back_returns_to_the_row_that_was_opened(page: Page, filled: str) -> None:
    open_calls(page, filled)
    row(page, 39).get_by_role("cell").nth(2).click()
    expect(page).to_have_url(re.compile(r"/traces/[0-9a-f-]+$"))
    page.go_back()
    expect(row(page, 39).get_by_role("link").first).to_be_focused()
    expect(row(page, 39)).to_be_in_viewport()
    page.keyboard.press("j")
    expect(row(page, 40)).to_have_class("active")
    page.reload()
    expect(row(page, 39)).to_be_in_viewport()


def test_a_preview_closes_with_back_and_rows_open_in_tabs(page: Page, filled: str) -> None:
    page.goto(f"/{filled}/weave/datasets")
    page.get_by_role("link", name="Calls", exact=True).first.click()
    expect(row(page, 39).get_by_role("link").first).to_be_visible()
    listed = page.url
    drawer = page.get_by_role("dialog", name="Call")
    for close in (page.go_back, drawer.get_by_role("button", name="Close").click):
        for key in ("j", "j", " ", "k", " "):
            page.keyboard.press(key)
        expect(drawer.get_by_role("link", name="Open the whole trace")).to_be_visible()
        row(page, 39).scroll_into_view_if_needed()
        close()
        expect(drawer).to_have_count(0)
        expect(page).to_have_url(listed)
        expect(row(page, 39)).to_be_in_viewport()
    for pressed in ({"modifiers": ["Control"]}, {"button": "middle"}):
        with page.context.expect_page() as opened:
            row(page, 39).get_by_role("cell").nth(2).click(**pressed)  # type: ignore[arg-type]
        expect(opened.value).to_have_url(re.compile(r"/traces/[0-9a-f-]+$"))
        opened.value.close()
    expect(page).to_have_url(listed)
    # Closing the preview left nothing behind.
    page.go_back()
    expect(page).to_have_url(re.compile("/datasets$"))


@pytest.mark.thorough
def test_several_calls_at_once(page: Page, own: str, wire: Wire) -> None:
    open_calls(page, own)
    for number in (1, 2):
        row(page, number).get_by_label("Select row").check()
    bar = page.get_by_role("region", name="Selected calls")
    bar.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile("/traces/compare"))
    expect(page.get_by_text("Answer 0")).to_be_visible()
    page.go_back()
    for number in (1, 2):
        row(page, number).get_by_label("Select row").check()
    bar.get_by_role("button", name="Feedback").click()
    page.get_by_role("menuitem", name="Note").click()
    page.get_by_label("Note", exact=True).fill("check this")
    page.get_by_role("button", name="Add note").click()
    expect(page.get_by_text("Feedback given to 2 calls")).to_be_visible()
    assert len(wire.post("/feedback/query")["result"]) == 2
    bar.get_by_role("button", name="Add to dataset").click()
    page.get_by_role("textbox", name="Name").fill("tickets")
    page.get_by_role("button", name="Add 2 rows").click()
    expect(page.get_by_text("2 rows added to tickets")).to_be_visible()
    expect(bar).to_have_count(0)
    row(page, 1).get_by_label("Select row").check()
    bar.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("11 of 11 calls")).to_be_visible()


def test_all_that_match_are_selected_beyond_the_page(
    page: Page, server: HeddleProcess, project: str, wire: Wire
) -> None:
    fill(server, project, 55)
    open_calls(page, project)
    page.get_by_label("Select all rows of this page").check()
    bar = page.get_by_role("region", name="Selected calls")
    expect(bar.get_by_text("40 selected")).to_be_visible()
    bar.get_by_role("button", name="Select all 55 that match").click()
    expect(bar.get_by_text("All 55 that match selected")).to_be_visible()
    look(page, "calls-all-selected")
    bar.get_by_role("button", name="Feedback").click()
    page.get_by_role("menuitem", name="Good").click()
    expect(page.get_by_text("Feedback given to 55 calls")).to_be_visible()
    assert len(wire.post("/feedback/query")["result"]) == 55
    bar.get_by_role("button", name="Add to dataset").click()
    page.get_by_role("textbox", name="Name").fill("every")
    page.get_by_role("button", name="Add 55 rows").click()
    expect(page.get_by_text("55 rows added to every")).to_be_visible()
    page.get_by_role("button", name="Error", exact=True).click()
    expect(counted(page, 6)).to_be_visible()
    page.get_by_role("button", name="Any", exact=True).click()
    expect(counted(page, 55)).to_be_visible()
    page.get_by_label("Select all rows of this page").check()
    bar.get_by_role("button", name="Select all 55 that match").click()
    bar.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("55 calls deleted")).to_be_visible()
    assert wire.calls() == []


def test_the_first_selected_is_the_first_row_of_a_dataset(page: Page, own: str) -> None:
    open_calls(page, own)
    for number in (4, 1, 3):
        row(page, number).get_by_label("Select row").check()
    page.get_by_role("region", name="Selected calls").get_by_role("button", name="Add to dataset").click()
    columns = page.get_by_role("dialog", name="Add 3 calls to a dataset").get_by_role("table", name="Columns")
    expect(
        columns.get_by_role("row").filter(has=page.locator("option:checked", has_text="inputs.number"))
    ).to_contain_text("3")


@pytest.mark.thorough
def test_export_of_what_is_filtered(page: Page, filled: str, tmp_path: Path) -> None:
    open_calls(page, filled, '?f=[["status","is","error"]]')
    for kind, name in (("csv", "Table, one column per field"), ("parquet", "Parquet")):
        page.get_by_role("button", name="Export").click()
        page.get_by_label("Format").select_option(label=f"{name} (.{kind})")
        with page.expect_download() as waiting:
            page.get_by_role("dialog").get_by_role("button", name="Export").click()
        waiting.value.save_as(tmp_path / kind)
        assert waiting.value.suggested_filename.endswith(f"-calls.{kind}")
    with (tmp_path / "csv").open(newline="") as file:
        assert [line["status"] for line in csv.DictReader(file)] == ["error"] * 10
    assert (tmp_path / "parquet").read_bytes().startswith(b"PAR1")


def test_views_are_saved_and_opened(page: Page, own: str, wire: Wire) -> None:
    open_calls(page, own, '?f=[["inputs.number","gt","5"],["model","is","my.own-model"]]&cols=op,inputs.number,started')
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="Save this view").click()
    page.get_by_label("Name").fill("Late ones 🌒")
    page.get_by_role("dialog", name="Save view").get_by_role("button", name="Save").click()
    expect(page).to_have_url(re.compile("view=Late-ones"))
    [stored] = wire.objects(filter={"base_object_classes": ["SavedView"]})
    assert stored["val"]["label"] == "Late ones 🌒" and stored["val"]["view_type"] == "traces"
    page.goto(f"/{own}/weave/traces?view={stored['object_id']}")
    expect(page.get_by_role("button", name="Model is my.own-model", exact=True)).to_be_visible()
    expect(page.get_by_text("2 of 2 calls")).to_be_visible()
    expect(page.get_by_role("columnheader", name="inputs.number")).to_be_visible()
    page.get_by_role("button", name="Views").click()
    expect(page.get_by_role("button", name="Late ones").first).to_be_visible()
    look(page, "calls-views")


@pytest.mark.thorough
def test_views_are_tabs_in_an_order_with_a_default(page: Page, own: str, wire: Wire) -> None:
    page.goto(f"/{own}/weave/traces?roots=0&sort=slowest")
    for label in ("First one", "Second one"):
        page.get_by_role("button", name="Views").click()
        page.get_by_role("button", name="Save this view").click()
        page.get_by_role("dialog", name="Save view").get_by_label("Name").fill(label)
        page.get_by_role("dialog", name="Save view").get_by_role("button", name="Save").click()
        expect(
            page.get_by_role("navigation", name="Views").get_by_role("button", name=label, exact=True)
        ).to_be_visible()
    tabs = page.get_by_role("navigation", name="Views").locator(".viewname")
    labels = tabs.all_inner_texts()
    page.get_by_role("button", name="More for Second one").click()
    page.get_by_role("menuitem", name="Make default").click()
    expect(tabs).to_have_text(["Second one", *(label for label in labels if label != "Second one")])
    look(page, "calls-tabs", narrow=True)
    page.goto(f"/{own}/weave/traces")
    expect(page).to_have_url(re.compile("view=Second-one.*sort=slowest|sort=slowest.*view=Second-one"))
    page.get_by_role("button", name="More for Second one").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("dialog", name="Rename view").get_by_label("Name").fill("Slow ones")
    page.get_by_role("dialog", name="Rename view").get_by_role("button", name="Save").click()
    expect(tabs.first).to_have_text("Slow ones")
    expect(page).to_have_url(re.compile("view=Second-one"))
    page.get_by_role("button", name="More for Slow ones").click()
    page.get_by_role("menuitem", name="Move right").click()
    expect(tabs.nth(1)).to_have_text("Slow ones")
    page.get_by_role("navigation", name="Views").get_by_role("button", name="All", exact=True).click()
    expect(page).not_to_have_url(re.compile("sort="))
    views = wire.client.post(
        "/objs/query",
        json={"project_id": own, "filter": {"object_ids": ["calls-tabs"], "latest_only": True}},
    ).json()["objs"]
    assert views[0]["val"]["definition"]["column_order"][1] == "Second-one"
    for name in ("Slow ones", "First one"):
        page.get_by_role("navigation", name="Views").get_by_role("button", name=name, exact=True).click()
        page.get_by_role("button", name=f"More for {name}").click()
        page.get_by_role("menuitem", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(tabs.filter(has_text=name)).to_have_count(0)


@pytest.mark.thorough
def test_views_of_the_sdk_open(page: Page, sdk: Client, project: str) -> None:
    seen = sdk.run("views.py")
    page.goto(f"/{project}/weave/traces?view={seen['big_ref'][0]}")
    expect(page.get_by_text("8 of 8 calls")).to_be_visible()
    expect(page.get_by_role("columnheader", name="inputs.n")).to_be_visible()
    page.goto(f"/{project}/weave/traces?view={seen['first_ref'][0]}")
    expect(page.get_by_role("button", name="Operation is measure", exact=True)).to_be_visible()
    expect(page.get_by_text("6 of 6 calls")).to_be_visible()


@pytest.mark.thorough
def test_an_empty_project_teaches_and_new_calls_show(page: Page, server: HeddleProcess, project: str) -> None:
    page.clock.install()
    page.goto(f"/{project}/weave/traces")
    expect(page.get_by_role("heading", name="No calls yet")).to_be_visible()
    expect(page.locator("pre")).to_contain_text(server.url)
    look(page, "calls-empty")
    fill(server, project, 1)
    page.clock.run_for(9_000)
    expect(page.get_by_text("1 call", exact=True)).to_be_visible()
    look(page, "calls-one")
    fill(server, project, 2)
    page.clock.run_for(11_000)
    page.get_by_role("button", name=re.compile("new call")).click()
    expect(page.get_by_text("3 of 3 calls")).to_be_visible()


def test_an_error_says_what_and_which_request(page: Page, filled: str, watched: Watched) -> None:
    watched.allow("422")
    page.goto(f'/{filled}/weave/traces?f=[["bogus","is","x"]]')
    expect(page.get_by_role("alert")).to_contain_text("Field bogus is not allowed")
    expect(page.get_by_role("alert")).to_contain_text("Request ")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_the_page_stays_within_its_budget(page: Page, filled: str) -> None:
    cold = Budget(page)
    open_calls(page, filled)
    expect(page.get_by_text("40 of 90 calls")).to_be_visible()
    assert cold.requests <= 22 and cold.bytes <= 88_000, (cold.requests, cold.bytes)
    warm = Budget(page)
    page.reload()
    expect(page.get_by_text("40 of 90 calls")).to_be_visible()
    assert warm.bytes <= 8_000
    assert warm.nodes <= 2_000


def test_columns_are_as_wide_as_the_reader_wants_them(page: Page, filled: str) -> None:
    open_calls(page, filled)
    heading = page.get_by_role("columnheader", name="Input", exact=True)
    handle = page.get_by_role("separator", name="Width of Input")

    def width() -> float:
        box = heading.bounding_box()
        assert box is not None
        return box["width"]

    before, box = width(), handle.bounding_box()
    assert box is not None and before >= 150
    page.mouse.move(box["x"] + 4, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 204, box["y"] + 8, steps=5)
    page.mouse.up()
    expect(page.locator("table.sized")).to_be_visible()
    assert abs(width() - before - 200) <= 2
    expect(page).not_to_have_url(re.compile("sort="))
    handle.press("ArrowLeft")
    assert abs(width() - before - 184) <= 3
    look(page, "calls-wide")
    page.reload()
    expect(row(page, 1)).to_be_visible()
    assert abs(width() - before - 184) <= 3
    handle.dblclick()
    expect(page.locator("table.sized")).to_have_count(0)
    assert abs(width() - before) <= 2


def test_the_list_opens_on_user_traffic_and_evaluations_stand_apart(page: Page, own: str, wire: Wire) -> None:
    names = [
        f"weave:///{own}/op/Evaluation.evaluate:{'b' * 43}",
        "heddle.training_job",
        f"weave:///{own}/op/Judge.score:{'b' * 43}",
    ]
    calls = [trace_of(own, number, datetime.now(UTC), random.Random(2))[0] for number in range(3)]
    batch = [{**call, "op_name": name} for call, name in zip(calls, names, strict=True)]
    assert wire.client.post(f"/v2/{own}/calls/complete", json={"batch": batch}).status_code == 200
    open_calls(page, own)
    expect(counted(page, 12)).to_be_visible()
    which = page.get_by_role("group", name="Which calls")
    for name, count in (
        ("Evaluations", 2),
        ("Training", 1),
        ("All traces", 15),
        ("All calls", 27),
        ("User traffic", 12),
    ):
        which.get_by_role("button", name=name).click()
        expect(page.get_by_text(f"{count} of {count} calls" if count > 1 else "1 call", exact=True)).to_be_visible()
        expect(counted(page, count)).to_be_visible()
    which.get_by_role("button", name="Evaluations").click()
    page.reload()
    expect(counted(page, 2)).to_be_visible()


def test_calls_are_compared_on_a_page_with_what_differs_marked(page: Page, own: str, wire: Wire) -> None:
    roots = [call for call in wire.calls() if not call["parent_id"]][:3]
    ids = [call["id"] for call in roots]
    page.goto(f"/{own}/weave/traces/compare?calls={','.join(ids)}")
    table = page.get_by_role("table", name="Calls side by side")
    expect(table.get_by_role("columnheader")).to_have_count(4)

    def line(name: str) -> Locator:
        return table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True))

    numbers = [str(call["inputs"]["number"]) for call in roots]
    expect(line("differs: inputs.number").get_by_role("cell")).to_have_text(numbers)
    expect(line("attributes.release").get_by_role("cell")).to_have_text(["1.2"] * 3)
    expect(line("differs: inputs.question").locator("ins").first).to_be_visible()
    expect(line("Number").get_by_role("cell")).to_have_text(["1"] * 3)
    expect(line("differs: openai.chat.completions.create").get_by_role("link")).to_have_count(3)
    look(page, "calls-compare", narrow=True)
    page.get_by_label("Differences only").check()
    expect(line("attributes.release")).to_have_count(0)
    page.reload()
    expect(line("differs: inputs.number")).to_be_visible()
    expect(line("attributes.release")).to_have_count(0)
    table.get_by_role("button", name="Base").last.click()
    expect(line("differs: inputs.number").get_by_role("cell").first).to_have_text(numbers[2])
    page.goto(f"/{own}/weave/traces/compare?calls={ids[0]},gone")
    expect(page.get_by_role("alert")).to_contain_text("gone")
    expect(page.get_by_role("heading", name="Only one of these calls is stored")).to_be_visible()
    expect(page.get_by_text("No differences")).to_have_count(0)
    page.goto(f"/{own}/weave/traces/compare?calls={ids[0]}")
    expect(page.get_by_role("heading", name="Select two to five calls")).to_be_visible()
