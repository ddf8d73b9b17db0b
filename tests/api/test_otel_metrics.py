"""Metrics over HTTP: both encodings, every compression, projects, what is rejected, and how they are read."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import zstandard
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.conftest import Wire
from tests.support.otlp import JSON, PROTOBUF
from tests.support.server import HeddleProcess

Json = dict[str, Any]
BEGIN = 1_767_225_600
DAY = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z", "granularity": 3600}
ROUTES = ("/v1/metrics", "/otel/v1/metrics")


def point(second: int = 0, start: int = 0, attributes: Json | None = None, **value: Any) -> Json:
    """A point so many seconds after the beginning of the day."""
    given = [{"key": key, "value": {"stringValue": text}} for key, text in (attributes or {}).items()]
    instants = {"startTimeUnixNano": str((BEGIN + start) * 10**9), "timeUnixNano": str((BEGIN + second) * 10**9)}
    return {**instants, "attributes": given, **value}


def counter(name: str, *points: Json, temporality: int = 2, unit: str = "") -> Json:
    """A monotonic sum."""
    data = {"dataPoints": list(points), "aggregationTemporality": temporality, "isMonotonic": True}
    return {"name": name, "unit": unit, "sum": data}


def body(*metrics: Json, **resource: str) -> Json:
    """An export of metrics of one resource."""
    named = [{"key": key.replace("_", "."), "value": {"stringValue": text}} for key, text in resource.items()]
    return {"resourceMetrics": [{"resource": {"attributes": named}, "scopeMetrics": [{"metrics": list(metrics)}]}]}


class Sender:
    """Sends exports of metrics to the test's project."""

    def __init__(self, url: str, project: str) -> None:
        self.client = httpx.Client(base_url=url, headers={"project_id": project}, timeout=60)

    def send(self, *metrics: Json, path: str = ROUTES[0]) -> Json | None:
        """Export as JSON; returns what was rejected."""
        answer = self.client.post(path, json=body(*metrics))
        assert answer.status_code == 200, answer.text
        told: Json | None = answer.json()["partial_success"]
        return told


@pytest.fixture
def sender(server: HeddleProcess, project: str) -> Iterator[Sender]:
    """A sender to the test's project."""
    sender = Sender(server.url, project)
    yield sender
    sender.client.close()


def read(wire: Wire, name: str, **asked: Any) -> list[Json]:
    """The figures of the day by hour."""
    found: list[Json] = wire.post("/metrics/stats", name=name, **{**DAY, **asked})["buckets"]
    return found


def asked_for(wire: Wire, **asked: Any) -> httpx.Response:
    """The raw answer of /metrics/stats."""
    return wire.client.post("/metrics/stats", json={"project_id": wire.project, **asked})


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("encoding", ["json", "protobuf"])
@pytest.mark.parametrize("compression", ["identity", "gzip", "zstd"])
def test_every_encoding_counts_the_same(sender: Sender, wire: Wire, path: str, encoding: str, compression: str) -> None:
    sent = body(counter("tokens", point(1, asInt="5"), point(3601, asInt="9")))
    content, headers = json.dumps(sent).encode(), JSON
    if encoding == "protobuf":
        content, headers = ParseDict(sent, ExportMetricsServiceRequest()).SerializeToString(), PROTOBUF
    packed = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[compression](content)
    answer = sender.client.post(path, content=packed, headers={**headers, "content-encoding": compression})
    assert answer.status_code == 200, answer.text
    if encoding == "protobuf":
        assert ExportMetricsServiceResponse.FromString(answer.content) == ExportMetricsServiceResponse()
    else:
        assert answer.json() == {"partial_success": None}
    assert read(wire, "tokens") == [
        {"timestamp": "2026-01-01T00:00:00.000000Z", "attributes": {}, "sum": 5},
        {"timestamp": "2026-01-01T01:00:00.000000Z", "attributes": {}, "sum": 4},
    ]


def test_what_cannot_be_counted_is_told_and_the_rest_counts(sender: Sender, wire: Wire) -> None:
    histogram = {
        "aggregationTemporality": 1,
        "dataPoints": [point(count="1", bucketCounts=["1"], explicitBounds=[1.0])],
    }
    told = sender.send(
        counter("good", point(asInt="1"), point(1, asDouble="NaN")),
        {"name": "quantiles", "summary": {"dataPoints": [point(count="1"), point(count="2")]}},
        {"name": "", "gauge": {"dataPoints": [point(asInt="1")]}},
        counter("neither", point(asInt="1"), temporality=0),
        {"name": "bounds", "histogram": histogram},
        {"name": "gone", "gauge": {"dataPoints": [point(flags=1)]}},
    )
    assert told is not None and told["rejected_data_points"] == 6
    said = told["error_message"].split("; Rejected ")
    assert said[0] == "Rejected point (metric='good'): its value is not finite"
    assert said[1:3] == ["point (metric='quantiles'): summaries are not supported; export a histogram"] * 2
    assert "1 to 255 characters" in said[3]
    assert "delta or cumulative" in said[4] and "explicit_bounds must be increasing" in said[5]
    assert [one["sum"] for one in read(wire, "good")] == [1]
    assert [one["name"] for one in wire.post("/metrics/query")["metrics"]] == ["good"]


def test_figures_by_attributes(sender: Sender, wire: Wire) -> None:
    points = [
        point(number, attributes={"model": model, "type": kind}, asDouble=amount)
        for number, (model, kind, amount) in enumerate(
            [("a", "input", 0.5), ("a", "output", 0.25), ("b", "input", 4), ("b", "output", 2)], 1
        )
    ]
    assert sender.send(counter("cost", *points, unit="USD")) is None

    def sums(**asked: Any) -> list[tuple[Json, float]]:
        return [(one["attributes"], one["sum"]) for one in read(wire, "cost", **asked)]

    assert sums() == [({}, 6.75)]
    assert sums(group_by=["model"]) == [({"model": "a"}, 0.75), ({"model": "b"}, 6.0)]
    assert sums(group_by=["model"], attributes={"type": ["output"]}) == [({"model": "a"}, 0.25), ({"model": "b"}, 2.0)]
    assert sums(group_by=["none"], attributes={"model": ["a", "c"]}) == [({"none": None}, 0.75)]
    assert sums(unit="EUR") == []
    assert read(wire, "no such metric") == []


def test_series_of_one_name_and_different_kinds_need_a_choice(sender: Sender, wire: Wire) -> None:
    sender.send(
        counter("mixed", point(1, asInt="3")), {"name": "mixed", "gauge": {"dataPoints": [point(1, asInt="8")]}}
    )
    refused = asked_for(wire, name="mixed", **DAY)
    assert refused.status_code == 400
    assert "kind gauge, unit ''; kind sum, unit ''" in refused.json()["reason"]
    assert read(wire, "mixed", kind="gauge")[0]["avg"] == 8
    assert read(wire, "mixed", kind="sum")[0]["sum"] == 3


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        ({"aggregations": ["avg"]}, 400, "avg cannot be computed for a sum; expected one of sum"),
        ({"percentiles": [50]}, 400, "Percentiles can only be computed for histograms, not for a sum"),
        ({"percentiles": [101]}, 400, "between 0 and 100"),
        ({"end": "2025-01-01T00:00:00Z"}, 422, "end must be after start"),
        ({"end": "2028-01-01T00:00:00Z"}, 422, "at most 366 days"),
        ({"timezone": "Mars/Base"}, 400, "Unknown timezone"),
        ({"group_by": ["a"] * 9}, 422, "at most 8"),
    ],
)
def test_what_cannot_be_computed_is_refused(sender: Sender, wire: Wire, asked: Json, status: int, why: str) -> None:
    sender.send(counter("tokens", point(1, asInt="3")))
    refused = asked_for(wire, name="tokens", **{**DAY, **asked})
    assert (refused.status_code, why in refused.text) == (status, True), refused.text


def test_a_resource_without_a_project_is_refused_with_the_reason(server: HeddleProcess) -> None:
    sent = body(counter("tokens", point(1, asInt="3")))
    answer = httpx.post(f"{server.url}/v1/metrics", json=sent)
    assert answer.status_code == 400 and "No project: send the header" in answer.text


def test_a_project_of_metrics_alone_is_listed(sender: Sender, wire: Wire, server: HeddleProcess) -> None:
    sender.send(counter("tokens", point(1, asInt="3")))
    listed = httpx.get(f"{server.url}/_ui/api/projects").json()["projects"]
    assert wire.project in [one["id"] for one in listed]
