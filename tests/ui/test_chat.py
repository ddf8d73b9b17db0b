"""The chat view: every provider's wire, Markdown as safe nodes, tools, media, choices, token probabilities."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.chats import Chats
from tests.support.server import HeddleProcess
from tests.ui.support import look

IMPORT = """const base = JSON.parse(document.querySelector('meta[name="heddle"]').content).base;
    const load = (name) => import(base + "lib/" + name + ".js");"""


@pytest.fixture(scope="module")
def chats(server: HeddleProcess) -> Iterator[str]:
    """A project with a thread of rich calls."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/chats")
    written = Chats(wire)
    written.rich("everything")
    written.answered("everything", "Say something nice, twice.", "You are kind.", "שלום, you are clever 🎉")
    written.call(
        {"messages": [{"role": "user", "content": "مرحبا، كيف حالك؟ 🙂"}]}, None, "everything", "RateLimitError: later"
    )
    written.answered("long", "word **bold** " * 80_000, "answer " * 2000)
    written.call(
        {"messages": [{"role": ("user", "assistant")[at % 2], "content": f"line {at}"} for at in range(400)]},
        {"choices": [{"message": {"role": "assistant", "content": "the end"}}]},
        "many",
    )
    written.send()
    yield wire.project
    wire.client.close()


def evaluate(page: Page, script: str, argument: Any = None) -> Any:
    """The value of a function body that may `load` modules of the interface; the page must be open."""
    return page.evaluate(f"async (given) => {{ {IMPORT} {script} }}", argument)


def test_a_turn_shows_all_that_a_chat_may_hold(page: Page, chats: str) -> None:
    page.goto(f"/{chats}/weave/threads/everything")
    turn = page.get_by_role("region", name="Turn 1")
    expect(turn.get_by_role("button", name="show large")).to_be_visible()
    look(page, "chat", narrow=True)
    expect(turn.get_by_text("get_weather", exact=True)).to_be_visible()
    expect(turn.get_by_text("temperature:")).to_be_visible()
    expect(turn.get_by_role("cell", name="0.81")).to_be_visible()
    expect(turn.get_by_role("link", name="link", exact=True)).to_have_attribute("rel", "noopener noreferrer")
    expect(turn.get_by_role("link", name="diagram from images.example.com")).to_be_visible()
    expect(turn.get_by_role("link", name="bad")).to_have_count(0)
    expect(turn.get_by_text("<script>alert(1)</script>")).to_be_visible()
    turn.get_by_text("Reasoning").click()
    expect(turn.get_by_text("I call the tool first.")).to_be_visible()
    turn.get_by_role("button", name="Whole chat").click()
    expect(turn.get_by_text("You are careful.")).to_be_visible()
    turn.get_by_role("button", name="show large").click()
    expect(page.get_by_role("dialog").get_by_role("img")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Text").click()
    expect(turn.get_by_text("**what happens**")).to_be_visible()
    page.get_by_role("button", name="Rendered").click()


@pytest.mark.thorough
def test_choices_tokens_copying_and_errors(page: Page, chats: str) -> None:
    page.goto(f"/{chats}/weave/threads/everything")
    second = page.get_by_role("region", name="Turn 2")
    second.get_by_role("button", name="Whole chat").click()
    second.get_by_role("button", name="Next choice").click()
    expect(second.get_by_text("Choice 2 of 2")).to_be_visible()
    expect(second.get_by_text("you are clever")).to_be_visible()
    second.get_by_role("button", name="Copy message").last.click()
    assert "clever" in page.evaluate("navigator.clipboard.readText()")
    expect(page.get_by_role("region", name="Turn 3").get_by_text("RateLimitError: later")).to_be_visible()
    first = page.get_by_role("region", name="Turn 1")
    first.get_by_role("button", name="Tokens").click()
    first.get_by_role("group", name="Tokens").press("ArrowRight")
    expect(first.get_by_role("cell", name="maybe·")).to_be_visible()
    expect(first.get_by_role("cell", name="30.00 %")).to_be_visible()
    look(page, "chat-tokens")


@pytest.mark.thorough
def test_a_megabyte_and_four_hundred_messages_show_their_beginning(page: Page, chats: str) -> None:
    page.goto(f"/{chats}/weave/threads/long")
    expect(page.get_by_role("button", name="show all 1,120,000 characters")).to_be_visible()
    assert page.evaluate("document.querySelectorAll('strong').length") < 4000
    page.get_by_role("button", name="show all 1,120,000 characters").click()
    expect(page.get_by_role("button", name="characters left")).to_be_visible()
    look(page, "chat-long")
    page.goto(f"/{chats}/weave/threads/many")
    page.get_by_role("button", name="Whole chat").click()
    expect(page.get_by_role("button", name="Show 80 of 301 messages between")).to_be_visible()
    page.get_by_role("button", name="Show 80 of 301 messages between").click()
    expect(page.get_by_role("article")).to_have_count(20 + 160)


def test_markdown_makes_no_markup_and_takes_its_time_in_proportion(page: Page, chats: str) -> None:
    page.goto(f"/{chats}/weave/threads")
    markdown = "const { markdown } = await load('markdown'); const box = markdown(given);"
    html = evaluate(
        page, f"{markdown} return box.outerHTML;", "<img src=x onerror=alert(1)> [a](data:text/html,x) <b>b</b>"
    )
    assert "<img" not in html and "href" not in html and "<b>" not in html
    nested = evaluate(
        page, f"{markdown} return box.querySelectorAll('ul ul ol li').length;", "- a\n  - b\n    1. c\n    2. d\n- e"
    )
    assert nested == 2
    loose = evaluate(
        page, f"{markdown} return [...box.children].map((child) => child.tagName);", "a\n\n***\n\n# b\n\n~~~\n#\n~~~"
    )
    assert loose == ["P", "HR", "P", "FIGURE"]
    timed = "const started = performance.now(); markdown(given); return performance.now() - started;"
    for nasty in ("*", "[", "`", "_a", "> ", "- ", "|-", "![](", "\\", "<h", "https://", "a|b\n", "***a **b *c "):
        seconds = evaluate(
            page, f"const {{ markdown }} = await load('markdown'); {timed}", nasty * (1_000_000 // len(nasty))
        )
        assert seconds < 3000, nasty
