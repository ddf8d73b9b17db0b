"""A span of a library on the pages: its conversation, who it is about, and the filters that find it."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.otlp import Exporter, request, span
from tests.support.server import HeddleProcess
from tests.ui.support import look

SERIALISED = {"messages": [[{"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "How warm is it?"}}]]}
LANGCHAIN: dict[str, Any] = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "gpt-4o",
    "user.id": "ada",
    "tag.tags": ["blue", "green"],
    "input.value": json.dumps(SERIALISED),
    "output.value": '{"generations": []}',
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Answer in one sentence.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "How warm is it?",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c1",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "get_weather",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"city": "Paris"}',
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.tool_call_id": "c1",
    "llm.input_messages.3.message.content": "18 degrees",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "It is 18 degrees in Paris.",
}


@pytest.fixture(scope="module")
def spans(server: HeddleProcess) -> Iterator[str]:
    """A project with a request to a model and a step beside it."""
    project = f"team-{uuid.uuid4().hex[:8]}/spans"
    exporter = Exporter(server.url, project)
    step = span(2, 2, name="step", attributes={"openinference.span.kind": "CHAIN", "input.value": '{"a": 1}'})
    message = request(span(1, name="ChatOpenAI", attributes=LANGCHAIN), step)
    assert not exporter.export(message).HasField("partial_success")
    yield project
    exporter.client.close()


def test_the_chat_of_a_span(page: Page, spans: str) -> None:
    page.goto(f"/{spans}/weave/calls/{1:016x}")
    detail = page.get_by_role("region", name="Chosen call")
    for text in ("Answer in one sentence.", "How warm is it?", "18 degrees", "It is 18 degrees in Paris."):
        expect(detail.get_by_text(text, exact=True)).to_be_visible()
    expect(detail.get_by_text("get_weather", exact=True)).to_be_visible()
    expect(detail.get_by_text("no result")).to_have_count(0)
    expect(detail.get_by_text("ada", exact=True)).to_be_visible()
    expect(detail.get_by_text("blue, green")).to_be_visible()
    look(page, "span-chat", narrow=True)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(detail.get_by_text("How warm is it?", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page is wider than a phone"
    page.goto(f"/{spans}/weave/calls/{2:016x}")
    expect(page.get_by_role("tab", name="Inputs & output")).to_be_visible()
    expect(page.get_by_role("tab", name="Chat")).to_have_count(0)


def test_filters_find_attributes_of_spans(page: Page, spans: str) -> None:
    condition = json.dumps([["attributes.otel_span.attributes.llm.model_name", "is", "gpt-4o"]])
    page.goto(f"/{spans}/weave/traces?roots=0")
    expect(page.get_by_text("step", exact=True)).to_be_visible()
    expect(page.get_by_text("How warm is it?")).to_be_visible()
    page.goto(f"/{spans}/weave/traces?roots=0&f={condition}")
    expect(page.get_by_text("How warm is it?")).to_be_visible()
    expect(page.get_by_text("step", exact=True)).to_have_count(0)
