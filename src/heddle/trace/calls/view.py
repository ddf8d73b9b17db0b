"""A stored call as the line that clients read: JSON texts pass through, derived fields are added."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.trace.calls.pack import external_run_id
from heddle.wire import refs, times
from heddle.wire.calls import BODY, COLUMNS, RUNNING, STATUS_WORDS, CallRow

ALWAYS = frozenset({"id", "project_id", "trace_id", "op_name", "started_at"})
SUMMARY_NEEDS = frozenset({"ended_at", "exception", "display_name"})
JSON_FIELDS = frozenset(BODY)
_PLAIN = [column for column in COLUMNS if column.is_plain]
HEAD_FIELDS = frozenset(
    {
        *(column.field for column in COLUMNS if not column.is_body and column.name != "status"),
        *("project_id", "deleted_at", "expire_at", "storage_size_bytes", "total_storage_size_bytes"),
    }
)
_EMPTY = orjson.Fragment(b"{}")


@dataclass(frozen=True, slots=True)
class View:
    """What of each call is shown; `columns` None is everything."""

    project_id: str
    columns: frozenset[str] | None = None
    storage_size: bool = False
    trace_size: bool = False
    usernames: bool = False
    retention: int | None = None
    stored: frozenset[str] = field(default=JSON_FIELDS)

    def shows(self, name: str) -> bool:
        """True when the column is asked for."""
        return self.columns is None or name in self.columns

    def line(
        self, row: CallRow, extra: Mapping[str, Any] | None = None, replaced: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The call with ready JSON fragments; `extra` goes into summary.weave, `replaced` are new field values."""
        call = {
            "id": row.id,
            "project_id": self.project_id,
            "op_name": row.op_name,
            "display_name": (row.display_name or None) if self.shows("display_name") else None,
            "trace_id": row.trace_id,
            **{item.field: getattr(row, item.name) if self.shows(item.field) else None for item in _PLAIN},
            "started_at": times.to_iso(row.started_at),
            "attributes": _attributes(row),
            "inputs": _fragment(row.inputs, _EMPTY),
            "ended_at": times.optional_iso(row.ended_at) if self.shows("ended_at") else None,
            "exception": row.exception,
            "output": _fragment(row.output, None),
            "summary": summary(row, extra),
            "wb_user_id": row.user if self.shows("wb_user_id") else None,
            "wb_run_id": external_run_id(row.run_id) if self.shows("wb_run_id") else None,
            "deleted_at": None,
            "expire_at": times.to_iso(row.started_at + self.retention)
            if self.retention is not None and self.shows("expire_at")
            else None,
            "storage_size_bytes": row.size if self.storage_size else None,
            "total_storage_size_bytes": row.trace_size if self.trace_size else None,
        }
        if self.usernames and row.user is not None:
            call["wb_username"] = row.user
        if replaced:
            call.update(replaced)
        return call


def _fragment(text: str | None, missing: Any) -> Any:
    return missing if text is None else orjson.Fragment(text)


def _attributes(row: CallRow) -> Any:
    if row.attributes is None:
        return _EMPTY
    if row.otel_dump is None:
        return orjson.Fragment(row.attributes)
    return {**orjson.loads(row.attributes), "otel_span": orjson.Fragment(row.otel_dump)}


def summary(row: CallRow, extra: Mapping[str, Any] | None = None) -> Any:
    """The client's summary with `weave` rebuilt: status, latency, name, and what was asked for in `extra`."""
    weave = {"status": STATUS_WORDS[row.status], **derived(row), **(extra or {})}
    text = row.summary
    if text is None or text == "{}":
        return {"weave": weave}
    if '"weave"' in text:
        stored = orjson.loads(text)
        kept = stored.get("weave")
        return {**stored, "weave": {**kept, **weave} if isinstance(kept, dict) else weave}
    return orjson.Fragment(b'%s,"weave":%s}' % (text[:-1].encode(), orjson.dumps(weave)))


def derived(row: CallRow) -> dict[str, Any]:
    """Name and latency of a call, as people read them; latency in whole milliseconds, absent while it runs."""
    found: dict[str, Any] = {}
    if row.display_name:
        found["display_name"] = row.display_name
    else:
        found["trace_name"] = refs.operation_name(row.op_name)
    if row.status != RUNNING and row.ended_at is not None:
        found["latency_ms"] = (row.ended_at - row.started_at) // 1000
    return found
