"""The unmodified OpenTelemetry SDK and OTLP exporter of Python send metrics to heddle."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from heddle.wire import times
from tests.conftest import Wire
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client
Json = dict[str, Any]
HOUR = 3_600_000_000_000
DELTA = {Counter: AggregationTemporality.DELTA, Histogram: AggregationTemporality.DELTA}
Meters = Callable[..., MeterProvider]


@pytest.fixture
def meters(server: HeddleProcess, project: str) -> Meters:
    """Makes providers that export to the test's project when they are flushed."""

    def make(**options: Any) -> MeterProvider:
        views = options.pop("views", ())
        exporter = OTLPMetricExporter(f"{server.url}/v1/metrics", headers={"project_id": project}, **options)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=HOUR // 1_000_000)
        return MeterProvider([reader], Resource.create({"service.name": "svc"}), views=views)

    return make


def stats(wire: Wire, name: str, **asked: Any) -> list[Json]:
    """The figures of a metric over the last day, in one bucket."""
    start = times.to_iso(times.now() - times.DAY)
    body = {"name": name, "start": start, "granularity": 86_400 * 36_500, **asked}
    return list(wire.post("/metrics/stats", **body)["buckets"])


def figures(wire: Wire, name: str, **asked: Any) -> list[Json]:
    """The same without instants."""
    return [{key: value for key, value in one.items() if key != "timestamp"} for one in stats(wire, name, **asked)]


@pytest.mark.parametrize(
    "options", [{}, {"preferred_temporality": DELTA, "compression": Compression.Gzip}], ids=["cumulative", "delta"]
)
def test_counters_and_histograms_are_added_up(meters: Meters, wire: Wire, options: Json) -> None:
    provider = meters(**options)
    meter = provider.get_meter("my-library")
    tokens = meter.create_counter("gen_ai.client.token.usage", "{token}", "Tokens that were used")
    seconds = meter.create_histogram(
        "gen_ai.client.operation.duration", "s", explicit_bucket_boundaries_advisory=[1, 2]
    )
    for round_, model in ((1, "a"), (2, "b"), (3, "a")):
        tokens.add(10 * round_, {"gen_ai.request.model": model})
        seconds.record(0.5 * round_, {"gen_ai.request.model": model})
        assert provider.force_flush()
    provider.shutdown()
    by_model = {"group_by": ["gen_ai.request.model"]}
    assert figures(wire, "gen_ai.client.token.usage", **by_model) == [
        {"attributes": {"gen_ai.request.model": "a"}, "sum": 40},
        {"attributes": {"gen_ai.request.model": "b"}, "sum": 20},
    ]
    (all_,) = figures(wire, "gen_ai.client.operation.duration", aggregations=["count", "sum", "avg"], percentiles=[50])
    assert all_ == {"attributes": {}, "count": 3, "sum": 3.0, "avg": 1.0, "p50": pytest.approx(0.75, abs=0.26)}
    found = {one["name"]: one for one in wire.post("/metrics/query")["metrics"]}
    assert found["gen_ai.client.token.usage"] | {"first_at": "", "last_at": ""} == {
        "name": "gen_ai.client.token.usage",
        "kind": "sum",
        "unit": "{token}",
        "description": "Tokens that were used",
        "series": 2,
        "attributes": {"gen_ai.request.model": ["a", "b"], "service.name": ["svc"]},
        "first_at": "",
        "last_at": "",
    }


def test_levels_and_histograms_of_many_magnitudes(meters: Meters, wire: Wire) -> None:
    view = View(instrument_name="latency", aggregation=ExponentialBucketHistogramAggregation())
    provider = meters(views=[view])
    meter = provider.get_meter("my-library")
    meter.create_observable_gauge("memory", [lambda _: [Observation(7, {"kind": "rss"})]], "By")
    waiting = meter.create_up_down_counter("waiting")
    latency = meter.create_histogram("latency", "ms")
    for number in range(1, 101):
        latency.record(number)
    waiting.add(5)
    assert provider.force_flush()
    waiting.add(-2)
    latency.record(10_000)
    assert provider.force_flush()
    provider.shutdown()
    ((level,), (memory,)) = (figures(wire, name, aggregations=["min", "max"]) for name in ("waiting", "memory"))
    assert (level["min"], level["max"], memory["max"]) == (3, 5, 7)
    (shape,) = figures(wire, "latency", aggregations=["count", "sum"], percentiles=[50, 95, 100])
    assert (shape["count"], shape["sum"]) == (101, 15_050)
    assert shape["p50"] == pytest.approx(51, rel=0.05) and shape["p95"] == pytest.approx(96, rel=0.1)
    assert shape["p100"] == pytest.approx(10_000, rel=0.1)
    kinds = {one["name"]: one["kind"] for one in wire.post("/metrics/query")["metrics"]}
    assert kinds == {"latency": "histogram", "memory": "gauge", "waiting": "gauge"}
