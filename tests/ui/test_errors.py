"""Failed calls in groups: their figures lead to exactly their calls, and to what is made of them."""

import json
import re
import uuid
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Wire
from tests.support.server import HeddleProcess
from tests.ui.support import look

PROBLEMS = (("ValueError", "order {} not found", 7), ("KeyError", "'k{}'", 4), ("TimeoutError", "no answer in {} s", 1))


@pytest.fixture
def failed(server: HeddleProcess, project: str) -> str:
    """A project whose calls failed in three ways, and some that did not."""
    now, calls = datetime.now(UTC), []
    problems = [(kind, text.format(n)) for kind, text, count in PROBLEMS for n in range(count)]
    for number, problem in enumerate([*problems, None, None]):
        at = now - timedelta(minutes=10 * number + 1)
        told = problem and {"type": problem[0], "message": problem[1]}
        frames = [{"filename": "/app/shop.py", "line_number": number, "function_name": "find", "text": "raise"}]
        calls.append(
            {
                "project_id": project,
                "id": str(uuid.uuid4()),
                "trace_id": str(uuid.uuid4()),
                "op_name": f"weave:///{project}/op/answer:{'a' * 43}",
                "started_at": at.isoformat(),
                "ended_at": (at + timedelta(seconds=1)).isoformat(),
                "attributes": {},
                "inputs": {"number": number},
                "output": None,
                "summary": {},
                "exception": json.dumps({**told, "traceback": frames}) if told else None,
            }
        )
    answer = httpx.post(f"{server.url}/v2/{project}/calls/complete", json={"batch": calls}, timeout=60)
    assert answer.status_code == 200, answer.text
    return project


def opened(page: Page, project: str, query: str = "") -> Locator:
    """The list of groups."""
    page.goto(f"/{project}/weave/errors{query}")
    rows = page.get_by_role("table", name="Errors").locator("tbody tr")
    expect(rows).to_have_count(len(PROBLEMS))
    return rows


def test_each_count_is_that_of_the_calls_behind_it(page: Page, failed: str) -> None:
    rows = opened(page, failed)
    expect(rows.nth(0)).to_contain_text("ValueError: order <n> not found")
    expect(rows.nth(0)).to_contain_text("in shop.py:find")
    look(page, "errors", narrow=True)
    total = 0
    for place in range(len(PROBLEMS)):
        link = rows.nth(place).get_by_role("link")
        count = int(link.inner_text())
        total += count
        link.click()
        expect(page.get_by_role("status", name=re.compile(f"^{count} calls?$"))).to_be_visible()
        page.go_back()
        expect(rows).to_have_count(len(PROBLEMS))
    assert total == sum(count for _, _, count in PROBLEMS)
    page.get_by_role("link", name="All failed calls").click()
    expect(page.get_by_role("status", name=f"{total} calls")).to_be_visible()


def test_a_group_shows_examples_and_becomes_a_dataset_an_alert_a_monitor_and_a_gate(
    page: Page, failed: str, wire: Wire
) -> None:
    rows = opened(page, failed)
    rows.nth(1).get_by_role("button", name="KeyError: <value>").click()
    drawer = page.get_by_role("dialog", name="Error")
    expect(drawer.get_by_role("group", name="Error")).to_have_count(4)
    expect(drawer.get_by_text("raise").first).to_be_visible()
    look(page, "errors-group")
    page.reload()
    drawer.get_by_role("button", name="Gate in CI").click()
    expect(page.get_by_role("dialog", name="Gate in CI")).to_contain_text('"error_group"')
    page.get_by_role("dialog", name="Gate in CI").get_by_role("button", name="Close").click()
    drawer.get_by_role("button", name="Alert").click()
    page.get_by_label("Webhook").fill("https://hooks.example.com/x")
    expect(page.get_by_label("Name", exact=True)).to_have_value("answer KeyError")
    expect(page.get_by_label("Only calls of op")).to_have_value("answer")
    page.get_by_role("dialog", name="New alert").get_by_role("button", name="Close").click()
    drawer.get_by_role("button", name="Monitor").click()
    monitor = page.get_by_role("dialog", name="New monitor")
    expect(monitor.get_by_label("Ops")).to_have_value("answer")
    monitor.get_by_role("button", name="Close").click()
    drawer.get_by_role("button", name="Add to dataset").click()
    page.get_by_role("textbox", name="Name").fill("keys")
    page.get_by_role("button", name="Add 4 rows").click()
    expect(page.get_by_text("4 rows added to keys")).to_be_visible()
    [dataset] = wire.objects(filter={"object_ids": ["keys"]})
    table = wire.post("/table/query", digest=dataset["val"]["rows"].rpartition("/")[2])
    assert sorted(row["val"]["number"] for row in table["rows"]) == [7, 8, 9, 10]


def test_the_address_of_an_error_that_is_not_listed_says_so(page: Page, failed: str) -> None:
    rows = opened(page, failed, "?show=gone%20answer")
    note = page.get_by_role("alert").filter(has_text="is not in the list below")
    expect(note).to_be_visible()
    look(page, "errors-unknown", narrow=True)
    note.get_by_role("button", name="Show all time").click()
    expect(page).to_have_url(re.compile("t=all"))
    expect(note).to_be_visible()
    note.get_by_role("button", name="Close").click()
    expect(note).to_have_count(0)
    expect(rows).to_have_count(len(PROBLEMS))


def test_the_overview_shows_alike_errors_once(page: Page, failed: str) -> None:
    page.goto(f"/{failed}/weave")
    entries = (
        page.locator("section").filter(has=page.get_by_role("heading", name="Newest errors")).get_by_role("listitem")
    )
    expect(entries).to_have_count(len(PROBLEMS))
    expect(entries.nth(0)).to_contain_text("order <n> not found")
    entries.nth(0).get_by_role("link").click()
    expect(page.get_by_role("dialog", name="Error")).to_contain_text("ValueError")
