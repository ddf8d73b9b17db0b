"""Fields that no model library writes: of weave's own tracers, of anybody, and what is inferred."""

from typing import Any

import orjson
import pytest

from heddle.trace.otel import reading
from heddle.trace.otel.span import expand
from heddle.wire.spans import AgentSpan
from tests.support.otel import seen, span_of

Json = dict[str, Any]
HELLO = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]


def text(value: Any) -> str:
    """JSON text."""
    return orjson.dumps(value).decode()


def of(attributes: Json, **more: Any) -> AgentSpan:
    """What is seen of a span with these attributes."""
    return seen(span_of(attributes, **more))


def test_what_weaves_own_tracers_write() -> None:
    agent = of(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.name": "Trip",
            "weave.eval.run_id": "r",
            "weave.eval.predict_and_score_call_id": "p",
            "weave.eval.kind": "predict",
            "weave.eval.row_digest": "d",
            "weave.eval.example_id": "e",
            "weave.eval.trial_index": 0,
            "weave.eval.evaluation_name": "n",
            "weave.compaction.summary": "short",
            "weave.compaction.items_before": 9,
            "weave.compaction.items_after": 2,
            "weave.content_refs": ["weave:///e/p/object/a:v1"],
            "weave.artifact_refs": '["weave:///e/p/object/b:v1"]',
            "weave.object_refs": ["weave:///e/p/object/c:v1"],
            "weave.parent_call.id": "call",
            "weave.input.messages": text(HELLO),
            "weave.agent.name": "clerk",
        }
    )
    assert (agent.eval_run_id, agent.eval_predict_and_score_call_id, agent.eval_kind) == ("r", "p", "predict")
    assert (agent.eval_row_digest, agent.eval_example_id, agent.eval_trial_index) == ("d", "e", 0)
    assert (agent.eval_evaluation_name, agent.conversation_name, agent.agent_name) == ("n", "Trip", "clerk")
    assert (agent.compaction_summary, agent.compaction_items_before, agent.compaction_items_after) == ("short", 9, 2)
    refs = (agent.content_refs, agent.artifact_refs, agent.object_refs)
    assert refs == tuple([f"weave:///e/p/object/{name}:v1"] for name in "abc")
    assert agent.custom_attrs_string == {"weave.parent_call.id": "call"}
    assert agent.input_messages == HELLO


def test_attributes_that_no_convention_maps_are_kept_by_their_types() -> None:
    agent = of(
        {
            "gen_ai.operation.name": "chat",
            "tenant": "blue",
            "attempt": 2,
            "share": 0.5,
            "cached": True,
            "tags": ["a", "b"],
            "nothing": None,
            # These belong to libraries that did not make this span.
            "agent_name": "x",
            "events": "y",
        }
    )
    assert agent.custom_attrs_string == {
        "tenant": "blue",
        "tags": '["a","b"]',
        "nothing": "null",
        "agent_name": "x",
        "events": "y",
    }
    assert agent.custom_attrs_int == {"attempt": 2}
    assert agent.custom_attrs_float == {"share": 0.5}
    assert agent.custom_attrs_bool == {"cached": True}
    assert agent.agent_name is None


def test_a_span_of_anything_else_is_not_recognised_and_still_described() -> None:
    span = span_of({"http.request.method": "GET", "http.response.status_code": 500, "error.type": "500"})
    span.status_code = 2
    assert reading.read(span, expand(span.attributes)[0], "p").agent is None
    agent = reading.describe(span, "p")
    assert (agent.operation_name, agent.status_code, agent.error_type) == (None, "ERROR", "500")
    assert agent.custom_attrs_string == {"http.request.method": "GET"}
    assert (agent.started_at, agent.ended_at, agent.span_kind) == (100_000_000, 102_000_000, "INTERNAL")


@pytest.mark.parametrize(
    ("name", "attributes", "operation"),
    [
        ("embeddings m", {"gen_ai.request.model": "m"}, "embeddings"),
        ("invoke_agent clerk", {"gen_ai.agent.name": "clerk"}, "invoke_agent"),
        ("add", {"gen_ai.tool.name": "add"}, "execute_tool"),
        ("ask", {"gen_ai.response.model": "m"}, "chat"),
        ("ask", {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hello"}, "chat"),
        ("ask", {"gen_ai.conversation.id": "c"}, None),
        ("chat", {"gen_ai.operation.name": "text_completion"}, "text_completion"),
    ],
)
def test_spans_that_do_not_name_their_operation(name: str, attributes: Json, operation: str | None) -> None:
    assert of(attributes, name=name).operation_name == operation
