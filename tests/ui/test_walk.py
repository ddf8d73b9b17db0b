"""The walk of a new user: from the step that failed to a training job, by nothing but what the pages show."""

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from heddle.demo.run import Programs
from tests.conftest import Wire
from tests.support.server import HeddleProcess
from tests.ui.support import look

pytestmark = pytest.mark.thorough

EXPECTED = "Order 1007 is not known."
OPENED = 20_000
"""Milliseconds that a page of modules not loaded yet may take to open on a busy machine."""


@pytest.fixture(scope="module")
def shop(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A project with the traces of the demo's assistant, one step of which failed."""
    pytest.importorskip("weave", reason="the demo's program needs weave: pip install '.[demo]'")
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/walk")
    list(Programs(server.url, tmp_path_factory.mktemp("walk")).lines("heddle.demo.program", wire.project))
    yield wire
    wire.client.close()


def test_from_the_failing_step_to_a_training_job(page: Page, shop: Wire) -> None:
    (step,) = [call["id"] for call in shop.calls() if "find_order" in call["op_name"] and call["exception"]]
    page.goto(f"/{shop.project}/r/call/{step}")
    expect(page.get_by_role("heading", name="find_order")).to_be_visible(timeout=OPENED)
    look(page, "walk-failing-step", narrow=True)
    to_the_playground(page)
    to_a_dataset(page)
    to_an_evaluation(page)
    to_a_training_job(page)


def to_the_playground(page: Page) -> None:
    """The prompt that led to the step, asked anew of the model that is here."""
    page.get_by_role("link", name="Open its prompt in playground").click()
    expect(page.get_by_role("heading", name="Playground")).to_be_visible(timeout=OPENED)
    expect(page.get_by_role("textbox", name="user message")).to_have_value("Where is order 1007?")
    expect(page.get_by_text("This server does not have it")).to_be_visible()
    expect(page.get_by_role("link", name="complete")).to_be_visible()
    expect(page.get_by_label("Model 1")).to_have_value("heddle-tiny")
    page.get_by_label("Parameters").click()
    page.get_by_label("Max tokens").fill("16")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Parameters").click()
    page.get_by_role("button", name="Run").click()


def to_a_dataset(page: Page) -> None:
    """The prompt with the answer that is expected, in a new dataset."""
    page.get_by_role("button", name="Save as row").click(timeout=30_000)
    dialog = page.get_by_role("dialog", name="Save as a dataset row")
    dialog.get_by_label("Name of a new dataset").fill("order-questions")
    dialog.get_by_label("Expected answer").fill(EXPECTED)
    look(page, "walk-row")
    dialog.get_by_role("button", name="Save row").click()
    column = page.get_by_role("region", name="Column 1")
    look(page, "walk-saved", narrow=True)
    column.get_by_role("link", name="order-questions").click()
    expect(page.get_by_role("gridcell", name=EXPECTED)).to_be_visible(timeout=OPENED)


def to_an_evaluation(page: Page) -> None:
    """A model asked the dataset, scored by what is built in."""
    page.get_by_role("button", name="Evaluate a model").click()
    dialog = page.get_by_role("dialog", name="New evaluation")
    expect(dialog.get_by_role("textbox", name="Name")).to_have_value("order-questions-quality", timeout=OPENED)
    dialog.get_by_role("checkbox", name="TextOverlapScorer").check()
    look(page, "walk-evaluation")
    dialog.get_by_role("button", name="Create evaluation").click()
    dialog = page.get_by_role("dialog", name="Evaluate a model")
    dialog.get_by_role("button", name="heddle-tiny").click()
    look(page, "walk-model")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="TextOverlapScorer.token_f1")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("link", name="order-questions v0")).to_have_attribute("href", re.compile("/datasets/"))


def to_a_training_job(page: Page) -> None:
    """What was asked in the playground, trained on; the page says what was learned, and from what."""
    page.get_by_role("link", name="Training jobs").click()
    page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog", name="New training job")
    dialog.get_by_label("Name of the new model").fill("walk")
    dialog.get_by_label("Calls of the op").fill("weave.completions_create")
    dialog.get_by_label("Reward path").fill("output.usage.completion_tokens")
    look(page, "walk-new-job")
    dialog.get_by_role("button", name="Start training").click()
    expect(page.get_by_role("status").filter(has_text="succeeded")).to_be_visible(timeout=60_000)
    page.get_by_role("tab", name="Job", exact=True).click()
    expect(page.get_by_text("calls of weave.completions_create")).to_be_visible()
    expect(page.get_by_text(re.compile("^Nothing was learned: "))).to_be_visible()
    look(page, "walk-job", narrow=True)
