"""Annotation queues: making them, filling them, and working through them without a mouse."""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Response, expect

from tests.conftest import SDK_VERSIONS, Wire, python_client
from tests.support.cli import make_key
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

Made = tuple[Wire, dict[str, Any]]
Guarded = tuple[HeddleProcess, dict[str, str]]


@pytest.fixture(scope="module")
def made(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, dict[str, Any]]]:
    """A project with a queue of five calls and four fields, as the SDK makes it: {queue, specs, calls}."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/annotation")
    client = python_client(SDK_VERSIONS[0], server, wire.project, tmp_path_factory.mktemp("queue"))
    yield wire, client.run("annotation_work.py")
    wire.client.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with the keys of two annotators and its operator."""
    data = tmp_path_factory.mktemp("annotators") / "data"
    keys = {name: make_key(data, name, "--role", "annotator:team/shared") for name in ("ann", "bob")}
    keys["root"] = make_key(data, "root", "--role", "admin")
    with HeddleProcess(data, auth="on") as process:
        yield process, keys


@pytest.fixture
def shared(made: tuple[Wire, dict[str, Any]]) -> Wire:
    """The project of the module."""
    return made[0]


@pytest.fixture
def queue(made: tuple[Wire, dict[str, Any]]) -> str:
    """A queue like the SDK's for one test to work through."""
    wire, told = made
    fields = {"name": "My answers", "description": "Look twice.", "scorer_refs": list(told["specs"].values())}
    queue_id: str = wire.post("/annotation_queues", **fields)["id"]
    shown = ["inputs.question", "output"]
    wire.post(f"/annotation_queues/{queue_id}/items", call_ids=told["calls"][:5], display_fields=shown)
    return queue_id


def labels(wire: Wire, queue_id: str) -> list[tuple[str, Any]]:
    """What was said in a queue, as (type, value or note)."""
    of_queue = {"$expr": {"$eq": [{"$getField": "queue_id"}, {"$literal": queue_id}]}}
    rows = wire.post("/feedback/query", query=of_queue)["result"]
    found = [(row["feedback_type"], row["payload"].get("value", row["payload"].get("note"))) for row in rows]
    return sorted(found, key=str)


def states(wire: Wire, queue_id: str) -> list[str]:
    items = wire.post(f"/annotation_queues/{queue_id}/items/query")["items"]
    return [item["annotation_state"] for item in items]


def test_a_queue_is_made_with_new_fields_and_filled_from_a_filter(page: Page, shared: Wire) -> None:
    page.goto(f"/{shared.project}/weave/queues")
    row = page.get_by_role("row", name=re.compile("Answers to check"))
    expect(row.get_by_role("progressbar", name="0 of 5 items done")).to_be_visible()
    look(page, "queues", narrow=True)
    page.get_by_role("button", name="New queue").click()
    dialog = page.get_by_role("dialog", name="New queue")
    dialog.get_by_label("Name", exact=True).fill("Second look")
    dialog.get_by_label("Guideline").fill("Be kind. كن لطيفًا 🎉")
    dialog.get_by_label(re.compile("^Correct")).check()
    dialog.get_by_role("button", name="New field").click()
    dialog.get_by_role("textbox", name="Field name").fill("Kind of error")
    dialog.get_by_role("textbox", name="Choices").fill("none, small, grave")
    look(page, "queue-new")
    dialog.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("heading", name="Second look")).to_be_visible()
    expect(page.get_by_role("heading", name="No items yet")).to_be_visible()
    page.get_by_role("main").get_by_role("button", name="Add calls").last.click()
    dialog = page.get_by_role("dialog", name="Add calls")
    picks = dialog.get_by_role("table", name="Calls that match")
    picks.get_by_role("checkbox", name="Select all rows of this page").uncheck()
    picks.get_by_role("checkbox", name="Select row").nth(0).check()
    picks.get_by_role("checkbox", name="Select row").nth(2).check()
    look(page, "queue-add")
    dialog.get_by_role("button", name="Add 2 selected").click()
    expect(page.get_by_role("table", name="Items").get_by_role("row")).to_have_count(3)
    page.get_by_role("button", name="Add calls").click()
    page.get_by_role("dialog").get_by_role("button", name="Add all that match").click()
    expect(page.get_by_role("table", name="Items").get_by_role("row")).to_have_count(7)
    look(page, "queue", narrow=True)
    page.get_by_role("tab", name="Guideline & fields").click()
    expect(page.get_by_text("none · small · grave")).to_be_visible()
    look(page, "queue-guideline")


def test_a_queue_is_worked_through_with_the_keyboard_alone(page: Page, shared: Wire, queue: str) -> None:
    page.goto(f"/{shared.project}/weave/queues/{queue}/work")
    keyboard, main = page.keyboard, page.get_by_role("main")
    expect(main.get_by_role("paragraph").get_by_text("question 0", exact=True)).to_be_visible()
    correct, quality = page.get_by_role("group", name="Correct"), page.get_by_role("group", name="Quality")
    keyboard.press("1")
    expect(correct.get_by_role("button", name="Yes")).to_have_attribute("aria-pressed", "true")
    keyboard.press("4")
    expect(quality.get_by_role("button", name="4")).to_have_attribute("aria-pressed", "true")
    expect(correct.get_by_role("button", name="Yes")).to_have_attribute("aria-pressed", "true")
    keyboard.press("ArrowDown")
    keyboard.type("shorter\u2026")
    keyboard.press("Escape")
    keyboard.press("n")
    keyboard.type("seen twice")
    look(page, "work", narrow=True)
    keyboard.press("Enter")
    expect(main.get_by_role("paragraph").get_by_text("question 1", exact=True)).to_be_visible()
    expect(page.get_by_role("progressbar", name="1 of 5 items done")).to_be_visible()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    first = [
        ("wandb.annotation.better", "shorter…"),
        ("wandb.annotation.correct", True),
        ("wandb.annotation.quality", 4),
        ("wandb.note.1", "seen twice"),
    ]
    assert labels(shared, queue) == first
    keyboard.press("u")
    expect(main.get_by_role("paragraph").get_by_text("question 0", exact=True)).to_be_visible()
    expect(page.get_by_role("textbox", name="Note")).to_have_value("seen twice")
    keyboard.press("2")
    keyboard.press("Enter")
    expect(main.get_by_role("paragraph").get_by_text("question 1", exact=True)).to_be_visible()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert labels(shared, queue) == [first[0], ("wandb.annotation.correct", False), *first[2:]]
    keyboard.press("s")
    expect(main.get_by_role("paragraph").get_by_text("question 2", exact=True)).to_be_visible()
    keyboard.press("b")
    expect(main.get_by_role("paragraph").get_by_text("question 1", exact=True)).to_be_visible()
    page.reload()
    expect(main.get_by_role("paragraph").get_by_text("question 1", exact=True)).to_be_visible()
    page.goto(f"/{shared.project}/weave/queues/{queue}/work")
    for number in (2, 3, 4):
        expect(main.get_by_role("paragraph").get_by_text(f"question {number}", exact=True)).to_be_visible()
        keyboard.press("1")
        keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done")).to_be_visible()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    look(page, "work-done")
    assert states(shared, queue) == ["completed", "skipped", "completed", "completed", "completed"]
    page.get_by_role("link", name="See the labels").click()
    expect(page.get_by_role("table", name="Annotators").get_by_role("row")).to_have_count(2)
    expect(page.get_by_text("3 · 75 %")).to_be_visible()
    look(page, "queue-people")


@pytest.mark.thorough
def test_saving_is_tried_again_and_says_what_was_refused(
    page: Page, shared: Wire, queue: str, watched: Watched
) -> None:
    watched.allow("503|409")
    tries: list[int] = []

    def fail_once(route: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            route.fulfill(status=503, json={"reason": "not now"})
        elif len(tries) == 2:
            route.continue_()
        else:
            route.fulfill(status=409, json={"reason": "no more labels"}, headers={"x-request-id": "request-7"})

    page.route("**/feedback/batch/create", fail_once)
    page.goto(f"/{shared.project}/weave/queues/{queue}/work")
    main = page.get_by_role("main")
    expect(main.get_by_role("paragraph").get_by_text("question 0", exact=True)).to_be_visible()
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    expect(main.get_by_role("paragraph").get_by_text("question 1", exact=True)).to_be_visible()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible(timeout=10_000)
    assert labels(shared, queue) == [("wandb.annotation.correct", True)]
    page.get_by_role("button", name="No", exact=True).click()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("1 not saved: no more labels")
    expect(page.get_by_role("alert")).to_contain_text("request-7")
    page.unroute("**/feedback/batch/create")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert labels(shared, queue) == [("wandb.annotation.correct", False), ("wandb.annotation.correct", True)]


def test_two_annotators_are_given_different_items(guarded: Guarded, browser: Browser) -> None:
    process, keys = guarded
    wire = Wire(process.url, "team/shared")
    wire.client.auth = ("api", keys["root"])
    calls = [{"id": str(uuid.uuid4()), "trace_id": str(uuid.uuid4()), "op_name": f"op{n}"} for n in range(4)]
    at = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z", "attributes": {}, "summary": {}}
    batch = [{"project_id": wire.project, **call, **at, "inputs": {}, "output": "x"} for call in calls]
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch}).status_code == 200
    queue = wire.post("/annotation_queues", name="Both", scorer_refs=[])["id"]
    wire.post(f"/annotation_queues/{queue}/items", call_ids=[call["id"] for call in calls], display_fields=[])

    def begun(answer: Response) -> bool:
        """True for the answer to the claim of an item, beside which the one before is told to be skipped."""
        return answer.url.endswith("/progress") and "in_progress" in (answer.request.post_data or "")

    page, other = (browser.new_context(base_url=process.url).new_page() for _ in range(2))
    for shown, who, first in ((page, "ann", "op0"), (other, "bob", "op1")):
        own = {"x-heddle-ui": "1", "origin": process.url}
        answer = httpx.post(f"{process.url}/_ui/session", json={"key": keys[who]}, headers=own)
        cookie = {"name": "heddle_session", "value": answer.cookies["heddle_session"], "url": process.url}
        shown.context.add_cookies([{**cookie, "httpOnly": True}])
        with shown.expect_response(begun):
            shown.goto(f"/{wire.project}/weave/queues/{queue}/work")
        expect(shown.get_by_role("heading", name=first)).to_be_visible()
    for shown, following in ((other, "op2"), (page, "op3")):
        with shown.expect_response(begun):
            shown.keyboard.press("s")
        expect(shown.get_by_role("heading", name=following)).to_be_visible()
    # What another has left lying is there for whoever has nothing else.
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="op2")).to_be_visible()
    for shown in (page, other):
        shown.context.close()
    wire.client.close()


def test_a_field_that_is_gone_does_not_stop_the_work(page: Page, shared: Wire, made: Made) -> None:
    specs, calls = made[1]["specs"], made[1]["calls"]
    spec = {"name": "Brief", "description": None, "field_schema": {"type": "boolean"}}
    body = {"project_id": shared.project, "val": spec, "builtin_object_class": "AnnotationSpec"}
    refs = {}
    for name in ("brief", "kept"):
        digest = shared.post("/obj/create", obj={**body, "object_id": name})["digest"]
        refs[name] = f"weave:///{shared.project}/object/{name}:{digest}"
    never = f"weave:///{shared.project}/object/never:{'x' * 43}"
    newest = specs["correct"].rpartition(":")[0] + ":latest"
    asked = [refs["brief"], never, refs["kept"], newest]
    queue = shared.post("/annotation_queues", name="Gone", scorer_refs=asked)["id"]
    shared.post(f"/annotation_queues/{queue}/items", call_ids=calls[:2], display_fields=[])
    label = {"weave_ref": f"weave:///{shared.project}/call/{calls[0]}", "queue_id": queue, "payload": {"value": True}}
    kind = {"feedback_type": "wandb.annotation.brief", "annotation_ref": refs["brief"]}
    shared.post("/feedback/create", **label, **kind)
    shared.post("/obj/delete", object_id="brief")
    page.goto(f"/{shared.project}/weave/queues/{queue}?tab=guideline")
    expect(page.get_by_text("This field was deleted or is not an annotation spec")).to_have_count(2)
    page.goto(f"/{shared.project}/weave/queues/{queue}/work")
    expect(page.get_by_text("Fields no longer available: brief, never")).to_be_visible()
    expect(page.get_by_role("group", name="Brief")).to_have_count(1)
    page.keyboard.press("1")
    page.keyboard.press("2")
    expect(page.get_by_role("button", name="No").last).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    said = [("wandb.annotation.brief", True), ("wandb.annotation.correct", False), ("wandb.annotation.kept", True)]
    assert labels(shared, queue) == said


def test_an_empty_project_teaches_what_a_queue_is(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/queues")
    expect(page.get_by_text("client.create_annotation_queue(")).to_be_visible()
    look(page, "queues-empty")
