"""The unmodified OpenTelemetry SDK and OTLP exporter of Python send log records to heddle."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.conftest import Wire
from tests.support.otlp_logs import ANSWERED, ASKED, CONTENT, DETAILS, MODEL
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client
Json = dict[str, Any]


@pytest.fixture
def providers(server: HeddleProcess, project: str) -> Iterator[tuple[TracerProvider, LoggerProvider]]:
    """Spans and log records of the test's project, sent when they are flushed."""
    named: Json = {"headers": {"project_id": project}, "compression": Compression.Gzip, "timeout": 30}
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{server.url}/v1/traces", **named)))
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{server.url}/v1/logs", **named)))
    yield tracers, loggers
    tracers.shutdown()
    loggers.shutdown()


@pytest.mark.parametrize("first", ["spans", "logs"])
def test_what_is_logged_within_a_span_is_in_its_call(
    providers: tuple[TracerProvider, LoggerProvider], wire: Wire, first: str
) -> None:
    tracers, loggers = providers
    logger = loggers.get_logger("my-library")
    with tracers.get_tracer("my-library").start_as_current_span("chat m"):
        logger.emit(LogRecord(event_name=DETAILS, attributes={**MODEL, **CONTENT}))
        logger.emit(
            LogRecord(
                body="cache was cold", severity_text="WARN", severity_number=SeverityNumber.WARN, attributes={"n": 1}
            )
        )
    order = (tracers, loggers) if first == "spans" else (loggers, tracers)
    for provider in order:
        assert provider.force_flush()
    (call,) = wire.calls()
    assert call["inputs"] == {"gen_ai.input.messages": ASKED}
    assert call["output"] == {"gen_ai.output.messages": ANSWERED}
    assert call["summary"]["weave"]["trace_name"] == "chat_m"
    dump = call["attributes"]["otel_span"]
    assert [event["name"] for event in dump["events"]] == [DETAILS, "log"]
    assert dump["events"][1]["attributes"] == {"body": "cache was cold", "n": 1, "severity": "WARN"}
    assert json.dumps(call["inputs"]).count("canary") == 1


def test_what_is_logged_outside_of_spans_makes_no_call(
    providers: tuple[TracerProvider, LoggerProvider], wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    _, loggers = providers
    with caplog.at_level(logging.WARNING):
        loggers.get_logger("my-library").emit(LogRecord(body="started"))
        assert loggers.force_flush()
    assert wire.calls() == []
    assert "Failed to export" not in caplog.text
