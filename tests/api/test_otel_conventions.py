"""Recorded exports of real instrumentation libraries, sent to a server: what the stored calls show."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.otel import RECORDED, RECORDINGS, recorded

Json = dict[str, Any]
MODEL = "gpt-5-mini-2026-01-01"
PRICE = {
    "prompt_token_cost": 0.001,
    "completion_token_cost": 0.01,
    "cache_read_input_token_cost": 0.0001,
}
QUESTION, ANSWER = "How warm is it in Paris?", "It is 18 degrees in Paris."
UNCACHED = {"prompt_tokens_total_cost": 0.12, "completion_tokens_total_cost": 0.3}
CACHED = {
    "prompt_tokens_total_cost": 0.056,
    "completion_tokens_total_cost": 0.3,
    "cache_read_input_tokens_total_cost": 0.0064,
}


def send(wire: Wire, name: str) -> list[Json]:
    """Send a recording; its calls in the order of the export, with costs."""
    kind = "application/json" if name.endswith(".json") else "application/x-protobuf"
    headers = {"content-type": kind, "project_id": wire.project}
    answer = wire.client.post("/otel/v1/traces", content=(RECORDED / name).read_bytes(), headers=headers)
    assert answer.status_code == 200, answer.text
    found = {call["id"]: call for call in wire.calls(include_costs=True)}
    return [found[span.span_id] for span in recorded(name)]


def usage_of(call: Json, model: str = MODEL) -> tuple[Any, ...]:
    """Prompt (in either spelling), completion, total, cached, cache-written and reasoning tokens."""
    usage = call["summary"]["usage"][model]
    # The two spellings of one count are summed where they are priced: only one may be there.
    prompt = [usage[name] for name in ("prompt_tokens", "input_tokens") if usage[name] is not None]
    completion = [usage[name] for name in ("completion_tokens", "output_tokens") if usage[name] is not None]
    assert (len(prompt), len(completion)) == (1, 1)
    cached = (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"])
    return (prompt[0], completion[0], usage["total_tokens"], *cached, usage.get("reasoning_tokens"))


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_span_of_every_library_is_a_call(wire: Wire, name: str) -> None:
    """In its trace, below its parent, with all that it was sent with."""
    calls = send(wire, name)
    for span, call in zip(recorded(name), calls, strict=True):
        assert (call["trace_id"], call["parent_id"]) == (span.trace_id, span.parent_id or None)
        kept = json.dumps(call["attributes"]["otel_span"])
        assert span.name in kept
        assert call["ended_at"] >= call["started_at"]
    assert len(calls) == len(wire.calls())


@pytest.mark.parametrize(
    ("name", "op", "place", "cached", "reasoning"),
    [
        ("genai-tools.bin", "chat_gpt-5-mini", (0, 1), 64, 12),
        ("genai-responses.bin", "chat_gpt-5-mini", (0, 1), 64, 12),
        ("openinference-tools.bin", "chatcompletion", (0, 1), 64, 12),
        ("openinference-responses.bin", "response", (0, 1), 64, 12),
        ("openllmetry-tools.bin", "openai.chat", (0, 1), 64, 12),
        ("old-openllmetry-tools.bin", "openai.chat", (0, 1), 64, None),
        ("vercel4-tools.bin", "ai.generatetext.dogenerate", (0, 2), 64, 12),
        ("vercel6-tools.json", "ai.generatetext.dogenerate", (0, 2), 64, 12),
        ("vercel7-tools.bin", "chat_gpt-5-mini", (0, 3), 64, None),
        ("old-logfire-1.bin", "chat_gpt-5-mini", (0, 3), None, 12),
        ("logfire-2.bin", "chat_gpt-5-mini", (0, 2), 64, 12),
        ("logfire-6.bin", "chat_gpt-5-mini", (0, 2), 64, 12),
    ],
)
def test_a_model_that_calls_a_tool_and_answers(
    wire: Wire, name: str, op: str, place: tuple[int, int], cached: int | None, reasoning: int | None
) -> None:
    """Messages in, the call, the answer, tokens and cost, alike in every library."""
    wire.post("/cost/create", costs={MODEL: PRICE})
    calls = send(wire, name)
    first, second = (calls[index] for index in place)
    for call in (first, second):
        assert call["op_name"].startswith(f"weave:///{wire.project}/op/{op}:")
        assert call["attributes"]["kind"].lower() == "llm"
        assert call["attributes"]["model"] == MODEL
        assert QUESTION in json.dumps(call["inputs"])
        assert usage_of(call) == (120, 30, 150, cached, None, reasoning) or (
            usage_of(call) == (120, 30, 150, cached, 0, reasoning)
        )
        costs = call["summary"]["weave"]["costs"][MODEL]
        expected = UNCACHED if cached is None else CACHED
        assert {key: round(costs[key], 9) for key in expected} == expected
        assert (call["exception"], call["summary"]["weave"]["status"]) == (None, "success")
    asked_for = json.dumps(first["output"]).replace("getWeather", "get_weather")
    assert "get_weather" in asked_for
    assert "city" in asked_for
    assert "degrees" in json.dumps(second["inputs"])
    assert ANSWER in json.dumps(second["output"])


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("vercel4-tools.bin", 1),
        ("vercel6-tools.json", 1),
        ("vercel7-tools.bin", 1),
        ("old-logfire-1.bin", 1),
        ("logfire-2.bin", 1),
        ("logfire-6.bin", 1),
        ("langfuse.bin", 1),
    ],
)
def test_a_tool_shows_its_arguments_and_its_result(wire: Wire, name: str, place: int) -> None:
    call = send(wire, name)[place]
    assert call["attributes"]["kind"] == "tool"
    assert (call["inputs"], call["output"]) == ({"city": "Paris"}, {"degrees": 18})


@pytest.mark.parametrize(
    ("name", "counted", "prompt"),
    [
        ("openllmetry-anthropic.bin", 4, 100),
        ("old-openllmetry-anthropic.bin", 2, 100),
        ("openinference-anthropic.bin", 4, 100),
        ("logfire-anthropic.bin", 4, 100),
        ("vercel4-anthropic.bin", 1, 20),
        ("vercel5-anthropic.bin", 1, 20),
        ("vercel6-anthropic.json", 1, 100),
        ("vercel7-anthropic.bin", 1, 100),
    ],
)
def test_anthropics_cached_tokens_are_priced_once(wire: Wire, name: str, counted: int, prompt: int) -> None:
    """20 uncached, 64 read, 16 written, reported within a prompt of 100 or beside one of 20: each at its own price."""
    model = "claude-sonnet-4-5"
    price = {**PRICE, "cache_creation_input_token_cost": 0.002, "effective_date": "2020-01-01T00:00:00Z"}
    wire.post("/cost/create", costs={model: price})
    calls = [call for call in send(wire, name) if str(call["attributes"].get("kind")).lower() == "llm"]
    assert len(calls) == counted
    for call in calls:
        assert usage_of(call, model)[:5] == (prompt, 30, prompt + 30, 64, 16)
        costs = call["summary"]["weave"]["costs"][model]
        assert round(costs["prompt_tokens_total_cost"], 9) == 0.02
        assert round(costs["cache_read_input_tokens_total_cost"], 9) == 0.0064
        assert round(costs["cache_creation_input_tokens_total_cost"], 9) == 0.032


@pytest.mark.parametrize(
    "name",
    [
        "genai-error.bin",
        "openinference-error.bin",
        "openllmetry-error.bin",
        "vercel4-error.bin",
        "vercel6-error.json",
        "vercel7-error.bin",
    ],
)
def test_a_failed_request_is_a_failed_call(wire: Wire, name: str) -> None:
    for call in send(wire, name):
        assert "no such model: model-missing" in call["exception"]
        assert call["summary"]["weave"]["status"] == "error"
        assert call["output"] == {}


@pytest.mark.parametrize(
    ("name", "thread"), [("vercel6-tools.json", "session-1"), ("langfuse.bin", "session-1"), ("logfire-6.bin", None)]
)
def test_the_conversation_is_the_thread(wire: Wire, name: str, thread: str | None) -> None:
    """Named as the library names it, with turns; the spans around a pydantic-ai agent do not know of it."""
    calls = send(wire, name)
    inside = [call for call in calls if call["thread_id"] is not None]
    assert len(inside) == (len(calls) if thread else 4)
    threads = wire.lines("/threads/stream_query")
    assert len(threads) == 1
    assert threads[0]["thread_id"] == (thread or inside[0]["thread_id"])
    assert threads[0]["turn_count"] >= 1
    turns = Counter(call["turn_id"] for call in inside)
    assert any(turn is not None for turn in turns)


def test_a_streamed_answer_is_one_text(wire: Wire) -> None:
    for name in ("genai-stream.bin", "openinference-stream.bin", "openllmetry-stream.bin", "vercel6-stream.json"):
        call = send(wire, name)[0]
        assert ANSWER in json.dumps(call["output"])
        assert usage_of(call)[:3] == (120, 30, 150)
