"""Alerts: rules with their state, making and changing them, test messages and what came of them."""

import datetime
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.chat import until
from tests.support.server import HeddleProcess
from tests.support.webhooks import Receiver, receiving
from tests.ui.support import Watched, look

_TOP = """cell => [0.3, 0.5, 0.8].map((share) => {
    const { left, top, width, height } = cell.getBoundingClientRect();
    return cell.contains(document.elementFromPoint(left + share * width, top + height / 2));
})"""
"""Whether a cell lies on top, at three places of it."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[Receiver, str]]:
    """A webhook of this machine."""
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory, receiver: tuple[Receiver, str]) -> Iterator[HeddleProcess]:
    """A server that looks at its rules ten times a second and may send to the webhook."""
    folder = tmp_path_factory.mktemp("alerts") / "data"
    with HeddleProcess(
        folder,
        alert_interval=0.1,
        alert_webhooks=receiver[1],
        smtp="smtp://127.0.0.1:9",
        alert_emails="@example.com",
    ) as process:
        yield process


@pytest.fixture(autouse=True)
def watched(page: Page, watching: HeddleProcess) -> Iterator[Watched]:
    """Fail on errors of the page, as everywhere."""
    watched = Watched(page, watching.url)
    yield watched
    assert watched.problems() == []


@pytest.fixture
def wire(watching: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project there."""
    wire = Wire(watching.url, project)
    yield wire
    wire.client.close()


def _calls(wire: Wire, failed: int, good: int) -> None:
    for number in range(failed + good):
        call = {"project_id": wire.project, "id": str(uuid.uuid4()), "trace_id": str(uuid.uuid4()), "op_name": "ask"}
        started = wire.post("/call/start", start=call | {"started_at": _now(), "attributes": {}, "inputs": {}})
        end = {"project_id": wire.project, "id": started["id"], "ended_at": _now(), "summary": {}}
        wire.post("/call/end", end=end | {"exception": "boom" if number < failed else None})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


@pytest.mark.thorough
def test_a_rule_is_made_fires_is_changed_paused_and_deleted(
    page: Page, wire: Wire, receiver: tuple[Receiver, str], watched: Watched
) -> None:
    hooks, address = receiver
    _calls(wire, failed=3, good=1)
    page.goto(f"{wire.url}/{wire.project}/weave/alerts")
    expect(page.get_by_role("heading", name="No alerts yet")).to_be_visible()
    look(page, "alerts-empty")
    page.get_by_role("button", name="New alert").first.click()
    page.get_by_role("textbox", name="Name").fill("Too many errors 🔥")
    page.get_by_label("Threshold, %").fill("20")
    page.get_by_role("combobox", name="Only calls of op").fill("ask")
    watched.allow("400")
    page.get_by_label("Webhook").fill("https://elsewhere.example/hook")
    page.get_by_role("button", name="Create alert").click()
    expect(page.get_by_role("alert")).to_contain_text("is not allowed")
    page.get_by_label("Webhook").fill(address)
    page.get_by_label("Enabled").uncheck()
    look(page, "alert-form")
    page.get_by_role("button", name="Create alert").click()
    secret = page.get_by_role("dialog").locator("code").inner_text()
    assert secret.startswith("whsec_")
    rule = wire.post("/alerts/query")["alerts"][0]
    hooks.secrets[rule["id"]] = secret
    assert rule["rule"]["threshold"] == 0.2 and rule["rule"]["filter"]["op_names"] == ["ask"]
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Resume Too many errors").click()
    assert hooks.wait_for(1)[0]["type"] == "alert.firing"
    page.reload()
    row = page.get_by_role("row", name="Too many errors")
    expect(row).to_contain_text("firing")
    expect(row).to_contain_text("75.0 %")
    expect(row).to_contain_text("Error rate > 20.0 % over 1 hour · op ask")
    look(page, "alerts", narrow=True)
    page.set_viewport_size({"width": 390, "height": 860})
    box = page.get_by_role("region", name="Rules")
    page.get_by_role("button", name="Delete Too many errors").scroll_into_view_if_needed()
    assert row.get_by_role("cell").first.evaluate(_TOP) == [True] * 3
    page.set_viewport_size({"width": 1440, "height": 860})
    page.get_by_role("button", name="Send a test message for").click()
    expect(page.get_by_role("table", name="Messages").get_by_role("row", name="test")).to_contain_text("delivered")
    expect(page.get_by_role("table", name="Messages").get_by_role("row", name="firing")).to_contain_text("75.0 %")
    look(page, "alert-messages", narrow=True)
    page.get_by_role("tab", name="Rules").click()
    page.get_by_role("button", name="Edit Too many errors").click()
    page.get_by_label("Over the last").select_option("1 day")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("over 1 day")
    page.set_viewport_size({"width": 390, "height": 860})
    box.evaluate("box => { box.scrollLeft = 100; }")
    page.get_by_role("button", name="Pause Too many errors").evaluate("button => button.click()")
    expect(row).to_contain_text("paused")
    assert box.evaluate("box => box.scrollLeft") == 100
    page.set_viewport_size({"width": 1440, "height": 860})
    page.get_by_role("button", name="Delete Too many errors").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="No alerts yet")).to_be_visible()
    assert wire.post("/alerts/query")["alerts"] == []


def test_a_score_needs_a_scorer(page: Page, wire: Wire, receiver: tuple[Receiver, str]) -> None:
    page.goto(f"{wire.url}/{wire.project}/weave/alerts")
    page.get_by_role("button", name="New alert").first.click()
    page.get_by_role("textbox", name="Name").fill("Helpful enough")
    page.get_by_label("When").select_option("Mean score")
    page.get_by_label("Scorer").fill("helpfulness")
    page.get_by_label("Path in its output").fill("score.value")
    page.get_by_label("Condition").select_option("is below")
    page.get_by_label("Threshold").fill("0.5")
    page.get_by_label("Webhook").fill(receiver[1])
    page.get_by_role("button", name="Create alert").click()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("row", name="Helpful enough")).to_contain_text("Mean of helpfulness.score.value < 0.5")


def test_slack_and_mail_are_told_and_tested_one_by_one(
    page: Page, wire: Wire, receiver: tuple[Receiver, str], watched: Watched
) -> None:
    page.goto(f"{wire.url}/{wire.project}/weave/alerts")
    page.get_by_role("button", name="New alert").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("Told")
    dialog.get_by_label("Threshold, %").fill("20")
    dialog.get_by_label("Target type").select_option("slack")
    dialog.get_by_label("Slack").fill(f"{receiver[1]}/services/T0/B0/secrettoken")
    dialog.get_by_role("button", name="Add target").click()
    dialog.get_by_label("E-mail").fill("ann@example.com, bob@example.com")
    look(page, "alert-targets", narrow=True)
    dialog.get_by_role("button", name="Create alert").click()
    row = page.get_by_role("row", name="Told")
    expect(row).to_be_visible()
    [made] = wire.post("/alerts/query")["alerts"]
    assert [target["kind"] for target in made["rule"]["targets"]] == ["slack", "email"]
    page.get_by_role("button", name="Send a test message for").click()
    page.get_by_role("button", name="Send a test to E-mail").click()
    expect(page.get_by_text("on its way")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Messages").click()
    messages = page.get_by_role("table", name="Messages")
    expect(messages.get_by_role("row", name="test")).to_contain_text("E-mail ann@example.com, bob@example.com")
    page.get_by_role("tab", name="Rules").click()
    page.get_by_role("button", name="Edit Told").click()
    page.get_by_role("dialog").get_by_label("Threshold, %").fill("30")
    watched.allow("409")
    theirs = {"id": made["id"], "name": "Told", **made["rule"], "threshold": 0.4}
    wire.post("/alerts/update", project_id=wire.project, **theirs)
    page.get_by_role("button", name="Save").click()
    asked = page.get_by_role("dialog", name="Overwrite other changes?")
    asked.get_by_role("button", name="Cancel").click()
    assert [alert["rule"]["threshold"] for alert in wire.post("/alerts/query")["alerts"]] == [0.4]
    page.get_by_role("button", name="Save").click()
    asked.get_by_role("button", name="Save mine").click()
    expect(row).to_contain_text("30.0 %")
    [changed] = wire.post("/alerts/query")["alerts"]
    assert changed["rule"]["targets"] == made["rule"]["targets"]
    wire.post("/alerts/update", project_id=wire.project, **theirs)
    page.get_by_role("button", name="Pause Told").click()
    expect(page.get_by_text("has been changed or deleted since")).to_be_visible()
    expect(row).to_contain_text("40.0 %")
    assert "secrettoken" not in page.content()


def test_a_rule_on_a_deleted_scorer_says_so(page: Page, wire: Wire, receiver: tuple[Receiver, str]) -> None:
    wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "tone", "val": {"_type": "Scorer"}})
    wire.post("/obj/delete", object_id="tone")
    rule = {"metric": "score", "operator": "<", "threshold": 0.5, "scorer": "tone", "webhook_url": receiver[1]}
    wire.post("/alerts/create", name="Tone", **rule)
    until(lambda: wire.post("/alerts/query")["alerts"][0]["problem"] is not None, "the problem")
    page.goto(f"{wire.url}/{wire.project}/weave/alerts")
    row = page.get_by_role("row", name="Tone")
    expect(row).to_contain_text("problem")
    expect(row).to_contain_text("the scorer tone was deleted")
    page.get_by_role("button", name="Edit Tone").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("the scorer tone was deleted")
