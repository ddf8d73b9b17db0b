"""Spans of the server's own requests: what they say, where they go, and what happens when nobody takes them."""

import asyncio
import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from heddle import settings as table
from heddle.app import served_routes
from heddle.errors import HeddleError
from heddle.http import span_export
from heddle.http.span_export import SpanExport, check_endpoint
from heddle.wire.otlp import decode_partial_success, encode_partial_success

ROUTES = {route.path: route for route in served_routes()}
START = ROUTES["/call/start"]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes exports."""

    taken: list[tuple[str, dict[str, str], ExportTraceServiceRequest]]
    answers: list[tuple[int, bytes]]

    def do_POST(self) -> None:
        """Keep one, and answer as the test wants, at last with 200."""
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.taken.append((self.path, headers, ExportTraceServiceRequest.FromString(body)))
        status, answer = self.answers.pop(0) if self.answers else (200, b"")
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def receiver(*answers: tuple[int, bytes]) -> Iterator[tuple[str, type[Receiver]]]:
    """A server for exports: its address, and what it took."""
    handler = type("Handler", (Receiver,), {"taken": [], "answers": list(answers)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def exporting(address: str, **settings: str) -> tuple[SpanExport, Counter[str]]:
    counted: Counter[str] = Counter()

    def count(outcome: str, number: int) -> None:
        counted[outcome] += number

    return SpanExport(table.load({"otlp_export_endpoint": address, **settings}, {}), count), counted


def add(export: SpanExport, traceparent: str = "", status: int = 200, path: str = "/call/start") -> None:
    export.add(ROUTES.get(path), "POST", status, 0.5, traceparent.encode(), {"http.request.body.size": 300})


def sent(handler: type[Receiver]) -> list[Span]:
    return [span for _, _, one in handler.taken for span in one.resource_spans[0].scope_spans[0].spans]


async def run(export: SpanExport, *adding: dict[str, object]) -> None:
    async with export.running():
        for one in adding:
            add(export, **one)  # type: ignore[arg-type]


def test_a_span_says_route_status_and_times_and_continues_the_callers_trace() -> None:
    with receiver() as (address, handler):
        headers = "project_id=team/heddle,Authorization=Bearer%20a%2Cb"
        export, counted = exporting(f"{address}/below/", otlp_export_headers=headers)
        known, missing = {"traceparent": f"00-{TRACE}-{PARENT}-01"}, {"path": "nowhere", "status": 404}
        asyncio.run(run(export, known, {"status": 503}, missing))
    ((path, given, request),) = handler.taken
    assert path == "/below/v1/traces" and given["content-type"] == "application/x-protobuf"
    assert (given["project_id"], given["authorization"]) == ("team/heddle", "Bearer a,b")
    assert given["traceparent"].endswith("-00"), "the export itself is not sampled"
    resource = {pair.key: pair.value.string_value for pair in request.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "heddle" and resource["service.version"]
    one, failed, unknown = sent(handler)
    assert (one.trace_id.hex(), one.parent_span_id.hex(), one.kind) == (TRACE, PARENT, Span.SPAN_KIND_SERVER)
    assert one.name == "POST /call/start" and one.end_time_unix_nano - one.start_time_unix_nano == 500_000_000
    attributes = {pair.key: pair.value.string_value or pair.value.int_value for pair in one.attributes}
    assert attributes == {
        "http.request.method": "POST", "http.route": "/call/start", "http.response.status_code": 200,
        "http.request.body.size": 300,
    }  # fmt: skip
    assert failed.status.code == Status.STATUS_CODE_ERROR and one.status.code == Status.STATUS_CODE_UNSET
    assert unknown.name == "POST" and unknown.status.code == Status.STATUS_CODE_UNSET
    assert not failed.parent_span_id and failed.trace_id not in (one.trace_id, unknown.trace_id)
    assert counted == {"sent": 3, "failed": 0, "dropped": 0}


@pytest.mark.parametrize(
    ("traceparent", "parents"),
    [
        (f"00-{TRACE}-{PARENT}-00", None),
        (f"00-{TRACE}-{PARENT}-03", PARENT),
        (f"cc-{TRACE}-{PARENT}-01-more", PARENT),
        (f"ff-{TRACE}-{PARENT}-01", ""),
        (f"00-{'0' * 32}-{PARENT}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE.upper()}-{PARENT}-01", ""),
        (f"00-{TRACE}-{PARENT}", ""),
        ("é" * 60, ""),
    ],
)
def test_traceparent_is_read_as_w3c_says(traceparent: str, parents: str | None) -> None:
    with receiver() as (address, handler):
        export, _ = exporting(address)
        asyncio.run(run(export, {"traceparent": traceparent}))
    assert [span.parent_span_id.hex() for span in sent(handler)] == ([] if parents is None else [parents])


def test_probes_and_prometheus_make_no_spans() -> None:
    with receiver() as (address, handler):
        export, _ = exporting(address)
        asyncio.run(run(export, *({"path": path} for path in ("/health", "/ready", "/metrics", "/version"))))
    assert [span.name for span in sent(handler)] == ["POST /version"]


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "MOST_WAITING", 5)
    with receiver() as (address, handler):
        export, counted = exporting(address)
        asyncio.run(run(export, *({} for _ in range(8))))
    assert len(sent(handler)) == 5 and counted == {"sent": 5, "failed": 0, "dropped": 3}


@pytest.mark.parametrize(("answer", "attempts", "lost"), [((400, b""), 1, 3), ((503, b""), 2, 0), ((429, b""), 2, 0)])
def test_what_may_pass_is_tried_again(
    answer: tuple[int, bytes], attempts: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(span_export, "_RETRY_SECONDS", (0.01,))

    async def work(export: SpanExport, counted: Counter[str]) -> None:
        async with export.running():
            for _ in range(3):
                add(export)
            while not counted.total():
                await asyncio.sleep(0.01)

    with receiver(answer) as (address, handler):
        export, counted = exporting(address)
        asyncio.run(work(export, counted))
    assert len(handler.taken) == attempts
    assert (counted["failed"], counted["sent"]) == (lost, 3 - lost)


def test_what_the_receiver_rejects_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with receiver((200, encode_partial_success(2, "no project is named"))) as (address, _):
        export, counted = exporting(address)
        asyncio.run(run(export, {}, {}, {}))
    assert counted == {"sent": 1, "failed": 2, "dropped": 0}
    assert "no project is named" in caplog.text
    assert decode_partial_success(b"") == decode_partial_success(b"{}") == decode_partial_success(b"\x0a") == (0, "")
    assert decode_partial_success(encode_partial_success(300, "why")) == (300, "why")


def test_nobody_waits_for_a_receiver_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    export, counted = exporting("http://127.0.0.1:9")
    asyncio.run(run(export, {}))
    assert counted == {"sent": 0, "failed": 1, "dropped": 0}
    assert caplog.text.count("cannot be sent to otlp_export_endpoint") == 1


def test_a_server_does_not_export_to_itself() -> None:
    def check(endpoint: str, port: int = 8470, **settings: str) -> None:
        check_endpoint(table.load({"otlp_export_endpoint": endpoint, **settings}, {}), port)

    for endpoint in ("http://127.0.0.1:8470", "http://localhost:8470/", "http://[::ffff:127.0.0.1]:8470"):
        with pytest.raises(HeddleError, match="is this server itself"):
            check(endpoint, host="0.0.0.0")
    with pytest.raises(HeddleError, match="is this server itself"):
        check("https://heddle.example.com/x", public_url="https://heddle.example.com:443")
    with pytest.raises(HeddleError, match="is this server itself"):
        check("http://127.0.0.1:8470")
    check("none")
    check("http://127.0.0.1:4318")
    check("http://127.0.0.2:8470")
    check("http://no-such-host.invalid:8470")
