"""What the conventions add to the table's calls: kind, messages, tokens, threads, errors; and odd values everywhere."""

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from heddle.auth import LOCAL
from heddle.trace.otel.export import Export, ProjectResolver
from heddle.trace.prices import PricedUsage
from heddle.wire.calls import ERROR, SUCCESS, End, Start, Usage
from heddle.wire.spans import AgentSpan
from tests.support.otlp import key_values, request, span


def packed(*spans: Any, resource: Any = None) -> tuple[list[Start], list[End], list[AgentSpan]]:
    """What an export of the spans writes."""
    settings: Any = SimpleNamespace(large_field_bytes=2**30)
    body = request(*spans, resource=resource).SerializeToString()
    projects = ProjectResolver(LOCAL, "team/project")
    calls, agents = Export(settings, cast(Any, None), cast(Any, None), projects).pack(body, False)
    return calls.starts, calls.ends, agents


def one(**attributes: Any) -> tuple[Start, End, dict[str, Any], dict[str, Any]]:
    """The call of one span: both halves, its attributes, and the entry of its usage."""
    (start,), (end,), _ = packed(span(1, attributes=attributes))
    (entry,) = orjson.loads(end.summary)["usage"].values()
    return start, end, orjson.loads(start.attributes), entry


ANTHROPIC = {"ai.usage.promptTokens": 100, "ai.model.id": "m", "ai.model.provider": "anthropic.messages"}
ANTHROPIC |= {"ai.response.providerMetadata": '{"anthropic": {"cacheReadInputTokens": 60}}'}
"""A library that counts cached tokens beside the prompt's (Vercel 4 with Anthropic)."""


@pytest.mark.parametrize(
    ("attributes", "prompt", "uncached", "cached"),
    [
        ({"gen_ai.usage.input_tokens": 100, "gen_ai.usage.cache_read.input_tokens": 60}, 100, 40, 60),
        ({"gen_ai.usage.input_tokens": 100, "gen_ai.usage.prompt_tokens": 100}, 100, 100, 0),
        ({"gen_ai.usage.input_tokens": 40, "gen_ai.usage.cache_read.input_tokens": 60}, 40, 40, 60),
        (ANTHROPIC, 160, 100, 60),
        ({"llm.token_count.prompt": "100", "llm.token_count.prompt_details.cache_read": 60}, 100, 40, 60),
        ({"ai.usage.promptTokens": 100, "ai.usage.cachedInputTokens": 60, "ai.model.id": "m"}, 100, 40, 60),
    ],
)
def test_cached_tokens_are_priced_once(attributes: dict[str, Any], prompt: int, uncached: int, cached: int) -> None:
    """Inside or beside the prompt's, in one spelling or two (contract/README 9)."""
    _, end, _, entry = one(**{"gen_ai.request.model": "m", **attributes})
    used = Usage.of("m", entry)
    assert (used.prompt, used.cache_read) == (prompt, cached)
    costs = {"prompt_token_cost": 1, "completion_token_cost": 1, "cache_read_input_token_cost": 1}
    priced = PricedUsage.of(used, cast(Any, SimpleNamespace(**costs, cache_creation_input_token_cost=1)))
    assert priced == (uncached, 0, cached, 0)
    assert [(usage.prompt, usage.cache_read) for usage in end.usage] == [(prompt, cached)]


def test_steps_of_mastra_have_what_they_were_given_and_gave() -> None:
    values = {"mastra.span.type": "workflow_step", "mastra.workflow_step.input": '{"q": "?"}'}
    values |= {"mastra.workflow_step.output": '{"a": 1}', "mastra.metadata.userId": "ann", "mastra.metadata.plan": "x"}
    (start,), (end,), _ = packed(span(1, attributes={"gen_ai.operation.name": "workflow_step", **values}))
    assert (orjson.loads(start.inputs), orjson.loads(end.output)) == ({"q": "?"}, {"a": 1})
    assert start.user == "ann" and orjson.loads(start.attributes)["metadata"] == {"userId": "ann", "plan": "x"}


def test_the_answer_of_an_agent_stands_beside_details_of_its_provider() -> None:
    """The Vercel AI SDK 7 with all of its options."""
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}]}]
    context = {f"ai.settings.context.{name}": value for name, value in [("sessionId", "s1"), ("userId", "ann")]}
    counts = {"gen_ai.usage.input_tokens": 7, "ai.response.providerMetadata": '{"openai": {}}'}
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.output.messages": orjson.dumps(said).decode()}
    step = {"gen_ai.operation.name": "agent_step", "ai.usage.outputTokenDetails.reasoningTokens": 16}
    spans = (span(1, attributes={**agent, **counts, **context}), span(2, attributes=step))
    (start, _), (end, of_step), _ = packed(*spans)
    assert orjson.loads(end.output) == {"gen_ai.output.messages": said}
    assert (start.thread_id, start.user) == ("s1", "ann")
    assert not any(orjson.loads(of_step.summary)["usage"]["usage"].values())


def test_reasoning_tokens_are_kept() -> None:
    counts = {"llm.token_count.completion": 30, "llm.token_count.completion_details.reasoning": 12}
    _, _, _, entry = one(**counts, **{"llm.model_name": "m", "openinference.span.kind": "LLM"})
    assert (entry["completion_tokens"], entry["reasoning_tokens"]) == (30, 12)


def test_a_span_without_an_end_has_no_duration() -> None:
    (start,), (end,), _ = packed(span(1, end_time_unix_nano=0))
    assert end.ended_at == start.started_at > 0


def test_spans_without_tokens_report_none() -> None:
    _, end, _, entry = one(**{"http.method": "GET"})
    assert set(entry.values()) == {None} and end.usage == []


def test_a_tool_span_shows_arguments_and_result() -> None:
    start, end, attributes, _ = one(
        **{
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "calc",
            "gen_ai.tool.call.arguments": '{"a": 1}',
            "gen_ai.tool.call.result": "2",
        }
    )
    assert (orjson.loads(start.inputs), orjson.loads(end.output or "")) == ({"a": 1}, 2)
    assert attributes["kind"] == "tool"


def test_messages_in_events_become_inputs_and_output() -> None:
    """The shape of 2025: one event per message."""
    events = [
        {"name": "gen_ai.user.message", "attributes": key_values({"content": "hi", "role": "user"})},
        {"name": "gen_ai.choice", "attributes": key_values({"message": '{"role":"assistant","content":"yo"}'})},
    ]
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    (start,), (end,), _ = packed(span(1, attributes=attributes, events=events))
    (message,) = orjson.loads(start.inputs)["gen_ai.input.messages"]
    assert message["role"] == "user" and message["parts"][0]["content"] == "hi"
    (answer,) = orjson.loads(end.output or "")["gen_ai.output.messages"]
    assert answer["parts"][0]["content"] == "yo"


def test_a_session_of_another_convention_is_a_thread_with_its_root_as_turn() -> None:
    session = {"session.id": "s-1", "openinference.span.kind": "CHAIN"}
    starts, _, _ = packed(span(1, attributes=session), span(2, parent=1, attributes=session))
    assert [(start.thread_id, start.turn_id) for start in starts] == [("s-1", starts[0].id), ("s-1", None)]


@pytest.mark.parametrize(
    ("status", "exception", "kind"),
    [
        ({"code": 2, "message": "boom"}, "boom", ERROR),
        ({"code": 2}, "E: wrong\nstack", ERROR),
        ({"code": 1, "message": "fine"}, None, SUCCESS),
        ({}, None, SUCCESS),
    ],
)
def test_errors(status: dict[str, Any], exception: str | None, kind: int) -> None:
    told = {"exception.type": "E", "exception.message": "wrong", "exception.stacktrace": "stack"}
    events = [{"name": "exception", "attributes": key_values(told)}]
    _, (end,), _ = packed(span(1, status=status, events=events))
    assert (end.exception, end.status) == (exception, kind)


def test_an_error_that_says_nothing_at_all_reads_as_not_failed() -> None:
    """As the contract has it (trace-core, 12)."""
    _, (end,), _ = packed(span(1, status={"code": 2}))
    assert (end.exception, end.status) == ("", SUCCESS)


def test_spans_of_evaluations_name_their_calls() -> None:
    """What SDK 0.54 stamps on spans inside predict_and_score (clients.md 2.4)."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "weave.eval.predict_and_score_call_id": "p",
        "weave.eval.run_id": "r",
        "weave.eval.kind": "standard",
        "weave.eval.evaluation_name": "e",
        "weave.eval.row_digest": "d",
        "weave.eval.trial_index": 3,
    }
    _, _, (agent,) = packed(span(1, attributes=attributes))
    assert (agent.eval_predict_and_score_call_id, agent.eval_run_id, agent.eval_kind) == ("p", "r", "standard")
    assert (agent.eval_evaluation_name, agent.eval_row_digest, agent.eval_trial_index) == ("e", "d", 3)


def test_only_spans_about_models_agents_and_tools_are_indexed() -> None:
    _, _, agents = packed(span(1, attributes={"http.method": "GET"}), span(2, attributes={"gen_ai.agent.name": "a"}))
    assert [agent.span_id for agent in agents] == [f"{2:016x}"]


def test_runs_of_the_resource_and_of_the_span() -> None:
    (start,), _, _ = packed(span(1, attributes={"wandb.wb_run_id": "mine", "wandb.wb_run_step": "5"}))
    assert start.run_id == f"{start.project}:mine" and start.run_step == 5
    (start,), _, _ = packed(span(1, attributes={"wandb.wb_run_id": "mine"}), resource={"wandb.run_id": "other"})
    assert start.run_id == f"{start.project}:other"
    for odd in ("a/b", "a:b", 5.5, ""):
        (start,), _, _ = packed(span(1, attributes={"wandb.wb_run_id": odd, "wandb.wb_run_step": "x"}))
        assert start.run_id == (f"{start.project}:5.5" if odd == 5.5 else None) and start.run_step is None


@pytest.mark.parametrize(
    ("attributes", "where"),
    [
        ({"langfuse.startTime": "2026-01-01T00:00:00Z"}, 1_767_225_600_000_000),
        ({"langfuse.startTime": "2026-01-01T00:00:00"}, 1_767_225_600_000_000),
        ({"langfuse.startTime": 1_767_225_600_000_000_000}, 1_767_225_600_000_000),
        ({"langfuse.startTime": 1_767_225_600.5}, 1_767_225_600_500_000),
        ({"langfuse.startTime": "soon"}, 1_795_204_029_885_327),
        ({"langfuse.startTime": 1e300}, 1_795_204_029_885_327),
        ({"langfuse.startTime": 2**62 + 2**61}, (2**62 + 2**61) // 1000),
    ],
)
def test_times_of_langfuse(attributes: dict[str, Any], where: int) -> None:
    assert one(**attributes)[0].started_at == where


ODD = [0, -1, 2**63 - 1, 1.5, True, "", "text", "[1]", '{"a": 1}', "[]", "{}", ["x"], {"k": {"l": [1]}}, None, b"\xff"]
KEYS = ["gen_ai.usage.input_tokens", "gen_ai.request.model", "gen_ai.request", "gen_ai.conversation.id", "input"]
KEYS += ["wandb.display_name", "wandb.attributes", "wandb.thread_id", "wandb.is_turn", "wandb.wb_run_step", "output"]
KEYS += ["gen_ai.operation.name", "gen_ai.response.finish_reasons", "gen_ai.input.messages", "langfuse.endTime"]
KEYS += ["openinference.span.kind", "llm.invocation_parameters", "ai.prompt", "gen_ai.tool.call.arguments"]


@pytest.mark.parametrize("key", KEYS)
def test_odd_values_break_nothing(key: str) -> None:
    """Every kind of value under every key that is read; the span is stored, and its texts are JSON."""
    for value in ODD:
        start, end, _, _ = one(**{key: value, "gen_ai.system": "x"})
        for text in (start.inputs, start.attributes, start.otel_dump, end.output, end.summary):
            assert text is not None and orjson.loads(text) is not None
        for text in (start.thread_id, start.display_name, start.run_id):
            assert text is None or isinstance(text, str)
