"""Sums over OpenTelemetry traces count each request to a model once, though several spans report its tokens."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import Wire
from tests.support.otel import RECORDED, recorded

Json = dict[str, Any]
OPENAI, CLAUDE, EMBEDDING = "gpt-5-mini-2026-01-01", "claude-sonnet-4-5", "text-embedding-3-small"
PRICE = {
    "prompt_token_cost": 0.001,
    "completion_token_cost": 0.01,
    "cache_read_input_token_cost": 0.0001,
    "cache_creation_input_token_cost": 0.002,
    "effective_date": "2020-01-01T00:00:00Z",
}
TWO_CHATS, TWO_CLAUDES, ONE_CLAUDE = (OPENAI, 240, 60, 128), (CLAUDE, 200, 60, 128), (CLAUDE, 100, 30, 64)
CHARGED = [
    ("vercel4-tools.bin", TWO_CHATS),
    ("vercel6-tools.json", TWO_CHATS),
    ("vercel7-tools.bin", TWO_CHATS),
    ("old-logfire-1.bin", (OPENAI, 240, 60, 0)),
    ("logfire-6.bin", TWO_CHATS),
    ("openinference-tools.bin", TWO_CHATS),
    ("mlflow.bin", (OPENAI, 120, 30, 64)),
    # The anthropic package traces each request itself, below the instrumentation's span.
    ("openinference-anthropic.bin", TWO_CLAUDES),
    ("logfire-anthropic.bin", TWO_CLAUDES),
    ("vercel6-anthropic.json", ONE_CLAUDE),
    ("vercel7-anthropic.bin", ONE_CLAUDE),
    ("vercel6-embeddings.json", (EMBEDDING, 5, 0, 0)),
]
"""Model, prompt, completion and cached tokens that the provider really charged for."""


def request_of(name: str) -> ExportTraceServiceRequest:
    """A recording as a protobuf request; ids of JSON are hex and become bytes."""
    request = ExportTraceServiceRequest()
    body = (RECORDED / name).read_bytes()
    if not name.endswith(".json"):
        request.ParseFromString(body)
        return request
    Parse(body, request)
    spans = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    for span, read in zip(spans, recorded(name), strict=True):
        span.trace_id, span.span_id = bytes.fromhex(read.trace_id), bytes.fromhex(read.span_id)
        span.parent_span_id = bytes.fromhex(read.parent_id)
    return request


def one_by_one(request: ExportTraceServiceRequest) -> list[ExportTraceServiceRequest]:
    """A request for each span, in the order in which they ended: the inner ones first."""
    found: list[ExportTraceServiceRequest] = []
    for group in request.resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                single = ExportTraceServiceRequest()
                only = single.resource_spans.add(resource=group.resource).scope_spans.add(scope=scope.scope)
                only.spans.append(span)
                found.append(single)
    return found


def is_between(request: ExportTraceServiceRequest) -> bool:
    """True for a span that reports no tokens itself."""
    (span,) = request.resource_spans[0].scope_spans[0].spans
    return not any("tokens" in one.key.lower() for one in span.attributes)


ORDERS: dict[str, Callable[[ExportTraceServiceRequest], list[ExportTraceServiceRequest]]] = {
    "in one export": lambda request: [request],
    "inner spans first": one_by_one,
    "outer spans first": lambda request: one_by_one(request)[::-1],
    "those between last": lambda request: sorted(one_by_one(request), key=is_between),
    "twice": lambda request: [request, *one_by_one(request)],
}


def send(wire: Wire, requests: list[ExportTraceServiceRequest]) -> None:
    """Export them one after the other."""
    headers = {"content-type": "application/x-protobuf", "project_id": wire.project}
    for request in requests:
        answer: httpx.Response = wire.client.post(
            "/otel/v1/traces", content=request.SerializeToString(), headers=headers
        )
        assert answer.status_code == 200, answer.text


def cost_of(prompt: int, completion: int, read: int, written: int) -> float:
    """What the tokens come to at PRICE."""
    return round((prompt - read - written) * 0.001 + completion * 0.01 + read * 0.0001 + written * 0.002, 9)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "charged"), CHARGED)
def test_sums_are_what_the_provider_charged(
    wire: Wire, name: str, charged: tuple[str, int, int, int], order: str
) -> None:
    model, prompt, completion, read = charged
    written = 16 * (prompt // 100) if model == CLAUDE else 0
    wire.post("/cost/create", costs={model: PRICE})
    send(wire, ORDERS[order](request_of(name)))
    calls = wire.calls()
    rolled = wire.post("/trace/usage", include_costs=True)["call_usage"]
    roots = [call["id"] for call in calls if call["parent_id"] is None]
    entries = [rolled[root][model] for root in roots if model in rolled[root]]
    assert set().union(*(rolled[root] for root in roots)) == {model}
    sums = tuple(
        sum(entry[f"{kind}_tokens"] for entry in entries)
        for kind in ("prompt", "completion", "cache_read_input", "cache_creation_input")
    )
    assert sums == (prompt, completion, read, written)
    costs = sum(value for entry in entries for key, value in entry.items() if key.endswith("_total_cost"))
    assert round(costs, 9) == cost_of(prompt, completion, read, written)
    metrics = [{"metric": metric, "aggregations": ["sum"]} for metric in ("input_tokens", "output_tokens")]
    start = min(call["started_at"] for call in calls)
    stats = wire.post("/calls/stats", start=start, usage_metrics=metrics)
    buckets = [bucket for bucket in stats["usage_buckets"] if bucket["model"] == model]
    assert sum(bucket["sum_input_tokens"] for bucket in buckets) == prompt
    assert sum(bucket["sum_output_tokens"] for bucket in buckets) == completion


def test_an_agent_span_alone_keeps_its_tokens(wire: Wire) -> None:
    """Its model spans may never come."""
    outer = one_by_one(request_of("vercel7-tools.bin"))[-1]
    send(wire, [outer])
    usage = wire.post("/trace/usage")["call_usage"]
    (entry,) = next(iter(usage.values())).values()
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (240, 60)


def test_what_a_call_itself_shows_stays_as_it_came(wire: Wire) -> None:
    """The agent's own summary holds the sum, whatever the sums over calls count."""
    send(wire, [request_of("vercel7-tools.bin")])
    agent = next(call for call in wire.calls() if call["parent_id"] is None)
    (usage,) = agent["summary"]["usage"].values()
    assert (usage["input_tokens"], usage["output_tokens"]) == (240, 60)


def test_parents_in_a_circle_keep_one_of_their_counts(wire: Wire) -> None:
    """Broken traces come to an end, and nothing is lost."""
    request = request_of("vercel7-anthropic.bin")
    spans = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    chat = next(span for span in spans if span.name.startswith("chat"))
    agent = next(span for span in spans if span.name.startswith("invoke_agent"))
    chat.parent_span_id, agent.parent_span_id = agent.span_id, chat.span_id
    send(wire, [request])
    usage = wire.post("/trace/usage")["call_usage"]
    counted = [entry["prompt_tokens"] for own in usage.values() for entry in own.values()]
    assert counted == [100] or counted == [100, 100]
