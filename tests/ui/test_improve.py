"""Improvements: started on the page, followed on its timeline, stopped."""

import re

from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.improve import Clinic
from tests.ui.support import look

NARROW = {"width": 390, "height": 844}


def test_an_improvement_is_started_and_its_timeline_links_what_it_made(page: Page, wire: Wire) -> None:
    clinic = Clinic(wire)
    parts = {"op_names": ["ask"], "sampling_rate": 1.0, "scorers": [clinic.scorer], "active": True}
    Lab(wire).publish("monitor", "Monitor", ["Object", "BaseModel"], **parts)
    clinic.write(8)
    clinic.scored(8)
    page.goto(f"/{wire.project}/weave/improvements")
    expect(page.get_by_role("heading", name="Train a model on its weak calls")).to_be_visible()
    page.get_by_role("main").get_by_role("button", name="New improvement").first.click()
    dialog = page.get_by_role("dialog", name="New improvement")
    dialog.get_by_label("Weak calls by monitor").select_option("monitor")
    dialog.get_by_role("checkbox", name=re.compile("^says-maybe")).check()
    dialog.get_by_label("Target").fill("inputs.target")
    look(page, "improvement-new")
    dialog.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile("/weave/improvements/[0-9a-f-]{36}$"))
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".improvestate").get_by_text("cancelled")).to_be_visible(timeout=60_000)
    watch = {"monitor": "monitor", "below": 0.1}
    two = {"steps": 2, "chats": 4, "answers": 4, "max_tokens": 4, "target_reward": 2.0}
    improvement = clinic.improve(name="more maybe", watch=watch, rollouts=two)
    assert clinic.until(improvement, state="watching")["outcome"] == "promoted"
    page.goto(f"/{wire.project}/weave/improvements")
    rows = page.get_by_role("table", name="Improvements").get_by_role("row")
    expect(rows).to_have_count(3)
    look(page, "improvements", narrow=True)
    rows.nth(1).get_by_role("link", name="more maybe").click()
    expect(page.get_by_text("promoted, watched")).to_be_visible()
    steps = page.get_by_role("listitem")
    expect(steps.filter(has_text="Weak calls")).to_contain_text("Held out")
    expect(steps.filter(has_text="Watch")).to_contain_text("monitor")
    expect(page.get_by_role("img", name="Reward of each training step")).to_be_visible()
    look(page, "improvement", narrow=True)
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    page.set_viewport_size({"width": 1440, "height": 860})
    page.get_by_role("listitem").filter(has_text="Training 1").get_by_role("link").click()
    expect(page.get_by_role("heading", name="learner")).to_be_visible()
