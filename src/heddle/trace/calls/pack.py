"""From validated requests to the records that the store keeps: JSON texts, refs, usage, status, large fields."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.trace.calls.models import (
    DISPLAY_NAME_MAX,
    OP_NAME_MAX,
    CompletedCallSchemaForInsert,
    EndedCallSchemaForInsert,
    StartedCallSchemaForInsert,
)
from heddle.trace.content import LONG_STRING, replace_content
from heddle.wire import ids, jsontext, refs, times
from heddle.wire.calls import COLUMNS, DESCENDANT_ERROR, ERROR, SUCCESS, End, Start, Usage

_KEPT_TEXT = 4096
_SERVER_KEYS = ("status", "trace_name", "latency_ms", "display_name", "costs", "feedback")
_MAX_STEP = 2**63 - 1
_MAX_TOKENS = 10**12
"""The most that one call counts with, so that sums over millions of calls fit 64 bits."""
Halves = tuple[list[Start], list[End]]


@dataclass(slots=True)
class PendingFile:
    """A file that must be stored before the call that names it."""

    project: str
    name: str
    digest: str
    content: bytes


@dataclass(slots=True)
class Packed:
    """What one request writes: halves of calls, files of media found in them, and whole texts of large fields."""

    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    files: list[PendingFile] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    spills: list[tuple[dict[str, str], str, int]] = field(default_factory=list)


class Packer:
    """Packs the calls of one request; `open_project` checks a project id and gives its internal form."""

    def __init__(self, open_project: Callable[[str], str], user: str, large_field_bytes: int) -> None:
        self.packed = Packed()
        self._open = open_project
        self._user = user
        self._large = large_field_bytes

    def start(self, call: StartedCallSchemaForInsert) -> Start:
        """Pack a first half; missing ids are made."""
        return self._start(call, call.id or ids.uuid7(), call.trace_id or ids.uuid7())

    def complete(self, call: CompletedCallSchemaForInsert) -> None:
        """Pack a whole call."""
        self._start(call, call.id, call.trace_id)
        self.end(call)

    def _start(
        self, call: StartedCallSchemaForInsert | CompletedCallSchemaForInsert, call_id: str, trace_id: str
    ) -> Start:
        project = self._open(call.project_id)
        _check_names(call.op_name, call.display_name)
        start = Start(
            project=project,
            id=_identifier(call_id, "id"),
            trace_id=_identifier(trace_id, "trace_id"),
            op_name=call.op_name,
            started_at=instant(call.started_at),
            inputs="",
            attributes="",
            user=self._user,
            display_name=call.display_name,
            run_id=run_id(call.wb_run_id, project),
            **_plain(call, of_end=False),
        )
        start.inputs, start.refs, size = self.field(project, "inputs", call.inputs, start.files)
        start.attributes, _, attributes_size = self.field(project, "attributes", call.attributes, start.files)
        start.size = size + attributes_size
        if call.otel_dump is not None:
            start.otel_dump, _, size = self.field(project, "otel_dump", call.otel_dump, start.files)
            start.size += size
        self.packed.starts.append(start)
        return start

    def end(self, call: EndedCallSchemaForInsert | CompletedCallSchemaForInsert) -> None:
        """Pack a second half."""
        project = self._open(call.project_id)
        summary = client_summary(call.summary)
        end = End(
            project=project,
            id=_identifier(call.id, "id"),
            ended_at=instant(call.ended_at),
            output=None,
            summary="",
            status=_status(call.exception, summary),
            exception=call.exception,
            usage=usage_entries(summary),
            **_plain(call, of_end=True),
        )
        size = 0
        if call.output is not None:
            end.output, end.refs, size = self.field(project, "output", call.output, end.files)
        end.summary, _, summary_size = self.field(project, "summary", summary, end.files)
        end.size = size + summary_size
        self.packed.ends.append(end)

    def field(self, project: str, name: str, value: Any, files: dict[str, str]) -> tuple[str, list[str], int]:
        """JSON text, refs and size in bytes of a field; media become files, a large text a blob and a short form."""
        text = jsontext.dumps(value)
        if name in ("inputs", "output") and len(text) > LONG_STRING:
            replaced = self.without_media(project, value)
            if replaced is not value:
                value, text = replaced, jsontext.dumps(replaced)
        found = list(dict.fromkeys(refs.find(value))) if refs.INTERNAL in text else []
        size = len(text)
        if size > self._large:
            self.packed.spills.append((files, name, len(self.packed.blobs)))
            self.packed.blobs.append(text.encode())
            text = jsontext.dumps(shortened(value))
        return text, found, size

    def without_media(self, project: str, value: Any) -> Any:
        """The value with long base64 texts as files of the project; the same object when there is none."""
        return replace_content(value, lambda digest, file, content: self._keep(project, digest, file, content))

    def _keep(self, project: str, digest: str, name: str, content: bytes) -> None:
        self.packed.files.append(PendingFile(project, name, digest, content))


def shortened(value: Any) -> Any:
    """The value with its long texts cut, so that filters on its small parts still work; the whole lies in a file."""
    if isinstance(value, str):
        return value[:_KEPT_TEXT]
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value[:1000]]
    return value


def usage_entries(summary: dict[str, Any]) -> list[Usage]:
    """The tokens per model of `summary.usage`; entries that are no objects are left out."""
    usage = summary.get("usage")
    if not isinstance(usage, dict):
        return []
    entries = []
    for model, reported in usage.items():
        if isinstance(reported, dict):
            prompt = _tokens(reported.get("prompt_tokens")) + _tokens(reported.get("input_tokens"))
            completion = _tokens(reported.get("completion_tokens")) + _tokens(reported.get("output_tokens"))
            total = reported.get("total_tokens")
            cached = _tokens(reported.get("cache_read_input_tokens"))
            created = _tokens(reported.get("cache_creation_input_tokens"))
            requests = _tokens(reported.get("requests"))
            entries.append(
                Usage(model, requests, prompt, completion, None if total is None else _tokens(total), cached, created)
            )
    return entries


def _tokens(value: Any) -> int:
    """A reported count as an integer; texts of numbers count, anything else is 0."""
    if value is None:
        return 0
    if type(value) is int and -_MAX_TOKENS <= value <= _MAX_TOKENS:
        return value
    if isinstance(value, (int, float)):
        return int(max(-_MAX_TOKENS, min(_MAX_TOKENS, value)))
    if isinstance(value, str) and len(value) < 20 and value.strip().lstrip("+-").isdigit():
        return _tokens(int(value)) if value.strip().lstrip("+-").isascii() else 0
    return 0


def client_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without what the server rebuilds at every read."""
    weave = summary.get("weave")
    if not isinstance(weave, dict):
        return summary
    kept = {key: value for key, value in weave.items() if key not in _SERVER_KEYS}
    rest = {key: value for key, value in summary.items() if key != "weave"}
    return {**rest, "weave": kept} if kept else rest


def _status(exception: str | None, summary: dict[str, Any]) -> int:
    if exception:
        return ERROR
    counts = summary.get("status_counts")
    errors = _tokens(counts.get("error")) if isinstance(counts, dict) else 0
    return DESCENDANT_ERROR if errors > 0 else SUCCESS


def _check_names(op_name: str, display_name: str | None) -> None:
    if len(op_name) > OP_NAME_MAX and not op_name.startswith("weave"):
        raise InvalidRequest(f"op_name is longer than {OP_NAME_MAX} characters and is no ref")
    if display_name is not None and len(display_name) > DISPLAY_NAME_MAX:
        raise InvalidRequest(f"display_name is longer than {DISPLAY_NAME_MAX} characters")


def _identifier(text: str, name: str) -> str:
    if not text or len(text) > 256:
        raise InvalidRequest(f"Invalid {name}: expected 1 to 256 characters")
    return text


def _plain(call: BaseModel, *, of_end: bool) -> dict[str, Any]:
    """The columns of one half that are stored as they came."""
    found = {item.name: getattr(call, item.field) for item in COLUMNS if item.is_plain and item.of_end is of_end}
    return {name: _step(value) if isinstance(value, int) else value for name, value in found.items()}


def _step(step: int | None) -> int | None:
    if step is not None and abs(step) > _MAX_STEP:
        raise ValidationFailed.at(["body", "wb_run_step"], "Input should be a 64-bit integer", "int_parsing_size")
    return step


def instant(moment: datetime) -> int:
    """Microseconds of a request's datetime; raises InvalidRequest outside the years 1 to 9999 of UTC."""
    micros = times.to_micros(moment)
    try:
        times.to_datetime(micros)
    except OverflowError:
        raise InvalidRequest(f"The time {moment.isoformat()} lies outside the calendar") from None
    return micros


def run_id(run: str | None, project: str) -> str | None:
    """The internal form of `entity/project/run` (`<internal project>:<run>`); a bare run belongs to the project."""
    if run is None or not run:
        return run
    parts = run.split("/")
    if len(parts) == 3:
        return f"{refs.internal_project('/'.join(parts[:2]))}:{parts[2]}"
    if len(parts) != 1:
        raise InvalidRequest(f"Invalid wb_run_id: expected 'entity/project/run', got {run[:200]!r}")
    return run if ":" in run else f"{project}:{run}"


def external_run_id(run: str | None) -> str | None:
    """The external form of a stored run id."""
    if not run:
        return run
    project, _, name = run.partition(":")
    external = refs.external_project(project)
    return f"{external}/{name}" if external else run


def usage_dict(summary: str | None) -> dict[str, Any]:
    """`usage` of a stored summary text, empty when there is none."""
    if summary is None or '"usage"' not in summary:
        return {}
    usage = orjson.loads(summary).get("usage")
    return usage if isinstance(usage, dict) else {}
