"""Calls as records of an archive, and back to the halves that a store writes."""

from collections.abc import Callable
from typing import Any

import orjson

from heddle.trace.calls.pack import shortened, usage_entries
from heddle.wire import jsontext, refs
from heddle.wire.calls import (
    BODY_IN,
    BODY_OUT,
    COLUMNS,
    RUNNING,
    SPILLABLE,
    STATUS_WORDS,
    CallRow,
    ColumnType,
    End,
    Start,
)

INTEGERS = tuple(
    item.name
    for item in COLUMNS
    if item.type in (ColumnType.INTEGER, ColumnType.INSTANT) and item.name != "status"  # a word in archives
)
_STARTED = [item.name for item in COLUMNS if not (item.of_end or item.is_body)]
_ENDED = [item.name for item in COLUMNS if item.of_end and not item.is_body]
Keep = Callable[[str], str]
"""Stores a text as a blob; returns its key."""


def to_record(project: str, row: CallRow) -> dict[str, Any]:
    """A call as a record; JSON fields are its texts exactly as they are stored."""
    named = {item.name: getattr(row, item.name) for item in COLUMNS}
    return {"project": project, **named, "status": STATUS_WORDS[row.status]}


def to_halves(record: dict[str, Any], large: int, keep: Keep) -> tuple[Start, End | None]:
    """The halves of a record, without an end for a call that was running; texts over `large` become blobs."""
    started = {name: record.get(name) for name in _STARTED} | {"user": record["user"] or ""}
    start = Start(project=record["project"], inputs="", attributes="", **started)
    texts = {name: _Text(name, record[name], large, keep) for name in SPILLABLE if record[name] is not None}
    _give(start, texts, BODY_IN)
    start.refs = texts["inputs"].refs
    if record["ended_at"] is None:
        return start, None
    ended: dict[str, Any] = {name: record.get(name) for name in _ENDED} | {
        "status": STATUS_WORDS.index(record["status"])
    }
    end = End(project=start.project, id=start.id, output=None, summary="", exception=record["exception"], **ended)
    end.usage = usage_entries(orjson.loads(record["summary"])) if '"usage"' in record["summary"] else []
    _give(end, texts, BODY_OUT)
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
