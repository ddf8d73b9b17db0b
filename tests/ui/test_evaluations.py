"""Evaluation runs: the list, one run, and running an evaluation from the page."""

import re
import uuid
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Client, Wire
from tests.support.evaluations import Lab
from tests.support.judged import Judged, judged
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

LONG = "a-model-with-a-name-that-goes-on-" * 3


@pytest.fixture(scope="module")
def made(server: HeddleProcess) -> Iterator[Judged]:
    """A project with three runs of one evaluation and one of another."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/runs")
    yield judged(wire, {"plain": 0.5, "tuned": 0.9, LONG: 0.2})
    wire.client.close()


def test_runs_are_listed_filtered_starred_and_chosen_for_comparison(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/evaluations")
    table = page.get_by_role("table", name="Evaluation runs")
    expect(table.get_by_role("row")).to_have_count(4)
    expect(table.get_by_role("row").filter(has_text="tuned")).to_contain_text("0.923")
    look(page, "evaluations", narrow=True)
    page.get_by_role("button", name="Baseline: plain").click()
    expect(page).to_have_url(re.compile(f"baseline={made.runs['plain']}"))
    expect(table.get_by_role("row").filter(has_text="tuned")).to_contain_text("+0.")
    page.get_by_role("searchbox", name="Search runs").fill("tun")
    expect(table.get_by_role("row")).to_have_count(2)
    page.reload()
    expect(table.get_by_role("row")).to_have_count(2)
    table.get_by_role("checkbox", name="Select row").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    expect(page).to_have_url(re.compile(f"runs={made.runs['plain']}%2C{made.runs['tuned']}"))


@pytest.mark.thorough
def test_a_saved_view_opens_by_its_name_which_no_other_gets(page: Page, made: Judged, watched: Watched) -> None:
    page.goto(f"/{made.project}/weave/evaluations?status=success&sort=score")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Save this view…").click()
    page.get_by_role("textbox", name="Name").fill("Best first")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page).to_have_url(re.compile("view=best-first"))
    page.goto(f"/{made.project}/weave/evaluations?status=error")
    watched.allow("409")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Save this view…").click()
    page.get_by_role("textbox", name="Name").fill("Best first")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("best-first already exists")
    page.goto(f"/{made.project}/weave/evaluations?view=best-first")
    expect(page.get_by_text("Best first")).to_be_visible()
    expect(page.get_by_role("table", name="Evaluation runs").get_by_role("row")).to_have_count(4)


def test_a_run_shows_its_scores_and_every_prediction(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/evaluations/{made.runs['tuned']}")
    expect(page.get_by_role("heading", name="exact.correct")).to_be_visible()
    page.get_by_role("link", name="Distribution of exact.correct over the rows").press("Enter")
    expect(page).to_have_url(re.compile("tab=predictions&measure=exact.correct&order=low"))
    page.go_back()
    expect(page.get_by_text(re.compile("heddle eval run parcel-times"))).to_be_visible()
    look(page, "evaluation", narrow=True)
    page.get_by_role("tab", name="Predictions 40").click()
    expect(page.get_by_text(re.compile("How long is parcel")).first).to_be_visible()
    look(page, "evaluation-predictions")
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(page.get_by_text("1 of 40 rows")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Open example 1:")).click()
    expect(page.get_by_text("The answer failed.")).to_be_visible()


@pytest.mark.thorough
def test_a_run_is_deleted(page: Page, wire: Wire) -> None:
    found = judged(wire, {"gone": 0.5}, rows=4)
    page.goto(f"/{wire.project}/weave/evaluations/{found.runs['gone']}")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete run").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="See which version answers better")).to_be_visible()
    look(page, "evaluations-empty")


@pytest.mark.thorough
def test_what_the_sdk_ran_is_there(page: Page, sdk: Client) -> None:
    reported = sdk.run("evaluations.py")
    page.goto(f"/{sdk.project}/weave/evaluations")
    rows = page.get_by_role("table", name="Evaluation runs").get_by_role("row")
    expect(rows.filter(has_text="calculator")).to_contain_text("arithmetic")
    expect(rows.filter(has_text="handmodel")).to_contain_text("done")
    page.get_by_role("link", name="calculator").click()
    expect(page).to_have_url(re.compile(reported["run"]))
    expect(page.get_by_role("heading", name="exact.correct")).to_be_visible()
    page.get_by_role("tab", name="Predictions 3").click()
    page.get_by_role("button", name=re.compile("^Open example 1:")).click()
    page.get_by_role("link", name="Open the trace").first.click()
    expect(page).to_have_url(re.compile("/weave/(calls|traces)/"))


@pytest.mark.thorough
def test_an_evaluation_is_made_and_run_from_the_page(page: Page, wire: Wire) -> None:
    Lab(wire).dataset(
        [{"question": "Repeat: red sun", "target": "red sun"}, {"question": "say no", "target": "no"}], name="words"
    )
    page.goto(f"/{wire.project}/weave/evaluations")
    page.get_by_role("button", name="New evaluation").click()
    dialog = page.get_by_role("dialog", name="New evaluation")
    dialog.get_by_label("Name").fill("small talk")
    dialog.get_by_label("ContainsScorer").check()
    dialog.get_by_label("LevenshteinScorer").check()
    look(page, "evaluation-new")
    dialog.get_by_role("button", name="Create evaluation").click()
    dialog = page.get_by_role("dialog", name="Evaluate a model")
    dialog.get_by_label("Model").fill("heddle-tiny")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible(timeout=60_000)
    expect(page.get_by_role("heading", name="ContainsScorer.contains")).to_be_visible()
    expect(page.get_by_role("tab", name="Predictions 2")).to_be_visible()


def test_the_figures_are_those_that_the_sdk_printed(page: Page, sdk: Client, server: HeddleProcess) -> None:
    told = sdk.run("evaluation_figures.py", timeout=240)
    equal, tried, logged = told["equal"], told["tried"], told["logged"]
    ids = [equal["run"], tried["run"], logged["run"]]
    answer = httpx.get(f"{server.url}/_ui/api/evaluation_values/{sdk.project}", params={"runs": ",".join(ids)}).json()
    runs = {run["id"]: run for run in answer["runs"]}
    assert [(runs[run]["rows"], runs[run]["trials"], runs[run]["errors"]) for run in ids] == [
        (20, 20, 1),
        (3, 6, 0),
        (5, 5, 0),
    ]
    for name, run in (("equal", equal), ("tried", tried)):
        figures, said = runs[run["run"]]["figures"], run["summary"]
        printed = {
            "exact": said["exact"]["true_fraction"],
            "stars": said["stars"]["mean"],
            "nested.score": said["nested"]["score"]["true_fraction"],
            "nested.deep.score": said["nested"]["deep"]["score"]["mean"],
        }
        for measure, value in printed.items():
            assert figures[measure]["value"] == value and figures[measure]["agrees"], (name, measure)
        assert figures["exact"]["true"] == said["exact"]["true_count"]
    assert runs[logged["run"]]["figures"]["good"]["value"] == 0.4
    page.goto(f"/{sdk.project}/weave/evaluations/{equal['run']}")
    summary = page.get_by_role("table", name="Summary of the scores")
    row = summary.get_by_role("row").filter(has=page.get_by_role("rowheader", name="exact"))
    expect(row).to_contain_text("0.750 15 of 20 true")
    expect(row).to_contain_text("true_count 15 · true_fraction 0.750")
    expect(row).to_contain_text("the SDK counts the failed answer as not true")
    stars = f"{equal['summary']['stars']['mean']:.4g}"
    # 19 answers have stars: the one that failed is an error, not a 0.
    row = summary.get_by_role("row").filter(has=page.get_by_role("rowheader", name="stars"))
    expect(row).to_contain_text(f"{stars} of 19")
    expect(row).to_contain_text(f"mean {stars}")
    expect(page.get_by_text("of 20 answers; not included in scores")).to_be_visible()
    look(page, "evaluation-figures", narrow=True)
    page.goto(f"/{sdk.project}/weave/evaluations/{equal['run']}?tab=predictions&order=row")
    expect(page.get_by_role("tab", name="Predictions 20")).to_be_visible()
    rows = page.get_by_role("rowgroup", name="Rows")
    rows.evaluate("element => { element.scrollTop = element.scrollHeight; }")
    for place in (17, 20):
        named = re.compile(rf"^Open example {place}: {place} .*question {place - 17}\b")
        expect(rows.get_by_role("button", name=named)).to_be_visible()
    expect(rows.get_by_text("trials")).to_have_count(0)
    page.goto(f"/{sdk.project}/weave/evaluations/{tried['run']}?tab=predictions&order=row")
    expect(page.get_by_text("2 trials")).to_have_count(3)
    # Measures keep their own ranges and full names side by side; nothing is an average over them.
    page.goto(f"/{sdk.project}/weave/evaluations/compare?runs={equal['run']},{tried['run']}")
    chart = page.get_by_role("img", name="Mean scores by run")
    for label in ("exact 0 to 1", "stars 0 to 5", "nested.score 0 to 1", "nested.deep.score 0 to 7.5"):
        expect(chart.get_by_text(label, exact=True)).to_be_visible()
    page.get_by_role("button", name="Radar").click()
    labels = chart.locator("text.axis").evaluate_all("texts => texts.map((text) => text.firstChild.nodeValue)")
    assert len(labels) == len(set(labels)) == 4
    page.goto(f"/{sdk.project}/weave/evaluations")
    table = page.get_by_role("table", name="Evaluation runs")
    expect(table.get_by_role("row").filter(has_text="equal-rows")).to_contain_text("0.750")
    expect(table.get_by_role("columnheader", name="Score", exact=True)).to_have_count(0)


def test_a_run_says_which_answers_have_no_score(page: Page, wire: Wire) -> None:
    unscored = {"odd": None, "judge": {"answers": 3, "reason": "The judge judge: The model did not return valid JSON"}}
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    run = {"project_id": wire.project, "id": str(uuid.uuid4()), "trace_id": str(uuid.uuid4()), **times}
    run |= {"op_name": "Evaluation.evaluate", "attributes": {}, "output": {}, "summary": {"unscored": unscored}}
    run |= {"inputs": {"self": "exam", "model": "m"}}
    stored = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [run]})
    assert stored.status_code == 200, stored.text
    page.goto(f"/{wire.project}/weave/evaluations/{run['id']}")
    told = page.get_by_text(
        "judge: 3 answers have no score. The first: The judge judge: The model did not return valid JSON"
    )
    expect(told).to_be_visible()
