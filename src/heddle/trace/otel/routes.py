"""Where exporters of OpenTelemetry send spans: `/otel/v1/traces`, and the address that SDKs of agents use."""

from typing import Any

from fastapi import APIRouter, Request, Response

from heddle.errors import UnsupportedMedia
from heddle.http import RecordsDep, ResponseModel, SettingsDep, StoreDep, Writer, answer, group, hot, local
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.otel import protobuf
from heddle.trace.otel.ingest import Export
from heddle.wire.records import Records

JSON, PROTOBUF = "application/json", "application/x-protobuf"
router: APIRouter = group("OpenTelemetry")

_BODY: dict[str, Any] = {
    "description": "An ExportTraceServiceRequest of OTLP/HTTP, plain or compressed with gzip, deflate or zstd",
    "required": True,
    "content": {
        PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
        JSON: {"schema": {"type": "object", "properties": {"resourceSpans": {"type": "array"}}}},
    },
}
_OPENAPI: dict[str, Any] = {
    "requestBody": _BODY,
    "parameters": [
        {
            "name": "project_id",
            "in": "header",
            "required": False,
            "description": "entity/project of the resources that do not name theirs",
            "schema": {"type": "string"},
        }
    ],
}


class ExportTracePartialSuccess(ResponseModel):
    """How many spans were not stored, and why."""

    rejected_spans: int
    error_message: str


class OTelExportRes(ResponseModel):
    """The answer of an export; null when every span was stored."""

    partial_success: ExportTracePartialSuccess | None = None


@router.post("/otel/v1/traces", response_model=OTelExportRes, openapi_extra=_OPENAPI)
@hot
@local
async def otel_traces(
    request: Request, caller: Writer, settings: SettingsDep, store: StoreDep, records: RecordsDep
) -> Response:
    """Store spans as calls; the answer is in the encoding of the request."""
    return await _export(request, caller, settings, store, records)


@router.post("/agents/otel/v1/traces", response_model=OTelExportRes, openapi_extra=_OPENAPI)
@hot
@local
async def agents_otel_traces(
    request: Request, caller: Writer, settings: SettingsDep, store: StoreDep, records: RecordsDep
) -> Response:
    """Store spans of agents and conversations as calls; the same as `/otel/v1/traces`."""
    return await _export(request, caller, settings, store, records)


async def _export(request: Request, caller: Writer, settings: Settings, store: Store, records: Records) -> Response:
    is_json = _is_json(request.headers.get("content-type", ""))
    rejected = await Export(settings, store, records, caller, request.headers.get("project_id")).store(
        await request.body(), is_json
    )
    if not is_json:
        return Response(protobuf.response(rejected.count, rejected.text), media_type=PROTOBUF)
    partial = {"rejected_spans": rejected.count, "error_message": rejected.text} if rejected.count else None
    return answer({"partial_success": partial})


def _is_json(content_type: str) -> bool:
    """Which of the two encodings a body has; raises UnsupportedMedia for others."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        return True
    if kind in (PROTOBUF, "application/protobuf"):
        return False
    said = f"got {kind[:100]!r}" if kind else "the request has none"
    raise UnsupportedMedia(f"Content-Type must be {PROTOBUF} or {JSON}; {said}")
