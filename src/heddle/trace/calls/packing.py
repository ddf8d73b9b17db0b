"""Calls as clients write them, packed into the records of the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
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
    StartFields,
)
from heddle.wire import jsontext, refs, times
from heddle.wire.call_summary import read_error
from heddle.wire.calls import COLUMNS, DESCENDANT_ERROR, ERROR, SUCCESS, End, Start, Usage, to_tokens
from heddle.wire.content import LONG_STRING, replace_content
from heddle.wire.redaction import Redactor
from heddle.wire.spans import AgentSpan

MAX_FIELD_DEPTH = jsontext.MAX_DEPTH - 5
"""Levels of one field: a body of /call/upsert_batch puts it into five more."""
_KEPT_TEXT = 4096
_SERVER_KEYS = ("status", "trace_name", "latency_ms", "display_name", "costs", "feedback")
_MAX_STEP = 2**63 - 1
_AGENT_IDS = ("project", "trace_id", "span_id", "parent_span_id", "conversation_id")
_AGENT_TEXTS = [one.name for one in fields(AgentSpan) if one.name not in _AGENT_IDS]


def _plain_columns(of_end: bool) -> tuple[list[str], Callable[[BaseModel], tuple[Any, ...]]]:
    columns = [one for one in COLUMNS if one.is_plain and one.of_end is of_end]
    fields = [one.field for one in columns]
    read = attrgetter(*fields)
    return [one.name for one in columns], read if len(fields) > 1 else lambda call: (read(call),)


_PLAIN = [_plain_columns(of_end=False), _plain_columns(of_end=True)]
CallIds = dict[str, str]
"""`id` and `trace_id` of a start that was stored; empty for an end."""


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

    @property
    def halves(self) -> list[Start | End]:
        """Starts, then ends."""
        return [*self.starts, *self.ends]

    @property
    def size(self) -> int:
        """Bytes of what clients said."""
        files = sum(len(file.content) for file in self.files)
        exceptions = sum(len(end.exception or "") for end in self.ends)
        return files + exceptions + sum(half.size for half in self.halves)


class Packer:
    """Packs the calls of one request; `open_project` checks a project id and gives its internal form."""

    def __init__(self, open_project: Callable[[str], str], user: str, large_field_bytes: int) -> None:
        self.packed = Packed()
        self._open = open_project
        self._user = user
        self._large = large_field_bytes

    def start(self, call: StartedCallSchemaForInsert) -> Start:
        """Pack a first half; missing ids are made."""
        return self._start(call, call.id or times.uuid7(), call.trace_id or times.uuid7())

    def complete(self, call: CompletedCallSchemaForInsert) -> None:
        """Pack a whole call."""
        self._start(call, call.id, call.trace_id)
        self.end(call)

    def _start(
        self, call: StartedCallSchemaForInsert | CompletedCallSchemaForInsert, call_id: str, trace_id: str
    ) -> Start:
        project = self._open(call.project_id)
        _check_names(call, call.op_name)
        start = Start(
            project=project,
            id=_identifier(call_id, "id"),
            trace_id=_identifier(trace_id, "trace_id"),
            op_name=call.op_name,
            started_at=times.to_micros(call.started_at),
            inputs="",
            attributes="",
            user=self._user,
            display_name=call.display_name,
            run_id=run_id(call.wb_run_id, project),
            **_plain(call, of_end=False),
        )
        self.put(start, "inputs", call.inputs)
        self.put(start, "attributes", call.attributes)
        if call.otel_dump is not None:
            self.put(start, "otel_dump", call.otel_dump)
        self.packed.starts.append(start)
        return start

    def end(self, call: EndedCallSchemaForInsert | CompletedCallSchemaForInsert) -> None:
        """Pack a second half."""
        project = self._open(call.project_id)
        summary = client_summary(call.summary)
        usage = usage_entries(summary)
        for used in usage:
            refs.check_id("summary.usage: the model", used.model)
        end = End(
            project=project,
            id=_identifier(call.id, "id"),
            ended_at=times.to_micros(call.ended_at),
            output=None,
            summary="",
            status=_status(call.exception, summary),
            exception=call.exception,
            usage=usage,
            **_plain(call, of_end=True),
        )
        if call.output is not None:
            self.put(end, "output", call.output)
        self.put(end, "summary", summary)
        self.packed.ends.append(end)

    def put(self, half: Start | End, name: str, value: Any) -> None:
        """Set a JSON field of a half, count its size, and note the refs of what went in or came out.

        Media become files, a large text a blob and a short form.
        """
        text = jsontext.dumps(value)
        if len(text) > MAX_FIELD_DEPTH and text.count("{") + text.count("[") > MAX_FIELD_DEPTH:
            jsontext.check_depth(value, MAX_FIELD_DEPTH)
        has_refs = name in ("inputs", "output")
        if has_refs and len(text) > LONG_STRING:
            replaced = self.without_media(half.project, value)
            if replaced is not value:
                value, text = replaced, jsontext.dumps(replaced)
        if has_refs and refs.INTERNAL in text:
            half.refs = list(dict.fromkeys(refs.find(value)))
        if not self.put_text(half, name, text):
            self.packed.spills.append((half.files, name, len(self.packed.blobs)))
            self.packed.blobs.append(text.encode())
            setattr(half, name, jsontext.dumps(shortened(value)))
            half.size += len(text)

    def put_text(self, half: Start | End, name: str, text: str) -> bool:
        """Set a JSON field to a text, unless that is large; true when it is set."""
        if len(text) > self._large:
            return False
        setattr(half, name, text)
        half.size += len(text)
        return True

    def without_media(self, project: str, value: Any) -> Any:
        """The value with long base64 texts as files of the project; the same object when there is none."""
        return replace_content(value, lambda digest, file, content: self._keep(project, digest, file, content))

    def _keep(self, project: str, digest: str, name: str, content: bytes) -> None:
        self.packed.files.append(PendingFile(project, name, digest, content))


_FIRST = ("inputs", "attributes", "output", "summary")


def redact(packed: Packed, agents: Sequence[AgentSpan], redactors: Mapping[str, Redactor], user: str) -> None:
    """Take out of calls, their files and agent spans what the rules of their projects say; `user` is whose key it is.

    What stood at paths is taken out of the dumps of spans, too, which are looked at behind all else.
    """
    spills = {(id(files), name): index for files, name, index in packed.spills}
    changed: set[tuple[str, str]] = set()
    for names in (_FIRST, ("otel_dump",)):
        for half in packed.halves:
            redactor = redactors.get(half.project)
            for name in names if redactor is not None else ():
                text = getattr(half, name, None)
                if not text or redactor is None:
                    continue
                index = spills.get((id(half.files), name))
                if index is None:
                    redacted = redactor.json(text, name)
                else:
                    # Half a secret, where a text was cut, would not be found.
                    packed.blobs[index] = whole = redactor.json(packed.blobs[index].decode(), name).encode()
                    redacted = jsontext.dumps(shortened(orjson.loads(whole)))
                if redacted is not text:
                    setattr(half, name, redacted)
                    changed.add((half.project, half.id))
    for start in packed.starts:
        if (redactor := redactors.get(start.project)) is not None:
            start.op_name = redactor.text(start.op_name)
            start.display_name = start.display_name and redactor.text(start.display_name)
            start.user = start.user if start.user == user else redactor.text(start.user)
            if (start.project, start.id) in changed:
                # The places of what the dump shares with inputs and output are others now.
                start.shared = ()
    for end in packed.ends:
        if (redactor := redactors.get(end.project)) is None:
            continue
        end.usage = [used._replace(model=redactor.text(used.model)) for used in end.usage]
        if end.exception:
            end.exception = redactor.text(end.exception)
            end.error_group = read_error(end.exception).group
    for file in packed.files:
        if (redactor := redactors.get(file.project)) is not None:
            file.content = redactor.content(file.content)
    for agent in agents:
        if (redactor := redactors.get(agent.project)) is not None:
            for name in _AGENT_TEXTS:
                setattr(agent, name, redactor.value(getattr(agent, name)))


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
    return [Usage.of(model, reported) for model, reported in usage.items() if isinstance(reported, dict)]


_PARTS = frozenset(("cache_read_input_tokens", "cache_creation_input_tokens", "reasoning_tokens"))
"""Counts that lie within others: alone they are those of the request below."""


def usage_of_span(summary: dict[str, Any], is_request: bool) -> list[Usage]:
    """The same of a span: an entry that tells nothing is none, and that of one request to a model says so.

    The latter tells it from sums over requests.
    """
    usage = summary.get("usage")
    held = usage.items() if isinstance(usage, dict) else ()
    told = {
        model: entry
        for model, entry in held
        if isinstance(entry, dict) and any(count is not None for name, count in entry.items() if name not in _PARTS)
    }
    return [
        entry if entry.requests or not is_request else entry._replace(requests=1)
        for entry in usage_entries({"usage": told})
    ]


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
    errors = to_tokens(counts.get("error")) if isinstance(counts, dict) else 0
    return DESCENDANT_ERROR if errors > 0 else SUCCESS


def _check_names(call: StartFields, op_name: str) -> None:
    if len(op_name) > OP_NAME_MAX and not op_name.startswith("weave"):
        raise InvalidRequest(f"op_name is longer than {OP_NAME_MAX} characters and is not a ref")
    refs.check_id("op_name", op_name, refs.MAX_REF_BYTES)
    for name in ("parent_id", "thread_id", "turn_id", "wb_run_id"):
        refs.check_id(name, getattr(call, name))
    display_name = call.display_name
    if display_name is not None and len(display_name) > DISPLAY_NAME_MAX:
        raise InvalidRequest(f"display_name is longer than {DISPLAY_NAME_MAX} characters")


def _identifier(text: str, name: str) -> str:
    if not text or len(text) > 256:
        raise InvalidRequest(f"Invalid {name}: expected 1 to 256 characters")
    refs.check_id(name, text)
    if text in refs.DOTS:
        raise InvalidRequest(f"Invalid {name}: {text!r} cannot be part of a web address")
    return text


def _plain(call: BaseModel, *, of_end: bool) -> dict[str, Any]:
    """The columns of one half that are stored as they came."""
    names, read = _PLAIN[of_end]
    values = read(call)
    for value in values:
        if type(value) is int and not -_MAX_STEP <= value <= _MAX_STEP:
            raise ValidationFailed.at(["body", "wb_run_step"], "Input should be a 64-bit integer", "int_parsing_size")
    return dict(zip(names, values, strict=True))


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
