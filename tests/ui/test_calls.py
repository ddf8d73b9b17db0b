"""The list of calls: filters, pages, columns, views, what is done with several calls, and what the page may cost."""

import csv
import json
import random
import re
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
    return page.get_by_role("status", name=f"{number} calls", exact=True)


def open_calls(page: Page, project: str, search: str = "") -> None:
    """The list with its first row."""
    page.goto(f"/{project}/weave/traces{search}")
    expect(row(page, 1).get_by_role("link").first).to_be_visible()


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
    expect(page).to_have_url(re.compile("s=order"))
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
    page.goto(f"/{filled}/weave/traces?s=nothing-like-this")
    page.get_by_role("button", name="Show all calls").click()
    expect(counted(page, 180)).to_be_visible()


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


def test_columns_are_chosen_from_the_data(page: Page, filled: str) -> None:
    open_calls(page, filled)
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("inputs.customer.tier").check()
    page.get_by_label("User").uncheck()
    look(page, "calls-columns")
    page.get_by_label("Another path").fill("output.confidence")
    page.get_by_label("Another path").press("Enter")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("columnheader", name="inputs.customer.tier")).to_be_visible()
    page.reload()
    expect(row(page, 2).get_by_role("cell", name="pro", exact=True)).to_be_visible()
    expect(row(page, 2).get_by_role("cell", name="0.01", exact=True)).to_be_visible()
    expect(page.get_by_role("columnheader", name="User")).to_have_count(0)


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


def test_several_calls_at_once(page: Page, own: str, wire: Wire) -> None:
    open_calls(page, own)
    for number in (1, 2):
        row(page, number).get_by_label("Select row").check()
    bar = page.get_by_role("region", name="Selected calls")
    bar.get_by_role("button", name="Compare").click()
    dialog = page.get_by_role("dialog", name="Compare 2 calls")
    expect(dialog.get_by_text("Answer 0")).to_be_visible()
    look(page, "calls-compare")
    dialog.get_by_role("button", name="Close").click()
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


def test_export_of_what_is_filtered(page: Page, filled: str, tmp_path: Path) -> None:
    open_calls(page, filled, '?f=[["status","is","error"]]')
    for kind, name in (("csv", "Table"), ("parquet", "Parquet")):
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


def test_views_of_the_sdk_open(page: Page, sdk: Client, project: str) -> None:
    seen = sdk.run("views.py")
    page.goto(f"/{project}/weave/traces?view={seen['big_ref'][0]}")
    expect(page.get_by_text("8 of 8 calls")).to_be_visible()
    expect(page.get_by_role("columnheader", name="inputs.n")).to_be_visible()
    page.goto(f"/{project}/weave/traces?view={seen['first_ref'][0]}")
    expect(page.get_by_role("button", name="Operation is measure", exact=True)).to_be_visible()
    expect(page.get_by_text("6 of 6 calls")).to_be_visible()


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
    assert cold.requests <= 15 and cold.bytes <= 42_000, (cold.requests, cold.bytes)
    warm = Budget(page)
    page.reload()
    expect(page.get_by_text("40 of 90 calls")).to_be_visible()
    assert warm.bytes <= 8_000
    assert warm.nodes <= 2_000
