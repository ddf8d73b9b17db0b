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
    expect(page).to_have_url(re.compile(r"/traces/.*call="))
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


def test_the_range_is_in_the_address(page: Page, busy: str) -> None:
    page.goto(f"/{busy}/weave")
    expect(tile(page, "Calls").first).to_be_visible()
    page.get_by_role("button", name="1h", exact=True).click()
    expect(page).to_have_url(re.compile("t=1h"))
    page.reload()
    expect(page.get_by_role("button", name="1h", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="All", exact=True).click()
    expect(tile(page, "Calls").first).to_contain_text("600")


def test_one_call_alone_looks_fine(page: Page, wire: Wire, project: str) -> None:
    page.goto(f"/{project}/weave")
    expect(page.get_by_role("heading", name="Nothing was traced here yet")).to_be_visible()
    expect(page.locator("pre")).to_contain_text(f'weave.init("{project}")')
    look(page, "overview-empty")
    one = call(project, random.Random(1), datetime.now(UTC))
    answer = wire.client.post(f"/v2/{project}/calls/complete", json={"batch": [one]})
    assert answer.status_code == 200, answer.text
    expect(tile(page, "Calls").first).to_contain_text("1", timeout=15_000)
    look(page, "overview-one")
