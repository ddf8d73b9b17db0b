"""Calls as records of an archive, and back to the halves that a store writes."""

from collections.abc import Callable
from typing import Any

import orjson

from heddle.trace.calls.pack import shortened, usage_entries
from heddle.wire import jsontext, refs
from heddle.wire.calls import RUNNING, SPILLABLE, STATUS_WORDS, CallRow, End, Start

HEAD = (
    *("id", "trace_id", "parent_id", "op_name", "started_at", "ended_at", "thread_id", "turn_id", "run_id"),
    *("run_step", "run_step_end", "user", "display_name"),
)
BODY = ("inputs", "attributes", "otel_dump", "output", "summary", "exception")
INTEGERS = ("started_at", "ended_at", "run_step", "run_step_end")
Keep = Callable[[str], str]
"""Stores a text as a blob; returns its key."""


def to_record(project: str, row: CallRow) -> dict[str, Any]:
    """A call as a record; JSON fields are its texts exactly as they are stored."""
    named = {name: getattr(row, name) for name in (*HEAD, *BODY)}
    return {"project": project, "status": STATUS_WORDS[row.status], **named}


def to_halves(record: dict[str, Any], large: int, keep: Keep) -> tuple[Start, End | None]:
    """The halves of a record, without an end for a call that was running; texts over `large` become blobs."""
    start = Start(
        project=record["project"],
        id=record["id"],
        trace_id=record["trace_id"],
        op_name=record["op_name"],
        started_at=record["started_at"],
        inputs="",
        attributes="",
        user=record["user"] or "",
        **{name: record[name] for name in ("parent_id", "thread_id", "turn_id", "display_name", "run_id", "run_step")},
    )
    texts = {name: _Text(name, record[name], large, keep) for name in SPILLABLE if record[name] is not None}
    _give(start, texts, ("inputs", "attributes", "otel_dump"))
    start.refs = texts["inputs"].refs
    if record["ended_at"] is None:
        return start, None
    status = STATUS_WORDS.index(record["status"])
    end = End(start.project, start.id, record["ended_at"], None, "", status, record["exception"])
    end.run_step_end = record["run_step_end"]
    end.usage = usage_entries(orjson.loads(record["summary"])) if '"usage"' in record["summary"] else []
    _give(end, texts, ("output", "summary"))
    end.refs = texts["output"].refs if "output" in texts else []
    return start, end


class _Text:
    """A JSON text on its way into a row: what the row holds, the blob with the whole where it is large, its refs."""

    def __init__(self, name: str, text: str, large: int, keep: Keep) -> None:
        self.size = len(text)
        self.text, self.blob = text, ""
        self.refs: list[str] = []
        has_refs = name in ("inputs", "output") and refs.INTERNAL in text
        if not has_refs and self.size <= large:
            return
        value = jsontext.loads(text.encode(), max_depth=10_000)
        if has_refs:
            self.refs = list(dict.fromkeys(refs.find(value)))
        if self.size > large:
            self.text, self.blob = jsontext.dumps(shortened(value)), keep(text)


def _give(half: Start | End, texts: dict[str, _Text], names: tuple[str, ...]) -> None:
    for name in names:
        if name in texts:
            setattr(half, name, texts[name].text)
            half.size += texts[name].size
            if texts[name].blob:
                half.files[name] = texts[name].blob


def is_running(row: CallRow) -> bool:
    """True for a call without its end."""
    return row.status == RUNNING and row.ended_at is None
