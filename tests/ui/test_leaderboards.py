"""Leaderboards: what a program published, and one that is made on the page."""

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.judged import Judged, judged
from tests.support.server import HeddleProcess
from tests.ui.support import look


@pytest.fixture(scope="module")
def made(server: HeddleProcess) -> Iterator[Judged]:
    """Three models under one evaluation, ranked by a leaderboard of the SDK's kind."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/ranked")
    found = judged(wire, {"plain": 0.5, "tuned": 0.9, "broken-" + "very-" * 20: 0.2})
    columns = [
        {
            "evaluation_object_ref": found.evaluation,
            "scorer_name": "exact",
            "summary_metric_path": "correct.true_fraction",
        },
        {
            "evaluation_object_ref": found.evaluation,
            "scorer_name": "near",
            "summary_metric_path": "letter_distance.mean",
            "should_minimize": True,
        },
    ]
    value = {"name": "Parcel times", "description": "Who knows best?", "columns": columns}
    body = {
        "project_id": wire.project,
        "object_id": "parcels-board",
        "val": value,
        "builtin_object_class": "Leaderboard",
    }
    wire.post("/obj/create", obj=body)
    yield found
    wire.client.close()


def test_models_are_ranked_by_any_metric_and_lead_to_their_runs(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/leaderboards")
    look(page, "leaderboards")
    page.get_by_role("link", name="Parcel times").click()
    rows = page.get_by_role("table", name="Ranking").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("tuned")
    expect(rows.nth(3)).to_contain_text("broken")
    look(page, "leaderboard", narrow=True)
    page.get_by_role("button", name=re.compile("correct")).click()
    expect(rows.nth(1)).to_contain_text("broken")
    page.reload()
    expect(rows.nth(1)).to_contain_text("broken")
    rows.filter(has_text="tuned").get_by_role("link").nth(1).click()
    expect(page).to_have_url(re.compile(f"/evaluations/{made.runs['tuned']}"))


@pytest.mark.thorough
def test_a_leaderboard_is_made_and_changed_on_the_page(page: Page, made: Judged) -> None:
    page.goto(f"/{made.project}/weave/leaderboards")
    page.get_by_role("button", name="New leaderboard").click()
    dialog = page.get_by_role("dialog", name="New leaderboard")
    dialog.get_by_label("Name").fill("My board")
    dialog.get_by_label("Metric", exact=True).select_option("overlap.token_f1.mean")
    look(page, "leaderboard-new")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="My board")).to_be_visible()
    expect(page.get_by_role("table", name="Ranking").get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Description").fill("The second version")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_text("The second version")).to_be_visible()
    stored = [item for item in made.wire.objects(filter={"object_ids": ["My-board"]}) if item["is_latest"]]
    assert stored[0]["val"]["columns"][0]["scorer_name"] == "overlap"


@pytest.mark.thorough
def test_a_metric_of_a_deleted_evaluation_says_so_and_stays(page: Page, made: Judged) -> None:
    columns = [
        {"evaluation_object_ref": ref, "scorer_name": "exact", "summary_metric_path": "correct.true_fraction"}
        for ref in (f"weave:///{made.project}/object/old-exam:{'x' * 43}", made.evaluation)
    ]
    body = {"project_id": made.project, "object_id": "half", "builtin_object_class": "Leaderboard"}
    made.wire.post("/obj/create", obj={**body, "val": {"name": "Half", "columns": columns}})
    page.goto(f"/{made.project}/weave/leaderboards/half")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    chosen = dialog.get_by_label("Evaluation").locator("option:checked")
    expect(chosen).to_have_text(["old-exam (deleted)", re.compile(" v0$")])
    dialog.get_by_label("Description").fill("As before")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("As before")).to_be_visible()
    (stored,) = made.wire.objects(filter={"object_ids": ["half"], "latest_only": True})
    assert [column["evaluation_object_ref"] for column in stored["val"]["columns"]] == [
        column["evaluation_object_ref"] for column in columns
    ]


def test_a_project_without_leaderboards_says_how_to_make_one(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/leaderboards")
    expect(page.get_by_role("heading", name="Rank models by what you measure")).to_be_visible()
    look(page, "leaderboards-empty")
