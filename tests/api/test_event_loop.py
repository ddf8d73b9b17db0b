"""No request holds the event loop: /health goes on, and what is too much is refused with its limit named."""

import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.patience import strain
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

PROJECT = "team/loop"
MAX_LITERALS, MAX_OPERATIONS = 20_000, 4_000
MIB = 1 << 20
LONGEST = 0.5
"""Seconds that /health may take; stalls took 4 to 17 s."""
OTHER = {"content-type": "application/json", "content-encoding": "gzip", "project_id": PROJECT}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    with HeddleProcess(tmp_path_factory.mktemp("loop") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def client(server: HeddleProcess) -> httpx.Client:
    client = httpx.Client(base_url=server.url, timeout=300, headers={"authorization": "Bearer any"})
    chat = {"model": "heddle-tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert client.post("/v1/chat/completions", json=chat).status_code == 200
    return client


def filled(head: str, item: str, tail: str, size: int) -> bytes:
    """JSON of so many bytes: one item again and again."""
    count = (size - len(head) - len(tail)) // (len(item) + 1)
    return (head + ",".join([item] * count) + tail).encode()


def nested(value: bytes) -> bytes:
    """A whole call with the value among its inputs."""
    call = {"project_id": PROJECT, "id": "1", "trace_id": "1", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
    call |= {"ended_at": "2026-01-01T00:00:01Z", "attributes": {}, "inputs": {"x": "@"}, "summary": {}}
    return json.dumps({"batch": [call]}).encode().replace(b'"@"', value)


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "heddle-tiny", "messages": [{"role": "user", "content": "x"}], **fields}).encode()


def protobuf(size: int) -> bytes:
    """An OTLP export of empty spans."""

    def field(number: int, content: bytes) -> bytes:
        length, sizes = len(content), b""
        while length > 127:
            sizes, length = sizes + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + sizes + bytes([length]) + content

    return field(1, field(2, b"\x12\x00" * (size // 2)))


ROWS = '{"table":{"project_id":"team/loop","rows":['
SPANS = '{"resourceSpans":[{"scopeSpans":[{"spans":['
COMPLETE = f"/v2/{PROJECT}/calls/complete"
LARGE = "hello world, " * 600_000
HOSTILE: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "30 MiB of empty rows": ("/table/create", lambda: filled(ROWS, "{}", "]}}", 30 * MIB), 413),
    "as many empty rows as are allowed": ("/table/create", lambda: filled(ROWS, "{}", "]}}", 2 * MIB), 200),
    "rows that are none": ("/table/create", lambda: filled(ROWS, "1", "]}}", 2 * MIB), 422),
    "digests that are none": (
        "/table/create_from_digests",
        lambda: filled('{"project_id":"team/loop","row_digests":[', "1", "]}", 8 * MIB),
        422,
    ),
    "30 MiB of lists in a call": (COMPLETE, lambda: nested(filled("[", "[]", "]", 30 * MIB)), 413),
    "a long integer before 30 MiB": (COMPLETE, lambda: nested(filled("[" + "1" * 29 + ",", "[]", "]", 30 * MIB)), 413),
    "a long integer before objects": (COMPLETE, lambda: nested(filled("[" + "1" * 29 + ",", "{}", "]", MIB)), 200),
    "calls that are none": (COMPLETE, lambda: filled('{"batch":[', "1", "]}", 2 * MIB), 422),
    "halves that are none": ("/call/upsert_batch", lambda: filled('{"batch":[', "NaN", "]}", 4 * MIB), 422),
    "an object of lists": (
        "/obj/create",
        lambda: filled('{"obj":{"project_id":"team/loop","object_id":"x","val":[', "[]", "]}}", 2 * MIB),
        200,
    ),
    "feedback": ("/feedback/batch/create", lambda: filled('{"batch":[', "{}", "]}", 20 * MIB), 413),
    "long refs": (
        "/refs/read_batch",
        lambda: filled('{"refs":[', f'"weave:///{PROJECT}/object/o:{"0" * 43}{"/attr/a" * 10_000}"', "]}", 25 * MIB),
        404,
    ),
    "refs": ("/refs/read_batch", lambda: filled('{"refs":[', "1", "]}", 20 * MIB), 413),
    "spans that are none": ("/otel/v1/traces", lambda: filled(SPANS, "{}", "]}]}]}", 2 * MIB), 413),
    "a training job": (
        "/v1/preview/training-jobs",
        lambda: filled('{"model_id":"x","trajectory_groups":[', "[]", "]}", 2 * MIB - 1000),
        422,
    ),
    "a long message": ("/v1/chat/completions", lambda: chat(messages=[{"role": "user", "content": LARGE}]), 400),
    "one long word": ("/v1/chat/completions", lambda: chat(messages=[{"role": "user", "content": "a" * 7 * MIB}]), 400),
    "a long document": ("/v1/chat/completions", lambda: chat(documents=[{"title": "d", "text": LARGE}]), 400),
    "a long description of a tool": (
        "/v1/chat/completions",
        lambda: chat(tools=[{"type": "function", "function": {"name": "f", "description": LARGE}}]),
        400,
    ),
    "many stops": ("/v1/chat/completions", lambda: chat(stop=[str(number) for number in range(30_000)]), 400),
    "many messages": (
        "/v1/chat/completions",
        lambda: filled('{"model":"heddle-tiny","messages":[', '{"role":"user","content":"x"}', "]}", 7 * MIB),
        413,
    ),
    "a long prompt for a model of the trace": (
        "/completions/create",
        lambda: json.dumps(
            {
                "project_id": PROJECT,
                "inputs": {"model": "heddle-tiny", "messages": [{"role": "user", "content": LARGE}]},
            }
        ).encode(),
        200,
    ),
}


class Prober:
    """Asks /health again and again; `worst` is how long the slowest answer took, in seconds."""

    def __init__(self, url: str) -> None:
        self.worst = 0.0
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300) as client:
            while not self._ended.wait(0.005):
                started = time.perf_counter()
                assert client.get("/health").status_code == 200
                self.worst = max(self.worst, time.perf_counter() - started)


def post_beside_others(client: httpx.Client, path: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
    """The answer of a POST while /health is never late: a stall comes each time, noise does not."""
    for _ in range(3):
        with Prober(str(client.base_url)) as prober:
            answer = client.post(path, content=gzip.compress(content, 1), headers=headers)
        if prober.worst < LONGEST * strain():
            return answer
    raise AssertionError(f"/health took {prober.worst:.1f} s beside {answer.text[:300]}")


@pytest.mark.parametrize("name", with_breadth(HOSTILE, every=2))
def test_others_are_served_meanwhile(name: str, client: httpx.Client) -> None:
    path, make, status = HOSTILE[name]
    answer = post_beside_others(client, path, make(), OTHER)
    assert answer.status_code == status, answer.text[:300]
    assert len(answer.content) < 64 * MIB
    if status == 413:
        assert "max_json_nodes" in answer.text or "in one export" in answer.text


REDACTED = {"project_id": "team/redacted"}
AT = "2026-01-01T00:00:00Z"
BLANKS = "password:" + " " * 4_000_000
CARDS = {"x": "4111 1111 1111 1112 " * 400_000}


def started(text: str) -> Any:
    return {"start": {**REDACTED, "op_name": "o", "started_at": AT, "inputs": {"x": text}, "attributes": {}}}


def failed(exception: str) -> Any:
    return {"end": {**REDACTED, "id": "1", "ended_at": AT, "summary": {}, "exception": exception}}


TO_REDACT: dict[str, tuple[str, Any]] = {
    "an input": ("/call/start", started(BLANKS)),
    "an exception": ("/call/end", failed(BLANKS)),
    "lines of an exception": ("/call/end", failed("x" + "\n" * 60_000 + "x")),
    "an object": ("/obj/create", {"obj": {**REDACTED, "object_id": "o", "val": CARDS}}),
    "a row": ("/table/create", {"table": {**REDACTED, "rows": [CARDS]}}),
}
"""Texts that take detectors long."""


@pytest.mark.parametrize("name", with_breadth(TO_REDACT, every=2))
def test_others_are_served_while_a_long_text_is_redacted(name: str, client: httpx.Client) -> None:
    rules = {**REDACTED, "kinds": ["email", "phone", "card", "key"]}
    assert client.post("/project/redaction/update", json=rules).status_code == 200
    path, body = TO_REDACT[name]
    answer = post_beside_others(client, path, json.dumps(body).encode(), {**OTHER, **REDACTED})
    assert answer.status_code == 200, answer.text[:300]


def test_an_export_of_empty_spans(client: httpx.Client) -> None:
    headers = {**OTHER, "content-type": "application/x-protobuf"}
    answer = post_beside_others(client, "/otel/v1/traces", protobuf(MIB), headers)
    assert answer.status_code in (200, 413)


def test_lags_and_refusals_are_counted(client: httpx.Client) -> None:
    path, make, status = HOSTILE["30 MiB of empty rows"]
    assert client.post(path, content=make(), headers={"content-type": "application/json"}).status_code == status
    text = client.get("/metrics").text
    counted = re.search(r"(?m)^heddle_event_loop_lag_seconds_count (\S+)", text)
    refused = re.search(r'(?m)^heddle_refused_total\{limit="max_json_nodes"\} (\S+)', text)
    assert counted is not None
    assert float(counted[1]) > 10
    assert refused is not None
    assert float(refused[1]) >= 1


def field(name: str) -> dict[str, str]:
    return {"$getField": name}


QUERIES = [
    ("/calls/stream_query", "inputs.x"),
    ("/calls/query_stats", "inputs.x"),
    ("/feedback/query", "payload.x"),
    ("/agents/spans/query", "span_id"),
]


@pytest.mark.parametrize(("path", "name"), with_breadth(QUERIES))
def test_a_query_is_bounded_in_literals_and_operations(path: str, name: str, client: httpx.Client) -> None:
    def asked(expression: Any) -> httpx.Response:
        return client.post(path, json={"project_id": PROJECT, "query": {"$expr": expression}})

    def among(count: int) -> Any:
        return {"$in": [field(name), [{"$literal": str(number)} for number in range(count)]]}

    def any_of(count: int) -> Any:
        return {"$or": [{"$eq": [field(name), {"$literal": str(number)}]} for number in range(count)]}

    assert asked(among(MAX_LITERALS)).status_code == 200
    refused = asked(among(MAX_LITERALS + 1))
    assert (refused.status_code, f"at most {MAX_LITERALS} literals" in refused.text) == (400, True)
    assert asked(any_of(MAX_OPERATIONS - 1)).status_code == 200
    refused = asked(any_of(MAX_OPERATIONS))
    assert (refused.status_code, f"at most {MAX_OPERATIONS} operations" in refused.text) == (400, True)


def test_fields_and_terms_of_a_selection_are_bounded(client: httpx.Client) -> None:
    fields = [f"payload.x{number}" for number in range(501)]
    answer = client.post("/feedback/query", json={"project_id": PROJECT, "fields": fields})
    assert (answer.status_code, "fields has 501 entries" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "path",
    [
        *("/feedback/query", "/cost/query", "/calls/stream_query", "/threads/stream_query", "/objs/query"),
        *("/table/query", "/agents/query", "/agents/spans/query", "/annotation_queues/query"),
    ],
)
def test_an_order_has_a_bounded_number_of_terms(path: str, client: httpx.Client) -> None:
    def ask(terms: int) -> httpx.Response:
        order = [{"field": "id", "direction": "asc"}] * terms
        return client.post(path, json={"project_id": PROJECT, "digest": "0" * 64, "sort_by": order})

    assert "too_long" not in ask(20).text
    refused = ask(21)
    assert refused.status_code == 422
    assert [item["loc"] for item in refused.json()["detail"]] == [["body", "sort_by"]]


MONTH = {"project_id": PROJECT, "start": "2026-01-01T00:00:00Z", "end": "2026-01-31T00:00:00Z", "granularity": 1}
LATENCY = {"metric": "latency_ms"}
TOKENS = {"alias": "n", "value_type": "number", "value": {"source": "field", "key": "input_tokens"}}
RATING = {"json_path": "rating"}
FIGURES: dict[str, tuple[str, str, Any]] = {
    "calls": ("/calls/stats", "call_metrics", LATENCY),
    "usage": ("/calls/stats", "usage_metrics", {"metric": "input_tokens"}),
    "spans": ("/agents/spans/stats", "metrics", TOKENS),
    "feedback": ("/feedback/stats", "metrics", RATING),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_an_answer_are_bounded(name: str, client: httpx.Client) -> None:
    """10,000 buckets with 100,000 figures each took all memory."""
    path, field, metric = FIGURES[name]

    def ask(metrics: int, percentiles: int) -> httpx.Response:
        asked = [{**metric, "aggregations": ["sum", "avg"], "percentiles": list(range(percentiles))}]
        return client.post(path, json={**MONTH, field: asked * metrics})

    answer = ask(1, 60)
    assert (answer.status_code, len(answer.content) > MIB or name == "usage") == (200, True), answer.text[:300]
    refused = ask(1, 100)
    assert (refused.status_code, "at most 1000000 values" in refused.text) == (400, True), refused.text[:300]
    refused = ask(1, 101)
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", field, 0, "percentiles"])
    refused = ask(101, 0)
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", field])


@pytest.mark.thorough
def test_the_limit_of_json_values_is_a_setting(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", max_json_nodes=100_000, workers=2) as server:
        client = httpx.Client(base_url=server.url, timeout=60)
        assert client.post(COMPLETE, content=nested(filled("[", "1", "]", 190_000))).status_code == 200
        refused = client.post(COMPLETE, content=nested(filled("[", "1", "]", 210_000)))
        assert refused.status_code == 413
        assert refused.json()["reason"] == "Request too large: more JSON values than the limit max_json_nodes = 100000"
        # commas and brackets inside texts are no values
        assert client.post(COMPLETE, content=nested(b'"' + b"[," * 150_000 + b'"')).status_code == 200
        shown = ""
        while "heddle_refused_total{" not in shown:
            shown = client.get("/metrics").text
        assert 'heddle_refused_total{limit="max_json_nodes"} 1.0' in shown
