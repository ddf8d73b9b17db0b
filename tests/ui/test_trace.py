"""The trace page: the tree with its waterfall, its views, one call in full, and what can be done with it."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import SDK_VERSIONS, Wire, python_client
from tests.support.bigtrace import big_trace, call_id, write
from tests.support.server import HeddleProcess
from tests.ui.support import Budget, Watched, look


@pytest.fixture(scope="module")
def agent(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A trace that the SDK wrote: {project, trace, call}."""
    name = f"team/agent-{uuid.uuid4().hex[:8]}"
    client = python_client(SDK_VERSIONS[0], server, name, tmp_path_factory.mktemp("agent"))
    return {"project": name, **client.run("agent_trace.py")}


@pytest.fixture(scope="module")
def large(server: HeddleProcess) -> str:
    """A project with traces of 2,000 and 50,000 calls, and a chain of 3,000 calls, each below the one before."""
    name = f"team/large-{uuid.uuid4().hex[:8]}"
    for trace, count in (("t2000", 2000), ("t50000", 50_000)):
        write(server.url, name, big_trace(name, trace, count))
    write(server.url, name, big_trace(name, "chain", 3000, chain=True))
    return name


@pytest.fixture
def opened(page: Page, agent: dict[str, Any]) -> Iterator[Page]:
    """The page of the agent's trace."""
    page.goto(f"/{agent['project']}/weave/traces/{agent['trace']}")
    expect(rows(page)).to_have_count(5)
    yield page


def rows(page: Page) -> Locator:
    return page.get_by_role("treegrid").get_by_role("row")


def chosen(page: Page) -> Locator:
    return page.get_by_role("row", selected=True)


def detail(page: Page) -> Locator:
    return page.get_by_role("region", name="Chosen call")


def test_the_tree_by_keyboard(opened: Page) -> None:
    page = opened
    expect(page.get_by_role("heading", level=1)).to_have_text("agent")
    expect(rows(page).nth(3)).to_contain_text("search_web")
    expect(rows(page).nth(3)).to_contain_text("error")
    look(page, "trace", narrow=True)
    page.get_by_role("treegrid").focus()
    page.keyboard.press("ArrowDown")
    expect(chosen(page)).to_contain_text("chat.completions.create")
    page.keyboard.press("End")
    expect(chosen(page)).to_have_attribute("aria-rowindex", "5")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("e")
    expect(chosen(page)).to_contain_text("search_web")
    expect(detail(page).get_by_role("heading", level=2)).to_have_text("search_web")
    expect(detail(page)).to_contain_text("the index did not answer")
    page.keyboard.press("z")
    expect(page).to_have_url(re.compile("zoom="))
    page.reload()
    expect(chosen(page)).to_contain_text("search_web")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("look_up")
    expect(rows(page)).to_have_count(2)
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    expect(chosen(page)).to_contain_text("look_up")


def test_much_feedback_is_shown_in_parts(page: Page, wire: Wire) -> None:
    call = {"project_id": wire.project, "id": "much", "trace_id": "much", "op_name": "o", "inputs": {}}
    wire.post("/call/start", start={**call, "started_at": "2026-01-01T00:00:00Z", "attributes": {}})
    about = {"project_id": wire.project, "weave_ref": f"weave:///{wire.project}/call/much"}
    notes = [{**about, "feedback_type": "wandb.note.1", "payload": {"note": f"note {n}"}} for n in range(150)]
    wire.post("/feedback/batch/create", batch=notes)
    page.goto(f"/{wire.project}/weave/traces/much?call=much")
    page.get_by_role("tab", name="Scores & feedback 150").click()
    shown = page.locator("ul.feedback > li")
    expect(shown).to_have_count(100)
    page.get_by_role("button", name="50 more entries").click()
    expect(shown).to_have_count(150)


def test_a_call_in_full(opened: Page, agent: dict[str, Any]) -> None:
    page = opened
    rows(page).nth(4).click()
    expect(detail(page).get_by_role("tab", name="Chat")).to_have_attribute("aria-selected", "true")
    expect(detail(page)).to_contain_text("Mariehamn")
    look(page, "trace-chat")
    for tab, text in (
        ("Inputs & output", "gpt-4o-mini"),
        ("Usage", "gpt-4o-mini"),
        ("Attributes", "python"),
        ("Code", "def complete"),
        ("Raw", '"op_name"'),
    ):
        detail(page).get_by_role("tab", name=tab).click()
        expect(detail(page).get_by_role("tabpanel")).to_contain_text(text)
        if tab in ("Usage", "Code", "Raw"):
            look(page, f"trace-{tab.lower()}")
    expect(detail(page).get_by_role("link", name="Open in playground")).to_have_attribute(
        "href", re.compile(r"/playground\?call=")
    )
    detail(page).get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Copy Python").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert f'weave.init("{agent["project"]}")' in copied and "client.get_call(" in copied


@pytest.mark.thorough
def test_scores_and_feedback(opened: Page, watched: Watched) -> None:
    page = opened
    detail(page).get_by_role("tab", name="Usage").click()
    expect(detail(page).get_by_role("tabpanel")).to_contain_text("Including child calls")
    expect(page.get_by_role("main")).to_contain_text("Tokens98")
    detail(page).get_by_role("tab", name="Scores & feedback").click()
    panel = detail(page).get_by_role("tabpanel")
    expect(panel.get_by_role("link", name="short_enough")).to_be_visible()
    expect(panel).to_contain_text("Right, and short.")
    look(page, "trace-feedback")
    panel.get_by_role("button", name="Other reactions").click()
    page.get_by_role("menuitem", name="Party").click()
    expect(panel.get_by_role("listitem").filter(has_text="🎉")).to_be_visible()
    panel.get_by_role("textbox", name="Note").fill("مرحبا <b>there</b>")
    panel.get_by_role("button", name="Add note").click()
    mine = panel.get_by_role("listitem").filter(has_text="<b>there</b>")
    expect(mine).to_be_visible()
    mine.get_by_role("button", name="Remove").click()
    expect(mine).to_have_count(0)
    panel.get_by_role("link", name="scorer’s call").click()
    expect(detail(page).get_by_role("heading", level=2)).to_have_text("short_enough")


@pytest.mark.thorough
def test_views_of_the_same_trace(opened: Page) -> None:
    page = opened
    page.get_by_role("button", name="By time").click()
    expect(rows(page).first).to_have_attribute("aria-level", "1")
    expect(rows(page)).to_have_count(5)
    page.get_by_role("button", name="Flame").click()
    flame = page.get_by_role("img", name=re.compile("Flame"))
    flame.click(position={"x": 30, "y": 30})
    look(page, "trace-flame")
    flame.dblclick(position={"x": 30, "y": 30})
    expect(page).to_have_url(re.compile("zoom="))
    page.get_by_role("group", name="View").get_by_role("button", name="Chat").click()
    chat = page.get_by_role("region", name="Conversations of the trace")
    expect(chat.get_by_role("article").filter(has_text="Mariehamn").first).to_be_visible()
    look(page, "trace-conversations")
    page.go_back()
    expect(page).not_to_have_url(re.compile("zoom="))


def test_a_call_becomes_a_row_and_an_item(opened: Page, agent: dict[str, Any], server: HeddleProcess) -> None:
    page = opened
    detail(page).get_by_role("button", name="Add to dataset").click()
    dialog = page.get_by_role("dialog", name="Add the call to a dataset")
    dialog.get_by_role("textbox", name="Name").fill("capitals")
    expect(dialog.get_by_role("row").filter(has_text="Åland").first).to_be_visible()
    look(page, "trace-add-to-dataset")
    dialog.get_by_role("button", name="Add row").click()
    expect(page.get_by_role("status").get_by_role("link", name="capitals")).to_be_visible()
    detail(page).get_by_role("button", name="Add to dataset").click()
    dialog.get_by_role("button", name="Add row").click()
    expect(dialog).to_have_count(0)
    wire = Wire(server.url, agent["project"])
    [dataset] = wire.objects(filter={"object_ids": ["capitals"], "latest_only": True})
    table = wire.post("/table/query", digest=dataset["val"]["rows"].split("/")[-1])["rows"]
    assert [row["val"]["question"] for row in table] == ["What is the capital of Åland? 🌊"] * 2
    detail(page).get_by_role("button", name="Add to queue").click()
    dialog = page.get_by_role("dialog", name="Add the call to an annotation queue")
    look(page, "trace-add-to-queue")
    dialog.get_by_role("button", name="Add to queue").click()
    expect(page.get_by_role("status").get_by_role("link", name="Review")).to_be_visible()


@pytest.mark.thorough
def test_printed_links_neighbours_names_and_deletion(page: Page, wire: Wire, project: str, watched: Watched) -> None:
    calls = big_trace(project, "one", 6)
    for trace in ("two", "three"):
        calls += big_trace(project, trace, 2)
    write(wire.url, project, calls)
    first, second = call_id("one", 0), call_id("two", 0)
    page.goto(f"/{project}/r/call/{call_id('one', 3)}")
    expect(page).to_have_url(re.compile(rf"/weave/traces/one\?call={call_id('one', 3)}"))
    expect(detail(page).get_by_role("heading", level=2)).to_be_visible()
    page.evaluate("ids => sessionStorage.setItem('heddle.list', ids)", json.dumps([first, second]))
    page.goto(f"/{project}/weave/traces/one")
    page.get_by_role("button", name="Next call in the list").click()
    expect(page).to_have_url(re.compile(rf"/traces/two\?call={second}"))
    expect(rows(page)).to_have_count(2)
    page.keyboard.press("[")
    expect(page).to_have_url(re.compile(rf"/traces/one\?call={first}"))
    detail(page).get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("textbox", name="Name").fill("A better name 🎈")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("A better name 🎈")
    rows(page).nth(1).click()
    detail(page).get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("button", name="Delete").click()
    expect(detail(page).get_by_role("heading", level=2)).to_have_text("A better name 🎈")
    watched.allow("404")
    page.goto(f"/{project}/weave/calls/nowhere")
    expect(page.get_by_role("heading", name="Call not found")).to_be_visible()
    look(page, "call-missing")
    page.goto(f"/{project}/weave/traces/nowhere")
    expect(page.get_by_role("heading", name="Trace not found")).to_be_visible()
    look(page, "trace-missing")


@pytest.mark.thorough
def test_running_orphaned_and_skewed_calls(page: Page, wire: Wire, project: str) -> None:
    def start(call: str, parent: str | None, second: int, op: str, trace: str = "t") -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": call,
            "trace_id": trace,
            "parent_id": parent,
            "op_name": op,
            "inputs": {},
            "attributes": {},
        }
        at = f"2026-01-01T00:00:{second:02}+00:00"
        return {"mode": "start", "req": {"start": {"project_id": project, "started_at": at, **body}}}

    def end(call: str, second: int) -> dict[str, Any]:
        at = f"2026-01-01T00:00:{second:02}+00:00"
        body: dict[str, Any] = {"project_id": project, "id": call, "ended_at": at, "summary": {}, "output": 1}
        return {"mode": "end", "req": {"end": body}}

    long = "a name that goes on " * 6
    batch = [start("root", None, 10, long), start("early", "root", 5, "early"), start("lost", "nobody", 12, "lost")]
    batch += [
        start("far", None, 1, "far", "u"),
        start("guest", "far", 13, "مرحبا بالعالم 🎉"),
        start("two", None, 14, "two"),
    ]
    batch += [end("early", 8), end("lost", 15), end("guest", 16), end("two", 15), end("far", 20)]
    wire.post("/call/upsert_batch", batch=batch)
    page.goto(f"/{project}/weave/traces/t")
    expect(rows(page)).to_have_count(5)
    expect(rows(page).filter(has_text="running")).to_have_count(1)
    look(page, "trace-odd", narrow=True)
    wire.post("/call/upsert_batch", batch=[end("root", 20), start("new", "root", 11, "new"), end("new", 12)])
    expect(rows(page)).to_have_count(6)
    expect(rows(page).filter(has_text="running")).to_have_count(0)
    rows(page).filter(has_text="مرحبا").click()
    wire.post("/calls/delete", call_ids=["lost"])
    page.reload()
    page.get_by_role("link", name="Parent trace").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("far")


def test_the_model_of_a_trace_survives_circles_and_sums_usage_once(page: Page, project: str, watched: Watched) -> None:
    watched.allow("404")
    page.goto(f"/{project}/weave/traces/none")
    found = page.evaluate(
        """async () => {
          const { base } = JSON.parse(document.querySelector('meta[name="heddle"]').content);
          const model = await import(base + "pages/trace_model.js");
          const { lanes } = await import(base + "pages/trace_lanes.js");
          const columns = model.emptyColumns({ total: 6, shown: 6, version: "", selected: -1 });
          model.addPage(columns, {
            ops: [["f", "fn"], ["g", "llm"]], models: ["m"], id: ["a", "b", "c", "d", "e", "f"], op: [0, 0, 1, 0, 1, 1],
            start: [1000, 10, 10, 10, 10, 10], length: [100, 20, 50, -1, 5, 5], parent: [0, -1, 1, null, 2, 3],
            status: [[4, 1], [3, 3]], name: [[0, "mine"]], orphan: [[3, "x"]],
            usage: [[0, 0, 30, 3, 0.5], [4, 0, 10, 1, null], [5, 0, 7, 1, 0.25]],
          });
          const tree = new model.Tree(columns);
          return { order: [...tree.order].map((index) => columns.id[index]).join(""), depth: [...tree.depth],
            kind: tree.kind(2), name: tree.name(0), totals: tree.totals, closed: tree.rows(new Set(["b"])).length,
            lanes: lanes(tree).count };
        }"""
    )
    assert found["order"] == "adbcef" and found["depth"] == [0, 0, 1, 0, 2, 2]
    assert (found["kind"], found["name"], found["closed"]) == ("llm", "mine", 3)
    assert found["totals"] == {"input": 47, "output": 5, "cost": 0.75, "errors": 1, "running": 1}
    assert found["lanes"] >= 3


@pytest.mark.thorough
def test_a_failure_can_be_tried_again(page: Page, agent: dict[str, Any], watched: Watched) -> None:
    watched.allow("503")
    page.route("**/_ui/api/trace/**", lambda route: route.fulfill(status=503, json={"reason": "The disk is full"}))
    page.goto(f"/{agent['project']}/weave/traces/{agent['trace']}?q=nothing-like-this")
    expect(page.get_by_role("alert")).to_contain_text("The disk is full")
    look(page, "trace-failure")
    page.unroute("**/_ui/api/trace/**")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="No matching calls")).to_be_visible()
    look(page, "trace-no-match")
    page.get_by_role("button", name="Clear filter").click()
    expect(rows(page)).to_have_count(5)
    splitter = page.get_by_role("separator", name="Width of the tree")
    splitter.focus()
    page.keyboard.press("ArrowLeft")
    expect(splitter).to_have_attribute("aria-valuenow", "53")


@pytest.mark.thorough
def test_2000_calls_are_small(page: Page, large: str) -> None:
    budget = Budget(page)
    page.goto(f"/{large}/weave/traces/t2000")
    expect(page.get_by_role("treegrid")).to_have_attribute("aria-rowcount", "2000")
    page.wait_for_load_state("networkidle")
    assert budget.bytes <= 150 * 1024 + 2000 * 25, budget.bytes
    assert budget.nodes <= 1500, budget.nodes
    look(page, "trace-2000")
    page.get_by_role("treegrid").focus()
    page.keyboard.press("End")
    expect(chosen(page)).to_have_attribute("aria-rowindex", "2000")


@pytest.mark.thorough
def test_50000_calls_do_not_freeze(page: Page, large: str, server: HeddleProcess) -> None:
    budget = Budget(page)
    page.goto(f"/{large}/weave/traces/t50000")
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_role("treegrid")).to_have_attribute("aria-rowcount", "50000")
    page.wait_for_load_state("networkidle")
    assert budget.seconds <= 1.0, budget.seconds
    assert budget.nodes <= 1500, budget.nodes
    page.get_by_role("treegrid").focus()
    page.keyboard.press("End")
    expect(chosen(page)).to_have_attribute("aria-rowindex", "50000")
    page.get_by_role("searchbox", name="Filter calls").fill("judge error")
    expect(page.get_by_role("treegrid")).not_to_have_attribute("aria-rowcount", "50000")
    assert budget.nodes <= 1500, budget.nodes
    look(page, "trace-50000")
    assert _bytes_to_first_rows(server, large) <= 60_000


def _bytes_to_first_rows(server: HeddleProcess, project: str) -> int:
    """What of the answer has come, compressed, when its first calls can be shown."""
    url = f"{server.url}/_ui/api/trace/{project}/t50000"
    with httpx.stream("GET", url, headers={"accept-encoding": "gzip"}, auth=("api", "0" * 40)) as answer:
        lines = 0
        for text in answer.iter_text():
            lines += text.count("\n")
            if lines >= 2:
                return answer.num_bytes_downloaded
    raise AssertionError("the answer holds no calls")


@pytest.mark.thorough
def test_a_chain_of_3000_calls(page: Page, large: str) -> None:
    page.goto(f"/{large}/weave/traces/chain?view=flame")
    expect(page.get_by_role("img", name=re.compile("Flame"))).to_be_visible()
    page.get_by_role("button", name="Tree").click()
    expect(page.get_by_role("treegrid")).to_have_attribute("aria-rowcount", "3000")
    page.get_by_role("treegrid").focus()
    page.keyboard.press("End")
    expect(chosen(page)).to_have_attribute("aria-level", "3000")
    look(page, "trace-deep")


def test_each_row_says_what_its_call_used_itself_and_with_all_below(page: Page, wire: Wire, project: str) -> None:
    trace, at = str(uuid.uuid4()), "2026-05-01T10:00:0{}Z"
    whole = {"agent": (9000, 900), "plan": (4000, 400), "ask": (4000, 400), "look": None}
    above = {"agent": None, "plan": "agent", "ask": "plan", "look": "agent"}
    calls = []
    for number, (name, used) in enumerate(whole.items()):
        entry = used and {"requests": 1, "prompt_tokens": used[0], "completion_tokens": used[1]}
        call = {"id": f"{trace}-{name}", "trace_id": trace, "op_name": name, "inputs": {}, "attributes": {}}
        call |= {"parent_id": f"{trace}-{above[name]}" if above[name] else None, "output": 1}
        call |= {"started_at": at.format(number), "ended_at": at.format(9)}
        calls.append({"project_id": project, **call, "summary": {"usage": {"gpt-4o-mini": entry}} if entry else {}})
    answer = wire.client.post(f"/v2/{project}/calls/complete", json={"batch": calls})
    assert answer.status_code == 200, answer.text
    page.goto(f"/{project}/weave/traces/{trace}")
    expect(rows(page)).to_have_count(4)
    used = [row.get_by_role("gridcell").nth(1).inner_text() for row in rows(page).all()]
    assert used == ["5.5K / 9.9K", "4.4K", "4.4K", ""]
    costs = [row.get_by_role("gridcell").nth(2).inner_text() for row in rows(page).all()]
    assert costs[0].startswith("$") and " / $" in costs[0] and costs[1] == costs[2] and costs[3] == ""
    look(page, "trace-usage", narrow=True)


def test_the_chat_of_an_agent_shows_the_calls_that_hold_messages(page: Page, wire: Wire, project: str) -> None:
    at = datetime.now(UTC).isoformat()
    usage = {"usage": {"gpt-4o": {"requests": 1, "prompt_tokens": 9, "completion_tokens": 1}}}
    whole: dict[str, Any] = {
        "project_id": project,
        "trace_id": "talk",
        "started_at": at,
        "ended_at": at,
        "summary": usage,
    }
    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Where is parcel 7?"}]}
    said = {"choices": [{"message": {"role": "assistant", "content": "On its way."}}]}
    root = {**whole, "id": "root", "op_name": "plan", "attributes": {}, "inputs": {"task": "parcel"}, "output": "done"}
    # SDKs sum the usage of calls up in those above: these are no calls of a model.
    steps = [{**root, "id": f"step{n}", "op_name": f"step_{n}", "parent_id": "root"} for n in range(9)]
    attributes = {"weave": {"kind": "llm"}}
    model = {**whole, "id": "model", "parent_id": "step8", "op_name": "ask", "attributes": attributes}
    batch = [root, *steps, {**model, "inputs": asked, "output": said}]
    assert wire.client.post(f"/v2/{project}/calls/complete", json={"batch": batch}).status_code == 200
    page.goto(f"/{project}/weave/traces/talk?view=chat")
    chat = page.get_by_role("region", name="Conversations of the trace")
    expect(chat.get_by_text("Where is parcel 7?")).to_be_visible()
    expect(chat.locator("article.turn")).to_have_count(1)
    expect(chat.get_by_text("This call has no messages.")).to_have_count(0)
    page.goto(f"/{project}/weave/traces?kind=llm")
    expect(page.get_by_role("status", name="1 call")).to_be_visible()
    page.goto(f"/{project}/weave/traces?kind=fn")
    expect(page.get_by_role("status", name="10 calls")).to_be_visible()
