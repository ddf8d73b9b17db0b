"""The unmodified OpenTelemetry SDK of Node with its JSON and its protobuf exporter against heddle."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import NODE_PACKAGES, NODE_SCENARIOS, Client, Wire
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client

EXPORTERS = ("@opentelemetry/exporter-trace-otlp-http", "@opentelemetry/exporter-trace-otlp-proto")


@pytest.fixture
def otlp(server: HeddleProcess, project: str, tmp_path: Path) -> Client:
    """The SDK under node; skips where node or the packages are missing."""
    if not all((NODE_PACKAGES / name).exists() for name in EXPORTERS) or shutil.which("node") is None:
        pytest.skip("node or its OpenTelemetry packages are not installed: run `make clients`")
    return Client(["node"], NODE_SCENARIOS, server.url, project, tmp_path)


@pytest.mark.parametrize("compression", ["none", "gzip", "endpoint alone"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_program_is_read_back(otlp: Client, wire: Wire, exporter: str, compression: str) -> None:
    """A conversation with a model call and a failure; the exporter is told that all is well."""
    if compression == "endpoint alone":
        seen = otlp.run("otlp.js", EXPORTER=exporter, OTEL_EXPORTER_OTLP_ENDPOINT=otlp.server)
    else:
        seen = otlp.run("otlp.js", EXPORTER=exporter, COMPRESSION=compression)
    assert seen["results"] == [{"code": 0, "error": None}]
    calls = {call["summary"]["weave"]["trace_name"]: call for call in wire.calls(include_costs=True)}
    outer, chat, failed = calls["outer"], calls["chat_tiny"], calls["failing"]
    assert (outer["inputs"], outer["output"]) == ({"input.value": "in"}, {"output.value": "out"})
    assert (outer["thread_id"], outer["turn_id"], outer["parent_id"]) == ("conv-n", outer["id"], None)
    assert chat["parent_id"] == failed["parent_id"] == outer["id"]
    assert chat["inputs"]["gen_ai.input.messages"] == [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    assert chat["output"]["gen_ai.output.messages"][0]["parts"] == [{"type": "text", "content": "yo"}]
    assert (chat["attributes"]["kind"], chat["attributes"]["model"]) == ("llm", "tiny")
    usage = chat["summary"]["usage"]["tiny"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 4, 34)
    assert usage["cache_read_input_tokens"] == 20
    span = chat["attributes"]["otel_span"]
    assert (span["kind"], span["scope"]) == ("CLIENT", {"name": "node-tracer", "version": "2.0"})
    assert {key: span["attributes"][key] for key in ("share", "tags", "yes")} == {
        "share": 0.5,
        "tags": ["a", "b"],
        "yes": True,
    }
    assert span["events"][0]["attributes"] == {"a": 1}
    assert span["resource"]["attributes"]["service"]["name"] == "node-svc"
    assert failed["exception"] == "no such thing" and failed["summary"]["weave"]["status"] == "error"
    assert failed["attributes"]["otel_span"]["events"][0]["attributes"]["exception"]["type"] == "TypeError"
