"""All calls of one trace as heads: which there are first, then slice by slice what a view of the trace shows."""

import json

from heddle.store.sqlite.call_table import read_usage
from heddle.store.sqlite.database import Readers, Session, reads
from heddle.store.sqlite.names import NameReader
from heddle.wire import refs
from heddle.wire.calls import PLAIN_KIND
from heddle.wire.outline import Outline, Span

_LIVE = "c.trace_id = ? AND c.project = ? AND c.deleted_at IS NULL AND c.started_at IS NOT NULL"


class TraceSpans:
    """Reads traces for views that show every call of them."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    @reads
    def outline(
        self, session: Session, project: str, trace_id: str, limit: int, selected: str | None = None
    ) -> Outline:
        """The first `limit` calls of a trace by start; empty for a trace without live calls."""
        outline = Outline(project, trace_id)
        key = (trace_id, self._names.number(session.raw, project))
        count = f"SELECT count(*), count(c.ended_at) FROM calls c WHERE {_LIVE}"
        outline.total, outline.ended = session.raw.execute(count, key).fetchone()
        query = f"""SELECT c.rid, c.id, c.parent_id, p.rid, c.started_at FROM calls c
            LEFT JOIN calls p ON p.id = c.parent_id AND p.project = c.project
            WHERE {_LIVE} ORDER BY c.started_at, c.parent_id IS NOT NULL, c.rid LIMIT ?"""
        outline.fill(session.raw.execute(query, (*key, limit)), selected)
        return outline

    @reads
    def spans(self, session: Session, outline: Outline, start: int, stop: int) -> list[Span | None]:
        """What a slice of the outline shows; None stands for a call that was removed meanwhile."""
        raw, rids = session.raw, outline.rids[start:stop]
        sql = """SELECT rid, id, op, kind, display_name, started_at, ended_at, status FROM calls
            WHERE rid IN (SELECT value FROM json_each(?))"""
        rows = {row[0]: row for row in raw.execute(sql, (json.dumps(list(rids)),))}
        number = self._names.number(raw, outline.project)
        usage = read_usage(raw, self._names, number, [(row[0], row[5]) for row in rows.values()])
        found: list[Span | None] = []
        for rid in rids:
            row = rows.get(rid)
            if row is None:
                found.append(None)
                continue
            _, call_id, op, kind, display_name, started_at, ended_at, status = row
            name = refs.operation_name(self._names.text(raw, op) or "")
            said = self._names.text(raw, kind) or PLAIN_KIND
            found.append(Span(call_id, name, said, display_name, started_at, ended_at, status, usage.get(rid, [])))
        return found
