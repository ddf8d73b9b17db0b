"""--trace-inference on: each completion that names a project is a call there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support import scale
from tests.support.chat import TINY, USER, Chat, until
from tests.support.server import HeddleProcess

Json = dict[str, Any]
FAILURES = "heddle_inference_bookkeeping_failures_total"


@pytest.fixture(scope="module")
def tracing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that traces completions and keeps large fields in files early."""
    with HeddleProcess(
        tmp_path_factory.mktemp("tracing") / "data", trace_inference="on", large_field_bytes=4096
    ) as process:
        yield process


@pytest.fixture
def chat(tracing: HeddleProcess) -> Iterator[Chat]:
    """A caller of that server."""
    with Chat(tracing.url) as caller:
        yield caller


@pytest.fixture
def wire(tracing: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project on that server."""
    wire = Wire(tracing.url, project)
    yield wire
    wire.client.close()


def test_a_completion_is_a_call_with_usage_and_costs(chat: Chat, wire: Wire) -> None:
    prices = {"prompt_token_cost": 1.0, "completion_token_cost": 10.0, "cache_read_input_token_cost": 1.0}
    wire.post("/cost/create", costs={TINY: prices})
    answer = chat.answer({"Compat-Project": wire.project}, max_tokens=3, seed=7, user="ann")
    (call,) = wire.calls(include_costs=True)
    assert call["op_name"] == "heddle.chat.completions"
    assert call["inputs"] == chat.body(max_tokens=3, seed=7, user="ann")
    assert call["output"] == answer
    assert (call["exception"], call["parent_id"], call["thread_id"]) == (None, None, None)
    assert call["attributes"]["kind"] == "llm"
    assert call["attributes"]["request_id"] == answer["id"]
    assert call["summary"]["weave"]["status"] == "success"
    used = answer["usage"]
    shown = call["summary"]["usage"][TINY]
    assert {name: shown[name] for name in ("requests", "prompt_tokens", "completion_tokens", "total_tokens")} == {
        "requests": 1,
        "prompt_tokens": used["prompt_tokens"],
        "completion_tokens": used["completion_tokens"],
        "total_tokens": used["total_tokens"],
    }
    costs = call["summary"]["weave"]["costs"][TINY]
    assert costs["completion_tokens_total_cost"] == 10.0 * used["completion_tokens"]
    rolled = wire.post("/calls/usage", call_ids=[call["id"]])["call_usage"][call["id"]][TINY]
    assert rolled["total_tokens"] == used["total_tokens"]


def test_a_stream_is_stored_as_the_answer_it_stands_for(chat: Chat, wire: Wire) -> None:
    headers = {"Compat-Project": wire.project}
    fields: Json = {"max_tokens": 4, "seed": 3, "ignore_eos": True}
    whole = chat.answer(headers, **fields)
    body = chat.body(**fields, stream=True)
    with chat.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")
    first, second = wire.calls()
    assert second["inputs"]["stream"] is True
    assert second["output"]["object"] == "chat.completion"
    assert second["output"]["choices"] == first["output"]["choices"] == whole["choices"]
    usage = [call["summary"]["usage"][TINY] for call in (first, second)]
    assert usage[0]["completion_tokens"] == usage[1]["completion_tokens"] == 4
    assert second["attributes"]["stream"] is True


def test_a_client_that_goes_away_leaves_a_call_that_says_so(chat: Chat, wire: Wire) -> None:
    body = chat.body(max_tokens=1500, ignore_eos=True, stream=True)
    headers = {"Compat-Project": wire.project}
    with chat.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        while "content" not in next(lines):
            pass
    until(lambda: bool(wire.calls()), "the call is stored")
    calls = wire.calls()
    assert calls[0]["exception"] == "The client went away"
    assert calls[0]["attributes"]["status"] == 499
    assert 0 < calls[0]["summary"]["usage"][TINY]["completion_tokens"] < 1500


def test_what_only_looks_like_a_ref_is_kept_as_text(chat: Chat, wire: Wire) -> None:
    digest = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "thing", "val": {"a": 1}})["digest"]
    ref = f"weave:///{wire.project}/object/thing:{digest}"
    texts = ["weave:///", ref, "weave-trace-internal:///nobody/object/x:y"]
    for text in texts:
        chat.answer({"Compat-Project": wire.project}, messages=[{"role": "user", "content": text}], max_tokens=1)
    stored = [call["inputs"]["messages"][0]["content"] for call in wire.calls()]
    assert stored[:2] == texts[:2]
    assert stored[2].startswith("weave-private:///")
    assert len(wire.calls(filter={"input_refs": [ref]})) == 1


def test_large_requests_go_to_files_like_those_of_any_call(chat: Chat, wire: Wire) -> None:
    text = "many words " * 800
    answer = chat.ask({"Compat-Project": wire.project}, messages=[{"role": "user", "content": text}], max_tokens=1)
    (call,) = wire.calls()
    assert call["inputs"]["messages"][0]["content"] == text
    assert (call["exception"] is None) == (answer.status_code == 200)


def test_nothing_is_traced_without_a_project_or_for_refused_requests(chat: Chat, wire: Wire) -> None:
    chat.answer(max_tokens=1)
    chat.refused(404, model="no-such-model")
    assert chat.ask({"Compat-Project": wire.project}, temperature=-1).status_code in (400, 422)
    assert wire.calls() == []


def test_a_completion_of_the_trace_service_is_one_call_only(wire: Wire) -> None:
    made = wire.post("/completions/create", inputs={"model": TINY, "messages": USER, "max_tokens": 1})
    (call,) = wire.calls()
    assert call["id"] == made["weave_call_id"]
    untracked = {"inputs": {"model": TINY, "messages": USER, "max_tokens": 1}, "track_llm_call": False}
    wire.post("/completions/create", **untracked)
    assert sorted(found["op_name"] for found in wire.calls()) == ["heddle.chat.completions", "weave.completions_create"]


@pytest.mark.thorough
@scale.on_sqlite
def test_a_full_disk_costs_calls_but_no_answers(tmp_path: Path) -> None:
    headers = {"Compat-Project": "team/full"}
    settings = {"trace_inference": "on", "max_database_bytes": "2MiB"}
    with HeddleProcess(tmp_path / "data", **settings) as process, Chat(process.url) as chat:
        for number in range(8):
            chat.answer(headers, max_tokens=1, padding=f"{number} " * 100_000)
        stored = Wire(process.url, "team/full").calls()
        text = chat.client.get("/metrics").text
        (line,) = [line for line in text.splitlines() if line.startswith(FAILURES + '{what="trace"}')]
        assert 0 < float(line.rpartition(" ")[2]) == 8 - len(stored)
        assert "trace of a completion was not stored" in process.log()
        assert "Traceback" not in process.log()


def test_by_default_nothing_is_traced(server: HeddleProcess, project: str) -> None:
    with Chat(server.url) as chat:
        chat.answer({"Compat-Project": project}, max_tokens=1)
    wire = Wire(server.url, project)
    assert wire.calls() == []
    assert json.loads(wire.client.get("/server_info").text)["settings"]["trace_inference"] == "off"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_completion_is_a_call(chat: Chat, wire: Wire, stream: bool) -> None:
    body = {"model": TINY, "prompt": ["one", "two"], "max_tokens": 3, "temperature": 0, "stream": stream}
    answer = chat.client.post("/v1/completions", json=body, headers={"Compat-Project": wire.project})
    assert answer.status_code == 200, answer.text
    (call,) = wire.calls()
    assert (call["op_name"], call["inputs"]) == ("heddle.completions", body)
    assert call["output"]["object"] == "text_completion" and len(call["output"]["choices"]) == 2
    if not stream:
        assert call["output"] == answer.json()
    used = call["summary"]["usage"][TINY]
    assert (used["requests"], used["completion_tokens"]) == (1, call["output"]["usage"]["completion_tokens"])


@pytest.mark.parametrize("header", ["session-id", "X-Claude-Code-Session-Id", "X-Session-Id"])
def test_the_session_of_an_agent_is_the_thread(chat: Chat, wire: Wire, header: str) -> None:
    """Codex, Claude Code and opencode name their conversation in a header of each request."""
    headers = {"Compat-Project": wire.project, header: "s-18"}
    body = {"model": TINY, "input": "Hi", "max_output_tokens": 2, "store": False}
    assert chat.client.post("/v1/responses", json=body, headers=headers).status_code == 200
    chat.answer(headers=headers)
    calls = wire.calls()
    assert [(call["thread_id"], call["turn_id"]) for call in calls] == [("s-18", call["id"]) for call in calls]
    assert len(calls) == 2


def test_a_message_is_a_call_of_its_session(chat: Chat, wire: Wire) -> None:
    """What clients of Anthropic send and get is shown as it is; the session of Claude Code is the thread."""
    user = json.dumps({"device_id": "d1", "account_uuid": "", "session_id": "s-17"})
    body = {"model": TINY, "messages": USER, "max_tokens": 3, "metadata": {"user_id": user}}
    headers = {"Compat-Project": wire.project}
    whole = chat.client.post("/v1/messages", json=body, headers=headers).json()
    streamed = chat.client.post("/v1/messages", json=body | {"stream": True}, headers=headers)
    assert streamed.status_code == 200
    first, second = wire.calls()
    assert [call["op_name"] for call in (first, second)] == ["heddle.messages"] * 2
    assert [call["thread_id"] for call in (first, second)] == ["s-17"] * 2
    assert (first["inputs"], first["output"]) == (body, whole)
    assert second["output"]["content"] == whole["content"] and second["output"]["stop_reason"] == "max_tokens"
    used, shown = whole["usage"], first["summary"]["usage"][TINY]
    assert shown["completion_tokens"] == used["output_tokens"] == 3
    assert shown["prompt_tokens"] == used["input_tokens"] + used["cache_read_input_tokens"]
