"""The unmodified OpenTelemetry SDK and OTLP exporter of Python against heddle."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from tests.conftest import API_KEY, Wire
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client

BASIC = {"Authorization": "Basic " + base64.b64encode(f"api:{API_KEY}".encode()).decode()}
WAYS: dict[str, dict[str, Any]] = {
    "basic and project_id": {"headers": BASIC, "path": "/otel/v1/traces"},
    "gzip and resource": {"compression": Compression.Gzip, "resource": True, "path": "/otel/v1/traces"},
    "deflate and key header": {
        "compression": Compression.Deflate,
        "headers": {"wandb-api-key": API_KEY},
        "path": "/otel/v1/traces",
    },
    "agents address": {"headers": BASIC, "path": "/agents/otel/v1/traces"},
    "below /traces": {"headers": BASIC, "path": "/traces/otel/v1/traces"},
    "endpoint alone": {"endpoint": "", "headers": {"authorization": f"Bearer {API_KEY}"}},
    "endpoint below /otel": {"endpoint": "/otel", "headers": {}},
}


@pytest.fixture(params=sorted(WAYS))
def provider(
    request: pytest.FixtureRequest, server: HeddleProcess, project: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TracerProvider]:
    """A tracer that exports to the test's project in one of the ways users set it up."""
    way = WAYS[request.param]
    resource, headers = {"service.name": "svc"}, dict(way.get("headers", {}))
    if way.get("resource"):
        resource["wandb.entity"], resource["wandb.project"] = project.split("/")
    else:
        headers["project_id"] = project
    if "endpoint" in way:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url + way["endpoint"])
    path = server.url + way["path"] if "path" in way else None
    exporter = OTLPSpanExporter(path, headers=headers, compression=way.get("compression"), timeout=30)
    provider = TracerProvider(resource=Resource.create(resource))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def test_a_program_is_read_back(provider: TracerProvider, wire: Wire) -> None:
    """A turn with a model call, a tool that fails, events and links."""
    tracer = provider.get_tracer("my-tracer", "1.0")
    with tracer.start_as_current_span("outer") as outer:
        outer.set_attributes({"wandb.thread_id": "th", "wandb.is_turn": True, "input.value": "in"})
        with tracer.start_as_current_span("chat tiny", kind=SpanKind.CLIENT) as chat:
            chat.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.system": "openai",
                    "gen_ai.request.model": "tiny",
                    "gen_ai.usage.input_tokens": 3,
                    "gen_ai.usage.output_tokens": 4,
                    "gen_ai.prompt.0.role": "user",
                    "gen_ai.prompt.0.content": "hi",
                    "gen_ai.completion.0.content": "yo",
                    "tags": ["a", "b"],
                }
            )
            chat.add_event("ev", {"a": 1})
        with pytest.raises(ZeroDivisionError), tracer.start_as_current_span("execute_tool calc"):
            raise ZeroDivisionError("by zero")
        outer.set_attribute("output.value", "out")
        outer.add_link(trace.SpanContext(trace_id=7, span_id=9, is_remote=True))
    assert provider.force_flush()
    calls = {call["summary"]["weave"]["trace_name"]: call for call in wire.calls()}
    assert set(calls) == {"outer", "chat_tiny", "execute_tool_calc"}
    check_outer(calls["outer"])
    check_chat(calls["chat_tiny"], calls["outer"])
    check_failed_tool(calls["execute_tool_calc"], calls["outer"])


def check_outer(outer: dict[str, Any]) -> None:
    """The turn."""
    assert (outer["inputs"], outer["output"]) == ({"input.value": "in"}, {"output.value": "out"})
    assert (outer["thread_id"], outer["turn_id"], outer["parent_id"]) == ("th", outer["id"], None)
    (link,) = outer["attributes"]["otel_span"]["links"]
    assert (link["trace_id"], link["span_id"]) == (f"{7:032x}", f"{9:016x}")


def check_chat(chat: dict[str, Any], outer: dict[str, Any]) -> None:
    """The model call: messages in, answer out, tokens, kind, model, what else it carries."""
    assert (chat["parent_id"], chat["trace_id"]) == (outer["id"], outer["trace_id"])
    assert chat["inputs"] == {"gen_ai.prompt": [{"role": "user", "content": "hi"}]}
    assert chat["output"] == {"gen_ai.completion": [{"content": "yo"}]}
    assert chat["attributes"]["kind"] == "llm" and chat["attributes"]["model"] == "tiny"
    usage = chat["summary"]["usage"]["tiny"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (3, 4, 7)
    span = chat["attributes"]["otel_span"]
    assert span["kind"] == "CLIENT" and span["attributes"]["tags"] == ["a", "b"]
    assert span["events"][0]["name"] == "ev" and span["events"][0]["attributes"] == {"a": 1}
    assert span["resource"]["attributes"]["service"]["name"] == "svc"
    assert span["scope"] == {"name": "my-tracer", "version": "1.0"}
    assert chat["summary"]["weave"]["status"] == "success"


def check_failed_tool(tool: dict[str, Any], outer: dict[str, Any]) -> None:
    """The SDK records the exception and says so in the status."""
    assert tool["parent_id"] == outer["id"]
    assert tool["exception"] == "ZeroDivisionError: by zero"
    assert tool["summary"]["weave"]["status"] == "error"
    (event,) = tool["attributes"]["otel_span"]["events"]
    assert event["attributes"]["exception"]["type"] == "ZeroDivisionError"
    assert "Traceback" in event["attributes"]["exception"]["stacktrace"]


def test_an_error_without_a_message_reads_as_failed(server: HeddleProcess, wire: Wire) -> None:
    """The exception event says what the status leaves out."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(server.url + "/otel/v1/traces", headers={"project_id": wire.project})
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("quiet") as span:
        span.record_exception(ValueError("wrong"))
        span.set_status(Status(StatusCode.ERROR))
    provider.shutdown()
    (call,) = wire.calls()
    assert call["exception"].startswith("ValueError: wrong")
    assert call["summary"]["weave"]["status"] == "error"


def test_a_long_run_loses_nothing(server: HeddleProcess, wire: Wire) -> None:
    """1,000 spans in batches of the exporter's own size."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(server.url + "/otel/v1/traces", headers={"project_id": wire.project})
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=2000, max_export_batch_size=100))
    tracer = provider.get_tracer("t")
    for number in range(1000):
        with tracer.start_as_current_span("step", attributes={"number": number}):
            pass
    provider.shutdown()
    seen = [call["attributes"]["number"] for call in wire.calls()]
    assert sorted(seen) == list(range(1000))
