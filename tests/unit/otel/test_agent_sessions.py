"""Sessions of coding agents: what Claude Code 2.1.330 and Codex 0.169.0 exported of one prompt with one tool."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from heddle.trace.otel.agent_sessions import (
    LogEvent,
    event_of,
    is_noise,
    is_session,
    session_of,
    spans_of_session,
    stale_spans,
    thread_of,
)
from heddle.trace.otel.signals import decode_logs
from heddle.trace.otel.span import OtelSpan

DATA = Path(__file__).parent.parent.parent / "data" / "otel_logs"
Json = dict[str, Any]


def recorded(name: str) -> list[LogEvent]:
    """The events of a recorded session, without those that say nothing."""
    found = []
    for export in json.loads((DATA / f"{name}.json").read_bytes()):
        for group in decode_logs(json.dumps(export).encode(), is_json=True):
            for scope in group.scopes:
                found += [event_of(record, scope.scope, group.resource) for record in scope.items]
    return [event for event in found if not is_noise(event)]


def spans_of(events: list[LogEvent], brought: list[LogEvent] | None = None) -> list[OtelSpan]:
    """The spans of one session."""
    (owner,) = {session_of(event) for event in events}
    assert owner is not None and is_session(owner)
    named = {event.id: event for event in events}
    return spans_of_session(owner, named, [event.id for event in brought or events])


def event(name: str, second: float, **attributes: Any) -> LogEvent:
    agent = name.partition(".")[0]
    session = {"claude_code": "session.id", "codex": "conversation.id"}[agent]
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return LogEvent(name, int(second * 10**9), {session: "s", **named})


def by_name(spans: list[OtelSpan]) -> dict[str, OtelSpan]:
    return {span.name: span for span in spans}


def seconds(span: OtelSpan) -> tuple[float, float]:
    return span.start / 10**9, span.end / 10**9


def test_a_turn_of_claude_code() -> None:
    spans = spans_of(recorded("claude_code"))
    root, first, tool, second = spans
    assert [span.name for span in spans] == [
        "invoke_agent Claude Code",
        "chat claude-opus-5-5",
        "execute_tool Bash",
        "chat claude-opus-5-5",
    ]
    assert {span.trace_id for span in spans} == {root.trace_id} and len({span.span_id for span in spans}) == 4
    assert [span.parent_id for span in spans] == ["", *[root.span_id] * 3]
    assert root.attributes["gen_ai.conversation.id"] == "e97e63a3-c637-4255-aa25-afeb9fe66913"
    assert json.loads(root.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == "Say hello with bash"
    assert root.attributes["gen_ai.output.messages"] == second.attributes["gen_ai.output.messages"]
    assert json.loads(second.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "All done."
    assert "prompt" not in root.attributes and root.attributes["user.id"] == "user-1"
    assert (
        first.attributes
        | {
            "gen_ai.usage.input_tokens": 192,
            "gen_ai.usage.output_tokens": 17,
            "gen_ai.usage.cache_read.input_tokens": 64,
            "gen_ai.usage.cache_creation.input_tokens": 8,
            "cost_usd": 0.0008728,
            "request_id": "req_stub_3",
        }
        == first.attributes
    )
    assert (first.end - first.start, tool.end - tool.start) == (804_000_000, 151_000_000)
    assert tool.attributes["gen_ai.tool.call.id"] == "toolu_1"
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"])["command"] == "echo hello"
    assert [one.name for one in tool.events] == ["claude_code.tool_decision"]
    assert [one.name for one in root.events] == ["claude_code.managed_settings_resolved"]


def test_a_turn_of_codex() -> None:
    spans = spans_of(recorded("codex"))
    root, first, tool, _ = spans
    assert [span.name for span in spans] == [
        "invoke_agent Codex",
        "chat gpt-5.1",
        "execute_tool exec_command",
        "chat gpt-5.1",
    ]
    assert (
        first.attributes
        | {
            "gen_ai.usage.input_tokens": 120,
            "gen_ai.usage.output_tokens": 17,
            "gen_ai.usage.cache_read.input_tokens": 64,
            "gen_ai.usage.reasoning.output_tokens": 5,
            "http.response.status_code": 200,
        }
        == first.attributes
    )
    assert first.end - first.start == 169_000_000
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"cmd": "echo hello"}'
    assert tool.attributes["gen_ai.tool.call.result"].endswith("Output:\nhello\n")
    assert [one.name for one in tool.events] == ["codex.tool_decision"]
    assert [one.name for one in root.events] == [
        "codex.conversation_starts",
        "codex.startup_phase",
        "codex.startup_phase",
        "codex.turn_ttft",
    ]


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_the_order_of_arrival_does_not_matter(name: str) -> None:
    events = recorded(name)
    assert spans_of(events[::-1]) == spans_of(events) == spans_of(events[3:] + events[:3])


def test_only_turns_that_something_came_of_are_made_again() -> None:
    turns = [
        [event("codex.user_prompt", 10 * n, prompt=f"p{n}"), event("codex.tool_result", 10 * n + 1, tool_name=f"t{n}")]
        for n in range(3)
    ]
    everything = list(itertools.chain(*turns))
    assert [span.name for span in spans_of(everything, turns[1])] == ["invoke_agent Codex", "execute_tool t1"]
    assert len({span.trace_id for span in spans_of(everything)}) == 3


def test_a_turn_that_a_late_prompt_takes_events_from_is_made_again() -> None:
    first, note = event("codex.tool_result", 1, tool_name="t"), event("codex.conversation_starts", 3)
    prompt = event("codex.user_prompt", 2, prompt="p")
    before, after = spans_of([first, note]), spans_of([first, note, prompt])
    assert [len(span.events) for span in before] == [1, 0]
    assert spans_of([first, note, prompt], [prompt]) == after
    assert [(span.name, len(span.events)) for span in after] == [
        ("invoke_agent Codex", 0),
        ("execute_tool t", 0),
        ("invoke_agent Codex", 1),
    ]
    later = event("codex.user_prompt", 4, prompt="q")
    assert len(spans_of([first, note, prompt, later], [later])) == 1


def test_requests_that_the_server_traced_itself_are_not_told_twice() -> None:
    events = recorded("claude_code")
    (owner,) = {session_of(one) for one in events}
    named = {one.id: one for one in events}
    _, first, _, second = spans_of(events)
    inside = [(span.start + 10**6, span.end - 10**6) for span in (second, first)]
    assert owner is not None and thread_of(owner) == "e97e63a3-c637-4255-aa25-afeb9fe66913"

    def names(traced: list[tuple[int, int]]) -> list[str]:
        return [span.name.partition(" ")[0] for span in spans_of_session(owner, named, list(named), traced)]

    assert names(inside) == ["invoke_agent", "execute_tool"]
    assert names(inside[:1]) == ["invoke_agent", "execute_tool", "chat"]
    assert names([(0, 1)]) == ["invoke_agent", "chat", "execute_tool", "chat"]


def test_what_came_of_events_in_another_order_is_stale() -> None:
    events = recorded("codex")
    (owner,) = {session_of(one) for one in events}
    assert owner is not None
    named = {one.id: one for one in events}
    request = next(one for one in events if one.name == "codex.api_request")
    others = [one for one in events if one is not request]
    assert stale_spans(owner, named, [request.id]) == {
        span.span_id for span in spans_of(others) if span.span_id not in {one.span_id for one in spans_of(events)}
    }
    assert len(stale_spans(owner, named, [request.id])) == 1
    assert stale_spans(owner, named, [one.id for one in events[-3:]]) == set()
    assert stale_spans(owner, named, list(named)) == set()


def test_errors_of_requests_and_tools() -> None:
    spans = by_name(
        spans_of(
            [
                event("claude_code.user_prompt", 1, prompt__id="p", prompt="<REDACTED>", prompt_length="4"),
                event(
                    "claude_code.api_error",
                    3,
                    prompt__id="p",
                    model="m",
                    error="overloaded",
                    status_code="529",
                    duration_ms=1500,
                ),
                event(
                    "claude_code.tool_result",
                    4,
                    prompt__id="p",
                    tool_name="Read",
                    success="false",
                    error="no such file",
                ),
            ]
        )
    )
    error, tool, root = spans["chat m"], spans["execute_tool Read"], spans["invoke_agent Claude Code"]
    assert (error.status_code, error.status_message, error.attributes["error.type"]) == (2, "overloaded", "529")
    assert (seconds(error), seconds(root)) == ((1.5, 3.0), (1.0, 4.0))
    assert (tool.status_code, tool.status_message) == (2, "no such file")
    assert "gen_ai.input.messages" not in root.attributes


def test_a_request_of_codex_that_failed_takes_no_tokens_of_the_next() -> None:
    spans = spans_of(
        [
            event("codex.user_prompt", 1, prompt="hi", model="m"),
            event("codex.api_request", 2, model="m", duration_ms="500", http__response__status_code="500"),
            event("codex.api_request", 4, model="m", duration_ms="1000", http__response__status_code="200"),
            event("codex.sse_event", 5, model="m", event__kind="response.completed", input_token_count="7"),
            event("codex.sse_event", 6, model="m", event__kind="response.failed", error__message="too long"),
        ]
    )
    _, failed, done, lonely = spans
    assert (failed.status_code, failed.status_message, seconds(failed)) == (2, "HTTP 500", (1.5, 2.0))
    assert (done.status_code, seconds(done)) == (0, (3.0, 5.0))
    assert (done.attributes["gen_ai.usage.input_tokens"], "gen_ai.usage.input_tokens" in failed.attributes) == (
        7,
        False,
    )
    assert (lonely.status_code, lonely.status_message) == (2, "too long")


def test_a_session_without_any_prompt_or_request_is_no_call_yet() -> None:
    started = event("claude_code.plugin_loaded", 1)
    assert spans_of([started]) == []
    (root,) = spans_of([started, event("claude_code.user_prompt", 2, prompt__id="p", prompt="hi")])
    assert [one.name for one in root.events] == ["claude_code.plugin_loaded"]


def test_pieces_of_streams_are_left_out() -> None:
    assert is_noise(event("codex.sse_event", 1, event__kind="response.output_text.delta"))
    assert is_noise(event("codex.sse_event", 1, event__kind="response.completed"))
    assert not is_noise(event("codex.sse_event", 1, event__kind="response.completed", input_token_count="0"))
    assert not is_noise(event("claude_code.api_request", 1))
    assert session_of(LogEvent("codex.user_prompt", 1, {})) is None
    assert session_of(LogEvent("other", 1, {"session.id": "s"})) is None


def test_an_answer_that_a_span_of_gemini_cli_has_as_well_is_left_out() -> None:
    """Its records of answers name no span, and have messages where spans have them."""
    details = "gen_ai.client.inference.operation.details"
    with_answer = LogEvent(details, 1, {"gen_ai.output.messages": "[]"}, scope="gemini-cli")
    without = LogEvent(details, 1, {"gen_ai.usage.input_tokens": 120}, scope="gemini-cli")
    other = LogEvent(details, 1, {"gen_ai.output.messages": "[]"}, scope="lib")
    assert [is_noise(one) for one in (with_answer, without, other)] == [True, False, False]
    assert not is_noise(with_answer, names_span=True)
