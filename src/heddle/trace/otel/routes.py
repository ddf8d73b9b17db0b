"""Where exporters of OpenTelemetry send spans, log records and metrics: encodings, answers, and what was lost."""

import logging
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.errors import HeddleError, UnsupportedMedia
from heddle.http.metrics import REJECTED, STORED
from heddle.http.routing import ResponseModel, StateDep, Writer, answer, group, hot, local
from heddle.http.state import ServerState
from heddle.store.control.redaction import RejectionRow
from heddle.trace.otel.export import HEADER, Export, LogsExport, ProjectResolver, Rejected, SignalExport
from heddle.trace.otel.metrics import MetricsExport
from heddle.wire import times
from heddle.wire.otlp import PROTOBUF, encode_partial_success

logger = logging.getLogger("heddle.otlp")
JSON = "application/json"
_MOST_LOGGED = 1000
"""Causes that are logged, each of them once, in the life of a process."""
_LONGEST_CAUSE = 200
_TEMPORARY = (401, 429, 503, 504)
"""Statuses of requests that are refused for no fault of theirs, or before anything of them is read."""
router: APIRouter = group("OpenTelemetry")


class RejectionLog:
    """Logs each cause once, and so many of them."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, ...]] = set()

    async def note(self, state: ServerState, signal: str, rejected: Rejected) -> None:
        """Count and log what one export lost, and keep it for the pages of its projects, or for the list of them."""
        if not rejected.count:
            return
        rows = []
        for (project, cause), count in rejected.counts.items():
            state.metrics.count(REJECTED, signal, cause, by=count)
            message = rejected.first[project, cause]
            if self._is_new(signal, cause, project or ""):
                logger.warning("OTLP %s: rejected (%s): %s", signal, cause, message)
            rows.append(RejectionRow(project or "", signal, cause, count, times.now(), message))
        try:
            await state.store.rejections.add(rows)
        except HeddleError as error:
            # What was good is stored, and to send it again would mend nothing.
            logger.warning("%d rejections of OTLP %s could not be stored: %s", rejected.count, signal, error.reason)

    def note_refusal(self, signal: str, error: HeddleError) -> None:
        """Log why a whole export was refused, where its sender would have to change something."""
        cause = error.reason.partition(":")[0][:_LONGEST_CAUSE]
        if error.status < 500 and error.status not in _TEMPORARY and self._is_new(signal, "refused", cause):
            logger.warning("OTLP %s: an export was rejected with %d: %s", signal, error.status, error.reason)

    def _is_new(self, *cause: str) -> bool:
        if cause in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(cause)
        return True


_log = RejectionLog()


@dataclass(frozen=True, slots=True)
class Signal:
    """One of the signals of OpenTelemetry: its name, what one export holds of it, its message and the first field."""

    name: str
    items: str
    message: str
    field: str
    export: type[SignalExport]


LOGS = Signal("logs", "log_records", "ExportLogsServiceRequest", "resourceLogs", LogsExport)
METRICS = Signal("metrics", "data_points", "ExportMetricsServiceRequest", "resourceMetrics", MetricsExport)
TRACES = Signal("traces", "spans", "ExportTraceServiceRequest", "resourceSpans", Export)


def export_api(signal: Signal) -> dict[str, Any]:
    """What the OpenAPI description tells of the routes of a signal."""
    return {
        "requestBody": {
            "description": f"An {signal.message} of OTLP/HTTP, plain or compressed with gzip, deflate or zstd",
            "required": True,
            "content": {
                PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
                JSON: {"schema": {"type": "object", "properties": {signal.field: {"type": "array"}}}},
            },
        },
        "parameters": [
            {
                "name": HEADER,
                "in": "header",
                "required": False,
                "description": "entity/project of the resources that do not name theirs",
                "schema": {"type": "string"},
            }
        ],
    }


async def answer_export(
    signal: Signal, request: Request, caller: Caller, state: ServerState, projects: ProjectResolver | None = None
) -> Response:
    """Store the export of a request and answer in its encoding; raises HeddleError.

    `projects` is for requests that name their project in a way of their own.
    """
    if projects is None:
        projects = ProjectResolver.of(request.headers, caller, state.settings)
    export = signal.export(state.settings, state.store, state.records, projects)
    try:
        is_json = _is_json(request.headers.get("content-type", ""))
        stored = await export.store(await request.body(), is_json)
        state.metrics.count(STORED, signal.name, by=stored)
    except HeddleError as error:
        if not export.rejected.count:
            _log.note_refusal(signal.name, error)
        raise
    finally:
        await _log.note(state, signal.name, export.rejected)
    rejected = export.rejected
    if not is_json:
        return Response(encode_partial_success(rejected.count, rejected.text), media_type=PROTOBUF)
    if not rejected.count:
        return answer({"partial_success": None})
    # The names of the API are those that weave reads; exporters of JavaScript read those of OTLP.
    return answer(
        {
            "partial_success": {f"rejected_{signal.items}": rejected.count, "error_message": rejected.text},
            "partialSuccess": {_camel(f"rejected_{signal.items}"): rejected.count, "errorMessage": rejected.text},
        }
    )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _is_json(content_type: str) -> bool:
    """Which of the two encodings a body has; raises UnsupportedMedia for others."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        return True
    if kind in (PROTOBUF, "application/protobuf"):
        return False
    said = f"got {kind[:100]!r}" if kind else "the request has none"
    raise UnsupportedMedia(f"Content-Type must be {PROTOBUF} or {JSON}; {said}")


class ExportTracePartialSuccess(ResponseModel):
    """How many spans were not stored, and why."""

    rejected_spans: int
    error_message: str


class OTelExportRes(ResponseModel):
    """The answer of an export; null when every span was stored."""

    partial_success: ExportTracePartialSuccess | None = None


_API: dict[str, Any] = {"response_model": OTelExportRes, "openapi_extra": export_api(TRACES)}


@router.post("/v1/traces", **_API)
@router.post("/otel/v1/traces", **_API)
@router.post("/agents/otel/v1/traces", **_API)
@router.post("/api/otel/v1/traces", **_API)  # LangWatch
@router.post("/opentelemetry/v1/traces", **_API)  # HoneyHive
@router.post("/tracer/v1/traces", **_API)  # Future AGI
@router.post("/v2/traces", **_API)  # Respan
@hot
@local
async def otel_traces(request: Request, caller: Writer, state: StateDep) -> Response:
    """Store spans as calls; the answer is in the encoding of the request."""
    return await answer_export(TRACES, request, caller, state)


class ExportMetricsPartialSuccess(ResponseModel):
    """How many points were not counted, and why."""

    rejected_data_points: int
    error_message: str


class OTelMetricsRes(ResponseModel):
    """The answer of an export of metrics; null when every point was counted."""

    partial_success: ExportMetricsPartialSuccess | None = None


_METRICS_API: dict[str, Any] = {"response_model": OTelMetricsRes, "openapi_extra": export_api(METRICS)}


@router.post("/v1/metrics", **_METRICS_API)
@router.post("/otel/v1/metrics", **_METRICS_API)
async def otel_metrics(request: Request, caller: Writer, state: StateDep) -> Response:
    """Count the points of metrics; the answer is in the encoding of the request."""
    return await answer_export(METRICS, request, caller, state)


class ExportLogsPartialSuccess(ResponseModel):
    """How many log records were not stored, and why."""

    rejected_log_records: int
    error_message: str


class OTelLogsRes(ResponseModel):
    """The answer of an export of log records; null when every record was stored."""

    partial_success: ExportLogsPartialSuccess | None = None


_LOGS_API: dict[str, Any] = {"response_model": OTelLogsRes, "openapi_extra": export_api(LOGS)}


@router.post("/v1/logs", **_LOGS_API)
@router.post("/otel/v1/logs", **_LOGS_API)
async def otel_logs(request: Request, caller: Writer, state: StateDep) -> Response:
    """Store log records with the spans that they tell of; the answer is in the encoding of the request."""
    return await answer_export(LOGS, request, caller, state)
