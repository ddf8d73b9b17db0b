"""What a process counts, and what it shows of its workers."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from heddle.app import served_routes
from heddle.errors import Unavailable
from heddle.http.metrics import Metrics

ROUTES = {route.path: route for route in served_routes()}


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample, by its name and labels."""
    families = text_string_to_metric_families(asyncio.run(metrics.text()).decode())
    return {
        f"{one.name}{{{','.join(f'{key}={value}' for key, value in sorted(one.labels.items()))}}}": one.value
        for family in families
        for one in family.samples
    }


def test_what_workers_count_is_added_once() -> None:
    writing, one, other = Metrics(), Metrics(), Metrics()
    start, traces = ROUTES["/call/start"], ROUTES["/otel/v1/traces"]
    for metrics, count in ((writing, 1), (one, 2), (other, 3)):
        for _ in range(count):
            metrics.count_answer(start, "POST", 200, 0.02, 10, 5)
            metrics.observe_lag(0.002)
    other.count_answer(traces, "POST", 429, 40.0, 7, 1)
    other.count("heddle_otlp_stored_total", "traces", by=4)
    for _ in range(2):
        writing.add(one.take_increases())
        writing.add(other.take_increases())
    one.count_answer(start, "POST", 200, 0.02, 10, 5)
    writing.add(one.take_increases())
    found = samples(writing)
    assert found["heddle_http_requests_total{group=calls,method=POST,route=/call/start,status=200}"] == 7
    assert found["heddle_http_received_bytes_total{group=calls}"] == 70
    timed = "heddle_http_request_duration_seconds"
    assert found[f"{timed}_count{{group=calls,status=2xx}}"] == 7
    assert (
        found[f"{timed}_bucket{{group=calls,le=0.01,status=2xx}}"],
        found[f"{timed}_bucket{{group=calls,le=0.025,status=2xx}}"],
    ) == (0, 7)
    assert found["heddle_event_loop_lag_seconds_count{}"] == 6
    assert found["heddle_http_requests_total{group=opentelemetry,method=POST,route=/otel/v1/traces,status=429}"] == 1
    assert found[f"{timed}_bucket{{group=opentelemetry,le=30.0,status=4xx}}"] == 0
    assert found[f"{timed}_bucket{{group=opentelemetry,le=+Inf,status=4xx}}"] == 1
    assert found["heddle_otlp_stored_total{signal=traces}"] == 4
    assert [name for name in found if name.startswith("heddle_build_info")] and len(found) == len(set(found))


def test_a_request_that_matched_nothing_has_a_name_of_its_own() -> None:
    metrics = Metrics()
    metrics.count_answer(None, "GET", 404, 0.001, 0, 36)
    assert samples(metrics)["heddle_http_requests_total{group=none,method=GET,route=(none),status=404}"] == 1


def test_what_cannot_be_asked_for_is_left_out_and_the_rest_is_told() -> None:
    metrics, answers = Metrics(), [3.0]

    async def ask() -> float:
        if not answers:
            raise Unavailable("the database does not answer")
        return answers.pop()

    metrics.ask_value("heddle_monitor_calls_waiting", ask)
    assert samples(metrics)["heddle_monitor_calls_waiting{}"] == 3
    found = samples(metrics)
    assert "heddle_monitor_calls_waiting{}" not in found and "heddle_event_loop_lag_seconds_count{}" in found


def test_every_route_has_a_group() -> None:
    assert [path for path, route in ROUTES.items() if not route.tags] == []
