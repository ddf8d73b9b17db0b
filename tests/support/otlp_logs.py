"""Log records as exporters send them."""

import json
from typing import Any

import httpx
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.otlp import PROTOBUF, START, any_value, key_values, request, span

Json = dict[str, Any]
TRACE_ID, SPAN_ID = (1).to_bytes(16, "big"), (7).to_bytes(8, "big")
DETAILS = "gen_ai.client.inference.operation.details"
MODEL = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m"}
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Which canary?"}]}]
ANSWERED = [{"role": "assistant", "parts": [{"type": "text", "content": "A yellow canary."}], "finish_reason": "stop"}]
CONTENT = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}


def record(name: str, after: int = 0, *, body: Any = None, ids: bool = True, **attributes: Any) -> Json:
    """A record so many milliseconds after the start of the span; `_` in names of attributes stands for a dot."""
    made: Json = {"time_unix_nano": START + after * 1_000_000, "event_name": name}
    made["attributes"] = key_values({key.replace("__", "."): value for key, value in attributes.items()})
    made["body"] = AnyValue() if body is None else any_value(body)
    if ids:
        made |= {"trace_id": TRACE_ID, "span_id": SPAN_ID}
    return made


def details(after: int = 100, **more: Any) -> Json:
    """The event that tells a request with its answer."""
    made = record(DETAILS, after)
    made["attributes"] = key_values({**MODEL, **CONTENT, "gen_ai.usage.input_tokens": 5, **more})
    return made


def logs(*records: Json, resource: Json | None = None, scope: str = "tests") -> ExportLogsServiceRequest:
    """A request with the records of one resource."""
    group = {
        "resource": {"attributes": key_values(resource or {"service.name": "svc"})},
        "scope_logs": [{"scope": {"name": scope}, "log_records": list(records)}],
    }
    return ExportLogsServiceRequest(resource_logs=[group])


def json_logs(*records: Json, resource: Json | None = None, scope: str = "tests") -> ExportLogsServiceRequest:
    """The same of records whose attributes are plain objects, without ids."""
    found = [
        {
            "timeUnixNano": str(one["time"]),
            "body": {"stringValue": one["body"]} if "body" in one else {},
            "attributes": json.loads(json.dumps(_key_values(one["attributes"]))),
        }
        for one in records
    ]
    group = {
        "resource": {"attributes": _key_values(resource or {})},
        "scopeLogs": [{"scope": {"name": scope}, "logRecords": found}],
    }
    return ParseDict({"resourceLogs": [group]}, ExportLogsServiceRequest())


def _key_values(attributes: Json) -> list[Json]:
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return [{"key": key, "value": {kinds[type(value)]: value}} for key, value in attributes.items()]


def chat_span(**attributes: Any) -> Any:
    """The request of an exporter with the span that the records belong to."""
    return request(span(7, name="chat m", kind=3, attributes={**MODEL, **attributes}))


class Sender:
    """Sends spans and log records to one project."""

    def __init__(self, url: str, project: str) -> None:
        headers = {"project_id": project, **PROTOBUF}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=60)

    def logs(self, *records: Json, **options: Any) -> tuple[int, str]:
        """Export records; returns how many were rejected, and why."""
        return self.send(logs(*records, **options))

    def send(self, message: ExportLogsServiceRequest) -> tuple[int, str]:
        """Export a request of log records; returns how many were rejected, and why."""
        answer = self.client.post("/v1/logs", content=message.SerializeToString())
        assert answer.status_code == 200, answer.text
        partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
        return partial.rejected_log_records, partial.error_message

    def span(self, **attributes: Any) -> None:
        """Export the span of the records."""
        answer = self.client.post("/v1/traces", content=chat_span(**attributes).SerializeToString())
        assert (answer.status_code, answer.content) == (200, b"")
