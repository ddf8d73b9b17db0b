"""Metrics: a card for each, grouped by the values of an attribute, and what stands there without any."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from heddle.wire import times
from tests.conftest import Wire
from tests.support.server import HeddleProcess
from tests.ui.support import keep_screen, look

Json = dict[str, Any]
MODELS = ("claude-opus-5-5", "gpt-5.1", "a-model-with-a-name-that-is-far-longer-than-any-legend-likes-it-to-be-q4_k_m")


@pytest.fixture(scope="module")
def measured(server: HeddleProcess) -> Iterator[Wire]:
    """Three hours of tokens, dollars and durations of three models, and a dozen other counters."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/metrics")
    now = times.now() * 1000
    metrics = [
        _sum("gen_ai.client.token.usage", "{token}", now, [1200, 80, 9000]),
        _sum("claude_code.cost.usage", "USD", now, [0.0012, 0.25, 0.003]),
        _durations(now),
        *(_sum(f"app.counter.{number}", "1", now, [number + 1]) for number in range(12)),
    ]
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    answer = wire.client.post("/v1/metrics", json=body, headers={"project_id": wire.project})
    assert answer.json() == {"partial_success": None}, answer.text
    yield wire
    wire.client.close()


def _point(now: int, hour: int, model: str, **value: Any) -> Json:
    at = now - hour * 3600 * 10**9
    named = [{"key": "model", "value": {"stringValue": model}}]
    return {"startTimeUnixNano": str(at - 10**9), "timeUnixNano": str(at), "attributes": named, **value}


def _sum(name: str, unit: str, now: int, values: list[float]) -> Json:
    points = [
        _point(now, hour, model, asDouble=value * (hour + 1))
        for model, value in zip(MODELS, values, strict=False)
        for hour in range(3)
    ]
    return {"name": name, "unit": unit, "sum": {"dataPoints": points, "aggregationTemporality": 1, "isMonotonic": True}}


def _durations(now: int) -> Json:
    points = [
        _point(now, hour, model, count="4", sum=number + 1, bucketCounts=["3", "1", "0"], explicitBounds=[0.5, 2])
        for number, model in enumerate(MODELS)
        for hour in range(3)
    ]
    data = {"dataPoints": points, "aggregationTemporality": 1}
    return {"name": "gen_ai.client.operation.duration", "unit": "s", "histogram": data}


def test_metrics_are_drawn_by_model(page: Page, measured: Wire) -> None:
    page.goto(f"/{measured.project}/weave/metrics")
    for name in ("claude_code.cost.usage", "gen_ai.client.token.usage", "gen_ai.client.operation.duration"):
        expect(page.get_by_role("img", name=f"{name} over time")).to_be_visible()
    headings = page.locator(".metriccards h2")
    expect(headings).to_have_count(12)
    assert headings.all_inner_texts()[:3] == [
        "claude_code.cost.usage",
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
    ]
    tokens = page.locator(".metriccards section").nth(1)
    expect(tokens.locator(".legend")).to_contain_text(["token", "gpt-5.1"])
    expect(tokens.locator("svg rect")).to_have_count(9)
    look(page, "metrics", narrow=True)
    page.get_by_role("button", name="Show 3 more").click()
    expect(headings).to_have_count(15)
    tokens.get_by_label("Groups of gen_ai.client.token.usage").select_option("")
    expect(tokens.locator("svg rect")).to_have_count(3)
    seconds = page.locator(".metriccards section").nth(2)
    seconds.get_by_label("Measure of gen_ai.client.operation.duration").select_option("count")
    expect(seconds.locator("svg rect")).to_have_count(9)
    page.get_by_label("Filter by name").press_sequentially("counter.3")
    expect(headings).to_have_text(["app.counter.3"])
    page.get_by_label("Filter by name").fill("nothing of this name")
    expect(page.get_by_text("No matching metrics")).to_be_visible()


def test_levels_of_more_groups_than_lines_say_how_many_there_are(page: Page, wire: Wire) -> None:
    now = times.now() * 1000
    points = [_point(now, 0, f"model-{number}", asDouble=number) for number in range(7)]
    metric = {"name": "gpu.load", "unit": "1", "gauge": {"dataPoints": points}}
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    answer = wire.client.post("/v1/metrics", json=body, headers={"project_id": wire.project})
    assert answer.json() == {"partial_success": None}, answer.text
    page.goto(f"/{wire.project}/weave/metrics")
    expect(page.locator(".metriccards section")).to_contain_text("The first 5 of 7")


def test_a_phone_shows_them_below_each_other(page: Page, measured: Wire) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"/{measured.project}/weave/metrics")
    expect(page.get_by_role("img", name="gen_ai.client.token.usage over time")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    lefts = {round(box["x"]) for card in page.locator(".metriccards section").all() if (box := card.bounding_box())}
    assert len(lefts) == 1
    keep_screen(page, "metrics-phone")


def test_without_metrics_the_page_says_how_to_send_some(page: Page, server: HeddleProcess) -> None:
    project = f"team-{uuid.uuid4().hex[:8]}/none"
    page.goto(f"/{project}/weave/metrics")
    expect(page.get_by_role("heading", name="No metrics yet")).to_be_visible()
    expect(page.get_by_text(f"project_id={project}")).to_be_visible()
    assert server.url in page.locator(".empty").inner_text()
