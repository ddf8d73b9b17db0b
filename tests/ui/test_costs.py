"""Costs: what was spent by model, op, user and day, the price table, the export."""

import csv
import datetime
import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.server import HeddleProcess
from tests.ui.support import look

LONG = "acme/experimental-model-with-a-very-long-name-and-quantisation-q4_k_m"
MODELS = {"gpt-4o-2024-08-06": (1000, 100), "house-model": (2000, 50), LONG: (500, 5)}


@pytest.fixture(scope="module")
def spent(server: HeddleProcess) -> Iterator[Wire]:
    """Ten days of calls of three models: one with a default price, one with two prices of its own, one without."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/costs")
    now = datetime.datetime.now(datetime.UTC)
    batch = [
        _call(wire.project, now - datetime.timedelta(days=day, minutes=1), model, prompt, completion)
        for day in range(10)
        for _ in range(2)
        for model, (prompt, completion) in MODELS.items()
    ]
    entity, project = wire.project.split("/")
    answer = wire.client.post(f"/v2/{entity}/{project}/calls/complete", json={"batch": batch})
    assert answer.status_code == 200, answer.text
    for days, price in ((40, 1e-6), (5, 3e-6)):
        at = (now - datetime.timedelta(days=days)).isoformat()
        price_row = {"prompt_token_cost": price, "completion_token_cost": price * 2, "effective_date": at}
        wire.post("/cost/create", costs={"house-model": price_row})
    yield wire
    wire.client.close()


def _call(project: str, at: datetime.datetime, model: str, prompt: int, completion: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "requests": 1}
    return {
        "project_id": project,
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": "openai.chat.completions.create" if model.startswith("gpt") else "ask",
        "started_at": at.isoformat(),
        "ended_at": (at + datetime.timedelta(seconds=1)).isoformat(),
        "attributes": {},
        "inputs": {},
        "output": "ok",
        "summary": {"usage": {model: usage}},
    }


def test_spending_adds_up_by_every_side(page: Page, spent: Wire) -> None:
    page.goto(f"/{spent.project}/weave/costs")
    table = page.get_by_role("table", name="Costs by model")
    # 20 calls of 1,000 and 100 tokens at $2.50 and $10 a million tokens.
    expect(table.get_by_role("row", name="gpt-4o-2024-08-06")).to_contain_text("$0.07")
    # Half of the calls before and half after the price became three times as high.
    expect(table.get_by_role("row", name="house-model")).to_contain_text("$0.08")
    expect(table.get_by_role("row", name=LONG)).to_contain_text("no price")
    expect(page.get_by_role("note")).to_contain_text("has no price")
    expect(page.get_by_role("img", name="Cost by day")).to_be_visible()
    look(page, "costs", narrow=True)
    page.get_by_role("button", name="User").click()
    expect(page.get_by_role("table", name="Costs by user").get_by_role("row", name="local")).to_contain_text("60")
    page.get_by_role("button", name="Day", exact=True).click()
    expect(page.get_by_role("table", name="Costs by day").get_by_role("row")).to_have_count(12)
    page.get_by_role("button", name="7d", exact=True).click()
    expect(page.get_by_role("table", name="Costs by day").get_by_role("row")).to_have_count(9)
    page.go_back()
    expect(page.get_by_role("table", name="Costs by day").get_by_role("row")).to_have_count(12)
    page.get_by_role("button", name="Op", exact=True).click()
    # A number leads to the calls that it was made of, which come to the same.
    row = page.get_by_role("table", name="Costs by op").get_by_role("row", name="openai.chat.completions.create")
    row.get_by_role("link", name="20", exact=True).click()
    expect(page.get_by_role("status", name="20 calls")).to_contain_text("20,000 tokens in, 2,000 out · $0.07")
    page.go_back()
    tile = page.get_by_text("Calls with tokens", exact=True).locator("..")
    tile.get_by_role("link", name="60").click()
    expect(page.get_by_role("status", name="60 calls")).to_contain_text("70,000 tokens in, 3,100 out")


@pytest.mark.thorough
def test_costs_are_exported(page: Page, spent: Wire) -> None:
    page.goto(f"/{spent.project}/weave/costs")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
    by_model = {row["model"]: row for row in rows}
    assert float(by_model["gpt-4o-2024-08-06"]["cost_usd"]) == pytest.approx(20 * (1000 * 2.5e-6 + 100 * 1e-5))
    assert by_model[LONG]["cost_usd"] == "" and by_model[LONG]["models_without_price"] == LONG
    assert by_model["house-model"]["input_tokens"] == "40000"


def test_prices_are_added_changed_ended_and_deleted(page: Page, spent: Wire) -> None:
    page.goto(f"/{spent.project}/weave/costs?view=prices")
    table = page.get_by_role("table", name="Prices")
    expect(table.get_by_role("row", name="house-model")).to_have_count(2)
    expect(table.get_by_role("row", name="gpt-4o")).to_contain_text("default")
    look(page, "prices", narrow=True)
    page.get_by_role("button", name=f"Add price for {LONG}").click()
    page.get_by_label("Input, $ per million tokens", exact=True).fill("4")
    page.get_by_label("Output, $ per million tokens").fill("8.5")
    page.get_by_label("Valid from").fill("2026-01-01")
    page.get_by_role("button", name="Save").click()
    expect(table.get_by_role("row", name=LONG)).to_contain_text("$8.50")
    stored = [row for row in spent.post("/cost/query")["results"] if row["llm_id"] == LONG]
    assert [row["prompt_token_cost"] for row in stored] == [4e-6]
    page.get_by_role("button", name="Edit the price of house-model").first.click()
    page.get_by_label("Output, $ per million tokens").fill("12")
    page.get_by_role("button", name="Save").click()
    expect(table.get_by_role("row", name="house-model").first).to_contain_text("$12.00")
    assert len(spent.post("/cost/query")["results"]) == 3
    page.get_by_role("button", name="Delete the price of house-model").last.click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(table.get_by_role("row", name="house-model")).to_have_count(1)
    page.get_by_role("button", name="End the price of house-model").click()
    page.get_by_role("button", name="End", exact=True).click()
    expect(table.get_by_role("row", name="house-model")).to_have_count(2)
    page.get_by_role("button", name="Edit the price of house-model").first.click()
    dialog = page.get_by_role("dialog", name="Edit price of house-model")
    ids = [row["id"] for row in spent.post("/cost/query")["results"] if row["llm_id"] == "house-model"]
    named = [{"$eq": [{"$getField": "id"}, {"$literal": price}]} for price in ids]
    spent.post("/cost/purge", query={"$expr": {"$or": named}})
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Someone else has changed or deleted this price")
    assert [row["llm_id"] for row in spent.post("/cost/query")["results"]] == [LONG]


@pytest.mark.thorough
def test_nothing_spent_teaches(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/costs")
    expect(page.get_by_role("heading", name="No costs yet")).to_be_visible()
    look(page, "costs-empty")
    page.get_by_role("tab", name="Prices").click()
    expect(page.get_by_role("heading", name="No models used yet")).to_be_visible()


def test_the_page_says_how_calls_before_the_first_price_are_charged(page: Page, wire: Wire, project: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    calls = [_call(project, now - datetime.timedelta(days=day), "early-model", 1_000_000, 0) for day in (9, 1)]
    entity, name = project.split("/")
    assert wire.client.post(f"/v2/{entity}/{name}/calls/complete", json={"batch": calls}).status_code == 200
    at = (now - datetime.timedelta(days=5)).isoformat()
    price = {"prompt_token_cost": 1e-6, "completion_token_cost": 0, "effective_date": at}
    wire.post("/cost/create", costs={"early-model": price})
    page.goto(f"/{project}/weave/costs")
    expect(page.get_by_role("table", name="Costs by model").get_by_role("row", name="early-model")).to_contain_text(
        "$2.00"
    )
    page.goto(f"/{project}/weave/costs?view=prices")
    expect(
        page.get_by_text("Calls older than the first price of their model are charged at its latest.")
    ).to_be_visible()
