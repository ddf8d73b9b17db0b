"""Evaluation runs: the list, one run, and running an evaluation from the page."""

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Client, Wire
from tests.support.evaluations import Lab
from tests.support.judged import Judged, judged
from tests.support.server import HeddleProcess
from tests.ui.support import look

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
    expect(table.get_by_role("row").filter(has_text="tuned")).to_contain_text("0.900")
    look(page, "evaluations", narrow=True)
    page.get_by_role("button", name="Baseline: plain").click()
    expect(page).to_have_url(re.compile(f"baseline={made.runs['plain']}"))
    expect(table.get_by_role("row").filter(has_text="tuned")).to_contain_text("+0.")
    page.get_by_role("searchbox", name="Find a run").fill("tun")
    expect(table.get_by_role("row")).to_have_count(2)
    page.reload()
    expect(table.get_by_role("row")).to_have_count(2)
    table.get_by_role("checkbox", name="Select row").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    expect(page).to_have_url(re.compile(f"runs={made.runs['plain']}%2C{made.runs['tuned']}"))


def test_a_saved_view_opens_by_its_name(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/evaluations?status=success&sort=score")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Save this view…").click()
    page.get_by_role("textbox", name="Name").fill("Best first")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page).to_have_url(re.compile("view=best-first"))
    page.goto(f"/{made.project}/weave/evaluations?view=best-first")
    expect(page.get_by_text("Best first")).to_be_visible()
    expect(page.get_by_role("table", name="Evaluation runs").get_by_role("row")).to_have_count(4)


def test_a_run_shows_its_scores_and_every_prediction(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/evaluations/{made.runs['tuned']}")
    expect(page.get_by_role("heading", name="exact.correct")).to_be_visible()
    expect(page.get_by_role("img", name="How exact.correct is spread over the rows")).to_be_visible()
    expect(page.get_by_text(re.compile("heddle eval run parcel-times"))).to_be_visible()
    look(page, "evaluation", narrow=True)
    page.get_by_role("tab", name="Predictions 40").click()
    expect(page.get_by_text(re.compile("How long is parcel")).first).to_be_visible()
    look(page, "evaluation-predictions")
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(page.get_by_text("1 of 40 rows")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Open example 1:")).click()
    expect(page.get_by_text("The answer failed.")).to_be_visible()


def test_a_run_is_deleted(page: Page, wire: Wire) -> None:
    found = judged(wire, {"gone": 0.5}, rows=4)
    page.goto(f"/{wire.project}/weave/evaluations/{found.runs['gone']}")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete the run").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="See which version answers better")).to_be_visible()
    look(page, "evaluations-empty")


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
    dialog.get_by_role("button", name="Store evaluation").click()
    dialog = page.get_by_role("dialog", name="Evaluate a model")
    dialog.get_by_label("Model").fill("heddle-tiny")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_text("done", exact=True)).to_be_visible(timeout=60_000)
    expect(page.get_by_role("heading", name="ContainsScorer.contains")).to_be_visible()
    expect(page.get_by_role("tab", name="Predictions 2")).to_be_visible()
