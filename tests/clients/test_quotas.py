"""Unmodified clients beyond a quota: what is refused arrives once there is room."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from tests.conftest import Client, Wire
from tests.support.chat import until
from tests.support.server import HeddleProcess, free_port

pytestmark = pytest.mark.client


def set_quotas(url: str, project: str, quotas: str | None) -> None:
    """Give a project quotas."""
    answer = httpx.put(f"{url}/v1/limits", json={"kind": "project", "name": project, "quotas": quotas}, timeout=60)
    assert answer.status_code == 200, answer.text


def count_refused(url: str, group: str) -> float:
    """How many requests to a group of routes were beyond a quota."""
    sample = f'heddle_quota_refused_total{{group="{group}",kind="project",unit="requests"}} '
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.removeprefix(sample)) for line in lines if line.startswith(sample))


@pytest.mark.usefixtures("within_a_day")
def test_weave_stores_every_call_once_there_is_room(sdk: Client, wire: Wire) -> None:
    set_quotas(wire.url, wire.project, "calls requests 1/day")
    wire.calls()
    before = count_refused(wire.url, "calls")
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sdk.run, "refused.py", timeout=240)
        until(lambda: running.done() or count_refused(wire.url, "calls") >= before + 3, "it is refused", 120)
        set_quotas(wire.url, wire.project, None)
        assert running.result() == {"done": True}
    assert sorted(call["inputs"]["n"] for call in wire.calls()) == list(range(30))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, int]]:
    """A server and its gRPC port."""
    port = free_port()
    with HeddleProcess(tmp_path_factory.mktemp("quotas") / "data", otlp_grpc_port=port, model="none") as server:
        yield server, port


def over_http(url: str, _: int, headers: dict[str, str]) -> SpanExporter:
    """The exporter of OTLP over HTTP."""
    return OTLPSpanExporter(f"{url}/otel/v1/traces", headers=headers, timeout=60)


def over_grpc(_: str, port: int, headers: dict[str, str]) -> SpanExporter:
    """The exporter of OTLP over gRPC."""
    exporters: Any = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
    made: SpanExporter = exporters.OTLPSpanExporter(
        f"http://127.0.0.1:{port}", insecure=True, headers=headers, timeout=60
    )
    return made


@pytest.mark.parametrize("make", [over_http, over_grpc])
def test_exporters_send_again_what_was_refused(
    served: tuple[HeddleProcess, int], project: str, make: Callable[[str, int, dict[str, str]], SpanExporter]
) -> None:
    """An export waits for as long as Retry-After says, each at its turn."""
    server, port = served
    set_quotas(server.url, project, "opentelemetry requests 1/second")
    before = count_refused(server.url, "opentelemetry")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(make(server.url, port, {"project_id": project})))
    tracer, sent = provider.get_tracer("t"), 0
    while sent < 3 or count_refused(server.url, "opentelemetry") == before:
        tracer.start_span("step", attributes={"number": sent}).end()
        sent += 1
    provider.shutdown()
    set_quotas(server.url, project, None)
    numbers = [call["attributes"]["number"] for call in Wire(server.url, project).calls()]
    assert sorted(numbers) == list(range(sent))
