"""Values as people read them: every kind that the SDK sends, in every place that shows values."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import SDK_VERSIONS, Wire, python_client
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess
from tests.ui.support import axe, look

ARABIC = "مرحبا، أين طلبي؟"
LARGE = re.compile("show large")
RAW = re.compile("CustomWeaveType|weave:///|_type|_class_name")


@dataclass(frozen=True)
class Sent:
    """What `scenarios/values.py` sent: the project, and the call of each kind."""

    project: str
    calls: dict[str, str]


@pytest.fixture(scope="module")
def sent(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """A project with one value of every kind, in calls, a thread, a dataset and two evaluations."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/values")
    client = python_client(SDK_VERSIONS[0], server, wire.project, tmp_path_factory.mktemp("values"))
    yield Sent(wire.project, client.run("values.py")["calls"])
    wire.client.close()


def text(words: str) -> Callable[[Locator], Locator]:
    """Where these words stand."""
    return lambda place: place.get_by_text(words).first


LINES: dict[str, Callable[[Locator], Locator]] = {
    "text": text("Just words."),
    "prose": text("It left on Monday. It should arrive"),
    "markdown": text("A heading"),
    "arabic": text(ARABIC),
    "json": text("Ada"),
    "table": text("2 rows: city: Rome, degrees: 31"),
    "frame": text("apple"),
    "messages": text("Order 18 is on its way."),
    "gemini": text("Gemini says hello."),
    "anthropic": text("Claude says hello."),
    "image": lambda place: place.locator("img.thumb").first,
    "content": lambda place: place.locator("img.thumb").first,
    "sound": text("Sound"),
    "pdf": text(".pdf"),
    "csv": text(".csv"),
    "html": text(".html"),
    "svg": lambda place: place.locator("img.thumb").first,
    "mislabelled": text(".png"),
    "traceback": text("KeyError: 'order 18'"),
    "diff": text("--- a/price.py"),
    "published": lambda place: place.locator("img.thumb").first,
    "rows": text("cities"),
    "ref": text("manual"),
    "dead": text("gone"),
}
"""What is seen of each kind on one line."""
WHOLE: dict[str, Callable[[Locator], Locator]] = {
    **{name: LINES[name] for name in ("text", "arabic", "gemini", "anthropic", "messages")},
    "prose": lambda place: place.locator("strong", has_text="within two days").first,
    "markdown": lambda place: place.locator(".heading", has_text="A heading").first,
    "json": text("gold"),
    "table": lambda place: place.get_by_role("cell", name="Rome").first,
    "frame": lambda place: place.get_by_role("cell", name="apple").first,
    "image": lambda place: place.get_by_role("button", name=LARGE).first,
    "content": lambda place: place.get_by_role("button", name=LARGE).first,
    "sound": lambda place: place.locator("audio").first,
    "pdf": lambda place: place.get_by_role("link", name=re.compile(r"\.pdf$")).first,
    "csv": lambda place: place.get_by_role("cell", name="plum").first,
    "html": text("<script>document.title"),
    "svg": lambda place: place.get_by_role("button", name=LARGE).first,
    "mislabelled": lambda place: place.get_by_role("link", name=re.compile(r"\.png$")).first,
    "traceback": lambda place: place.get_by_role("group", name="Error").get_by_text("KeyError: 'order 18'").first,
    "diff": lambda place: place.get_by_role("group", name="Patch").get_by_text("return x * 2").first,
    "published": lambda place: place.get_by_role("button", name=LARGE).first,
    "rows": lambda place: place.get_by_role("cell", name="Rome").first,
    "ref": lambda place: place.get_by_role("link", name=re.compile("^manual")).first,
    "dead": text("no longer exists"),
}
"""What is seen of each kind where there is room for it."""


def test_a_list_of_calls_shows_every_kind_on_one_line(page: Page, sent: Sent) -> None:
    page.goto(f"/{sent.project}/weave/traces?sort=oldest&f=[]")
    for kind, call in sent.calls.items():
        row = page.locator(f'tr[data-key="{call}"]')
        row.scroll_into_view_if_needed()
        # Of a chat, what was asked stands in the one column and what was answered in the other.
        for column in (3,) if kind == "messages" else (2, 3):
            expect(LINES[kind](row.locator("td").nth(column))).to_be_visible()
        assert not RAW.search(row.inner_text()), kind
    look(page, "values-list", narrow=True)
    # Right-to-left text begins at the right and is cut at the left.
    line = page.locator(f'tr[data-key="{sent.calls["arabic"]}"] td').nth(2).locator(".valueline")
    assert line.evaluate("line => [getComputedStyle(line).direction, getComputedStyle(line).textOverflow]") == [
        "rtl",
        "ellipsis",
    ]
    assert line.evaluate("line => line.scrollWidth > line.clientWidth")
    assert page.title() != "taken"


@pytest.mark.parametrize("kind", with_breadth(LINES, every=4))
def test_a_call_shows_its_value_whole(page: Page, sent: Sent, kind: str) -> None:
    page.goto(f"/{sent.project}/weave/calls/{sent.calls[kind]}")
    main = page.get_by_role("main")
    if kind in ("messages", "gemini", "anthropic"):
        main.get_by_role("tab", name="Inputs & output").click()
    for name in ("Inputs", "Output"):
        section = main.locator("section.valuesection").filter(has=page.get_by_role("heading", name=name, exact=True))
        expect(WHOLE[kind](section)).to_be_visible()
        assert not RAW.search(section.inner_text())
    assert axe(page) == []
    assert page.title() != "taken"


def test_a_thread_shows_every_kind(page: Page, sent: Sent) -> None:
    page.goto(f"/{sent.project}/weave/threads/values")
    for number, kind in enumerate(sent.calls, 1):
        turn = page.get_by_role("region", name=f"Turn {number}", exact=True)
        turn.scroll_into_view_if_needed()
        expect(WHOLE[kind](turn)).to_be_visible()
        assert not RAW.search(turn.inner_text()), kind
    look(page, "values-thread", narrow=True)


def test_a_dataset_shows_every_kind(page: Page, sent: Sent) -> None:
    page.goto(f"/{sent.project}/weave/datasets/kinds")
    grid = page.get_by_role("grid", name="Rows of kinds")
    for number, kind in enumerate(sent.calls, 1):
        cell = grid.locator(f'[role="row"][aria-rowindex="{number + 1}"] [aria-colindex="3"]')
        cell.scroll_into_view_if_needed()
        expect(LINES[kind](cell)).to_be_visible()
        assert not RAW.search(cell.inner_text()), kind
    look(page, "values-dataset")


def test_a_comparison_shows_every_kind(page: Page, sent: Sent) -> None:
    page.set_viewport_size({"width": 1440, "height": 2600})
    page.goto(f"/{sent.project}/weave/evaluations")
    page.goto(f"/{sent.project}/weave/evaluations/compare?runs={','.join(runs_of(page, sent))}&tab=examples&show=all")
    for kind in sent.calls:
        row = page.get_by_role("row").filter(has=page.get_by_text(f"a {kind}", exact=True))
        cells = row.get_by_role("cell")
        expect(LINES[kind](cells.first)).to_be_visible()
        assert not RAW.search(row.inner_text()), kind
    look(page, "values-comparison")
    page.get_by_role("row").filter(has=page.get_by_text("a image", exact=True)).get_by_role("button").first.click()
    detail = page.get_by_role("dialog", name="Example")
    expect(detail.get_by_role("button", name=LARGE).first).to_be_visible()


def runs_of(page: Page, sent: Sent) -> list[str]:
    """The ids of the two evaluations."""
    body = {"project_id": sent.project, "columns": ["id"], "sort_by": [{"field": "started_at", "direction": "asc"}]}
    body["filter"] = {"op_names": [f"weave:///{sent.project}/op/Evaluation.evaluate:*"]}
    answer = page.request.post("/calls/stream_query", data=body)
    return [json.loads(line)["id"] for line in answer.text().splitlines()]


def test_turns_without_a_model_read_as_a_chat(page: Page, sent: Sent) -> None:
    page.goto(f"/{sent.project}/weave/threads/turns")
    turn = page.get_by_role("region", name="Turn 1", exact=True)
    expect(turn.get_by_role("article", name="User message").get_by_role("paragraph")).to_have_text("Where is my order?")
    answer = turn.get_by_role("article", name="Assistant message")
    expect(answer.get_by_role("paragraph").first).to_have_text("You said: Where is my order?")
    expect(answer.locator("summary")).to_contain_text("faq")
    other = page.get_by_role("region", name="Turn 2", exact=True).get_by_text(ARABIC).first
    assert other.evaluate("line => getComputedStyle(line).direction") == "rtl"
    look(page, "values-turns")
    page.goto(f"/{sent.project}/weave/threads")
    row = page.get_by_role("row", name=re.compile("^turns"))
    expect(row).to_contain_text(f"You said: {ARABIC}")


def test_refs_of_an_evaluation_are_what_they_point_to(page: Page, sent: Sent) -> None:
    page.goto(f"/{sent.project}/weave/traces?roots=0&f=" + json.dumps([["op", "is", "describe"]]))
    expect(page.get_by_role("row").filter(has_text="kind: prose").first).to_contain_text("It left on Monday")
    assert not RAW.search(page.get_by_role("main").inner_text())
    page.get_by_role("row").filter(has_text="kind: prose").get_by_role("link").first.click()
    section = page.locator("section.valuesection").first
    expect(section.locator("strong", has_text="within two days")).to_be_visible()
    assert not RAW.search(section.inner_text())


def test_the_choice_of_text_or_json_holds_everywhere(page: Page, sent: Sent) -> None:
    page.goto(f"/{sent.project}/weave/calls/{sent.calls['markdown']}")
    section = page.locator("section.valuesection").last
    expect(section.locator(".heading")).to_be_visible()
    section.get_by_role("button", name="Text", exact=True).click()
    expect(section.locator("pre")).to_contain_text("# A heading")
    section.get_by_role("button", name="JSON", exact=True).click()
    expect(section).to_contain_text("CustomWeaveType")
    page.goto(f"/{sent.project}/weave/calls/{sent.calls['json']}")
    expect(section.get_by_role("button", name="JSON", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(section.locator(".jsonkey").first).to_be_visible()
    section.get_by_role("button", name="Rendered", exact=True).click()
    expect(section.locator("dl.fields").first).to_be_visible()


def test_files_never_run_what_they_hold(page: Page, sent: Sent) -> None:
    for kind in ("html", "svg", "mislabelled"):
        page.goto(f"/{sent.project}/weave/calls/{sent.calls[kind]}")
        section = page.locator("section.valuesection").last
        expect(WHOLE[kind](section)).to_be_visible()
        for link in section.locator("a[download]").all():
            with page.expect_download() as saved:
                link.click()
            assert saved.value.suggested_filename.endswith((".html", ".png"))
            assert link.get_attribute("target") is None
        assert section.locator("script, iframe, object, embed").count() == 0
        assert page.title() != "taken"
