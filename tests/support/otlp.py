"""Spans as exporters send them, in either encoding."""

import base64
import json
from typing import Any

import httpx
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

START = 1_795_204_029_885_327_104
"""When the spans start: 2026-11-20T19:47:09.885327104Z, in nanoseconds."""
PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
Json = dict[str, Any]


def any_value(value: Any) -> AnyValue:
    """A Python value as an attribute value."""
    if value is None:
        return AnyValue()
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, list):
        return AnyValue(array_value={"values": [any_value(item) for item in value]})
    if isinstance(value, dict):
        return AnyValue(kvlist_value={"values": key_values(value)})
    return AnyValue(string_value=value)


def key_values(attributes: Json) -> list[KeyValue]:
    """Attributes of the wire."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def span(number: int = 1, trace: int = 1, parent: int = 0, **fields: Any) -> Json:
    """A span; `attributes` is a plain dict, ids are small numbers."""
    attributes = fields.pop("attributes", {})
    return {
        "trace_id": trace.to_bytes(16, "big"),
        "span_id": number.to_bytes(8, "big"),
        "parent_span_id": parent.to_bytes(8, "big") if parent else b"",
        "name": "work",
        "kind": 1,
        "start_time_unix_nano": START,
        "end_time_unix_nano": START + 250_000_000,
        **fields,
        "attributes": key_values(attributes),
    }


def request(*spans: Json, resource: Json | None = None, scope: str = "tests") -> ExportTraceServiceRequest:
    """A request with the spans of one resource."""
    group = {
        "resource": {"attributes": key_values(resource or {"service.name": "svc"})},
        "scope_spans": [{"scope": {"name": scope, "version": "1"}, "spans": list(spans)}],
    }
    return ExportTraceServiceRequest(resource_spans=[group])


def as_json(message: ExportTraceServiceRequest, snake: bool = False) -> bytes:
    """The request in OTLP's JSON: as protobuf's own, but with ids in hex."""
    body = MessageToDict(message, preserving_proto_field_name=snake, use_integers_for_enums=True)
    names = ("trace_id", "span_id", "parent_span_id") if snake else ("traceId", "spanId", "parentSpanId")
    groups = body.get("resource_spans" if snake else "resourceSpans", [])
    for group in groups:
        for scope in group.get("scope_spans" if snake else "scopeSpans", []):
            for item in scope.get("spans", []):
                for holder in (item, *item.get("links", [])):
                    holder |= {name: base64.b64decode(holder[name]).hex() for name in names if name in holder}
    return json.dumps(body).encode()


class Exporter:
    """Sends to one server as an exporter does."""

    def __init__(self, url: str, project: str | None, path: str = "/otel/v1/traces", **client: Any) -> None:
        headers = {"project_id": project} if project else {}
        self.path = path
        self.client = httpx.Client(base_url=url, headers=headers, timeout=60, **client)

    def send(self, content: bytes, headers: Json) -> httpx.Response:
        """The raw answer."""
        return self.client.post(self.path, content=content, headers=headers)

    def export(self, message: ExportTraceServiceRequest) -> ExportTraceServiceResponse:
        """Send as protobuf; must succeed."""
        answer = self.send(message.SerializeToString(), PROTOBUF)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-protobuf"
        return ExportTraceServiceResponse.FromString(answer.content)

    def export_json(self, message: ExportTraceServiceRequest, snake: bool = False) -> Any:
        """Send as JSON; must succeed."""
        answer = self.send(as_json(message, snake), JSON)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answer.json()
