"""A trace of 50,000 calls and threads of 10,000 turns: read whole and in pages, complete, in order, memory flat.

The short form has a tenth of both; `HEDDLE_SOAK=1` runs the long one.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.conftest import Wire
from tests.support.agents import MILLISECOND, Trace, export
from tests.support.server import HeddleProcess

Json = Any

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
CALLS, TURNS = (50_000, 10_000) if SOAK else (5_000, 1_000)
MOST_GROWTH = 48 * 1024 * 1024
"""How much a read may add to the memory of the server, in bytes; all the texts of the trace are more than that."""
_BATCH = 500
_TEXT = "The quick brown fox jumps over the lazy dog. " * 20

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


@pytest.fixture(scope="module")
def heddle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of these tests alone, so that its memory is theirs."""
    with HeddleProcess(tmp_path_factory.mktemp("big") / "data") as process:
        yield process


@pytest.fixture
def wire(heddle: HeddleProcess) -> Iterator[Wire]:
    """A project of the test's own."""
    wire = Wire(heddle.url, f"big/{uuid.uuid4().hex[:8]}")
    wire.client.timeout = 600
    yield wire
    wire.client.close()


class Memory:
    """The memory of the server; its peak is watched by the kernel."""

    def __init__(self, heddle: HeddleProcess) -> None:
        assert heddle.process is not None
        self._process = psutil.Process(heddle.process.pid)
        self._folder = Path(f"/proc/{heddle.process.pid}")

    def growth(self, read: Callable[[], Any]) -> tuple[int, Any]:
        """By how many bytes the peak during `read` lies above the memory before it; and what it returned."""
        if not (self._folder / "clear_refs").exists():
            pytest.skip("the peak of a process's memory is read from Linux's /proc")
        before = self._process.memory_info().rss
        (self._folder / "clear_refs").write_text("5")
        result = read()
        [peak] = [line for line in (self._folder / "status").read_text().splitlines() if line.startswith("VmHWM")]
        return int(peak.split()[1]) * 1024 - before, result

    def flat(self, read: Callable[[], Any]) -> Any:
        """What `read` returns; it is done once before, so that what is loaded only once does not count."""
        read()
        growth, result = self.growth(read)
        assert growth < MOST_GROWTH, f"the server grew by {growth / 2**20:.0f} MiB"
        return result


@pytest.fixture
def memory(heddle: HeddleProcess) -> Memory:
    """The server's memory."""
    return Memory(heddle)


@pytest.fixture(scope="module")
def trace(heddle: HeddleProcess) -> tuple[Wire, Trace]:
    """A trace of an agent with a hundredth as many agents below it, each with models and tools, exported."""
    wire = Wire(heddle.url, "big/trace")
    trace = Trace("c", step=1)
    root = trace.agent("boss")
    helper = root
    for number in range(1, CALLS):
        if number % 100 == 1:
            helper = trace.agent(f"helper {number}", root)
        elif number % 2:
            trace.tool("add", f'{{"a":{number}}}', f"{number} {_TEXT}", helper)
        else:
            used: Json = {"gen_ai__usage__input_tokens": 2, "gen_ai__usage__output_tokens": 1}
            trace.chat(helper, f"{number} {_TEXT}", f"answer {number} {_TEXT}", **used)
    for start in range(0, CALLS, _BATCH):
        export(wire, spans=trace.spans[start : start + _BATCH])
    return wire, trace


def streamed(wire: Wire, path: str, **body: Json) -> Iterator[str]:
    """The lines of an answer, one at a time."""
    with wire.client.stream("POST", path, json={"project_id": wire.project, **body}) as answer:
        assert answer.status_code == 200
        yield from answer.iter_lines()


def ids_of(trace: Trace) -> list[str]:
    """The ids of a trace's spans in order."""
    return [span["spanId"] for span in trace.spans]


def test_calls_of_a_trace(trace: tuple[Wire, Trace], memory: Memory) -> None:
    """Whole as one stream and in pages: every call once, in order."""
    wire, sent = trace
    chosen = {"filter": {"trace_ids": [sent.trace_id]}}

    def whole() -> list[str]:
        return [json.loads(line)["id"] for line in streamed(wire, "/calls/stream_query", **chosen) if line]

    def paged() -> list[str]:
        found: list[str] = []
        while page := wire.calls(**chosen, limit=1000, offset=len(found), columns=["id"]):
            found += [call["id"] for call in page]
        return found

    assert memory.flat(whole) == ids_of(sent)
    assert memory.flat(paged) == ids_of(sent)
    assert wire.post("/calls/query_stats", **chosen)["count"] == CALLS


def test_usage_of_a_trace(trace: tuple[Wire, Trace], memory: Memory) -> None:
    """Tokens of every call with those below it; the root has all."""
    wire, sent = trace
    models = sum(span["name"].startswith("chat") for span in sent.spans)

    def usage() -> Json:
        answer = wire.post("/trace/usage", filter={"trace_ids": [sent.trace_id]}, limit=CALLS, include_costs=True)
        root, last = ids_of(sent)[0], ids_of(sent)[-1]
        return len(answer["call_usage"]), answer["call_usage"][root]["gpt-4o"], answer["call_usage"][last]

    calls, root, last = memory.flat(usage)
    assert calls == CALLS
    assert (root["prompt_tokens"], root["completion_tokens"]) == (2 * models, models)
    assert root["prompt_tokens_total_cost"] > 0 and last == {}


def test_chat_of_a_trace(trace: tuple[Wire, Trace], memory: Memory) -> None:
    """Every agent, answer, prompt and tool, in the order in which they happened."""
    wire, sent = trace

    def chat() -> list[tuple[str, str]]:
        view = wire.post("/agents/traces/chat", trace_id=sent.trace_id)
        return [(message["type"], _first_word(message)) for message in view["messages"]]

    expected: list[tuple[str, str]] = []
    for number, span in enumerate(sent.spans):
        if span["name"].startswith("invoke_agent"):
            expected.append(("agent_start", ""))
        elif span["name"].startswith("chat"):
            expected += [("user_message", f"{number}"), ("assistant_message", f"answer {number}")]
        else:
            expected.append(("tool_call", f"{number}"))
    assert memory.flat(chat) == expected


def _first_word(message: Json) -> str:
    payload = message[message["type"]]
    text = payload.get("text") or payload.get("tool_result") or ""
    return str(text).removesuffix(_TEXT).strip()


def test_spans_of_a_trace_with_messages(trace: tuple[Wire, Trace], memory: Memory) -> None:
    """In the largest pages there are."""
    wire, sent = trace
    newest_first = ids_of(sent)[::-1]

    def pages() -> list[str]:
        found: list[str] = []
        while page := wire.post("/agents/spans/query", include_details=True, limit=10_000, offset=len(found))["spans"]:
            assert all(span["raw_span_dump"] for span in page)
            found += [span["span_id"] for span in page]
        return found

    assert memory.flat(pages) == newest_first


def test_a_thread_of_many_turns(wire: Wire, memory: Memory) -> None:
    """Its turns are counted, and its calls read in pages, complete and in order."""
    start = time.time() - TURNS
    sent = [str(uuid.uuid4()) for _ in range(TURNS)]
    for first in range(0, TURNS, _BATCH):
        batch = [
            {
                "project_id": wire.project,
                "id": turn,
                "trace_id": turn,
                "op_name": "turn",
                "thread_id": "long",
                "turn_id": turn,
                "started_at": _iso(start + number),
                "ended_at": _iso(start + number + 0.5),
                "inputs": {"text": f"{number} {_TEXT}"},
                "output": _TEXT,
                "attributes": {},
                "summary": {},
            }
            for number, turn in enumerate(sent[first : first + _BATCH], first)
        ]
        answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch})
        assert answer.status_code == 200, answer.text

    def threads() -> list[Json]:
        return [json.loads(line) for line in streamed(wire, "/threads/stream_query") if line]

    [thread] = memory.flat(threads)
    assert (thread["thread_id"], thread["turn_count"]) == ("long", TURNS)
    assert (thread["first_turn_id"], thread["last_turn_id"]) == (sent[0], sent[-1])
    assert thread["p50_turn_duration_ms"] == pytest.approx(500, abs=1)

    def turns() -> list[str]:
        found: list[str] = []
        chosen = {"filter": {"thread_ids": ["long"]}}
        while page := wire.calls(**chosen, limit=1000, offset=len(found)):
            found += [call["id"] for call in page]
        return found

    assert memory.flat(turns) == sent


def test_a_conversation_of_many_turns(wire: Wire, memory: Memory) -> None:
    """Its turns are read in pages of 50 from the newest on, and make up the whole conversation."""
    now = time.time_ns() - TURNS * 50 * MILLISECOND
    traces = [Trace("long", start=now + number * 50 * MILLISECOND) for number in range(TURNS)]
    for number, turn in enumerate(traces):
        turn.chat(turn.agent("a"), f"{number} {_TEXT}", f"answer {number}")
    for first in range(0, TURNS, _BATCH):
        export(wire, *traces[first : first + _BATCH])

    def pages() -> list[str]:
        found: list[str] = []
        while True:
            body = {"conversation_id": "long", "limit": 50, "offset": len(found)}
            page = wire.post("/agents/conversations/chat", **body)
            assert page["total_turns"] == TURNS
            assert all(len(turn["messages"]) == 3 for turn in page["turns"])
            found = [turn["trace_id"] for turn in page["turns"]] + found
            assert page["has_more"] == (len(found) < TURNS)
            if not page["has_more"]:
                return found

    assert memory.flat(pages) == [turn.trace_id for turn in traces]
    [group] = wire.post("/agents/spans/query", group_by=[{"key": "conversation_id"}])["groups"]
    assert group["span_count"] == 2 * TURNS and group["first_message"]["text"].startswith("0 The quick")


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f"{seconds % 1:.6f}Z"[1:]
