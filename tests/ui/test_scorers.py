"""Scorers with their uses and how far people agree, made on the page; monitors that are switched off and on."""

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look


@pytest.fixture(scope="module")
def scored(server: HeddleProcess) -> Iterator[Wire]:
    """Calls scored by two scorers and by people, and a monitor."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/scorers")
    lab = Lab(wire)
    polite = lab.scorer("RegexMatchScorer", name="polite", pattern="please")
    lab.scorer("ValidJSONScorer")
    lab.judge(lab.model("heddle-tiny", response_format="json_object"), "Is {output} good?", name="helpful")
    lab.scorer("OwnScorer", name="own-code", score=f"weave:///{wire.project}/op/OwnScorer.score:abc")
    for number in range(4):
        call = str(uuid.uuid4())
        begun = {
            "project_id": wire.project,
            "id": call,
            "trace_id": call,
            "op_name": "reply",
            "attributes": {},
            "inputs": {},
        }
        times = {"started_at": "2026-02-01T00:00:00Z", "ended_at": "2026-02-01T00:00:01Z"}
        wire.post(
            f"/v2/{wire.project}/calls/complete", batch=[{**begun, **times, "output": "yes please", "summary": {}}]
        )
        ref = f"weave:///{wire.project}/call/{call}"
        right = {"output": {"regex_match": True}}
        wire.post(
            "/feedback/create", weave_ref=ref, feedback_type="wandb.runnable.polite", payload=right, runnable_ref=polite
        )
        wire.post(
            "/feedback/create",
            weave_ref=ref,
            feedback_type="wandb.reaction.1",
            payload={"emoji": "👍" if number else "👎"},
        )
    fields = {
        "active": True,
        "sampling_rate": 0.5,
        "op_names": ["reply"],
        "scorers": [polite],
        "query": None,
        "is_traced": True,
    }
    lab.publish("watch", "Monitor", ["Object", "BaseModel"], **fields)
    yield wire
    wire.client.close()


@pytest.mark.thorough
def test_scorers_show_their_kind_their_uses_and_how_far_people_agree(page: Page, scored: Wire) -> None:
    page.goto(f"/{scored.project}/weave/scorers")
    rows = page.get_by_role("table", name="Scorers").get_by_role("row")
    expect(rows.filter(has_text="polite")).to_contain_text("75 % of 4")
    expect(rows.filter(has_text="helpful")).to_contain_text("LLM judge")
    expect(rows.filter(has_text="own-code").get_by_role("link", name="open")).to_be_visible()
    look(page, "scorers", narrow=True)
    page.get_by_role("button", name="Judges").click()
    expect(rows).to_have_count(2)


def test_a_built_in_scorer_is_made_and_scores_calls(page: Page, scored: Wire) -> None:
    page.goto(f"/{scored.project}/weave/scorers")
    page.get_by_role("button", name="Built-in scorer").click()
    dialog = page.get_by_role("dialog", name="New built-in scorer")
    dialog.get_by_label("Kind").select_option("RegexMatchScorer")
    dialog.get_by_label("Name").fill("says yes")
    dialog.get_by_role("textbox", name="Pattern").fill("yes")
    look(page, "scorer-new")
    dialog.get_by_role("button", name="Create").click()
    row = page.get_by_role("table", name="Scorers").get_by_role("row").filter(has_text="says-yes")
    expect(row).to_contain_text("built-in")
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Score calls by 1").click()
    page.get_by_role("dialog", name="Score calls").get_by_label("Op").fill("reply")
    page.get_by_role("dialog", name="Score calls").get_by_role("button", name="Score").click()
    expect(page.get_by_text("Scoring 4 calls in the background")).to_be_visible()
    Lab(scored).jobs_done()
    page.reload()
    expect(row.get_by_role("cell").nth(5)).to_have_text("4")


def test_a_judge_is_made_of_a_model_and_a_prompt(page: Page, scored: Wire) -> None:
    page.goto(f"/{scored.project}/weave/scorers")
    page.get_by_role("button", name="New judge").click()
    dialog = page.get_by_role("dialog", name="New judge")
    dialog.get_by_label("Name").fill("kind")
    dialog.get_by_label("Model").fill("heddle-tiny")
    look(page, "judge-new")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("link", name="kind", exact=True)).to_be_visible()


def test_a_monitor_is_paused_and_another_switched_on(page: Page, scored: Wire, watched: Watched) -> None:
    page.goto(f"/{scored.project}/weave/scorers?tab=monitors")
    rows = page.get_by_role("table", name="Monitors").get_by_role("row")
    expect(rows.filter(has_text="watch")).to_contain_text("50 %")
    look(page, "monitors")
    rows.filter(has_text="watch").get_by_role("button", name="Pause").press("Enter")
    expect(rows.filter(has_text="watch")).to_contain_text("paused")
    expect(rows.filter(has_text="watch").get_by_role("button", name="Resume")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Delete").press("Enter")
    expect(page.get_by_role("dialog", name="Delete this monitor?")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Delete this monitor?")).to_have_count(0)
    expect(rows.filter(has_text="watch")).to_be_visible()
    expect(page.get_by_role("button", name="More for watch")).to_be_focused()
    page.get_by_role("button", name="New monitor").click()
    dialog = page.get_by_role("dialog", name="New monitor")
    dialog.get_by_role("textbox", name="Name", exact=True).fill("all answers")
    dialog.get_by_label(re.compile("^polite")).check()
    dialog.get_by_role("button", name="Switch on").click()
    expect(rows.filter(has_text="all-answers")).to_contain_text("scores new calls")

    watched.allow("409")
    page.get_by_role("button", name="New monitor").click()
    dialog.get_by_role("textbox", name="Name", exact=True).fill("watch")
    dialog.get_by_label(re.compile("^polite")).check()
    dialog.get_by_role("button", name="Switch on").click()
    expect(dialog.get_by_role("alert")).to_have_text("watch already exists")
    dialog.get_by_role("button", name="Cancel").click()
    theirs = scored.post("/obj/read", object_id="watch", digest="latest")["obj"]["val"] | {"sampling_rate": 0.25}
    scored.post("/obj/create", obj={"project_id": scored.project, "object_id": "watch", "val": theirs})
    rows.filter(has_text="watch").get_by_role("button", name="Resume").click()
    expect(page.get_by_text("watch has been changed or deleted since")).to_be_visible()
    expect(rows.filter(has_text="watch")).to_contain_text("25 %")
    assert scored.post("/obj/read", object_id="watch", digest="latest")["obj"]["val"]["active"] is False


@pytest.mark.thorough
def test_a_project_without_scorers_says_what_one_is(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/scorers")
    expect(page.get_by_role("heading", name="Define what a good answer is")).to_be_visible()
    look(page, "scorers-empty")


def test_a_scorer_is_tried_before_it_is_saved(page: Page, wire: Wire, project: str) -> None:
    for number, output in enumerate(('{"a": 1}', "no JSON")):
        call = {"project_id": project, "op_name": "ask", "started_at": f"2026-05-01T10:00:0{number}Z", "attributes": {}}
        started = wire.post("/call/start", start=call | {"inputs": {"n": number}})
        end = {"project_id": project, "id": started["id"], "ended_at": "2026-05-01T10:00:09Z", "summary": {}}
        wire.post("/call/end", end=end | {"output": output})
    page.goto(f"/{project}/weave/scorers")
    page.get_by_role("button", name="Built-in scorer", exact=True).click()
    page.get_by_label("Kind").select_option("ValidJSONScorer")
    page.get_by_label("Calls to try it on").fill("ask")
    page.get_by_role("button", name="Try", exact=True).click()
    rows = page.get_by_role("table", name="Result").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("false")
    expect(rows.nth(2)).to_contain_text("true")
    look(page, "scorer-tried")
    assert wire.objects() == [] and len(wire.calls()) == 2 and wire.post("/feedback/query")["result"] == []
