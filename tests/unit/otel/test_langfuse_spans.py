"""Spans of the Langfuse SDKs as calls: usage in each of its forms, failures, and all that they say of their trace."""

import json
from typing import Any

import orjson
import pytest

from heddle.wire.calls import ERROR, SUCCESS
from tests.support.otlp import span
from tests.unit.otel.test_call import one, packed

BASE = "langfuse.observation."
GENERATION = {f"{BASE}type": "generation", f"{BASE}model.name": "m"}
NESTED = {"prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 16}}
TRACE = {
    "user.id": "ada",
    "session.id": "talk",
    "langfuse.trace.name": "my trace",
    "langfuse.trace.tags": ["a", "b"],
    "langfuse.trace.metadata.plan": '"pro"',
    "langfuse.environment": "staging",
    "langfuse.release": "r1",
    "langfuse.version": "v7",
    f"{BASE}metadata.team": "blue",
}
OF_TRACE = {
    "tags": ["a", "b"], "metadata": {"team": "blue", "plan": "pro"}, "trace_name": "my trace",
    "environment": "staging", "release": "r1", "version": "v7",
}  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, **NESTED}, (100, 20, 64, 16)),
        ({"input": 36, "input_cached_tokens": 64, "output": 4, "output_reasoning_tokens": 16}, (100, 20, 64, 16)),
        (
            {
                "input_tokens": 100, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 64},
                "output_tokens_details": {"reasoning_tokens": 16},
            },
            (100, 20, 64, 16),
        ),
        ({"input": 36, "input_cache_read": 64, "output": 20}, (100, 20, 64, None)),
        ({"input_tokens": 36, "cache_read_input_tokens": 64, "output_tokens": 20}, (100, 20, 64, None)),
        ({"prompt_tokens": 10, "prompt_tokens_details": None, "completion_tokens": 2}, (10, 2, None, None)),
        ({"input": 10, "output": 2, "prompt_tokens_details": {"cached_tokens": "x"}}, (10, 2, None, None)),
    ],
)  # fmt: skip
def test_usage_in_each_of_its_forms(usage: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    _, _, _, entry = one(**GENERATION, **{f"{BASE}usage_details": json.dumps(usage)})
    keys = ("input_tokens", "output_tokens", "cache_read_input_tokens", "reasoning_tokens")
    assert tuple(entry.get(key) for key in keys) == counts


def test_what_a_generation_says_of_its_trace() -> None:
    own = {f"{BASE}model.parameters": '{"temperature": 0.5}', f"{BASE}cost_details": '{"total": 1.5}'}
    own |= {
        f"{BASE}prompt.name": "greet",
        f"{BASE}prompt.version": 3,
        f"{BASE}input": '[{"role":"user","content":"hi"}]',
    }
    start, end, attributes, _ = one(**GENERATION, **TRACE, **own)
    assert (start.user, start.thread_id, end.status) == ("ada", "talk", SUCCESS)
    assert (attributes.pop("user"), attributes.pop("session")) == ({"id": "ada"}, {"id": "talk"})
    assert attributes == OF_TRACE | {
        "kind": "llm", "model": "m", "model_parameters": {"temperature": 0.5}, "cost_details": {"total": 1.5},
        "prompt": {"name": "greet", "version": 3},
    }  # fmt: skip


@pytest.mark.parametrize("status", [{"code": 2, "message": "boom"}, None])
def test_a_failed_generation_keeps_nothing_unread(status: dict[str, Any] | None) -> None:
    attributes = {**GENERATION, **TRACE, f"{BASE}level": "ERROR", f"{BASE}status_message": "boom"}
    attributes |= {f"{BASE}input": '[{"role": "user", "content": "hi"}]', "mine": 1, "langfuse.internal.as_root": False}
    (start,), (end,), (agent,) = packed(span(1, attributes=attributes, **({"status": status} if status else {})))
    shown = orjson.loads(start.attributes)
    assert (end.status, end.exception, agent.status_code) == (ERROR, "boom", "ERROR")
    assert "langfuse" not in shown and (shown["level"], shown["status_message"], shown["mine"]) == ("ERROR", "boom", 1)
    assert shown.items() >= OF_TRACE.items() and shown["model"] == "m"
    assert "hi" in start.inputs and orjson.loads(start.otel_dump or "")["attributes"]["langfuse"]["release"] == "r1"


def test_a_warning_is_no_failure() -> None:
    _, end, attributes, _ = one(
        **{f"{BASE}type": "span", f"{BASE}level": "WARNING", f"{BASE}status_message": "careful"}
    )
    assert (end.status, end.exception) == (SUCCESS, None)
    assert (attributes["level"], attributes["status_message"]) == ("WARNING", "careful")


@pytest.mark.parametrize("kind", ["span", "chain", "retriever", "event", "tool"])
def test_steps_have_values_and_models_have_messages(kind: str) -> None:
    given = {f"{BASE}input": '{"q": 1}', f"{BASE}output": "[1, 2]"}
    start, end, _, _ = one(**{f"{BASE}type": kind}, **given)
    assert (orjson.loads(start.inputs), orjson.loads(end.output or "")) == ({"q": 1}, [1, 2])
    start, end, _, _ = one(**{f"{BASE}type": "agent"}, **{f"{BASE}input": "hi", f"{BASE}output": "yo"})
    assert "gen_ai.input.messages" in start.inputs and "gen_ai.output.messages" in (end.output or "")


def test_the_outermost_call_bears_the_name_of_the_trace() -> None:
    marked = {**TRACE, f"{BASE}type": "span", "langfuse.internal.is_app_root": True}
    inner = {**TRACE, f"{BASE}type": "span"}
    (outer, within), _, _ = packed(span(2, parent=1, attributes=marked), span(3, parent=2, attributes=inner))
    # Its parent belongs to a library whose spans the SDK does not export.
    assert (outer.parent_id, outer.display_name, outer.turn_id) == (None, "my trace", outer.id)
    assert (within.parent_id, within.display_name, within.turn_id) == (outer.id, None, None)
