"""The playground with the package's own model, and without any."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.conftest import Wire
from tests.support.chats import Chats
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

PROMPT: dict[str, Any] = {
    "_type": "MessagesPrompt",
    "_class_name": "MessagesPrompt",
    "_bases": ["Prompt", "Object", "BaseModel"],
    "name": None,
    "description": None,
    "messages": [{"role": "system", "content": "You add."}, {"role": "user", "content": "What is {a} + {b}?"}],
}


@pytest.fixture
def play(server: HeddleProcess) -> Iterator[Wire]:
    """A project of its own, as the browser keeps a draft per project."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/playground")
    yield wire
    wire.client.close()


def column(page: Page, number: int) -> Locator:
    """One of the columns."""
    return page.get_by_role("region", name=f"Column {number}")


def test_two_columns_answer_with_figures_traces_and_probabilities(page: Page, play: Wire) -> None:
    page.goto(f"/{play.project}/weave/playground")
    page.get_by_label("user message").fill("What is {a} + {b}?")
    page.get_by_label("a", exact=True).fill("2")
    page.get_by_label("b", exact=True).fill("3")
    page.get_by_role("button", name="Add column").click()
    column(page, 1).get_by_label("Parameters").click()
    look(page, "playground-parameters")
    column(page, 1).get_by_label("Max tokens").fill("40")
    column(page, 1).get_by_label("Seed").fill("7")
    column(page, 1).get_by_label("Token probabilities").check()
    column(page, 1).get_by_label("Parameters").click()
    page.get_by_label("user message").press("Control+Enter")
    for number in (1, 2):
        expect(column(page, number).get_by_role("link", name="Trace")).to_be_visible(timeout=30_000)
        expect(column(page, number).get_by_text("first token")).to_be_visible()
    look(page, "playground", narrow=True)
    column(page, 1).get_by_role("button", name="Tokens").click()
    expect(column(page, 1).get_by_text("perplexity")).to_be_visible()
    calls = play.calls()
    assert [call["inputs"]["messages"][1]["content"] for call in calls] == ["What is 2 + 3?"] * 2
    assert sorted(call["inputs"].get("seed", 0) for call in calls) == [0, 7]
    page.reload()
    expect(page.get_by_label("user message")).to_have_value("What is {a} + {b}?")
    expect(column(page, 2)).to_be_visible()


def test_a_tool_is_answered_and_the_talk_goes_on_and_forks(page: Page, play: Wire) -> None:
    page.goto(f"/{play.project}/weave/playground")
    page.get_by_label("user message").fill("How is the weather in Paris?")
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("button", name="Insert an example of tools").click()
    column(page, 1).get_by_label("Parameters").click()
    column(page, 1).get_by_label("Tool choice").select_option("required")
    column(page, 1).get_by_label("Max tokens").fill("60")
    column(page, 1).get_by_label("Seed").fill("1")
    column(page, 1).get_by_label("Parameters").click()
    page.get_by_role("button", name="Run").click()
    result = page.get_by_label("Result of get_weather")
    expect(result).to_be_visible(timeout=30_000)
    expect(page.get_by_text("city:")).to_be_visible()
    look(page, "playground-tool")
    result.fill("sunny")
    column(page, 1).get_by_label("Parameters").click()
    column(page, 1).get_by_label("Tool choice").select_option("none")
    column(page, 1).get_by_label("Parameters").click()
    page.get_by_role("button", name="Continue with these results").click()
    expect(column(page, 1).get_by_role("link", name="Trace")).to_be_visible(timeout=30_000)
    expect(column(page, 1).get_by_text("sunny", exact=True)).to_be_visible()
    asked = play.calls()[-1]["inputs"]["messages"]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "tool"]
    assert asked[3]["tool_call_id"] == asked[2]["tool_calls"][0]["id"]
    column(page, 1).get_by_role("button", name="Message menu").first.click()
    page.get_by_role("menuitem", name="Fork into a new column").click()
    expect(column(page, 2).get_by_text("get_weather")).to_be_visible()


@pytest.mark.thorough
def test_structured_output_errors_and_stop(page: Page, play: Wire) -> None:
    page.goto(f"/{play.project}/weave/playground")
    page.get_by_label("user message").fill("What is 2 + 3?")
    page.get_by_text("Structured output", exact=True).click()
    area = page.get_by_label("Structured output as JSON")
    area.fill('{"type": "object"')
    expect(page.get_by_text(re.compile("Structured output: .*JSON"))).to_be_visible()
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "enum": [5]}}, "required": ["sum"]}
    area.fill(json.dumps(schema | {"additionalProperties": False}))
    page.get_by_role("button", name="Run").click()
    expect(column(page, 1).get_by_text("sum:")).to_be_visible(timeout=30_000)
    column(page, 1).get_by_label("Model 1").fill("unknown-model")
    page.get_by_role("button", name="Run").click()
    expect(column(page, 1).get_by_text("The model `unknown-model` does not exist.")).to_be_visible()
    look(page, "playground-error")
    page.get_by_role("button", name="Clear structured output").click()
    column(page, 1).get_by_label("Model 1").fill("heddle-tiny")
    column(page, 1).get_by_label("Parameters").click()
    column(page, 1).get_by_label("Temperature").fill("2")
    column(page, 1).get_by_label("Choices").fill("16")
    column(page, 1).get_by_label("Parameters").click()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Run")).to_be_visible()


@pytest.mark.thorough
def test_loaded_from_a_call_and_saved_as_a_dataset_row(page: Page, play: Wire, watched: Watched) -> None:
    chats = Chats(play)
    call = chats.rich("")
    chats.send()
    page.goto(f"/{play.project}/weave/playground?call={call}")
    expect(page.get_by_label("system message")).to_have_value("You are careful.")
    expect(page.get_by_label("tool message")).to_have_value('{"temperature": 21}')
    expect(page.get_by_text("calls get_weather")).to_be_visible()
    expect(page.get_by_text("picture", exact=True)).to_be_visible()
    expect(page.get_by_label("Model 1")).to_have_value("heddle-tiny")
    look(page, "playground-call")
    page.get_by_role("button", name="Remove attachment").click()
    page.get_by_role("button", name="Run").click()
    expect(column(page, 1).get_by_role("link", name="Trace")).to_be_visible(timeout=30_000)
    column(page, 1).get_by_role("button", name="Column menu").click()
    page.get_by_role("menuitem", name="Save answer as dataset row").click()
    dialog = page.get_by_role("dialog", name="Save as a dataset row")
    dialog.get_by_label("Name of a new dataset").fill("weather")
    dialog.get_by_label("Row (JSON)").fill('{"question": "Paris?", "output": "sunny"}')
    dialog.get_by_role("button", name="Save row").click()
    expect(page.get_by_text("Row saved in weather")).to_be_visible()
    (dataset,) = [row for row in play.objects() if row["object_id"] == "weather"]
    table = dataset["val"]["rows"].rpartition("/")[2]
    assert dataset["base_object_class"] == "Dataset"
    assert [row["val"] for row in play.post("/table/query", digest=table)["rows"]] == [
        {"question": "Paris?", "output": "sunny"}
    ]

    def publish_theirs() -> None:
        base = play.post("/obj/read", object_id="weather", digest="latest")["obj"]["val"]["rows"].rpartition("/")[2]
        rows = play.post("/table/update", base_digest=base, updates=[{"append": {"row": {"question": "theirs"}}}])[
            "digest"
        ]
        value = dataset["val"] | {"rows": f"weave:///{play.project}/table/{rows}"}
        play.post("/obj/create", obj={"project_id": play.project, "object_id": "weather", "val": value})

    def meet_theirs(route: Route) -> None:
        publish_theirs()
        route.continue_()

    column(page, 1).get_by_role("button", name="Column menu").click()
    page.get_by_role("menuitem", name="Save answer as dataset row").click()
    dialog.get_by_label("Row (JSON)").fill('{"question": "Rome?"}')
    publish_theirs()
    page.route("**/obj/create", meet_theirs, times=1)
    watched.allow("409")
    dialog.get_by_role("button", name="Save row").click()
    expect(dialog).to_have_count(0)
    table = play.post("/obj/read", object_id="weather", digest="latest")["obj"]["val"]["rows"].rpartition("/")[2]
    rows = [row["val"]["question"] for row in play.post("/table/query", digest=table)["rows"]]
    assert rows == ["Paris?", "theirs", "theirs", "Rome?"]


@pytest.mark.thorough
def test_loaded_from_a_prompt_filled_from_a_row_and_saved_as_a_version(page: Page, play: Wire) -> None:
    play.post("/obj/create", obj={"project_id": play.project, "object_id": "sum", "val": PROMPT})
    digest = play.post("/table/create", table={"project_id": play.project, "rows": [{"a": 4, "b": "5"}]})["digest"]
    rows = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "name": "sums"}
    value = rows | {"rows": f"weave:///{play.project}/table/{digest}"}
    play.post("/obj/create", obj={"project_id": play.project, "object_id": "sums", "val": value})
    page.goto(f"/{play.project}/weave/playground")
    page.get_by_role("button", name="Load").click()
    page.get_by_role("menuitem", name="From a prompt").click()
    page.get_by_role("dialog").get_by_role("button", name="sum v0").click()
    expect(page.get_by_label("system message")).to_have_value("You add.")
    page.get_by_role("button", name="From a dataset row").click()
    page.get_by_role("dialog").get_by_role("button", name="sums v0").click()
    page.get_by_role("dialog").get_by_role("button", name='{"a":4').click()
    expect(page.get_by_label("a", exact=True)).to_have_value("4")
    page.get_by_label("system message").fill("You add well.")
    page.get_by_role("button", name="Save prompt").click()
    look(page, "playground-save")
    expect(page.get_by_role("dialog").get_by_label("Name")).to_have_value("sum")
    page.get_by_role("dialog").get_by_role("button", name="Save version").click()
    expect(page.get_by_text("Saved sum")).to_be_visible()
    first, second = [row for row in play.objects() if row["object_id"] == "sum"]
    assert second["version_index"] == 1 and second["leaf_object_class"] == "MessagesPrompt"
    assert second["val"] == first["val"] | {
        "messages": [{"role": "system", "content": "You add well."}, PROMPT["messages"][1]]
    }


@pytest.mark.thorough
def test_a_server_without_a_model_teaches(page: Page, tmp_path: Path, watched: Watched) -> None:
    with HeddleProcess(tmp_path / "data", model="none") as bare:
        watched.allow(f"request to another host: {bare.url}")
        page.goto(f"{bare.url}/team/none/weave/playground")
        expect(page.get_by_role("heading", name="No model is available")).to_be_visible()
        expect(page.get_by_text("pip install '.[inference]'", exact=False)).to_be_visible()
        look(page, "playground-none", narrow=True)
