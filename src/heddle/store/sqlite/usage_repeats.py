"""Usage that is reported twice.

An agent's span repeats the sum of its model spans, one library's model span may lie below another's of one request,
and SDKs sum the usage of a call up into its parent. What a call itself shows is its summary, which stays as it came.

Sums read the usage table. Of OpenTelemetry spans those that are a request to a model (`requests` is more than 0) keep
their rows there, unless the span directly above is one, too; of others only the innermost. A call of an SDK keeps its
rows, as its figures are asked for by themselves; they are marked `repeated` where calls below it have usage, so that
totals of a project leave them out. Calls come in any order and in several requests: those just written are held against
what is above and below them.
"""

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.store.query.sqlite import LISTED_TEXT
from heddle.store.sqlite import blocks
from heddle.store.sqlite.names import Names
from heddle.wire.batched import group_pairs
from heddle.wire.calls import End, Start
from heddle.wire.jsontext import dump_list

DEEPEST = 100
"""Levels that are looked through, up and down; also the end of parents that go in a circle."""

_HAS_USAGE = (
    "EXISTS (SELECT 1 FROM usage u WHERE u.project = :project AND u.started_at = {0}.started_at AND u.rid = {0}.rid)"
)
_IS_SPAN = "EXISTS (SELECT 1 FROM body_in bi WHERE bi.rid = {0}.rid AND bi.otel_dump IS NOT NULL)"
_IS_REQUEST = """(EXISTS (SELECT 1 FROM usage u JOIN body_in bi ON bi.rid = u.rid AND bi.otel_dump IS NOT NULL
    WHERE u.project = :project AND u.started_at = {0}.started_at AND u.rid = {0}.rid AND u.requests > 0)
    OR EXISTS (SELECT 1 FROM inner_requests i WHERE i.rid = {0}.rid))"""
_ABOVE = f"""
    WITH RECURSIVE up (inner, id, rid, started_at, parent_id, trace_id, level) AS (
        SELECT c.id, c.id, c.rid, c.started_at, c.parent_id, c.trace_id, 0
        FROM json_each(:ids) CROSS JOIN calls c ON c.id = {LISTED_TEXT} AND c.project = :project
        UNION ALL
        SELECT up.inner, c.id, c.rid, c.started_at, c.parent_id, c.trace_id, up.level + 1
        FROM up CROSS JOIN calls c ON c.id = up.parent_id AND c.project = :project
        WHERE c.trace_id = up.trace_id AND up.level < {DEEPEST})
    SELECT inner, id, rid, started_at FROM up
    WHERE level > 0 AND id <> inner AND {_HAS_USAGE.format("up")} AND NOT {_IS_REQUEST.format("up")}"""
_PARENTS = f"""
    SELECT c.rid, c.started_at
    FROM json_each(:ids) CROSS JOIN calls c ON c.id = {LISTED_TEXT} AND c.project = :project
    WHERE EXISTS (SELECT 1 FROM calls b WHERE b.parent_id = c.id AND b.project = :project)
    AND {_HAS_USAGE.format("c")} AND NOT {_IS_REQUEST.format("c")}"""
_INNER = f"""
    SELECT c.rid, c.started_at, p.rid
    FROM json_each(:ids) CROSS JOIN calls c ON c.id = {LISTED_TEXT} AND c.project = :project
    CROSS JOIN calls p ON p.id = c.parent_id AND p.project = :project
    WHERE p.trace_id = c.trace_id AND p.id <> c.id AND {_HAS_USAGE.format("c")} AND {_IS_REQUEST.format("p")}
    UNION
    SELECT c.rid, c.started_at, p.rid
    FROM json_each(:ids) CROSS JOIN calls p ON p.id = {LISTED_TEXT} AND p.project = :project
    CROSS JOIN calls c ON c.parent_id = p.id AND c.project = :project
    WHERE p.trace_id = c.trace_id AND p.id <> c.id AND {_HAS_USAGE.format("c")} AND {_IS_REQUEST.format("p")}
    AND {_IS_SPAN.format("c")}"""
"""The spans directly below a request to a model, where either is among some ids."""
_BELOW = f"""
    WITH RECURSIVE down (id, rid, started_at, trace_id, level) AS (
        SELECT id, rid, started_at, trace_id, 0 FROM calls WHERE rid = :rid
        UNION
        SELECT c.id, c.rid, c.started_at, c.trace_id, down.level + 1
        FROM down CROSS JOIN calls c ON c.parent_id = down.id AND c.project = :project
        WHERE c.trace_id = down.trace_id AND down.level < {DEEPEST})
    SELECT 1 FROM down WHERE rid <> :rid AND {_HAS_USAGE.format("down")} LIMIT 1"""
_SUMMED_UP = f"""
    SELECT c.rid, ifnull(c.started_at, 0)
    FROM json_each(:ids) CROSS JOIN calls c ON c.id = {LISTED_TEXT} AND c.project = :project
    WHERE EXISTS (SELECT 1 FROM calls b WHERE b.parent_id = c.id AND b.project = :project AND b.id <> c.id
        AND {_HAS_USAGE.format("b")})
    UNION ALL
    SELECT p.rid, ifnull(p.started_at, 0)
    FROM json_each(:ids) CROSS JOIN calls c ON c.id = {LISTED_TEXT} AND c.project = :project
    CROSS JOIN calls p ON p.id = c.parent_id AND p.project = :project
    WHERE p.id <> c.id AND NOT ({_IS_SPAN.format("c")} AND {_IS_REQUEST.format("p")})"""
_MARK_ALL = """UPDATE usage SET repeated = 1 WHERE EXISTS (
    SELECT 1 FROM calls c JOIN calls b ON b.parent_id = c.id AND b.project = c.project
    JOIN usage u ON u.project = b.project AND u.started_at = ifnull(b.started_at, 0) AND u.rid = b.rid
    WHERE c.rid = usage.rid AND b.id <> c.id)"""


_STORED = f"""SELECT {LISTED_TEXT} FROM json_each(?)
    WHERE EXISTS (SELECT 1 FROM calls c WHERE c.trace_id = {LISTED_TEXT} AND c.project = ?)"""
TraceKey = tuple[str, str]


@dataclass(slots=True)
class Written:
    """The spans of one trace that one request writes: their parents, and the ends of those that report usage."""

    parents: dict[str, str | None] = field(default_factory=dict)
    reporting: dict[str, End] = field(default_factory=dict)
    is_settled: bool = False
    """Nothing else of the trace is stored, and only spans directly below requests are left for `drop`."""

    def joining(self) -> list[str]:
        """Spans that report nothing, but join what is below them to a parent that was written before."""
        outside = [(span, parent) for span, parent in self.parents.items() if parent not in self.parents]
        return [span for span, parent in outside if parent is not None and span not in self.reporting]

    def settle(self) -> bool:
        """Take the usage of spans that are no requests and have usage below them; of parents in a circle one keeps its.

        True when spans lie directly below requests: `drop` takes the usage of these.
        """
        requests = {span for span, end in self.reporting.items() if any(entry.requests for entry in end.usage)}
        for span in list(self.reporting):
            parent, level = self.parents[span], 0
            while parent in self.parents and level < DEEPEST and span in self.reporting:
                if parent != span and parent not in requests and (outer := self.reporting.pop(parent, None)):
                    outer.usage = []
                parent, level = self.parents[parent], level + 1
        return any(self.parents[span] in requests for span in self.reporting)


def spans_of(starts: Sequence[Start], ends: Sequence[End]) -> dict[TraceKey, Written]:
    """The spans among calls, by project and trace."""
    spans = {(start.project, start.id): start for start in starts if start.otel_dump is not None}
    found: dict[TraceKey, Written] = {}
    for start in spans.values():
        key = (start.project, start.trace_id)
        trace = found.get(key)
        if trace is None:
            trace = found[key] = Written()
        trace.parents[start.id] = start.parent_id
    for place, end in {(end.project, end.id): end for end in ends}.items():
        if end.usage and (span := spans.get(place)) is not None:
            found[span.project, span.trace_id].reporting[span.id] = end
    return found


def settle_new(raw: sqlite3.Connection, names: Names, written: dict[TraceKey, Written]) -> dict[TraceKey, Written]:
    """Before the spans are written: settle the traces that have no call yet, and return what is left for `drop`."""
    left: dict[TraceKey, Written] = {}
    for project, traces in group_pairs(written).items():
        rows = raw.execute(_STORED, (dump_list(traces), names.number(raw, project)))
        left.update(((project, trace_id), written[project, trace_id]) for (trace_id,) in rows)
    for key, trace in written.items():
        if key not in left and trace.settle():
            trace.is_settled = True
            left[key] = trace
    return left


def drop(raw: sqlite3.Connection, names: Names, written: dict[TraceKey, Written]) -> None:
    """Take the usage rows of every call that has usage below it, because of the spans just written."""
    for project in {project for project, _ in written}:
        number = names.number(raw, project)
        traces = [trace for key, trace in written.items() if key[0] == project]
        outside = [trace for trace in traces if not trace.is_settled]
        reporting = [span for trace in outside for span in trace.reporting]
        joining = [span for trace in outside for span in trace.joining()]
        _drop(raw, number, _above(raw, number, reporting))
        doubtful = _found(raw, _PARENTS, number, reporting) if reporting else []
        if joining:
            doubtful += [row[2:] for row in _found(raw, _ABOVE, number, joining)]
        _drop_inner(raw, number, [span for trace in traces for span in trace.reporting])
        for rid, started_at in dict(doubtful).items():
            if raw.execute(_BELOW, {"rid": rid, "project": number}).fetchone() is not None:
                _drop(raw, number, {rid: started_at})


def create_inner(raw: sqlite3.Connection) -> None:
    """The table of requests whose rows are taken, as the span directly above reports the same request."""
    raw.execute("CREATE TABLE IF NOT EXISTS inner_requests (rid INTEGER PRIMARY KEY)")


def create(raw: sqlite3.Connection) -> None:
    """Give the usage table its column, and mark what is stored."""
    if not any(column[1] == "repeated" for column in raw.execute("PRAGMA table_info(usage)")):
        raw.execute("ALTER TABLE usage ADD COLUMN repeated INTEGER NOT NULL DEFAULT 0")
    raw.execute(_MARK_ALL)


def mark(raw: sqlite3.Connection, names: Names, calls: Collection[tuple[str, str]]) -> None:
    """Mark usage that was summed up from calls below, as far as these calls, (project, id) with usage, show it."""
    for project, ids in group_pairs(calls).items():
        number = names.number(raw, project)
        found = dict(_found(raw, _SUMMED_UP, number, ids))
        if found:
            blocks.mark_repeated(raw, [(number, started_at, rid) for rid, started_at in found.items()])


def _above(raw: sqlite3.Connection, project: int, reporting: list[str]) -> dict[int, int]:
    """Row numbers and starts of the calls above the reporting ones; of parents in a circle one keeps its usage."""
    outer: dict[str, tuple[int, int]] = {}
    for inner, call_id, rid, started_at in _found(raw, _ABOVE, project, reporting) if reporting else ():
        if inner not in outer:
            outer[call_id] = (rid, started_at)
    return dict(outer.values())


def _found(raw: sqlite3.Connection, query: str, project: int, ids: list[str]) -> list[Any]:
    return raw.execute(query, {"ids": dump_list(ids), "project": project}).fetchall()


def _drop_inner(raw: sqlite3.Connection, project: int, reporting: list[str]) -> None:
    """Take the rows of requests directly below others, and note that they were some; of a circle one keeps its rows."""
    found = _found(raw, _INNER, project, reporting) if reporting else []
    if {rid for rid, _, _ in found} == {above for _, _, above in found}:
        found = found[1:]
    raw.executemany("INSERT OR IGNORE INTO inner_requests (rid) VALUES (?)", [(rid,) for rid, _, _ in found])
    _drop(raw, project, {rid: started_at for rid, started_at, _ in found})


def _drop(raw: sqlite3.Connection, project: int, calls: dict[int, int]) -> None:
    blocks.remove_usage(raw, [(project, started_at, rid) for rid, started_at in calls.items()])
