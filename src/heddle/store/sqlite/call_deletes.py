"""Taking calls away: soft deletion with descendants, and physical removal of what is older than a project keeps."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heddle.store.sqlite import call_counts

_CHUNK = 500
_BODIES = ("body_in", "body_out", "call_refs", "call_files", "eval_trials")


class Hidden(NamedTuple):
    """What a deletion took away: the ids that were asked for and those of all descendants, and their traces."""

    traces: set[str]
    ids: list[str]


def delete(raw: sqlite3.Connection, project: int, ids: Sequence[str], at: int) -> Hidden:
    """Hide the calls and all their descendants; returns nothing when none of the calls exists."""
    requested = set(ids)
    traces = _traces(raw, project, list(requested))
    if not traces:
        return Hidden(set(), [])
    children: dict[str, list[str]] = {}
    for trace in traces:
        query = "SELECT id, parent_id FROM calls WHERE trace_id = ? AND project = ? AND parent_id IS NOT NULL"
        query += " AND deleted_at IS NULL"
        for call_id, parent_id in raw.execute(query, (trace, project)):
            children.setdefault(parent_id, []).append(call_id)
    reached, pending = set(requested), list(requested)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in reached:
                reached.add(child)
                pending.append(child)
    hidden = Hidden(traces, sorted(reached))
    _hide(raw, project, hidden.ids, at)
    return hidden


def _traces(raw: sqlite3.Connection, project: int, ids: list[str]) -> set[str]:
    found: set[str] = set()
    for offset in range(0, len(ids), _CHUNK):
        chunk = ids[offset : offset + _CHUNK]
        marks = ",".join("?" * len(chunk))
        query = f"SELECT DISTINCT trace_id FROM calls WHERE project = ? AND id IN ({marks})"
        query += " AND deleted_at IS NULL AND started_at IS NOT NULL"
        found.update(row[0] for row in raw.execute(query, (project, *chunk)))
    return found


def _hide(raw: sqlite3.Connection, project: int, ids: list[str], at: int) -> None:
    """Mark calls deleted; their usage and trials go at once, as sums read those tables alone."""
    for offset in range(0, len(ids), _CHUNK):
        chunk = ids[offset : offset + _CHUNK]
        marks = ",".join("?" * len(chunk))
        rows = raw.execute(
            f"""SELECT project, ifnull(started_at, 0), rid FROM calls
                WHERE project = ? AND deleted_at IS NULL AND id IN ({marks})""",
            (project, *chunk),
        ).fetchall()
        before = call_counts.counts_of(raw, (rid for _, _, rid in rows))
        raw.executemany("DELETE FROM usage WHERE project = ? AND started_at = ? AND rid = ?", rows)
        raw.executemany("DELETE FROM eval_trials WHERE rid = ?", [(rid,) for _, _, rid in rows])
        raw.executemany("UPDATE calls SET deleted_at = ? WHERE rid = ?", [(at, rid) for _, _, rid in rows])
        call_counts.count_change(raw, before, Counter())


def purge_older(raw: sqlite3.Connection, project: int, before: int, limit: int) -> int:
    """Remove at most `limit` calls that started before an instant, with everything of theirs; returns how many."""
    rows = raw.execute(
        "SELECT project, started_at, rid FROM calls WHERE project = ? AND started_at < ? ORDER BY started_at LIMIT ?",
        (project, before, limit),
    ).fetchall()
    call_counts.count_change(raw, call_counts.counts_of(raw, (rid for _, _, rid in rows)), Counter())
    raw.executemany("DELETE FROM usage WHERE project = ? AND started_at = ? AND rid = ?", rows)
    rids = [(rid,) for _, _, rid in rows]
    for table in _BODIES:
        raw.executemany(f"DELETE FROM {table} WHERE rid = ?", rids)
    raw.executemany("DELETE FROM calls WHERE rid = ?", rids)
    return len(rows)
