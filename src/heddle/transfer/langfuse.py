"""Exports of Langfuse (files of observations, traces and scores): observations as spans, scores as feedback.

Trace and observation ids that are no OpenTelemetry ids become such by their SHA-256, always the same.
"""

import csv
import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from heddle.errors import HeddleError
from heddle.transfer.archive import require_parquet
from heddle.transfer.rows import Misfit, identify, take
from heddle.transfer.target import Report, Score, Target, attributes_of
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json

Rows = Iterator[tuple[str, Any]]
"""Each with its place."""
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
_FOLDERS = {"observations_v2": "observations", "observations": "observations", "traces": "traces", "scores": "scores"}
_ENDINGS = (".json", ".jsonl", ".csv", ".parquet", ".json.gz", ".jsonl.gz", ".csv.gz")


def import_files(folder: Path, target: Target) -> Report:
    """Send every exported file of a folder to a target; raises HeddleError naming what cannot be read."""
    found = _find_files(folder)
    if not found["observations"] and not found["traces"]:
        raise HeddleError(f"{folder} is not a Langfuse export: it has no observations/, observations_v2/ or traces/")
    export = Export(target.report)
    export.read_traces(_read_rows(found["traces"]))
    target.spans(export.spans(_read_rows(found["observations"])), {"service.name": "langfuse"})
    target.spans(export.bare_traces(), {"service.name": "langfuse"})
    target.feedback(export.scores(_read_rows(found["scores"])))
    target.report.notes.append("prompts, datasets, sessions' comments and media are not part of such exports")
    return target.report


class Export:
    """What one export holds; keeps the traces (of exports that have them) and each trace's root span in memory."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._traces: dict[str, Json] = {}
        self._roots: dict[str, str] = {}

    def read_traces(self, rows: Rows) -> None:
        """Remember traces, which older exports keep in files of their own."""
        self._traces.update(self._report.read("traces", rows, lambda row: (identify(row, "id"), row)))

    def spans(self, rows: Rows) -> Iterator[Json]:
        """Observations as spans in the JSON form of OTLP."""
        return self._report.read("observations", rows, self._observation)

    def _observation(self, row: Json) -> Json:
        trace = identify(row, "trace_id")
        span = _span(row, self._traces.get(trace, {}))
        if not row.get("parent_observation_id"):
            self._roots.setdefault(trace, row["id"])
        if not row.get("end_time") and row.get("type") != "EVENT":
            self._report.leave(
                "end times of observations that were still running (imported with their start as the end)"
            )
        return span

    def bare_traces(self) -> Iterator[Json]:
        """Traces without observations, as one span each."""
        bare = ((f"trace {name}", trace) for name, trace in self._traces.items() if name not in self._roots)
        return self._report.read("traces", bare, self._bare_trace)

    def _bare_trace(self, trace: Json) -> Json:
        name, at = trace["id"], trace.get("timestamp")
        own = {"trace_id": name, "type": "SPAN", "start_time": at, "end_time": at, "parent_observation_id": None}
        span = _span({**trace, **own}, trace)
        self._roots[name] = name
        return span

    def scores(self, rows: Rows) -> Iterator[Score]:
        """Scores as feedback: those of a trace on its root span."""
        return (score for score in self._report.read("scores", rows, self._score) if score is not None)

    def _score(self, row: Json) -> Score | None:
        about = take(row, "observation_id", str, "") or self._roots.get(take(row, "trace_id", str, ""))
        if not about:
            self._report.leave("scores of sessions, of dataset runs, or of traces that are not in the export")
            return None
        payload = {name: row.get(name) for name in _PAYLOAD}
        return Score(identify(row, "id"), span_id(about), f"langfuse.{identify(row, 'name')}", payload)


def _span(row: Json, trace: Json) -> Json:
    began = _nanoseconds(row, "start_time")
    ended = _nanoseconds(row, "end_time") if row.get("end_time") else began
    name = take(row, "name", str, "") or identify(row, "type")
    span: Json = {"traceId": trace_id(identify(row, "trace_id")), "spanId": span_id(identify(row, "id")), "name": name}
    span |= {"startTimeUnixNano": str(began), "endTimeUnixNano": str(max(began, ended)), "kind": 1}
    if row.get("parent_observation_id"):
        span["parentSpanId"] = span_id(identify(row, "parent_observation_id"))
    if row.get("level") == "ERROR":
        span["status"] = {"code": 2, "message": take(row, "status_message", str, "")}
    return {**span, "attributes": attributes_of(_attributes(row, trace))}


def _attributes(row: Json, trace: Json) -> Json:
    """The attributes that the SDK of Langfuse would have exported."""
    values: Json = {_BASE + name: row.get(column) for name, column in _PLAIN.items()}
    values |= {_BASE + name: _text_of(row.get(column)) for name, column in _OBJECTS.items()}
    values[f"{_BASE}type"] = str(row.get("type") or "SPAN").lower()
    values |= {name: row.get(column) or trace.get(column) for name, column in _OF_TRACE.items()}
    values["langfuse.trace.name"] = row.get("trace_name") or trace.get("name")
    if not row.get("parent_observation_id"):
        values |= {f"langfuse.trace.{name}": trace.get(name) for name in ("input", "output")}
    values |= {f"{_BASE}metadata.{key}": value for key, value in _object_of(row.get("metadata")).items()}
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _nanoseconds(row: Json, name: str) -> int:
    value = row.get(name)
    micros = times.parse(value.isoformat() if isinstance(value, datetime) else identify(row, name))
    if micros is None or not 0 <= micros < _LATEST // 1000:
        raise Misfit(f"whose {name} is not a valid time")
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


def _find_files(folder: Path) -> dict[str, list[Path]]:
    """The files by what they hold; with enriched observations the older files of the same are left out.

    Raises HeddleError for a file of another kind in one of the folders.
    """
    found: dict[str, list[Path]] = {name: [] for name in set(_FOLDERS.values())}
    has_enriched = any(path.is_file() for path in folder.glob("**/observations_v2/*"))
    for path in sorted(folder.rglob("*")):
        kind = _FOLDERS.get(path.parent.name)
        is_older = has_enriched and path.parent.name in ("observations", "traces")
        if kind is None or is_older or not path.is_file():
            continue
        if not path.name.endswith(_ENDINGS):
            raise HeddleError(f"{path} is not a file of a Langfuse export: {', '.join(_ENDINGS)}")
        found[kind].append(path)
    return found


def _read_rows(paths: Sequence[Path]) -> Rows:
    """The rows of files with their places, one after the other; raises HeddleError for a file that cannot be read."""
    for path in paths:
        try:
            for number, row in enumerate(_read_file(path), 1):
                yield f"row {number} of {path}", row
        except UnicodeDecodeError:
            raise HeddleError(f"{path} cannot be read: it is not UTF-8") from None
        except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
            raise HeddleError(f"{path} cannot be read: {error}") from None


def _read_file(path: Path) -> Iterator[Any]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        require_parquet()
        from pyarrow import parquet

        for batch in parquet.ParquetFile(path).iter_batches(batch_size=500):
            yield from ({key: _to_json(value) for key, value in row.items()} for row in batch.to_pylist())
        return
    with _open_text(path) as content:
        if name.endswith(".csv"):
            csv.field_size_limit(sys.maxsize)
            yield from ({key: value or None for key, value in row.items()} for row in csv.DictReader(content))
        elif name.endswith(".jsonl"):
            yield from (_read_line(line) for line in content if line.strip())
        else:
            rows = jsontext.loads_text(content.read())
            if not isinstance(rows, list):
                raise ValueError("it does not contain a list of rows")
            yield from rows


def _read_line(line: str) -> Any:
    """The row of a line; the line where it is no JSON, and so no row either."""
    try:
        return jsontext.loads_text(line)
    except ValueError:
        return line


def _open_text(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return io.TextIOWrapper(cast(IO[bytes], gzip.open(path)), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _to_json(value: Any) -> Any:
    """A value of Parquet as JSON has it: maps come as lists of pairs."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return dict(value)
    return value


def _object_of(value: Any) -> Json:
    """A field that is an object, or the JSON text of one."""
    if isinstance(value, str) and value.strip():
        try:
            value = jsontext.loads_text(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _text_of(value: Any) -> str | None:
    """The JSON text of a field that is an object, or such a text already."""
    found = _object_of(value)
    return jsontext.dumps(found) if found else None
