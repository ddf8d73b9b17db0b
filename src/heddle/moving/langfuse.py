"""Exports of Langfuse (files of observations, traces and scores): observations as spans, scores as feedback.

Trace and observation ids that are no OpenTelemetry ids become such by their SHA-256, always the same.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from heddle.errors import HeddleError
from heddle.moving import langfuse_files as files
from heddle.moving.report import Report
from heddle.moving.target import Target, attributes_of
from heddle.wire import times
from heddle.wire.jsontypes import Json

_BASE = "langfuse.observation."
_PLAIN = {
    **{name: name for name in ("id", "input", "output", "completion_start_time", "level", "status_message")},
    "model.name": "provided_model_name",
    "prompt.name": "prompt_name",
    "prompt.version": "prompt_version",
    "version": "version",
}
_OBJECTS = {
    "model.parameters": "model_parameters",
    "usage_details": "usage_details",
    "cost_details": "cost_details",
}
_OF_TRACE = {
    "langfuse.session.id": "session_id",
    "user.id": "user_id",
    "langfuse.release": "release",
    "langfuse.environment": "environment",
    "langfuse.trace.id": "trace_id",
    "langfuse.trace.tags": "tags",
}
_LATEST = 2**63 - 1
_PAYLOAD = ("name", "value", "string_value", "data_type", "source", "comment", "timestamp")


def bring(folder: Path, target: Target) -> Report:
    """Send every exported file of a folder to a target; raises HeddleError naming what cannot be read."""
    found = files.find(folder)
    if not found["observations"] and not found["traces"]:
        raise HeddleError(f"{folder} holds no observations/, observations_v2/ or traces/ of a Langfuse export")
    export = Export(target.report)
    export.read_traces(files.rows(found["traces"]))
    target.spans(export.spans(files.rows(found["observations"])), {"service.name": "langfuse"})
    target.spans(export.bare_traces(), {"service.name": "langfuse"})
    target.feedback(export.scores(files.rows(found["scores"])))
    target.report.notes.append("prompts, datasets, sessions' comments and media are not part of such exports")
    return target.report


class Export:
    """What one export holds; keeps the traces (of exports that have them) and each trace's root span in memory."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._traces: dict[str, Json] = {}
        self._roots: dict[str, str] = {}

    def read_traces(self, rows: Iterator[Json]) -> None:
        """Remember traces, which older exports keep in files of their own."""
        for row in rows:
            self._traces[row["id"]] = row

    def spans(self, rows: Iterator[Json]) -> Iterator[Json]:
        """Observations as spans in the JSON form of OTLP."""
        for row in rows:
            trace = self._traces.get(row["trace_id"], {})
            if not row.get("parent_observation_id"):
                self._roots.setdefault(row["trace_id"], row["id"])
            if not row.get("end_time") and row.get("type") != "EVENT":
                self._report.leave("ends of observations that were still running: they end at their start here")
            yield _span(row, trace)

    def bare_traces(self) -> Iterator[Json]:
        """Traces without observations, as one span each."""
        for identity, trace in self._traces.items():
            if identity not in self._roots:
                self._roots[identity] = identity
                own = {"id": identity, "trace_id": identity, "type": "SPAN", "start_time": trace["timestamp"]}
                yield _span({**trace, **own, "end_time": trace["timestamp"], "parent_observation_id": None}, trace)

    def scores(self, rows: Iterator[Json]) -> Iterator[tuple[str, str, str, Json]]:
        """Scores as feedback: those of a trace on its root span."""
        for row in rows:
            about = row.get("observation_id") or self._roots.get(row.get("trace_id") or "")
            if not about:
                self._report.leave("scores of sessions, of dataset runs, or of traces that are not in the export")
                continue
            payload = {name: row.get(name) for name in _PAYLOAD}
            yield row["id"], span_id(about), f"langfuse.{row['name']}", payload


def _span(row: Json, trace: Json) -> Json:
    began = _nanoseconds(row["start_time"])
    ended = _nanoseconds(row["end_time"]) if row.get("end_time") else began
    span = {"traceId": trace_id(row["trace_id"]), "spanId": span_id(row["id"]), "name": row.get("name") or row["type"]}
    span |= {"startTimeUnixNano": str(began), "endTimeUnixNano": str(max(began, ended)), "kind": 1}
    if row.get("parent_observation_id"):
        span["parentSpanId"] = span_id(row["parent_observation_id"])
    if row.get("level") == "ERROR":
        span["status"] = {"code": 2, "message": row.get("status_message") or ""}
    return {**span, "attributes": attributes_of(_attributes(row, trace))}


def _attributes(row: Json, trace: Json) -> Json:
    """The attributes that the SDK of Langfuse would have exported."""
    values: Json = {_BASE + name: row.get(column) for name, column in _PLAIN.items()}
    values |= {_BASE + name: files.text_of(row.get(column)) for name, column in _OBJECTS.items()}
    values[f"{_BASE}type"] = str(row.get("type") or "SPAN").lower()
    values |= {name: row.get(column) or trace.get(column) for name, column in _OF_TRACE.items()}
    values["langfuse.trace.name"] = row.get("trace_name") or trace.get("name")
    if not row.get("parent_observation_id"):
        values |= {f"langfuse.trace.{name}": trace.get(name) for name in ("input", "output")}
    values |= {f"{_BASE}metadata.{key}": value for key, value in files.object_of(row.get("metadata")).items()}
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _nanoseconds(text: "str | datetime") -> int:
    micros = times.to_micros(text) if isinstance(text, datetime) else times.parse(text)
    if micros is None or not 0 <= micros < _LATEST // 1000:
        raise HeddleError(f"The export holds {text!r} where a time should be")
    return micros * 1000


def trace_id(identity: str) -> str:
    """The trace id of OpenTelemetry for one of Langfuse."""
    return _identifier(identity, 32)


def span_id(identity: str) -> str:
    """The span id of OpenTelemetry for one of Langfuse."""
    return _identifier(identity, 16)


def _identifier(identity: str, length: int) -> str:
    plain = identity.replace("-", "").lower()
    is_hexadecimal = len(plain) == length and not plain.strip("0123456789abcdef") and bool(plain.strip("0"))
    return plain if is_hexadecimal else hashlib.sha256(identity.encode()).hexdigest()[:length]
