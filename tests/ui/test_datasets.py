"""Datasets: the list, the editor grid, publishing, what changed between versions."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import SDK_VERSIONS, Wire, python_client
from tests.support.server import HeddleProcess
from tests.ui.support import Budget, Watched, look


def _row(number: int) -> dict[str, Any]:
    question = f"What is {number} + {number}?"
    return {
        "id": number,
        "question": question,
        "expected": 2 * number,
        "hard": number % 3 == 0,
        "tags": ["sum", number],
    }


ROWS = [_row(number) for number in range(40)]


@pytest.fixture(scope="module")
def stored(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A project with the datasets that the SDK's scenario publishes, and an evaluation of one."""
    project = f"team-{uuid.uuid4().hex[:8]}/datasets"
    client = python_client(SDK_VERSIONS[0], server, project, tmp_path_factory.mktemp("datasets"))
    told = client.run("datasets.py")
    wire = Wire(server.url, project)
    dataset = f"weave:///{project}/object/small:{told['small_digest']}"
    value = {"_type": "Evaluation", "_class_name": "Evaluation", "_bases": ["Object", "BaseModel"], "dataset": dataset}
    wire.post("/obj/create", obj={"project_id": project, "object_id": "sums", "val": value})
    yield wire
    wire.client.close()


@pytest.fixture
def questions(wire: Wire) -> Wire:
    """A project of the test's own with one dataset of 40 rows."""
    publish(wire, ROWS)
    return wire


def publish(wire: Wire, rows: list[dict[str, Any]]) -> None:
    answer = wire.client.post(f"/v2/{wire.project}/datasets", json={"name": "questions", "rows": rows})
    assert answer.status_code == 200, answer.text


def rows_of(wire: Wire, version: str = "latest") -> list[dict[str, Any]]:
    value = wire.post("/obj/read", object_id="questions", digest=version)["obj"]["val"]
    found = wire.post("/table/query", digest=value["rows"].rsplit("/", 1)[1])["rows"]
    return [row["val"] for row in found]


def open_grid(page: Page, wire: Wire, name: str = "questions", query: str = "") -> Locator:
    page.goto(f"/{wire.project}/weave/datasets/{name}{query}")
    grid = page.get_by_role("grid", name=f"Rows of {name}")
    expect(grid.get_by_role("gridcell").first).not_to_be_empty()
    grid.focus()
    return grid


def cell(grid: Locator, row: int, column: int) -> Locator:
    """A cell by what a person counts: rows and columns from 1."""
    return grid.locator(f'[role="row"][aria-rowindex="{row + 1}"] [role="gridcell"][aria-colindex="{column + 1}"]')


def test_the_list_shows_the_newest_versions_and_who_uses_them(page: Page, stored: Wire) -> None:
    page.goto(f"/{stored.project}/weave/datasets")
    table = page.get_by_role("table", name="Datasets")
    small = table.get_by_role("row", name=re.compile("^small"))
    expect(small).to_contain_text("v1")
    expect(table.get_by_role("row", name=re.compile("^large"))).to_contain_text("10,000")
    look(page, "datasets", narrow=True)
    page.get_by_role("searchbox", name="Search datasets").fill("larg")
    expect(table.get_by_role("row")).to_have_count(2)
    table.get_by_role("link", name="large").click()
    expect(page.get_by_role("heading", name="large", level=1)).to_be_visible()


def test_an_empty_project_teaches_how_to_make_one_and_makes_it_from_text(
    page: Page, wire: Wire, watched: Watched
) -> None:
    page.goto(f"/{wire.project}/weave/datasets")
    expect(page.get_by_text("weave.publish(weave.Dataset(")).to_be_visible()
    look(page, "datasets-empty")
    page.get_by_role("main").get_by_role("button", name="New dataset").last.click()
    dialog = page.get_by_role("dialog", name="New dataset")
    dialog.get_by_label("Name").fill("questions")
    dialog.get_by_role("button", name="Paste text").click()
    dialog.get_by_role("textbox", name="Rows").fill('question,expected,zip\n"What, is it?",4,0123\nمرحبا,,7\n')
    expect(dialog.get_by_text("2 rows, columns question, expected, zip")).to_be_visible()
    look(page, "dataset-new")
    dialog.get_by_role("button", name="Create with 2 rows").click()
    expect(page.get_by_role("grid")).to_be_visible()
    assert rows_of(wire) == [
        {"question": "What, is it?", "expected": 4, "zip": "0123"},
        {"question": "مرحبا", "expected": None, "zip": "7"},
    ]
    page.get_by_role("link", name="Datasets").first.click()
    page.get_by_role("button", name="New dataset").click()
    dialog.get_by_label("Name").fill("questions")
    watched.allow("409")
    dialog.get_by_role("button", name="Create empty dataset").click()
    expect(dialog.get_by_role("alert")).to_have_text("questions already exists")


def test_unpublished_edits_are_asked_about_wherever_the_site_is_left_from(page: Page, questions: Wire) -> None:
    leaves = "dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    grid = open_grid(page, questions)
    assert page.evaluate(leaves)
    page.keyboard.type("17")
    page.keyboard.press("Tab")
    expect(cell(grid, 1, 1)).to_have_text("17")
    page.get_by_role("link", name="Datasets").first.click()
    expect(page.get_by_role("table", name="Datasets")).to_be_visible()
    assert not page.evaluate(leaves)


def test_cells_are_edited_as_in_a_sheet_and_published(page: Page, questions: Wire) -> None:
    grid = open_grid(page, questions)
    keyboard = page.keyboard
    keyboard.press("ArrowRight")
    keyboard.press("Enter")
    editor = page.get_by_role("textbox", name="Edit question")
    expect(editor).to_have_value("What is 0 + 0?")
    editor.fill("What is nothing?")
    keyboard.press("Enter")
    keyboard.press("Tab")
    keyboard.type("17")
    keyboard.press("Escape")
    expect(cell(grid, 2, 3)).to_have_text("2")
    keyboard.type("17")
    keyboard.press("Tab")
    keyboard.press("Space")
    expect(cell(grid, 2, 4)).to_have_text("true")
    keyboard.press("ControlOrMeta+z")
    expect(cell(grid, 2, 4)).to_have_text("false")
    keyboard.press("ControlOrMeta+Shift+z")
    expect(cell(grid, 2, 4)).to_have_text("true")
    keyboard.press("ArrowDown")
    keyboard.press("ControlOrMeta+Delete")
    keyboard.press("ControlOrMeta+End")
    keyboard.press("ControlOrMeta+d")
    expect(page.get_by_text("+1", exact=True)).to_be_visible()
    keyboard.press("ControlOrMeta+Home")
    expect(cell(grid, 1, 2)).to_have_text("What is nothing?")
    look(page, "dataset-editor", narrow=True)
    page.get_by_role("button", name="Publish version").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("2 rows changed")).to_be_visible()
    look(page, "dataset-publish")
    with page.expect_request("**/table/update") as sent:
        dialog.get_by_role("button", name="Publish version").click()
    assert len(json.loads(sent.value.post_data or "")["updates"]) == 6
    expect(page.get_by_role("status").filter(has_text="New version published")).to_be_visible()
    wanted = [dict(row) for row in ROWS]
    wanted[0]["question"] = "What is nothing?"
    wanted[1] |= {"expected": 17, "hard": True}
    del wanted[2]
    assert rows_of(questions) == [*wanted, ROWS[-1]]
    page.get_by_role("tab", name="Changes").click()
    expect(page.get_by_text("1 added")).to_be_visible()
    expect(page.get_by_role("region", name="Changed rows").get_by_text("What is nothing?")).to_be_visible()
    look(page, "dataset-changes", narrow=True)
    assert "tab=changes" in page.url


def test_whole_numbers_of_any_length_keep_their_digits(page: Page, wire: Wire) -> None:
    """A number of JavaScript rounds the ids of many services; an edit of another cell would store the rounded one."""
    ids = [1_234_567_890_123_456_789, 9_007_199_254_740_993, 12]
    publish(wire, [{"id": number, "question": "Who?", "more": {"ids": [-number]}} for number in ids])
    grid = open_grid(page, wire)
    expect(cell(grid, 1, 1)).to_have_text(str(ids[0]))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Edit question").fill("Where?")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Publish version").click()
    page.get_by_role("dialog").get_by_role("button", name="Publish version").click()
    expect(page.get_by_role("status").filter(has_text="New version published")).to_be_visible()
    asked = ["Where?", "Who?", "Who?"]
    assert rows_of(wire) == [
        {"id": number, "question": question, "more": {"ids": [-number]}}
        for number, question in zip(ids, asked, strict=True)
    ]


@pytest.mark.thorough
def test_blocks_are_pasted_and_columns_added_renamed_and_dropped(page: Page, questions: Wire) -> None:
    grid = open_grid(page, questions)
    page.keyboard.press("ControlOrMeta+ArrowDown")
    page.keyboard.press("ArrowRight")
    page.evaluate("text => navigator.clipboard.writeText(text)", 'first\t1\nsecond\t2\n"a\tb"\tx')
    page.keyboard.press("ControlOrMeta+v")
    expect(grid.get_by_role("gridcell", name="second")).to_be_visible()
    page.keyboard.press("ControlOrMeta+c")
    assert page.evaluate("navigator.clipboard.readText()") == 'first\t1\nsecond\t2\n"a\tb"\tx'
    column(page, grid, "hard", "Delete column")
    column(page, grid, "expected", "Rename…")
    page.get_by_role("dialog").get_by_label("Name").fill("answer")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="+ Column").click()
    page.get_by_role("dialog").get_by_label("Name").fill("why")
    page.get_by_role("dialog").get_by_role("button", name="Add column").click()
    cell(grid, 39, 5).click()
    page.keyboard.type("because")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Publish version").click()
    page.get_by_role("dialog").get_by_role("button", name="Publish version").click()
    expect(page.get_by_role("navigation", name="Versions").get_by_text("v1", exact=True)).to_be_visible()
    rows = rows_of(questions)
    assert rows[0] == {"id": 0, "question": "What is 0 + 0?", "answer": 0, "tags": ["sum", 0]}
    assert rows[38]["why"] == "because"
    assert rows[39] == {"id": 39, "question": "first", "answer": 1, "tags": ["sum", 39]}
    assert rows[40:] == [{"question": "second", "answer": 2}, {"question": "a\tb", "answer": "x"}]


def column(page: Page, grid: Locator, name: str, item: str) -> None:
    """Choose from the menu of a column."""
    grid.get_by_role("columnheader", name=name).get_by_role("button").click()
    page.get_by_role("menuitem", name=item).click()


@pytest.mark.thorough
def test_json_is_edited_in_a_dialog_that_says_which_line_is_wrong(page: Page, questions: Wire) -> None:
    grid = open_grid(page, questions)
    cell(grid, 2, 5).dblclick()
    dialog = page.get_by_role("dialog", name="Edit tags")
    dialog.get_by_role("textbox", name="JSON").fill('["sum",\n oops]')
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Line 2, column 2")
    look(page, "dataset-json")
    dialog.get_by_role("textbox", name="JSON").fill('["sum", {"deep": [1]}]')
    dialog.get_by_role("button", name="Apply").click()
    expect(cell(grid, 2, 5)).to_have_text('["sum",{"deep":[1]}]')


@pytest.mark.thorough
def test_a_newer_version_is_a_conflict_with_choices(page: Page, questions: Wire) -> None:
    grid = open_grid(page, questions)
    page.keyboard.press("ArrowRight")
    page.keyboard.type("mine")
    page.keyboard.press("Enter")
    expect(cell(grid, 1, 2)).to_have_text("mine")
    publish(questions, [*ROWS, {"id": 99, "question": "theirs"}])
    page.get_by_role("button", name="Publish version").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Publish version").click()
    expect(dialog.get_by_role("alert")).to_contain_text("There is a newer version: v1")
    expect(dialog.get_by_role("button", name="Publish over v1")).to_be_visible()
    look(page, "dataset-conflict")
    dialog.get_by_role("button", name="Apply my edits to v1").click()
    expect(page.get_by_role("navigation", name="Versions").get_by_text("v2", exact=True)).to_be_visible()
    rows = rows_of(questions)
    assert (rows[0]["question"], rows[-1]["question"], len(rows)) == ("mine", "theirs", 41)


@pytest.mark.thorough
def test_a_file_is_imported_and_edits_survive_another_page(page: Page, questions: Wire, tmp_path: Path) -> None:
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"id": 100, "question": "from a file", "level": {"of": 1}}\n{"id": 101}\n')
    open_grid(page, questions)
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog", name="Import rows")
    dialog.get_by_label("File").set_input_files(lines)
    expect(dialog.get_by_text("2 rows, columns id, question, level")).to_be_visible()
    dialog.get_by_role("button", name="Import").click()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Datasets").click()
    page.get_by_role("link", name="questions").click()
    expect(page.get_by_text("+2", exact=True)).to_be_visible()
    page.get_by_role("button", name="Publish version").click()
    page.get_by_role("dialog").get_by_role("button", name="Publish version").click()
    expect(page.get_by_role("navigation", name="Versions").get_by_text("42 rows")).to_be_visible()
    assert rows_of(questions)[-2:] == [{"id": 100, "question": "from a file", "level": {"of": 1}}, {"id": 101}]


@pytest.mark.thorough
def test_ten_thousand_rows_are_loaded_as_one_looks_sorted_and_filtered(page: Page, stored: Wire) -> None:
    budget = Budget(page)
    grid = open_grid(page, stored, "large")
    page.keyboard.press("ControlOrMeta+End")
    expect(cell(grid, 10_000, 1)).to_have_text("9999")
    assert budget.nodes < 1200
    assert budget.requests <= 52 and budget.bytes < 250_000
    column(page, grid, "text", "Sort descending")
    expect(cell(grid, 1, 2)).to_have_text(re.compile("^row number 9999"))
    assert "sort=-text" in page.url
    page.get_by_role("searchbox", name="Find in rows").fill("number 123")
    expect(page.get_by_role("status").filter(has_text="11 found in 10,000 rows")).to_be_visible()
    expect(cell(grid, 1, 1)).to_have_text("123")
    page.reload()
    expect(page.get_by_role("status").filter(has_text="11 found in 10,000 rows")).to_be_visible()


@pytest.mark.thorough
def test_used_by_export_and_deleting(page: Page, stored: Wire) -> None:
    page.goto(f"/{stored.project}/weave/datasets/small?tab=used")
    uses = page.get_by_role("table", name="Evaluations that use the dataset")
    expect(uses.get_by_role("link", name="sums")).to_be_visible()
    look(page, "dataset-used")
    page.get_by_role("tab", name="Use in Python").click()
    expect(page.get_by_text("dataset = weave.ref(").first).to_be_visible()
    page.get_by_role("link", name=re.compile("^v0")).click()
    expect(page.get_by_text("not the latest")).to_be_visible()
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="CSV").click()
    text = Path(download.value.path()).read_text()
    assert text.splitlines()[:2] == ["id,question,expected", '0,0?,"{""sum"":0.5,""tags"":[""a"",0]}"']
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete v0").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("navigation", name="Versions").get_by_role("listitem")).to_have_count(1)


_MODULES = """async () => {
    const { base } = JSON.parse(document.querySelector('meta[name="heddle"]').content);
    const [files, rows] = await Promise.all(["importers", "rowdiff"].map((name) => import(`${base}lib/${name}.js`)));
    const row = (val, index) => ({ digest: JSON.stringify(val), val, original_index: index });
    const list = (...values) => values.map(row);
    const told = ({ kind, index, columns }) => [kind, index, columns];
    const kinds = (one, other) => rows.diffRows(one, other).changes.map(told);
    const refusal = (action) => { try { action(); } catch (error) { return error.message; } };
    return {
        csv: files.readRows('a,b\\n"x ""y""\\nz",1.5\\n,true\\n').rows,
        semicolons: files.readRows("a;b\\r\\n1;2\\r\\n", "x.csv").rows,
        tabs: files.readRows("a\\tb\\n9007199254740993\\t[1]\\n").rows,
        lines: files.readRows('{"a": 1}\\n\\n[2]').rows,
        json: files.readRows('{"rows": [{"a": null}]}', "x.json").rows,
        refused: refusal(() => files.readRows('{"a": 1}\\noops', "x.jsonl")),
        byId: kinds(list({ id: 1, a: 1 }, { id: 2, a: 2 }), list({ id: 3, a: 1 }, { id: 2, a: 5 })),
        byPlace: kinds(list({ a: 1, b: 1 }, { a: 2, b: 2 }), list({ a: 1, b: 7 }, { a: 8, b: 9 })),
    };
}"""


def test_files_are_read_and_rows_compared(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/datasets")
    found = page.evaluate(_MODULES)
    assert found["csv"] == [{"a": 'x "y"\nz', "b": 1.5}, {"a": "", "b": True}]
    assert found["semicolons"] == [{"a": 1, "b": 2}]
    assert found["tabs"] == [{"a": "9007199254740993", "b": [1]}]
    assert found["lines"] == [{"a": 1}, {"value": [2]}]
    assert found["json"] == [{"a": None}]
    assert found["refused"].startswith("Line 2 is not valid JSON")
    assert found["byId"] == [["added", 0, []], ["removed", 0, []], ["changed", 1, ["a"]]]
    assert found["byPlace"] == [["changed", 0, ["b"]], ["added", 1, []], ["removed", 1, []]]
