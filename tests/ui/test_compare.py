"""Runs beside each other: the summary with its certainty, the examples, and what the gate would say."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from heddle.ci.comparison import bootstrap_interval, compare
from heddle.remote import Remote
from tests.conftest import Wire
from tests.support.judged import Judged, judged, noisy
from tests.support.server import HeddleProcess
from tests.ui.support import Budget, look


@pytest.fixture(scope="module")
def made(server: HeddleProcess) -> Iterator[Judged]:
    """Three runs of forty rows."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/compared")
    yield judged(wire, {"plain": 0.5, "tuned": 0.9, "broken": 0.2})
    wire.client.close()


def address(made: Judged, *models: str, **more: str) -> str:
    """The page that compares the runs of some models."""
    query = "".join(f"&{name}={value}" for name, value in more.items())
    return f"/{made.project}/weave/evaluations/compare?runs={','.join(made.runs[name] for name in models)}{query}"


def test_the_summary_says_what_changed_and_how_sure_that_is(page: Page, made: Judged) -> None:
    page.goto(address(made, "plain", "tuned", "broken"))
    row = page.get_by_role("table", name="Measures by run").get_by_role("row").filter(has_text="exact")
    expect(row.get_by_text("better", exact=True)).to_be_visible()
    expect(row.get_by_text("worse", exact=True)).to_be_visible()
    look(page, "compare", narrow=True)
    page.get_by_role("button", name="Radar").click()
    expect(page.get_by_role("img", name="Mean scores by run")).to_be_visible()
    page.get_by_role("button", name="Baseline: tuned").click()
    expect(page).to_have_url(re.compile(f"runs={made.runs['tuned']}"))
    expect(row.get_by_text("worse", exact=True)).to_have_count(2)
    page.go_back()
    expect(row.get_by_text("better", exact=True)).to_have_count(1)


def test_regressions_come_first_and_an_example_opens_with_the_keyboard(page: Page, made: Judged) -> None:
    page.goto(address(made, "plain", "broken", tab="examples"))
    expect(page.get_by_role("button", name=re.compile(r"^Regressions \d+"))).to_have_attribute("aria-pressed", "true")
    rows = page.get_by_role("table", name="Examples").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("−1.000")
    look(page, "compare-examples", narrow=True)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog", name="Example")
    expect(drawer.get_by_role("heading", name="Expected")).to_be_visible()
    expect(drawer.get_by_text(re.compile("^1 of"))).to_be_visible()
    page.keyboard.press("j")
    drawer = page.get_by_role("dialog", name="Example")
    expect(drawer.get_by_text(re.compile("^2 of"))).to_be_visible()
    drawer.get_by_role("button", name="Differences").click()
    expect(drawer.get_by_role("region", name="Difference from the baseline")).to_be_visible()
    look(page, "compare-example")
    page.reload()
    expect(drawer.get_by_role("region", name="Difference from the baseline")).to_be_visible()
    drawer.get_by_role("link", name="Open the trace").first.click()
    expect(page).to_have_url(re.compile("/weave/(calls|traces)/"))


@pytest.mark.thorough
def test_other_filters_and_a_dragged_area_list_their_rows(page: Page, made: Judged) -> None:
    page.goto(address(made, "plain", "tuned", tab="examples", measure="overlap.token_f1"))
    expect(page.get_by_role("heading", name="No row got worse")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Improvements")).click()
    expect(page.get_by_text(re.compile(r"^1\d of 40 rows"))).to_be_visible()
    page.get_by_role("tab", name="Summary").click()
    chart = page.get_by_role("img", name=re.compile("of two runs"))
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)
    page.mouse.up()
    expect(page.get_by_text("Selected area of the plot")).to_be_visible()
    expect(page.get_by_text("16 of 40 rows")).to_be_visible()


@pytest.mark.thorough
def test_rows_are_saved_as_lines(page: Page, made: Judged) -> None:
    page.goto(address(made, "plain", "tuned"))
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="Rows as JSONL").click()
    lines = Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 40
    assert {trials["evaluation_call_id"] for trials in json.loads(lines[0])["evaluations"]} == {
        made.runs["plain"],
        made.runs["tuned"],
    }
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as waiting:
        page.get_by_role("menuitem", name="Rows as CSV").click()
    table = Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()
    assert table[0].startswith('"index","row_digest","row","A output"') and len(table) == 41


@pytest.mark.thorough
def test_thousands_of_rows_keep_the_page_small(page: Page, wire: Wire) -> None:
    found = judged(wire, {"first": 0.4, "second": 0.6}, rows=2000)
    budget = Budget(page)
    page.goto(address(found, "first", "second", tab="examples", show="all"))
    expect(page.get_by_text("2,000 of 2,000 rows")).to_be_visible()
    rows = page.get_by_role("rowgroup", name="Rows")
    expect(rows.get_by_text(re.compile("How long is parcel")).first).to_be_visible()
    rows.evaluate("element => { element.scrollTop = element.scrollHeight; }")
    expect(rows.get_by_role("button", name=re.compile("^Open example 2,?000:"))).to_be_visible()
    assert budget.nodes < 2500


@pytest.mark.thorough
def test_intervals_are_those_of_the_gate(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/evaluations/compare")
    expect(page.get_by_role("heading", name="Choose runs to compare")).to_be_visible()
    look(page, "compare-empty")
    base = page.evaluate("document.querySelector('script[src]').src.replace(/app\\.js$/, '')")
    for count in (3, 40, 3000):
        values = noisy(count, count)
        script = "async ([base, values]) => (await import(`${base}lib/statistics.js`)).interval(values)"
        low, high = page.evaluate(script, [base, values])
        expected = bootstrap_interval(values)
        assert expected is not None
        width = expected.high - expected.low
        assert low == pytest.approx(expected.low, abs=0.06 * width)
        assert high == pytest.approx(expected.high, abs=0.06 * width)


def test_measures_are_named_and_judged_as_the_gate_does(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/evaluations/compare")
    base = page.evaluate("document.querySelector('script[src]').src.replace(/app\\.js$/, '')")
    script = """async (base) => {
      const module = await import(`${base}lib/statistics.js`);
      const names = ["cost", "exact", "exact.correct", "near.letter_distance", "score", "two.a", "two.b", "two",
        "latency"];
      return [module.measuresInOrder(names), module.verdict("score", [0.1, 0.2]), module.verdict("latency", [0.1, 0.2]),
        module.verdict("score", [-0.1, 0.2]),
        module.verdict("near.letter_distance", [-2, -1]), module.verdict("score", [0, 0])];
    }"""
    assert page.evaluate(script, base) == [
        ["exact", "exact.correct", "near.letter_distance", "score", "two", "two.a", "two.b", "latency", "cost"],
        "better",
        "worse",
        "unclear",
        "better",
        "same",
    ]


def test_values_are_those_that_the_gate_compares(made: Judged, server: HeddleProcess) -> None:
    ids = [made.runs["tuned"], made.runs["plain"]]
    answer = made.wire.client.get(f"/_ui/api/evaluation_values/{made.project}", params={"runs": ",".join(ids)})
    assert answer.status_code == 200, answer.text
    told = {run["id"]: run for run in answer.json()["runs"]}
    found = compare(Remote(server.url).project(made.project), ids[0], ids[1])
    assert set(found.measures) == set(told[ids[0]]["values"])
    for name, measured in found.measures.items():
        for run, expected in zip(ids, (measured.run, measured.baseline), strict=True):
            assert told[run]["figures"][name]["value"] == pytest.approx(expected), name
    refused = made.wire.client.get(f"/_ui/api/evaluation_values/{made.project}", params={"runs": ","})
    assert refused.status_code == 400
