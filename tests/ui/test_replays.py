"""Replays: started on the page, read side by side, made a dataset."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.ui.support import look

pytestmark = pytest.mark.thorough

QUESTIONS = ("Repeat: red sun", "How are you?", "Say no", "كم الساعة الآن؟ ⏰")


def chats(wire: Wire) -> None:
    """Stored chats with the small model."""
    for question in QUESTIONS:
        messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": question}]
        wire.post(
            "/completions/create",
            inputs={"model": "heddle-tiny", "messages": messages, "max_tokens": 16, "temperature": 0},
        )


def test_a_replay_is_started_read_side_by_side_and_made_a_dataset(page: Page, wire: Wire) -> None:
    chats(wire)
    Lab(wire).scorer("RegexMatchScorer", name="has-a-word", pattern="[a-z]{3}")
    page.goto(f"/{wire.project}/weave/replays")
    expect(page.get_by_role("heading", name="Ask the same questions again")).to_be_visible()
    look(page, "replays-empty")
    page.get_by_role("main").get_by_role("button", name="New replay").first.click()
    dialog = page.get_by_role("dialog", name="New replay")
    dialog.get_by_label("Name").fill("one token only")
    dialog.get_by_label("Chats of the op").fill("weave.completions_create")
    dialog.get_by_label("Max tokens").fill("1")
    dialog.get_by_label(re.compile("^has-a-word")).check()
    look(page, "replay-new")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="one token only")).to_be_visible()
    expect(page.get_by_text("done", exact=True)).to_be_visible(timeout=60_000)
    Lab(wire).jobs_done()
    page.reload()
    rows = page.get_by_role("table", name="Answers").get_by_role("row")
    expect(rows).to_have_count(1 + len(QUESTIONS))
    expect(page.get_by_role("table", name="Measures").get_by_role("row").filter(has_text="Tokens")).to_contain_text("−")
    look(page, "replay", narrow=True)
    page.get_by_role("button", name=re.compile("^Open chat 1")).click()
    drawer = page.get_by_role("dialog", name="Chat 1")
    expect(drawer.get_by_role("heading", name=re.compile("^Recorded: heddle-tiny"))).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("dialog", name="Chat 2")).to_be_visible()
    look(page, "replay-pair")
    page.keyboard.press("Escape")
    [replay] = wire.post("/replays/query")["replays"]
    first = wire.post("/replays/results", id=replay["id"])["rows"][0]
    wire.post("/calls/delete", call_ids=[first["original"]["call_id"]])
    page.reload()
    expect(rows.nth(1)).to_contain_text("The call was deleted")
    errors = page.get_by_role("table", name="Measures").get_by_role("row").filter(has_text="Error")
    expect(errors.get_by_role("cell").last).to_have_text(str(len(QUESTIONS) - 1))
    page.get_by_role("button", name="Create dataset").click()
    page.get_by_role("dialog", name="Create dataset").get_by_label("Name").fill("both-answers")
    page.get_by_role("dialog", name="Create dataset").get_by_role("button", name="Publish").click()
    expect(page).to_have_url(re.compile("/weave/datasets/both-answers"))
    assert wire.objects(filter={"object_ids": ["both-answers"]})
    page.goto(f"/{wire.project}/weave/replays")
    expect(page.get_by_role("table", name="Replays").get_by_role("row").nth(1)).to_contain_text("one token only")
    look(page, "replays", narrow=True)


def test_a_replay_says_why_scores_are_missing(page: Page, wire: Wire) -> None:
    chats(wire)
    scorer = Lab(wire).scorer("ExactMatchScorer")
    replay = wire.post("/replays/create", model="heddle-tiny", params={"max_tokens": 1}, scorer_refs=[scorer])["id"]
    page.goto(f"/{wire.project}/weave/replays/{replay}")
    alert = page.get_by_role("alert").filter(has_text="Scores are missing")
    expect(alert).to_contain_text("needs the column 'target'", timeout=60_000)
    look(page, "replay-scores-missing", narrow=True)
