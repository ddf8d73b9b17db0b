"""Log records and metrics in both encodings, against the package of OTLP; and what is no export."""

import base64
import json
import math
import random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from heddle.errors import HeddleError, InvalidRequest, TooLarge
from heddle.trace.otel import messages
from heddle.trace.otel.signals import (
    CUMULATIVE,
    DELTA,
    ExponentialBuckets,
    ExponentialHistogram,
    ExponentialPoint,
    Gauge,
    Histogram,
    HistogramPoint,
    LogRecord,
    NumberPoint,
    Sum,
    Summary,
    SummaryPoint,
    decode_logs,
    decode_metrics,
)
from tests.support.otlp import any_value, key_values

RESOURCE = {"attributes": key_values({"service.name": "svc", "n": 1}), "dropped_attributes_count": 2}
SCOPE = {"name": "lib", "version": "1", "attributes": key_values({"a": True})}
HOUR = 3600 * 10**9


def json_of(message: Message, snake: bool = False) -> bytes:
    """OTLP's JSON: as protobuf's own, but with ids in hex."""
    body = MessageToDict(message, preserving_proto_field_name=snake, use_integers_for_enums=not snake)

    def restore(value: Any) -> Any:
        if isinstance(value, list):
            return [restore(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = {"traceId", "spanId", "trace_id", "span_id"}
        return {key: base64.b64decode(item).hex() if key in ids else restore(item) for key, item in value.items()}

    return json.dumps(restore(body)).encode()


def logs(*records: dict[str, Any]) -> ExportLogsServiceRequest:
    group = {"resource": RESOURCE, "scope_logs": [{"scope": SCOPE, "log_records": list(records)}]}
    return ExportLogsServiceRequest(resource_logs=[group])


def metrics(*found: dict[str, Any]) -> ExportMetricsServiceRequest:
    group = {"resource": RESOURCE, "scope_metrics": [{"scope": SCOPE, "metrics": list(found)}]}
    return ExportMetricsServiceRequest(resource_metrics=[group])


RECORD = {
    "time_unix_nano": 5,
    "observed_time_unix_nano": 6,
    "severity_number": 10,
    "severity_text": "INFO2",
    "body": any_value({"role": "user", "content": [{"text": "ä"}]}),
    "attributes": key_values({"gen_ai.system": "openai", "n": -3, "raw": b"\x00\xff"}),
    "dropped_attributes_count": 7,
    "flags": 1,
    "trace_id": bytes.fromhex("0af7651916cd43dd8448eb211c80319c"),
    "span_id": bytes.fromhex("b7ad6b7169203331"),
    "event_name": "gen_ai.user.message",
}


def test_log_records() -> None:
    message = logs(RECORD, {})
    expected = LogRecord(
        time=5,
        observed_time=6,
        severity_number=10,
        severity_text="INFO2",
        body={"role": "user", "content": [{"text": "ä"}]},
        attributes={"gen_ai.system": "openai", "n": -3, "raw": "AP8="},
        dropped_attributes=7,
        flags=1,
        trace_id="0af7651916cd43dd8448eb211c80319c",
        span_id="b7ad6b7169203331",
        event_name="gen_ai.user.message",
    )
    for body, is_json in (
        (message.SerializeToString(), False),
        (json_of(message), True),
        (json_of(message, True), True),
    ):
        (group,) = decode_logs(body, is_json)
        assert (group.resource.attributes, group.resource.dropped) == ({"service.name": "svc", "n": 1}, 2)
        (of_scope,) = group.scopes
        assert (of_scope.scope.name, of_scope.scope.version, of_scope.scope.attributes) == ("lib", "1", {"a": True})
        assert of_scope.items == [expected, LogRecord()]


POINT = {"start_time_unix_nano": 1, "time_unix_nano": HOUR, "attributes": key_values({"k": "v"})}
HELD = {"attributes": {"k": "v"}, "start": 1, "time": HOUR}
METRICS: list[tuple[dict[str, Any], Any]] = [
    (
        {"gauge": {"data_points": [{**POINT, "as_double": 0.5}, {**POINT, "as_int": -(2**63)}, {"flags": 1}]}},
        Gauge([NumberPoint(**HELD, value=0.5), NumberPoint(**HELD, value=-(2**63)), NumberPoint(flags=1)]),
    ),
    (
        {"sum": {"data_points": [{**POINT, "as_int": 3}], "aggregation_temporality": CUMULATIVE, "is_monotonic": True}},
        Sum([NumberPoint(**HELD, value=3)], CUMULATIVE, True),
    ),
    (
        {
            "histogram": {
                "data_points": [
                    {**POINT, "count": 3, "sum": 9.5, "bucket_counts": [1, 0, 2], "explicit_bounds": [1, 4.5],
                     "min": 0.5, "max": 6},
                    {"count": 1, "bucket_counts": [1]},
                ],
                "aggregation_temporality": DELTA,
            }
        },
        Histogram(
            [
                HistogramPoint(**HELD, count=3, sum=9.5, counts=[1, 0, 2], bounds=[1.0, 4.5], min=0.5, max=6.0),
                HistogramPoint(count=1, counts=[1]),
            ],
            DELTA,
        ),
    ),
    (
        {
            "exponential_histogram": {
                "data_points": [
                    {**POINT, "count": 4, "sum": -1.0, "scale": -3, "zero_count": 1, "zero_threshold": 1e-9,
                     "positive": {"offset": -7, "bucket_counts": [1, 300]}, "negative": {"offset": 2}}
                ],
                "aggregation_temporality": DELTA,
            }
        },
        ExponentialHistogram(
            [
                ExponentialPoint(
                    **HELD, count=4, sum=-1.0, scale=-3, zero_count=1, zero_threshold=1e-9,
                    positive=ExponentialBuckets(-7, [1, 300]), negative=ExponentialBuckets(2),
                )
            ],
            DELTA,
        ),
    ),
    (
        {
            "summary": {
                "data_points": [
                    {**POINT, "count": 2, "sum": 3.0, "quantile_values": [{"quantile": 0.5, "value": 1.5}]}
                ]
            }
        },
        Summary([SummaryPoint(**HELD)]),
    ),
    ({}, None),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), METRICS, ids=[next(iter(sent), "none") for sent, _ in METRICS])
def test_metrics(sent: dict[str, Any], expected: Any) -> None:
    """Every kind of points in both encodings."""
    message = metrics({"name": "gen_ai.client.token.usage", "description": "d", "unit": "{token}", **sent})
    for body, is_json in (
        (message.SerializeToString(), False),
        (json_of(message), True),
        (json_of(message, True), True),
    ):
        (group,) = decode_metrics(body, is_json)
        (metric,) = group.scopes[0].items
        assert (metric.name, metric.description, metric.unit) == ("gen_ai.client.token.usage", "d", "{token}")
        assert metric.data == expected


def test_numbers_that_are_none() -> None:
    message = metrics({"name": "m", "gauge": {"data_points": [{"as_double": math.inf}, {"as_double": math.nan}]}})
    for body, is_json in ((message.SerializeToString(), False), (json_of(message), True)):
        first, second = decode_metrics(body, is_json)[0].scopes[0].items[0].data.points
        assert first.value == math.inf and math.isnan(second.value)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "ExportLogsServiceRequest: the body: expected an object"),
        (b'{"resourceLogs": 5}', "resourceLogs: expected a list"),
        (b'{"resourceLogs": [{"resource": []}]}', "resourceLogs[0].resource: expected an object"),
        (
            b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "soon"}]}]}]}',
            "resourceLogs[0].scopeLogs[0].logRecords[0].timeUnixNano: expected an integer from 0",
        ),
        (
            b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"intValue": "x"}}]}]}]}',
            "logRecords[0].body.intValue: expected a 64-bit integer",
        ),
        (
            b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"severityNumber": "LOUD"}]}]}]}',
            "severityNumber: expected an integer or SEVERITY_NUMBER_FATAL4",
        ),
    ],
)
def test_json_that_is_no_export_says_where(body: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=r".") as refused:
        decode_logs(body, is_json=True)
    assert why in refused.value.reason


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_refused_or_read(seed: int) -> None:
    """Nothing but a refusal comes of damaged exports."""
    pick = random.Random(seed)
    found = {"name": "m", **{key: value for sent, _ in METRICS[:1] for key, value in sent.items()}}
    sources = (metrics(found, {"name": "h", **METRICS[2][0]}, {"name": "e", **METRICS[3][0]}), logs(RECORD))
    for message, decode in zip(sources, (decode_metrics, decode_logs), strict=True):
        whole = message.SerializeToString()
        for _ in range(50):
            damaged = bytearray(whole[: pick.randrange(len(whole) + 1)])
            for _ in range(pick.randrange(4)):
                if damaged:
                    damaged[pick.randrange(len(damaged))] = pick.randrange(256)
            try:
                decode(bytes(damaged), False)
            except HeddleError as error:
                assert error.status in (400, 413), error


def test_there_may_be_so_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_PARTS", 50)
    decode_logs(logs(*[{}] * 20).SerializeToString(), False)
    message = logs(*[{}] * 60)
    for body, is_json in ((message.SerializeToString(), False), (json_of(message), True)):
        with pytest.raises(TooLarge, match="over 50 log"):
            decode_logs(body, is_json)
    many = metrics({"name": "m", "histogram": {"data_points": [{"bucket_counts": [1] * 10_001}]}})
    for body, is_json in ((many.SerializeToString(), False), (json_of(many), True)):
        with pytest.raises(InvalidRequest):
            decode_metrics(body, is_json)
