"""The unmodified gRPC exporter of the OpenTelemetry SDK against heddle."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from tests.conftest import Wire
from tests.support.server import HeddleProcess, free_port
from tests.support.traffic import until

pytestmark = pytest.mark.client
exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
log_exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc._log_exporter")
metric_exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.metric_exporter")
grpc = pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, int]]:
    """A server and its gRPC port."""
    port = free_port()
    with HeddleProcess(tmp_path_factory.mktemp("grpc") / "data", otlp_grpc_port=port) as server:
        yield server, port


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_an_address_alone_is_enough(
    served: tuple[HeddleProcess, int],
    project: str,
    compression: grpc.Compression | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The project is the name of the service; 1,000 spans in batches of the exporter's own size."""
    server, port = served
    name = project.partition("/")[2] + str(compression)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporters.OTLPSpanExporter(compression=compression)))
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("outer", attributes={"user": "ann", "user.id": "u-1"}):
        for number in range(1000):
            with tracer.start_as_current_span("step", attributes={"number": number}):
                pass
    provider.shutdown()
    calls = Wire(server.url, f"local/{name}").calls()
    steps = [call["attributes"]["number"] for call in calls if call["parent_id"]]
    (outer,) = (call for call in calls if not call["parent_id"])
    assert sorted(steps) == list(range(1000))
    assert outer["attributes"]["otel_span"]["attributes"]["user"] == {"id": "u-1", "_value": "ann"}


def test_metrics_are_counted(served: tuple[HeddleProcess, int], project: str) -> None:
    """Each signal has a service of its own."""
    server, port = served
    exporter = metric_exporters.OTLPMetricExporter(
        f"http://127.0.0.1:{port}", insecure=True, headers={"project_id": project}
    )
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)])
    provider.get_meter("m").create_counter("tokens", "{token}").add(7, {"model": "tiny"})
    provider.shutdown()
    (metric,) = Wire(server.url, project).post("/metrics/query")["metrics"]
    assert (metric["name"], metric["unit"], metric["attributes"]["model"]) == ("tokens", "{token}", ["tiny"])


def test_log_records_join_their_span(served: tuple[HeddleProcess, int], project: str) -> None:
    server, port = served
    options = {"insecure": True, "headers": {"project_id": project}}
    spans, logs = TracerProvider(), LoggerProvider()
    exporter = exporters.OTLPSpanExporter(f"http://127.0.0.1:{port}", **options)
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    logs.add_log_record_processor(
        SimpleLogRecordProcessor(log_exporters.OTLPLogExporter(f"http://127.0.0.1:{port}", **options))
    )
    with spans.get_tracer("t").start_as_current_span("chat", attributes={"gen_ai.request.model": "tiny"}):
        logs.get_logger("t").emit(LogRecord(event_name="gen_ai.user.message", body={"role": "user", "content": "hi"}))
    spans.shutdown()
    logs.shutdown()
    (call,) = Wire(server.url, project).calls()
    assert call["inputs"] == {"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]}


def test_an_exporter_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    """What it cannot deliver it sends again."""
    port = free_port()
    exporter = exporters.OTLPSpanExporter(
        f"http://127.0.0.1:{port}", insecure=True, headers={"project_id": "team/late"}, timeout=60
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sent = threading.Thread(target=lambda: provider.get_tracer("t").start_span("early").end())
    sent.start()
    with HeddleProcess(tmp_path / "data", otlp_grpc_port=port) as server:
        sent.join()
        (call,) = Wire(server.url, "team/late").calls()
        assert call["summary"]["weave"]["trace_name"] == "early"
    provider.shutdown()


def test_the_port_of_http_says_what_to_do(server: HeddleProcess, caplog: pytest.LogCaptureFixture) -> None:
    """The exporter shows it, and so does the log of the server."""
    exporter = exporters.OTLPSpanExporter(server.url, insecure=True, timeout=30)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.get_tracer("t").start_span("lost").end()
    provider.shutdown()
    told = (
        "send OTLP with OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or gRPC after the server got --otlp-grpc-port 4317"
    )
    assert f"error code: StatusCode.UNIMPLEMENTED, error details: this port speaks HTTP/1.1; {told}" in caplog.text
    # The log is written beside the answers.
    until(lambda: told in server.log())
    assert server.log().count(told) == 1
