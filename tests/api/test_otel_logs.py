"""Log records over HTTP: encodings, what is rejected, and spans that they join, whichever comes first."""

import gzip
import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from google.protobuf.json_format import MessageToDict

from tests.conftest import Wire
from tests.support import scale
from tests.support.otlp import JSON, START, key_values, request, span
from tests.support.otlp_logs import ANSWERED, ASKED, CONTENT, DETAILS, MODEL, Sender, details, json_logs, logs, record
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

Json = dict[str, Any]
SPAN = f"{7:016x}"


@pytest.fixture
def sender(server: HeddleProcess, project: str) -> Iterator[Sender]:
    """A sender to the test's project."""
    sender = Sender(server.url, project)
    yield sender
    sender.client.close()


def only_call(wire: Wire) -> Json:
    """The call that everything has become."""
    (call,) = wire.calls()
    return call


def said(call: Json) -> tuple[Any, Any]:
    """The messages of a call."""
    return call["inputs"].get("gen_ai.input.messages"), (call["output"] or {}).get("gen_ai.output.messages")


@pytest.mark.parametrize("path", ["/v1/logs", "/otel/v1/logs"])
@pytest.mark.parametrize(
    ("encoding", "compression"), list(itertools.product(["protobuf", "json"], ["gzip", "zstd", "identity"]))
)
def test_every_encoding_is_the_same_call(
    sender: Sender, wire: Wire, path: str, encoding: str, compression: str
) -> None:
    message = logs(details())
    content, headers = message.SerializeToString(), {}
    if encoding == "json":
        body = MessageToDict(message, use_integers_for_enums=True)
        (sent,) = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        sent |= {"traceId": f"{1:032x}", "spanId": SPAN}
        content, headers = json.dumps(body).encode(), JSON
    packed = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[compression](content)
    answer = sender.client.post(path, content=packed, headers={**headers, "content-encoding": compression})
    assert (answer.status_code, answer.content) == (200, b'{"partial_success":null}' if headers else b"")
    call = only_call(wire)
    assert (call["id"], call["trace_id"], said(call)) == (SPAN, f"{1:032x}", (ASKED, ANSWERED))


@pytest.mark.parametrize("order", ["span first", "log first", "log, span, log"])
@pytest.mark.parametrize("mode", ["EVENT_ONLY", "SPAN_AND_EVENT"])
def test_an_event_joins_its_span(sender: Sender, wire: Wire, order: str, mode: str) -> None:
    on_span = {key: json.dumps(value) for key, value in CONTENT.items()} if mode == "SPAN_AND_EVENT" else {}
    for what in order.replace(",", "").replace(" first", "").split():
        assert what == "span" or sender.logs(details()) == (0, "")
        if what == "span":
            sender.span(**on_span)
    if order == "span first":
        assert sender.logs(details()) == (0, "")
    elif order == "log first":
        sender.span(**on_span)
    call = only_call(wire)
    assert said(call) == (ASKED, ANSWERED)
    assert call["summary"]["usage"]["m"]["input_tokens"] == 5
    assert call["ended_at"] == "2026-11-20T19:47:10.135327Z"
    dump = call["attributes"]["otel_span"]
    assert (dump["name"], [event["name"] for event in dump["events"]]) == ("chat m", [DETAILS])
    assert json.dumps(dump).count("A yellow canary.") == 1


def test_a_span_that_never_comes_is_a_call_of_its_own_until_it_comes(sender: Sender, wire: Wire) -> None:
    sender.logs(details())
    call = only_call(wire)
    assert (call["id"], said(call), call["attributes"]["model"]) == (SPAN, (ASKED, ANSWERED), "m")
    assert call["summary"]["weave"]["trace_name"] == "chat_m"
    assert call["summary"]["usage"]["m"]["input_tokens"] == 5
    sender.span(**{"my.own": "attribute"})
    call = only_call(wire)
    assert call["attributes"]["otel_span"]["attributes"]["my"] == {"own": "attribute"}
    assert "of_logs" not in call["attributes"]["otel_span"]
    assert said(call) == (ASKED, ANSWERED)


def test_messages_that_come_as_one_event_each(sender: Sender, wire: Wire) -> None:
    sender.logs(record("gen_ai.system.message", 1, body={"content": "Be brief."}))
    sender.span()
    sender.logs(record("gen_ai.user.message", 2, body={"content": "Which canary?"}))
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "A yellow canary."}}
    sender.logs(record("gen_ai.choice", 3, body=choice, gen_ai__system="openai"))
    asked, answered = said(only_call(wire))
    assert [(one["role"], one["parts"][0]["content"]) for one in asked] == [
        ("system", "Be brief."),
        ("user", "Which canary?"),
    ]
    assert answered == ANSWERED


def test_the_same_record_again_is_one_event(sender: Sender, wire: Wire) -> None:
    sender.span()
    for _ in range(3):
        sender.logs(details(), record("note", 5, body="hello"))
    events = only_call(wire)["attributes"]["otel_span"]["events"]
    assert [(event["name"], event["timestamp"] - START) for event in events] == [
        ("note", 5_000_000),
        (DETAILS, 100_000_000),
    ]
    assert events[0]["attributes"] == {"body": "hello"}


def test_other_logs_are_events_of_their_span_and_nothing_without_it(sender: Sender, wire: Wire) -> None:
    plain = record("", 9, body="cache was cold", code=7)
    assert sender.logs({**plain, "severity_text": "WARN"}) == (0, "")
    assert wire.calls() == []
    sender.span()
    (event,) = only_call(wire)["attributes"]["otel_span"]["events"]
    assert event["name"] == "log"
    assert event["attributes"] == {"body": "cache was cold", "code": 7, "severity": "WARN"}


def test_what_belongs_to_nothing_is_rejected_and_told(sender: Sender, wire: Wire) -> None:
    half = {**record("half"), "span_id": b""}
    short = {**record("short"), "trace_id": b"123"}
    count, why = sender.logs(record("my.event", ids=False), half, short, details())
    assert count == 3
    told = why.split("; Rejected ")
    assert told[0].startswith("Rejected log record (name='my.event'): it has no trace_id and span_id of a span")
    assert told[1].startswith("log record (name='half'): it has no trace_id")
    assert told[2] == "log record (name='short'): trace_id must be 32 hex digits (16 bytes)"
    assert len(wire.calls()) == 1


def test_ids_that_are_too_long_are_rejected_and_told(sender: Sender, wire: Wire) -> None:
    long = {"gen_ai.conversation.id": "c" * 513}
    count, why = sender.logs(record("my.event"), {**record(DETAILS), "attributes": key_values(long)})
    assert count == 1
    assert why.startswith(f"Rejected log record (name='{DETAILS}'): thread is longer than 512 bytes: 'cccc"), why
    sender.span()
    call = only_call(wire)
    assert (call["id"], call["thread_id"]) == (SPAN, None)


def test_a_model_that_was_asked_where_nothing_is_traced(sender: Sender, wire: Wire) -> None:
    lonely = {**details(), "trace_id": b"", "span_id": b""}
    for _ in range(2):
        assert sender.logs(lonely) == (0, "")
    call = only_call(wire)
    assert (said(call), call["parent_id"]) == ((ASKED, ANSWERED), None)


def test_a_deleted_call_stays_deleted(sender: Sender, wire: Wire) -> None:
    sender.span()
    sender.logs(details())
    wire.post("/calls/delete", call_ids=[SPAN])
    sender.logs(record("gen_ai.user.message", 2, body={"content": "late"}))
    assert wire.calls() == []


def test_agents_read_what_only_the_event_tells(sender: Sender, wire: Wire) -> None:
    sender.span()
    sender.logs(details())
    (span,) = wire.post("/agents/spans/query")["spans"]
    assert (span["input_tokens"], span["request_model"]) == (5, "m")
    chat = wire.post("/agents/traces/chat", trace_id=f"{1:032x}")
    assert "A yellow canary." in json.dumps(chat)


def test_a_resource_without_a_project_is_refused_with_the_reason(server: HeddleProcess) -> None:
    headers = {"content-type": "application/x-protobuf"}
    nameless = logs(details(), resource={"host.name": "h"}).SerializeToString()
    answer = httpx.post(f"{server.url}/v1/logs", content=nameless, headers=headers)
    assert answer.status_code == 400 and b"No project: send the header" in answer.content


def test_attributes_of_the_event_are_those_of_the_call(sender: Sender, wire: Wire) -> None:
    sender.span()
    sender.logs(details(**{"gen_ai.request.temperature": 0.5, "gen_ai.response.model": "m-2026"}))
    (span,) = wire.post("/agents/spans/query")["spans"]
    assert (span["request_temperature"], span["response_model"]) == (0.5, "m-2026")
    assert only_call(wire)["attributes"]["operation_name"] == MODEL["gen_ai.operation.name"]


def test_a_session_is_one_conversation_with_the_requests_that_were_traced(sender: Sender, wire: Wire) -> None:
    """The agent asked this server, whose own call of the request has its messages: its tokens are counted once."""
    at = {"started_at": "2026-11-20T19:47:10Z", "ended_at": "2026-11-20T19:47:11Z"}
    usage = {"usage": {"m": {"prompt_tokens": 7, "completion_tokens": 2}}}
    traced = {"project_id": wire.project, "id": str(uuid.uuid4()), "trace_id": str(uuid.uuid4()), "thread_id": "s-1"}
    rest = {"op_name": "chat", "attributes": {}, "inputs": {}, "output": {}, "summary": usage, "turn_id": traced["id"]}
    entity, project = wire.project.split("/")
    answer = wire.client.post(f"/v2/{entity}/{project}/calls/complete", json={"batch": [traced | at | rest]})
    assert answer.status_code == 200, answer.text
    shared = {"session.id": "s-1", "prompt.id": "p-1"}
    spent = {"model": "m", "input_tokens": 7, "output_tokens": 2, "duration_ms": 1000}
    events = {
        "user_prompt": (0, {"prompt": "hi"}),
        "api_request": (2, spent),
        "tool_result": (3, {"tool_name": "Read"}),
        "api_error": (9, {"model": "m", "error": "overloaded"}),
    }
    for name, (second, more) in events.items():
        body = {"time": START + second * 10**9, "body": f"claude_code.{name}"}
        sent = body | {"attributes": {"event.name": name, **shared, **more}}
        assert sender.send(json_logs(sent)) == (0, "")
    calls = wire.calls()
    assert {call["thread_id"] for call in calls} == {"s-1"}
    names = sorted(call["summary"]["weave"]["trace_name"] for call in calls)
    assert names == ["chat", "chat_m", "execute_tool_read", "invoke_agent_claude_code"]
    (failed,) = [call for call in calls if call["exception"]]
    assert failed["exception"] == "overloaded"
    entries = [entry for call in calls for entry in call["summary"]["usage"].values()]
    counts = [entry.get("input_tokens") or entry.get("prompt_tokens") for entry in entries]
    assert [count for count in counts if count] == [7]


@pytest.mark.parametrize("order", ["span first", "records first"])
def test_events_of_a_session_with_spans_are_told_by_these(sender: Sender, wire: Wire, order: str) -> None:
    """Claude Code names spans only where it exports them: each turn and its tokens are there once."""
    shared = {"session__id": "s-1", "prompt__id": "p-1"}
    events = {
        "user_prompt": {"prompt": "hi"},
        "api_request": {"model": "m", "input_tokens": 7, "output_tokens": 2},
        "assistant_response": {"response": "Hello."},
    }
    records = [record(f"claude_code.{name}", **shared, **more) for name, more in events.items()]
    named = {"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": "s-1", "interaction.sequence": 1}
    asked = {**MODEL, "gen_ai.conversation.id": "s-1", "gen_ai.usage.input_tokens": 7}
    spans = request(
        span(7, name="claude_code.interaction", attributes={**named, "user_prompt": "hi"}),
        span(8, name="claude_code.llm_request", parent=7, attributes=asked),
    )
    for part in ("span", "records") if order == "span first" else ("records", "span"):
        if part == "span":
            sent = sender.client.post("/v1/traces", content=spans.SerializeToString())
            assert (sent.status_code, sent.content) == (200, b"")
        else:
            assert sender.send(logs(*records)) == (0, "")
    calls = sorted(wire.calls(include_conversation=True), key=lambda call: call["id"])
    names = [call["summary"]["weave"]["trace_name"] for call in calls]
    assert names == ["claude_code.interaction", "claude_code.llm_request"]
    assert {call["thread_id"] for call in calls} == {"s-1"}
    assert [entry["input_tokens"] for entry in calls[1]["summary"]["usage"].values()] == [7]
    conversation = calls[0]["conversation"]
    said = [*conversation["messages"], *conversation["choices"][0]["messages"]]
    assert [(one["role"], one["parts"][0]["content"]) for one in said] == [("user", "hi"), ("assistant", "Hello.")]
    assert len(calls[0]["attributes"]["otel_span"]["events"]) == len(events)


def test_events_that_come_late_leave_no_call_twice(sender: Sender, wire: Wire) -> None:
    """The end of an answer, then the prompt, then the request that it was the end of."""
    said: dict[str, tuple[int, Json]] = {
        "sse_event": (5, {"event.kind": "response.completed", "input_token_count": 7, "output_token_count": 2}),
        "user_prompt": (1, {"prompt": "hi"}),
        "api_request": (4, {"duration_ms": 1000, "http.response.status_code": 200}),
    }
    for name, (second, more) in said.items():
        shared = {"event.name": f"codex.{name}", "conversation.id": "c-1", "model": "m"}
        assert sender.send(json_logs({"time": START + second * 10**9, "attributes": {**shared, **more}})) == (0, "")
    calls = wire.calls()
    assert sorted(call["summary"]["weave"]["trace_name"] for call in calls) == ["chat_m", "invoke_agent_codex"]
    (chat,) = [call for call in calls if call["parent_id"]]
    assert chat["summary"]["usage"]["m"]["input_tokens"] == 7
    assert (chat["started_at"][17:19], chat["ended_at"][17:19]) == ("12", "14")


@scale.on_sqlite
def test_spans_that_a_worker_takes_find_the_records_that_wait(tmp_path: Path, project: str) -> None:
    """Workers take spans themselves, and hand log records on to the process that writes."""
    with HeddleProcess(tmp_path / "data", workers=2) as server:
        sender, wire = Sender(server.url, project), Wire(server.url, project)
        for _ in range(4):
            assert sender.logs(details()) == (0, "")
            sender.span()
        assert said(only_call(wire)) == (ASKED, ANSWERED)
        sender.client.close()
        wire.client.close()


NASTY = [
    None,
    True,
    -1,
    2**63 - 1,
    -(2**63),
    1e308,
    -1e308,
    5e-324,
    "",
    "x" * 3000,
    "\x00",
    "1e999",
    "{",
    "[1",
    "9" * 5000,
]
NAMES = ("session.id", "prompt.id", "event.name", "event.timestamp", "event.sequence", "duration_ms", "input_tokens",
    "status_code", "request_id", "tool_use_id", "tool_input", "prompt", "response", "model", "error", "success",
    "event.kind", "input_token_count", "conversation.id", "endpoint")  # fmt: skip


@pytest.mark.parametrize("agent", ["claude_code", "codex"])
@pytest.mark.parametrize("name", with_breadth(NAMES, every=6))
def test_nothing_that_an_event_says_breaks_its_session(sender: Sender, wire: Wire, agent: str, name: str) -> None:
    kinds = (
        "user_prompt",
        "api_request",
        "api_error",
        "tool_decision",
        "tool_result",
        "assistant_response",
        "sse_event",
    )
    ids = {"session.id": "s", "conversation.id": "s", "prompt.id": "p", "tool_use_id": "t", "request_id": "r"}
    records = []
    for number, (kind, value) in enumerate(itertools.product(kinds, [*NASTY, {"a": [1, None]}, [{}]])):
        said = {**ids, "event.name": f"{agent}.{kind}", "event.kind": "response.completed", name: value}
        made = record("", number, ids=False)
        made["attributes"] = key_values(said)
        records.append(made)
    records += [{**one, "time_unix_nano": moment} for one in records[:20] for moment in (0, 1, 2**63, 2**64 - 1)]
    rejected, why = sender.logs(*records)
    assert rejected == 0 or "Rejected log record" in why
    sender.logs(*records[::-1])
    calls = wire.calls()
    assert len({call["id"] for call in calls}) == len(calls)
    wire.post("/agents/query")
