"""Objects, prompts and ops: lists, versions with tags and aliases, values, changes, code; written by the real SDK."""

import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import SCENARIOS, Client, Wire
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

pytest.importorskip("weave", reason="the SDK that writes the data: pip install '.[demo]'")


Stored = tuple[Wire, dict[str, Any]]


@pytest.fixture(scope="module")
def stored(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """A project that the SDK's scenario of objects wrote, with calls of an op that has two versions."""
    project = f"team-{uuid.uuid4().hex[:8]}/objects"
    wire = Wire(server.url, project)
    seen = Client([sys.executable], SCENARIOS, server.url, project, tmp_path_factory.mktemp("objects")).run(
        "objects.py"
    )
    _publish(wire, "triage", "You answer.\nBe brief.\nUse {language}.")
    _publish(wire, "triage", "You answer carefully.\nBe brief.\nUse {language}.\nسلام 👋")
    dataset = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "rows": ""}
    wire.post("/obj/create", obj={"project_id": project, "object_id": "tickets", "val": dataset})
    for name in [f"item-{number:03d}" for number in range(230)]:
        wire.post("/obj/create", obj={"project_id": project, "object_id": name, "val": {"n": 1}})
    yield wire, seen
    wire.client.close()


def _publish(wire: Wire, name: str, text: str) -> None:
    value = {
        "_type": "StringPrompt",
        "_class_name": "StringPrompt",
        "_bases": ["Prompt", "Object", "BaseModel"],
        "content": text,
    }
    wire.post("/obj/create", obj={"project_id": wire.project, "object_id": name, "val": value})


def test_the_list_is_searched_by_kind_and_word_and_paged(page: Page, stored: Stored) -> None:
    wire, _ = stored
    page.goto(f"/{wire.project}/weave/objects")
    expect(page.get_by_role("row", name="item-229")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(201)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("link", name="item-229")).to_have_count(0)
    expect(page.get_by_role("row", name="config")).to_be_visible()
    page.get_by_role("button", name="Prompts").click()
    expect(page.get_by_role("row")).to_have_count(4)
    page.get_by_role("searchbox").fill("messages")
    expect(page.get_by_role("row")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("link", name="messages-prompt")).to_be_visible()
    page.goto(f"/{wire.project}/weave/prompts")
    expect(page.get_by_role("heading", name="Prompts", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name="triage")).to_contain_text("StringPrompt")
    look(page, "prompts", narrow=True)


def test_a_prompt_is_compared_tagged_and_opened_in_the_playground(page: Page, stored: Stored) -> None:
    wire, _ = stored
    page.goto(f"/{wire.project}/weave/objects/triage/versions/latest")
    expect(page.get_by_title("Variable language")).to_have_text("{language}")
    look(page, "prompt", narrow=True)
    page.get_by_role("button", name="Compare with v0").click()
    expect(page.get_by_role("region", name="Changes of message 1")).to_contain_text("added: You answer carefully.")
    look(page, "prompt-changes", narrow=True)
    page.get_by_role("button", name="Add alias").click()
    page.get_by_role("textbox", name="Alias").fill("production")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("button", name="Remove production")).to_be_visible()
    page.get_by_role("button", name="Add tag").click()
    page.get_by_role("textbox", name="Tag").fill("reviewed")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Remove reviewed").click()
    expect(page.get_by_role("button", name="Remove reviewed")).to_have_count(0)
    page.goto(f"/{wire.project}/weave/objects/triage/versions/production?tab=raw")
    expect(page.get_by_role("heading", name="triage")).to_be_visible()
    expect(page.get_by_role("tabpanel")).to_contain_text("You answer carefully.")
    prompts = page.get_by_role("link", name="Open in playground")
    assert "prompt=weave%3A%2F%2F%2F" in (prompts.get_attribute("href") or "")


def test_a_link_that_the_sdk_printed_opens_the_model_with_its_calls(page: Page, stored: Stored) -> None:
    wire, seen = stored
    name, digest = seen["model"]["ref"]
    page.goto(f"/{wire.project}/weave/objects/{name}/versions/{digest}")
    expect(page.get_by_role("tabpanel")).to_contain_text("greeting")
    expect(page.get_by_role("tabpanel").get_by_role("link", name="Greeter.predict")).to_be_visible()
    look(page, "object")
    page.get_by_role("tab", name="Calls").click()
    expect(page.get_by_role("table", name="Calls").get_by_role("link", name="Greeter.predict")).to_be_visible()
    page.get_by_role("tab", name="Use").click()
    expect(page.get_by_role("tabpanel")).to_contain_text(f'weave.ref("{name}:v0").get()')


def test_a_dataset_leads_to_its_own_page(page: Page, stored: Stored) -> None:
    wire, _ = stored
    page.goto(f"/{wire.project}/weave/objects/tickets/versions/latest?as=object")
    expect(page.get_by_role("heading", name="tickets")).to_be_visible()
    page.goto(f"/{wire.project}/weave/objects")
    page.get_by_role("searchbox").fill("tickets")
    assert (page.get_by_role("link", name="tickets").get_attribute("href") or "").endswith("/weave/datasets/tickets")


def test_a_version_is_deleted_and_a_missing_one_says_so(page: Page, stored: Stored, watched: Watched) -> None:
    wire, _ = stored
    _publish(wire, "doomed-prompt", "first")
    _publish(wire, "doomed-prompt", "second")
    page.goto(f"/{wire.project}/weave/objects/doomed-prompt/versions/latest")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete this version…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("tabpanel")).to_contain_text("first")
    expect(page.get_by_role("navigation", name="Versions").get_by_role("listitem")).to_have_count(1)
    watched.allow("404")
    page.goto(f"/{wire.project}/weave/objects/nothing-here/versions/latest")
    expect(page.get_by_role("alert")).to_contain_text("It may have been deleted, or its address is mistyped.")


@pytest.mark.thorough
def test_ops_show_calls_code_changes_and_statistics(page: Page, stored: Stored) -> None:
    wire, seen = stored
    page.goto(f"/{wire.project}/weave/ops")
    expect(page.get_by_role("row", name="shout")).to_be_visible()
    look(page, "ops", narrow=True)
    page.goto(f"/{wire.project}/weave/ops/{seen['op']['ref'][0]}/versions/{seen['op']['ref'][1]}")
    expect(page.get_by_role("region", name="obj.py")).to_contain_text("return text.upper() * times")
    look(page, "op", narrow=True)
    page.get_by_role("tab", name="Calls").click()
    expect(page.get_by_role("table", name="Calls").get_by_role("link", name="shout")).to_be_visible()
    page.get_by_role("tab", name="Statistics").click()
    expect(page.get_by_role("img", name="Calls over time")).to_be_visible()
    look(page, "op-statistics")


@pytest.mark.thorough
def test_an_empty_project_teaches(page: Page, project: str, base_url: str) -> None:
    page.goto(f"/{project}/weave/objects")
    expect(page.get_by_role("heading", name="No objects yet")).to_be_visible()
    expect(page.get_by_text(base_url)).to_be_visible()
    look(page, "objects-empty")
    page.goto(f"/{project}/weave/ops")
    expect(page.get_by_role("heading", name="No ops yet")).to_be_visible()


DIFF = """async () => {
    const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
    const library = loaded.find((text) => text.endsWith("lib/dom.js"));
    const { lineDiff } = await import(library.replace("dom.js", "textdiff.js"));
    const sides = (parts, skipped) => parts.filter(({ kind }) => kind !== skipped).map(({ text }) => text).join("\\n");
    const lines = Array.from({ length: 30000 }, (_, index) => `line ${index}`);
    const changed = lines.map((line, index) => (index % 100 ? line : `${line}!`));
    const other = lines.map((line) => `${line} of another text`);
    const bounded = lineDiff(lines.join("\\n"), other.join("\\n"));
    const parts = lineDiff(lines.join("\\n"), changed.join("\\n"));
    return {
        small: lineDiff("a\\nb\\nc", "a\\nc\\nd").map(({ kind, text }) => `${kind} ${text}`),
        whole: sides(parts, "added") === lines.join("\\n") && sides(parts, "removed") === changed.join("\\n"),
        added: parts.filter(({ kind }) => kind === "added").length, bounded: bounded.length,
    };
}"""


def test_differences_are_shortest_and_bounded(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/objects")
    expect(page.get_by_role("heading", name="No objects yet")).to_be_visible()
    found = page.evaluate(DIFF)
    assert found == {
        "small": ["same a", "removed b", "same c", "added d"],
        "whole": True,
        "added": 300,
        "bounded": 60_000,
    }


def test_a_new_prompt_is_written_on_the_page(page: Page, wire: Wire, project: str) -> None:
    page.goto(f"/{project}/weave/prompts")
    page.get_by_role("button", name="New prompt").click()
    page.get_by_role("dialog").get_by_role("textbox", name="Name").fill("greeting")
    page.get_by_label("Text of message 1").fill("You speak {language}.")
    page.get_by_label("Text of message 2").fill("Greet {name}")
    expect(page.get_by_text("{language}", exact=True)).to_be_visible()
    look(page, "prompt-new")
    page.get_by_role("button", name="Save and try").click()
    expect(page.get_by_role("heading", name="Playground")).to_be_visible()
    expect(page.get_by_role("textbox", name="user message")).to_have_value("Greet {name}")
    [stored] = wire.objects(filter={"object_ids": ["greeting"]})
    assert stored["val"]["_class_name"] == "MessagesPrompt"
    assert stored["val"]["messages"][0] == {"role": "system", "content": "You speak {language}."}
    page.goto(f"/{project}/weave/prompts")
    page.get_by_role("button", name="New prompt").click()
    page.get_by_role("dialog").get_by_role("textbox", name="Name").fill("greeting")
    page.get_by_role("button", name="Save prompt").click()
    expect(page.get_by_role("alert")).to_have_text("Write at least one message")
    page.get_by_role("button", name="Remove message").first.click()
    page.get_by_label("Text of message 1").fill("Just {name}")
    page.get_by_role("button", name="Save prompt").click()
    expect(page.get_by_role("heading", name="greeting")).to_be_visible()
    newest = wire.post("/obj/read", object_id="greeting", digest="latest")["obj"]
    assert (newest["val"]["_class_name"], newest["val"]["content"]) == ("StringPrompt", "Just {name}")
