"""Threads, conversations of agents, agents with their versions."""

import re
import time
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import SDK_VERSIONS, Wire, python_client
from tests.support import agents
from tests.support.chats import Chats
from tests.support.server import HeddleProcess
from tests.ui.support import look

LONG = "a-thread-with-a-very-long-name-" + "x" * 120


@pytest.fixture(scope="module")
def talk(server: HeddleProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A project with threads and agents that the SDK wrote, and a thread of sixty turns."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/threads")
    client = python_client(SDK_VERSIONS[0], server, wire.project, tmp_path_factory.mktemp("threads"))
    client.run("threads.py")
    client.run("agents.py")
    chats = Chats(wire)
    for number in range(1, 61):
        chats.answered("sixty", f"Question {number}", f"Answer {number}")
    chats.answered(LONG, "مرحبا 🙂", "a very long answer without any pause " * 20)
    chats.call({"messages": [{"role": "user", "content": "Hi"}]}, None, "failing", error="It broke", tokens=0)
    chats.send()
    yield wire
    wire.client.close()


def test_threads_are_listed_sorted_and_searched(page: Page, talk: Wire) -> None:
    page.goto(f"/{talk.project}/weave/threads")
    row = page.get_by_role("row", name=re.compile("sixty"))
    for text in ("Answer 60", "60", "2m 0s", "7.2K", "$0.03"):
        expect(row).to_contain_text(text)
    expect(page.get_by_role("row", name=re.compile("failing"))).to_contain_text("1 failed")
    look(page, "threads", narrow=True)
    page.get_by_role("columnheader", name="Turns").get_by_role("button").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("sixty")
    page.get_by_role("searchbox", name="Search threads").fill("alk")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_text("1 thread", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox", name="Search threads").fill("nothing of the kind")
    expect(page.get_by_role("heading", name="No thread with this name")).to_be_visible()


@pytest.mark.thorough
def test_turns_are_paged_stepped_through_and_annotated(page: Page, talk: Wire) -> None:
    page.goto(f"/{talk.project}/weave/threads")
    page.get_by_role("link", name="sixty").click()
    expect(page.get_by_text("Turns 51 to 60 of 60")).to_be_visible()
    expect(page.get_by_text("Answer 60")).to_be_visible()
    look(page, "thread")
    page.keyboard.press("k")
    expect(page.get_by_role("region", name="Turn 60")).to_be_focused()
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_text("Turns 26 to 50 of 60")).to_be_visible()
    expect(page.get_by_role("region", name="Turn 26")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.get_by_role("region", name="Turn 25", exact=True)).to_be_focused()
    expect(page).to_have_url(re.compile("page=1&turn="))
    page.go_back()
    expect(page.get_by_text("Turns 26 to 50 of 60")).to_be_visible()
    turn = page.get_by_role("region", name="Turn 26")
    turn.get_by_role("button", name="Good").click()
    expect(turn.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")
    turn.get_by_role("button", name="Add a note").click()
    page.get_by_label("Note", exact=True).fill("Well said")
    page.get_by_role("dialog").get_by_role("button", name="Add note").click()
    turn.get_by_text("1 note").click()
    expect(turn.get_by_text("Well said")).to_be_visible()
    page.reload()
    expect(turn.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")
    stored = talk.post("/feedback/query", query=None, fields=["feedback_type"])["result"]
    assert sorted(row["feedback_type"] for row in stored) == ["wandb.note.1", "wandb.reaction.1"]
    turn.get_by_role("link", name="openai.chat.completions.create").click()
    expect(page).to_have_url(re.compile(r"/weave/traces/.+call="))


@pytest.mark.thorough
def test_turns_of_plain_ops_long_names_and_unknown_threads(page: Page, talk: Wire) -> None:
    page.goto(f"/{talk.project}/weave/threads/talk")
    first = page.get_by_role("region", name="Turn 1")
    expect(first.get_by_role("article", name="User message")).to_contain_text("0")
    expect(first.get_by_role("article", name="Assistant message")).to_contain_text("1")
    expect(first.get_by_role("link", name="turn")).to_be_visible()
    page.goto(f"/{talk.project}/weave/threads/{LONG}")
    expect(page.get_by_text("a very long answer").first).to_be_visible()
    look(page, "thread-long", narrow=True)
    page.goto(f"/{talk.project}/weave/threads/some/where%20else")
    expect(page.get_by_role("heading", name="This thread has no turns")).to_be_visible()


def test_a_conversation_with_agents(page: Page, talk: Wire) -> None:
    page.goto(f"/{talk.project}/weave/agents/conversations")
    expect(page.get_by_role("row", name=re.compile("A tour"))).to_contain_text("You are welcome")
    look(page, "conversations")
    page.get_by_role("searchbox", name="Search what was said").fill("tower")
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="A tour").click()
    first = page.get_by_role("region", name="Turn 1")
    for text in ("Where is the tower?", "map", "north", "North it is", "In the north.", "version 3"):
        expect(first.get_by_text(text, exact=True).first).to_be_visible()
    look(page, "conversation", narrow=True)
    first.get_by_role("button", name="Bad").click()
    expect(first.get_by_role("button", name="Bad")).to_have_attribute("aria-pressed", "true")
    page.goto(f"/{talk.project}/weave/agents/conversations/tour?page=1")
    expect(first.get_by_role("button", name="Bad")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("j")
    expect(first).to_be_focused()


@pytest.mark.thorough
def test_a_long_conversation_is_paged(page: Page, talk: Wire) -> None:
    traces = [agents.Trace("long-talk", time.time_ns() - (40 - number) * 10**9) for number in range(30)]
    for number, trace in enumerate(traces, 1):
        trace.chat(trace.agent("talker", user=f"Question {number}"), answer=f"Answer {number}")
    agents.export(talk, *traces)
    page.goto(f"/{talk.project}/weave/agents/conversations/long-talk")
    expect(page.get_by_text("Turns 26 to 30 of 30")).to_be_visible()
    expect(page.get_by_role("region", name="Turn 30").get_by_text("Answer 30")).to_be_visible()
    expect(page.get_by_text("Answer 25")).to_have_count(0)
    page.keyboard.press("[")
    expect(page.get_by_text("Turns 1 to 25 of 30")).to_be_visible()
    expect(page.get_by_role("region", name="Turn 25").get_by_text("Answer 25")).to_be_visible()
    page.reload()
    expect(page.get_by_role("region", name="Turn 1", exact=True).get_by_text("Answer 1", exact=True)).to_be_visible()
    expect(page.get_by_text("Answer 26")).to_have_count(0)


@pytest.mark.thorough
def test_agents_with_their_versions(page: Page, talk: Wire) -> None:
    page.goto(f"/{talk.project}/weave/agents")
    page.get_by_role("cell", name="guide").click()
    versions = page.get_by_role("table", name="Versions of guide")
    expect(versions.get_by_role("row")).to_have_count(3)
    look(page, "agents")
    page.get_by_role("row", name=re.compile("checker")).get_by_role("link", name="Show").click()
    expect(page.get_by_role("link", name="A tour")).to_be_visible()


@pytest.mark.thorough
def test_empty_lists_teach(page: Page, project: str) -> None:
    page.goto(f"/{project}/weave/threads")
    expect(page.get_by_text('with weave.thread("first-conversation"):')).to_be_visible()
    look(page, "threads-empty")
    page.get_by_role("button", name="Agents").click()
    expect(page.get_by_role("heading", name="No agents yet")).to_be_visible()
    page.goto(f"/{project}/weave/agents/conversations/nobody")
    expect(page.get_by_role("heading", name="Conversation not found")).to_be_visible()


def test_numbers_that_a_number_would_round(page: Page, wire: Wire) -> None:
    """Values keep their digits; counts and scores are reckoned with, whatever a client sent."""
    huge = 2**60 + 1
    chats = Chats(wire)
    call = chats.call({"messages": [{"role": "user", "content": "Hi"}]}, {"id": huge}, "huge", tokens=huge)
    chats.send()
    run = {"project_id": wire.project, "id": str(uuid.uuid4()), "trace_id": str(uuid.uuid4()), "attributes": {}}
    run |= {"op_name": "Evaluation.evaluate", "inputs": {"self": "exam"}, "summary": {}}
    run |= {"started_at": "2026-11-01T10:00:00Z", "ended_at": "2026-11-01T10:00:01Z"}
    run |= {"output": {"exact": {"mean": huge}, "model_latency": {"mean": huge}}}
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [run]}).status_code == 200
    page.goto(f"/{wire.project}/weave/threads/huge")
    expect(page.get_by_text("Turn 1", exact=True)).to_be_visible()
    page.goto(f"/{wire.project}/weave/evaluations")
    expect(page.get_by_role("row")).to_have_count(2)
    page.goto(f"/{wire.project}/weave/evaluations/{run['id']}")
    expect(page.get_by_role("heading", name="Gate in CI")).to_be_visible()
    page.goto(f"/{wire.project}/r/call/{call}")
    expect(page.get_by_text(str(huge)).first).to_be_visible()
