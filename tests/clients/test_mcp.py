"""`heddle mcp` as an assistant's host starts it: the official client over stdio, against a real server with keys."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.support.cli import heddle, make_key
from tests.support.server import HeddleProcess, free_port
from tests.support.stored_runs import Writer

mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
PROJECT, OTHER = "team/shop", "team/secret"
LONG = "lorem ipsum " * 5_000
TOOLS = {
    "find_calls",
    "open_trace",
    "read_call",
    "summarize_usage",
    "list_evaluations",
    "compare_evaluations",
    "search_conversations",
    "read_conversation",
    "list_objects",
    "read_object",
}


@dataclass(frozen=True)
class Scene:
    """A server with stored traces, and the keys of those who look."""

    process: HeddleProcess
    reader: str
    ids: dict[str, str]

    def ask(self, tool: str, key: str | None = None, **arguments: Any) -> tuple[bool, str]:
        """Whether a tool failed, and its text."""
        ((failed, text),) = self.asked([(tool, arguments)], key)
        return failed, text

    def told(self, tool: str, **arguments: Any) -> str:
        """The text of a tool that must succeed."""
        failed, text = self.ask(tool, **arguments)
        assert not failed, text
        return text

    def asked(self, calls: list[tuple[str, dict[str, Any]]], key: str | None = None) -> list[tuple[bool, str]]:
        """The answers of several tools in one session."""

        async def work(client: Any) -> list[tuple[bool, str]]:
            found = []
            for tool, arguments in calls:
                result = await client.call_tool(tool, arguments)
                found.append((bool(result.is_error), "".join(block.text for block in result.content)))
            return found

        return list(self.session(work, key))

    def session(self, work: Any, key: str | None = None) -> Any:
        """What work makes of a connected client."""
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        words = ["-m", "heddle", "mcp", "--project", PROJECT, "--server", self.process.url]
        environment = {"HEDDLE_API_KEY": key or self.reader, "PATH": os.environ["PATH"]}
        parameters = StdioServerParameters(command=sys.executable, args=words, env=environment)

        async def run() -> Any:
            with anyio.fail_after(60):
                async with Client(stdio_client(parameters)) as client:
                    return await work(client)

        return anyio.run(run)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Traces, an evaluation and a dataset in one project, a secret in another."""
    data = tmp_path_factory.mktemp("mcp") / "data"
    admin = make_key(data, "root", "--scope", "admin")
    reader = make_key(data, "reader", "--scope", "read", "--project", PROJECT)
    with HeddleProcess(data, auth="on", model="none") as process:
        yield Scene(process, reader, _stored(process.url, admin))


def _stored(url: str, admin: str) -> dict[str, str]:
    with httpx.Client(base_url=url, auth=("api", admin), timeout=60) as client:

        def post(path: str, **body: Any) -> Any:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, f"{path}: {answer.text}"
            return answer.json()

        ids = {name: str(uuid.uuid4()) for name in ("root", "lookup", "model", "secret", "wide")}
        calls = [
            _call(ids["root"], ids["root"], None, "assistant", {"question": "Where is order 1007?"}, exception="boom"),
            _call(
                ids["lookup"], ids["root"], ids["root"], "find_order", {"number": "1007"},
                exception=json.dumps({"type": "LookupError", "message": "order 1007 is not known"}),
            ),
            _call(
                ids["model"], ids["root"], ids["root"], "complete",
                {"messages": [{"role": "user", "content": LONG}]}, output={"text": "a long answer"}, seconds=3,
                summary={"usage": {"gpt-4o-mini": {"requests": 1, "prompt_tokens": 1000, "completion_tokens": 500}}},
            ),
            _call(
                ids["wide"], ids["wide"], None, "wide", {"n": 1},
                summary={"usage": {"": {"input_tokens": "none", "output_tokens": 3}, "odd": 5}},
            ),
            *(
                _call(str(uuid.uuid4()), ids["wide"], ids["wide"], "step", {}, exception="late" if n == 400 else None)
                for n in range(500)
            ),
        ]  # fmt: skip
        post(f"/v2/{PROJECT}/calls/complete", batch=[{**call, "project_id": PROJECT} for call in calls])
        hidden = _call(ids["secret"], ids["secret"], None, "hidden", {"word": "swordfish"})
        post(f"/v2/{OTHER}/calls/complete", batch=[{**hidden, "project_id": OTHER}])
        return ids | _evaluated(Writer(post, PROJECT))


def _evaluated(writer: Writer) -> dict[str, str]:
    dataset, rows = writer.dataset("questions", [{"question": f"what is {n}?", "target": str(n)} for n in range(8)])
    evaluation = writer.evaluation("quality", dataset, [writer.scorer("ExactMatchScorer")])
    model = writer.object("answerer", {"_type": "Model", "_class_name": "Model", "_bases": ["Object", "BaseModel"]})

    def run(right: int, at: int) -> str:
        answers = [
            {"output": f"answer {n}", "scores": {"ExactMatchScorer": {"exact_match": n < right}}} for n in range(8)
        ]
        return writer.run(evaluation, dataset, rows, model, answers, at)

    return {"good": run(7, 0), "bad": run(2, 1), "dataset": dataset, "row2": rows[2]}


def _call(
    call_id: str, trace: str, parent: str | None, op: str, inputs: Any, *, output: Any = None,
    exception: str | None = None, seconds: float = 0.01, summary: Any = None,
) -> dict[str, Any]:  # fmt: skip
    started = datetime.now(UTC) - timedelta(minutes=1)
    return {
        "id": call_id,
        "trace_id": trace,
        "parent_id": parent,
        "op_name": op,
        "started_at": started.isoformat(),
        "ended_at": (started + timedelta(seconds=seconds)).isoformat(),
        "attributes": {},
        "inputs": inputs,
        "output": output,
        "exception": exception,
        "summary": summary or {},
    }


def test_every_tool_says_that_it_only_reads(scene: Scene) -> None:
    async def work(client: Any) -> Any:
        return (await client.list_tools()).tools

    tools = scene.session(work)
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert tool.annotations.read_only_hint is True and tool.annotations.destructive_hint is False
        assert len(tool.description) > 40 and "\n\n" not in tool.description
        schema = tool.input_schema
        assert "context" not in schema["properties"] and "project" in schema["properties"]
        assert all("description" in field for field in schema["properties"].values()), tool.name


def test_calls_are_found_by_what_is_known_of_them(scene: Scene) -> None:
    ids = scene.ids
    asked = [
        ("find_calls", {"op": "find_order"}),
        ("find_calls", {"status": "error", "roots_only": True}),
        ("find_calls", {"text": "ORDER 1007 IS NOT"}),
        ("find_calls", {"min_latency_ms": 1000, "op": "complete"}),
        ("find_calls", {"min_cost": 1e-9, "since": "1h"}),
        ("find_calls", {"trace_id": ids["wide"], "limit": 3, "offset": 2}),
        ("find_calls", {"since": "2001-01-01", "until": "2002-01-01"}),
    ]
    by_op, failed, by_text, slow, dear, paged, old = (text for _, text in scene.asked(asked))
    assert f"id={ids['lookup']}" in by_op and "LookupError: order 1007 is not known" in by_op and "of 1," in by_op
    assert f"id={ids['root']}" in failed and ids["lookup"] not in failed.replace(f"trace={ids['root']}", "")
    assert f"id={ids['lookup']}" in by_text and "1 of 1" in by_text
    assert f"id={ids['model']}" in slow and "3000 ms" in slow and "1500 tokens" in slow and "$0.00045" in slow
    assert f"id={ids['model']}" in dear and "1 of 1" in dear
    assert "calls 3 to 5 of 501" in paged and "offset=5 shows more" in paged
    assert old == "no calls here; 0 in all, newest first"


def test_a_trace_is_opened_by_its_summary(scene: Scene) -> None:
    ids = scene.ids
    tree = scene.told("open_trace", id=ids["root"])
    assert tree.splitlines()[0] == f"trace {ids['root']}: 3 calls, 2 with an error"
    assert f"\n  - find_order [error · 10 ms] id={ids['lookup']} · LookupError: order 1007 is not known" in tree
    assert "inputs of the top: " in tree and "Where is order 1007?" in tree and "lorem" not in tree
    wide = scene.told("open_trace", id=ids["wide"], children=5)
    assert wide.count("- step [") == 6 and "error · 10 ms" in wide and "[494 more children without an error]" in wide
    below = scene.told("open_trace", id=ids["lookup"])
    assert "- find_order" in below and "- assistant" not in below
    assert "[2 children: open_trace with id=" in scene.told("open_trace", id=ids["root"], depth=1)


@pytest.mark.thorough
def test_one_call_is_read_as_far_as_one_likes(scene: Scene) -> None:
    model = scene.ids["model"]
    overview = scene.told("read_call", id=model)
    assert "lorem" in overview and "characters)" in overview and len(overview) < 24_000
    first = scene.told("read_call", id=model, path="inputs.messages.0.content", max_characters=1_000)
    assert f"[characters 0 to 1,000 of {len(LONG):,}; offset=1000 shows what follows]" in first
    last = scene.told("read_call", id=model, path="inputs.messages.0.content", offset=len(LONG) - 6)
    assert "ipsum " in last and "shows what follows" not in last
    failed, text = scene.ask("read_call", id=model, path="inputs.prompt")
    assert failed and "has no 'prompt'; it has messages" in text


@pytest.mark.thorough
def test_usage_is_summed_by_model(scene: Scene) -> None:
    text = scene.told("summarize_usage", since="1h", roots_only=False)
    assert "gpt-4o-mini: 1,000 tokens in, 500 out, $0.00045" in text
    assert "- no model: 0 tokens in, 3 out, $0" in text
    assert "504 calls, 3 failed" in text and "p95" in text
    assert "no tokens were reported" in scene.told("summarize_usage", since="1h", op="find_order", roots_only=False)
    failed, text = scene.ask("summarize_usage", since="40d")
    assert failed and "at most 31 days" in text


@pytest.mark.thorough
def test_evaluations_are_listed_and_compared(scene: Scene) -> None:
    ids = scene.ids
    listed = scene.told("list_evaluations")
    assert "quality v0" in listed and f"run {ids['good']}" in listed and f"run {ids['bad']}" in listed
    assert "answerer:" in listed and "dataset questions:" in listed
    compared = scene.told("compare_evaluations", runs=[ids["good"], ids["bad"]], worst=2)
    assert f"run {ids['bad']} against baseline {ids['good']}, 8 rows in both" in compared
    assert "- score: 0.875 -> 0.25, difference -0.625 (95 % " in compared
    assert "rows that got worst by score:" in compared and compared.count("- row ") == 2 and "answer 2" in compared
    assert ids["row2"] in compared and 'row: {"question": "what is 2?", "target": "2"}' in compared
    failed, text = scene.ask("compare_evaluations", runs=[ids["good"], ids["root"]])
    assert failed and "is not an evaluation run but assistant" in text


@pytest.mark.thorough
def test_datasets_and_objects_are_read(scene: Scene) -> None:
    assert "questions:" in scene.told("list_objects", kind="dataset")
    assert "ExactMatchScorer:" in scene.told("list_objects", kind="scorer")
    dataset = scene.told("read_object", name="questions", rows=2, first_row=3)
    assert "rows 3 to 4 of 8" in dataset and "what is 4?" in dataset and "what is 5?" not in dataset
    assert scene.told("read_object", name=scene.ids["dataset"], path="name").endswith("\nquestions")
    failed, text = scene.ask("read_object", name="nothing")
    assert failed and text.endswith("object 'nothing' not found in team/shop")


def test_a_key_reaches_its_own_project_only(scene: Scene) -> None:
    secret = scene.ids["secret"]
    asked = [
        ("find_calls", {"project": OTHER}),
        ("open_trace", {"project": OTHER, "id": secret}),
        ("read_call", {"project": OTHER, "id": secret}),
        ("read_call", {"id": secret}),
        ("open_trace", {"id": secret}),
        ("read_object", {"name": f"weave:///{OTHER}/object/nothing:latest"}),
        ("list_evaluations", {"project": OTHER}),
        ("summarize_usage", {"project": OTHER}),
        ("search_conversations", {"project": OTHER}),
    ]
    for failed, text in scene.asked(asked):
        assert failed and "swordfish" not in text and "Traceback" not in text, text
    assert "403" in scene.ask("find_calls", project=OTHER)[1]


def test_a_wrong_key_and_no_server_are_told(scene: Scene) -> None:
    failed, text = scene.ask("find_calls", key="heddle-unknown")
    assert failed and "401" in text and "HEDDLE_API_KEY" in text
    done = heddle("eval", "compare", "a", "b", "--project", "a/b", "--server", "http://127.0.0.1:9")
    assert (
        done.returncode == 2
        and "check that the server is running there" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_answers_stay_bounded(scene: Scene) -> None:
    asked = [
        ("find_calls", {"limit": 100}),
        ("open_trace", {"id": scene.ids["wide"], "children": 200}),
        ("read_call", {"id": scene.ids["model"], "path": "inputs", "max_characters": 20_000}),
    ]
    for failed, text in scene.asked(asked):
        assert not failed and len(text) <= 24_000


def test_an_argument_that_a_tool_does_not_have_is_refused(scene: Scene) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [(tool, {"statuses": "error"}) for tool in sorted(TOOLS)]
    assert [failed and "statuses" in text for failed, text in scene.asked(asked)] == [True] * len(TOOLS)


def test_a_failure_repeats_little_of_a_long_argument(scene: Scene) -> None:
    long = "x" * 100_000
    asked = [
        ("find_calls", {"since": long}),
        ("open_trace", {"id": long}),
        ("read_call", {"id": scene.ids["model"], "path": f"output.{long}"}),
        ("read_object", {"name": long}),
    ]
    for failed, text in scene.asked(asked):
        assert failed and len(text) < 2_200
    failed, text = scene.ask("read_call", id=scene.ids["model"], path="output" + "." * 100_000)
    assert not failed and len(text) < 2_200


def test_over_http_each_request_reads_with_its_own_key(scene: Scene) -> None:
    port = free_port()
    words = [sys.executable, "-m", "heddle", "mcp", "--http", str(port), "--server", scene.process.url]
    environment = {"HEDDLE_API_KEY": scene.reader, "PATH": os.environ["PATH"]}
    served = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        asked = [_over_http(port, key) for key in (scene.reader, None, "heddle-wrong")]
    finally:
        served.terminate()
        _, told = served.communicate(timeout=30)
    (found, text), *refused = asked
    assert not found and "calls 1 to 1 of 1" in text
    assert all(failed and "returned 401" in said for failed, said in refused)
    assert "Traceback" not in told


def test_a_client_that_goes_away_while_it_asks_is_no_fault(scene: Scene) -> None:
    port = free_port()
    words = [sys.executable, "-m", "heddle", "mcp", "--http", str(port), "--server", scene.process.url]
    served = subprocess.Popen(words, env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE, text=True)
    try:
        _over_http(port, scene.reader)
        head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        head += "accept: application/json, text/event-stream\r\ncontent-length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode())
        _over_http(port, scene.reader)
    finally:
        served.terminate()
        _, told = served.communicate(timeout=30)
    assert told == "heddle: terminated by SIGTERM\n" and served.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_over_stdio_a_signal_ends_it_at_once(scene: Scene, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "heddle", "mcp", "--server", scene.process.url]
    served = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert served.stdin is not None and served.stdout is not None
    with served:
        started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": started}
        served.stdin.write(json.dumps(asked).encode() + b"\n")
        served.stdin.flush()
        assert json.loads(served.stdout.readline())["id"] == 1
        served.send_signal(number)
        try:
            assert served.wait(60) == -number
        finally:
            served.kill()


def test_a_server_without_keys_is_not_shown_to_the_network(tmp_path: Path) -> None:
    words = ["mcp", "--http", str(free_port()), "--host", "0.0.0.0", "--server"]
    with HeddleProcess(tmp_path / "data", model="none") as process:
        refused = heddle(*words, process.url)
        assert heddle(*words, f"{process.url}/nowhere").returncode == 1, "who does not say that a key is missing"
    assert refused.returncode == 1 and "without a key" in refused.stderr, refused.stderr
    assert heddle(*words, "http://127.0.0.1:9").returncode == 1, "who cannot be asked"


def _over_http(port: int, key: str | None) -> tuple[bool, str]:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    async def run() -> tuple[bool, str]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with anyio.fail_after(60):
            async with httpx2.AsyncClient(headers=headers) as http:
                await _until_listening(port)
                transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
                async with Client(transport) as client:
                    result = await client.call_tool("find_calls", {"project": PROJECT, "op": "find_order"})
                    return bool(result.is_error), "".join(block.text for block in result.content)

    return anyio.run(run)


async def _until_listening(port: int) -> None:
    while True:
        try:
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
            return
        except OSError:
            await anyio.sleep(0.05)


def test_without_the_library_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('gone')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from heddle.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "mcp"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'.[mcp]'" in done.stderr and "Traceback" not in done.stderr
