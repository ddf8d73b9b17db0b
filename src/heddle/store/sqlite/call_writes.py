"""Writing calls, and what is derived from them: the outbox of calls that ended, one short row per trial.

Runs in the writer thread only. Reading 40,000 trials from the bodies of calls takes a second; of rows of `eval_trials`
it takes a tenth. Such a row holds nothing that is not in the calls, so it can be made again at any time (`refresh`).
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from heddle.store.control.pending_calls import Key
from heddle.store.sqlite import blocks, call_bodies, search
from heddle.store.sqlite.call_bodies import COLUMN, checksum, checksum_sql
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.schema import HEAD, stored_name
from heddle.text_cache import cache_texts
from heddle.wire import jsontext, refs
from heddle.wire.calls import BODY_IN, BODY_OUT, COLUMNS, RUNNING, End, Start, Usage
from heddle.wire.trials import TRIAL_OPS, Step, predict_step, row_digest


def _body_of_start(start: Start) -> list[str | bytes | int | None]:
    values = [getattr(start, name) for name in BODY_IN]
    if start.otel_dump is not None:
        values[_DUMP_AT] = call_bodies.pack(start.otel_dump, start.shared)
    return [*values, checksum(values)]


def _body_of_end(end: End) -> tuple[str | bytes | int | None, ...]:
    values = _of_body_out(end)
    return (*values, checksum(values))


class Known(NamedTuple):
    """A call that has a row already; `started_at` is None for a stub, `deleted` 0 or 1."""

    rid: int
    started_at: int | None
    deleted: int


_STARTED = [column for column in COLUMNS if not (column.is_body or column.of_end)]
_ENDED = [column for column in COLUMNS if column.of_end and not column.is_body]
_NUMBERED = [place for place, column in enumerate(_STARTED) if column.is_repeated]
_of_start, _of_end = (attrgetter(*(column.name for column in part)) for part in (_STARTED, _ENDED))
_of_body_out = attrgetter(*BODY_OUT)
_NOT_ENDED = tuple(RUNNING if column.name == "status" else None for column in _ENDED)


def _insert(table: str, columns: Sequence[str], how: str = "INSERT") -> str:
    return f"{how} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _update(columns: Sequence[str]) -> str:
    changes = ", ".join(f"{name} = ?" for name in columns)
    return f"UPDATE calls SET {changes}, spilled = spilled | ? WHERE rid = ?"


_INSERT = _insert("calls", (*HEAD[:-1], COLUMN))
_START_AGAIN = _update([*map(stored_name, _STARTED), "size_in"])
_END = _update([*map(stored_name, _ENDED), "size_out"])
_BODY_IN = _insert("body_in", ("rid", *BODY_IN, COLUMN), "INSERT OR REPLACE")
_BODY_OUT = _insert("body_out", ("rid", *BODY_OUT, COLUMN), "INSERT OR REPLACE")
_SUM_UP = f"UPDATE calls SET {COLUMN} = {checksum_sql(dict.fromkeys(HEAD, 'TEXT'))} WHERE rid = ?"
_REF = "INSERT OR IGNORE INTO call_refs (project, ref, side, rid) VALUES (?, ?, ?, ?)"
_FILE = "INSERT OR REPLACE INTO call_files (rid, field, blob) VALUES (?, ?, ?)"
_DUMP_AT = BODY_IN.index("otel_dump")
_KNOWN = "SELECT rid, started_at, deleted_at IS NOT NULL FROM calls WHERE id = ? AND project = ?"
_HAS = """SELECT started_at IS NOT NULL OR deleted_at IS NOT NULL, ended_at IS NOT NULL OR deleted_at IS NOT NULL
    FROM calls WHERE id = ? AND project = ?"""
_PLACE = "SELECT project, ifnull(started_at, 0), rid FROM calls WHERE id = ? AND project = ?"
INPUT_SIDE, OUTPUT_SIDE = 0, 1
SPILLED_IN, SPILLED_OUT = 1, 2


class CallWriter:
    """Inserts and updates calls; numbers rows itself, as it is the only writer of the file."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def write(self, raw: sqlite3.Connection, starts: Sequence[Start], ends: Sequence[End]) -> set[Key]:
        """Store halves of calls in any order; of several halves for one call the last of each kind counts.

        Returns the calls whose usage has a new place among the others: it came, or their parent became known.
        """
        start_of = {(start.project, start.id): start for start in starts}
        end_of = {(end.project, end.id): end for end in ends}
        known = self._known(raw, [*start_of, *(key for key in end_of if key not in start_of)])
        fresh = [(key, start) for key, start in start_of.items() if key not in known]
        for key in end_of:
            if key not in known and key not in start_of:
                known[key] = Known(self._insert_stub(raw, key), None, False)
        placed = {key for key, end in end_of.items() if end.usage}
        placed |= {key for key in start_of if key in known and known[key].started_at is None}
        rids = [found.rid for found in known.values()]
        again = set[int]()
        if rids:
            again = self._find_ended(raw, [known[key].rid for key in end_of if key in known])
            only_end = {known[key].rid for key in end_of if key in known and key not in start_of} - again
            search.withdraw(raw, (rid for rid in rids if rid not in only_end))
            search.await_ends(raw, only_end)
        before = blocks.counts_of(raw, rids)
        after = self._insert(raw, fresh, end_of)
        for key, start in start_of.items():
            if key in known:
                self._start_again(raw, known[key], start)
        self._write_ends(raw, [(known[key], end) for key, end in end_of.items() if key in known], start_of, again)
        _sum_up(raw, rids)
        after.update(blocks.counts_of(raw, rids))
        blocks.count_change(raw, before, after)
        return placed

    def leave_out_known(
        self, raw: sqlite3.Connection, starts: Sequence[Start], ends: Sequence[End]
    ) -> tuple[list[Start], list[End]]:
        """The halves that their calls lack; none of deleted calls."""

        def lacks(half: Start | End, place: int) -> bool:
            found = raw.execute(_HAS, (half.id, self._names.number(raw, half.project))).fetchone()
            return found is None or not found[place]

        return [start for start in starts if lacks(start, 0)], [end for end in ends if lacks(end, 1)]

    def _known(self, raw: sqlite3.Connection, keys: list[Key]) -> dict[Key, Known]:
        """Row number and start instant of the calls that exist already."""
        found: dict[Key, Known] = {}
        for key in keys:
            for row in raw.execute(_KNOWN, (key[1], self._names.number(raw, key[0]))):
                found[key] = Known(*row)
        return found

    def _insert(
        self, raw: sqlite3.Connection, fresh: list[tuple[Key, Start]], end_of: dict[Key, End]
    ) -> blocks.CallBlocks:
        """Store new calls; returns what they add to the counts."""
        if not fresh:
            return blocks.CallBlocks()
        first = self._next_rid(raw)
        heads, bodies_in, bodies_out, counted = [], [], [], []
        usage: list[blocks.UsageRow] = []
        refs: list[tuple[int, int, int, int]] = []
        for rid, (key, start) in enumerate(fresh, first):
            end = end_of.get(key)
            project = self._names.number(raw, start.project)
            sizes = (start.size, end.size if end else 0)
            spilled = (SPILLED_IN if start.files else 0) | (SPILLED_OUT if end and end.files else 0)
            ended = _of_end(end) if end else _NOT_ENDED
            head = (rid, project, *self._started(raw, start), *ended, *sizes, spilled)
            heads.append((*head, checksum(head)))
            op, status = self._names.number(raw, start.op_name), end.status if end else RUNNING
            counted.append((project, start.started_at, op, int(start.parent_id is None), status))
            bodies_in.append((rid, *_body_of_start(start)))
            refs.extend(self._refs(raw, project, start.refs, INPUT_SIDE, rid))
            if end is not None:
                bodies_out.append((rid, *_body_of_end(end)))
                usage.extend(self._usage(raw, project, start.started_at, rid, end.usage))
                refs.extend(self._refs(raw, project, end.refs, OUTPUT_SIDE, rid))
            self._write_files(raw, rid, start.files, end.files if end else {})
        raw.executemany(_INSERT, heads)
        raw.executemany(_BODY_IN, bodies_in)
        for statement, rows in ((_BODY_OUT, bodies_out), (_REF, refs)):
            if rows:
                raw.executemany(statement, rows)
        blocks.insert_usage(raw, usage)
        return blocks.counts_of_new(counted)

    def _started(self, raw: sqlite3.Connection, start: Start) -> list[Any]:
        """The columns of a start, texts that repeat as numbers."""
        values = list(_of_start(start))
        for place in _NUMBERED:
            values[place] = self._names.number(raw, values[place])
        return values

    def _insert_stub(self, raw: sqlite3.Connection, key: Key) -> int:
        """An end whose start has not arrived: the row stays hidden while `started_at` is null."""
        rid = self._next_rid(raw)
        project = self._names.number(raw, key[0])
        raw.execute("INSERT INTO calls (rid, project, id, status) VALUES (?, ?, ?, ?)", (rid, project, key[1], RUNNING))
        return rid

    def _start_again(self, raw: sqlite3.Connection, known: Known, start: Start) -> None:
        """A start for a row that exists: completes a stub, or refreshes the fields of the same call."""
        rid = known.rid
        project = self._names.number(raw, start.project)
        spilled = SPILLED_IN if start.files else 0
        raw.execute(_START_AGAIN, (*self._started(raw, start), start.size, spilled, rid))
        raw.execute(_BODY_IN, (rid, *_body_of_start(start)))
        raw.execute("DELETE FROM call_refs WHERE rid = ? AND side = ?", (rid, INPUT_SIDE))
        raw.execute(f"DELETE FROM call_files WHERE rid = ? AND field IN {BODY_IN}", (rid,))
        raw.executemany(_REF, self._refs(raw, project, start.refs, INPUT_SIDE, rid))
        self._write_files(raw, rid, start.files)
        blocks.move_usage(raw, (project, known.started_at or 0, rid), start.started_at)

    def _write_ends(
        self,
        raw: sqlite3.Connection,
        ends: list[tuple[Known, End]],
        start_of: dict[Key, Start],
        again: set[int],
    ) -> None:
        """The ends of calls that have a row; those of the rows in `again` have one already."""
        if not ends:
            return
        heads, bodies, usage, refs, rids = [], [], [], [], []
        for known, end in ends:
            rid = known.rid
            start = start_of.get((end.project, end.id))
            started_at = start.started_at if start else known.started_at or 0
            project = self._names.number(raw, end.project)
            heads.append((*_of_end(end), end.size, SPILLED_OUT if end.files else 0, rid))
            bodies.append((rid, *_body_of_end(end)))
            if not known.deleted:
                usage.extend(self._usage(raw, project, started_at, rid, end.usage))
            refs.extend(self._refs(raw, project, end.refs, OUTPUT_SIDE, rid))
            rids.append((project, started_at, rid))
        blocks.remove_usage(raw, [row for row in rids if row[2] in again])
        raw.executemany("DELETE FROM call_refs WHERE side = 1 AND rid = ?", [(rid,) for rid in again])
        alone = [known.rid for known, end in ends if known.rid in again and (end.project, end.id) not in start_of]
        if alone:
            call_bodies.set_apart(raw, alone)
        raw.executemany(f"DELETE FROM call_files WHERE field IN {BODY_OUT} AND rid = ?", [(rid,) for rid in again])
        raw.executemany(_END, heads)
        raw.executemany(_BODY_OUT, bodies)
        blocks.insert_usage(raw, usage)
        raw.executemany(_REF, refs)
        for known, end in ends:
            self._write_files(raw, known.rid, end.files)

    @staticmethod
    def _find_ended(raw: sqlite3.Connection, rids: list[int]) -> set[int]:
        """Which of the rows have an end already, so that its traces must be cleared."""
        query = "SELECT rid FROM body_out WHERE rid IN (SELECT value FROM json_each(?))"
        return {row[0] for row in raw.execute(query, (json.dumps(rids),))}

    @staticmethod
    def _write_files(raw: sqlite3.Connection, rid: int, *files: dict[str, str]) -> None:
        for mapping in files:
            if mapping:
                raw.executemany(_FILE, [(rid, name, blob) for name, blob in mapping.items()])

    def _usage(
        self, raw: sqlite3.Connection, project: int, started_at: int, rid: int, entries: Iterable[Usage]
    ) -> list[blocks.UsageRow]:
        return [(project, started_at, rid, self._names.number(raw, entry.model), *entry[1:]) for entry in entries]

    def _refs(
        self, raw: sqlite3.Connection, project: int, refs: Iterable[str], side: int, rid: int
    ) -> list[tuple[int, int, int, int]]:
        return [(project, self._names.number(raw, ref), side, rid) for ref in refs]

    @staticmethod
    def _next_rid(raw: sqlite3.Connection) -> int:
        return int(raw.execute("SELECT ifnull(max(rid), 0) + 1 FROM calls").fetchone()[0])

    def rename(self, raw: sqlite3.Connection, project: str, call_id: str, display_name: str) -> None:
        """Give a call its display name; an unknown call is left unknown."""
        number = self._names.number(raw, project)
        rids = _rids(raw, number, [call_id])
        search.withdraw(raw, rids)
        raw.executemany("UPDATE calls SET display_name = ? WHERE rid = ?", [(display_name, rid) for rid in rids])
        _sum_up(raw, rids)


def _sum_up(raw: sqlite3.Connection, rids: Iterable[int]) -> None:
    """Give calls whose heads have changed their checksums."""
    raw.executemany(_SUM_UP, [(rid,) for rid in rids])


_BODIES = ("body_in", "body_out", "call_refs", "call_files", "eval_trials", "inner_requests")


class Hidden(NamedTuple):
    """What a deletion took away: the ids that were asked for and those of all descendants, and their traces."""

    traces: set[str]
    ids: list[str]


def delete(raw: sqlite3.Connection, project: int, ids: Sequence[str], at: int) -> Hidden:
    """Hide the calls and all their descendants; returns nothing when none of the calls exists."""
    requested = set(ids)
    query = "SELECT trace_id FROM calls WHERE id = ? AND project = ? AND deleted_at IS NULL AND started_at IS NOT NULL"
    traces = {trace for call_id in requested for (trace,) in raw.execute(query, (call_id, project))}
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


def _hide(raw: sqlite3.Connection, project: int, ids: list[str], at: int) -> None:
    """Mark calls deleted; their usage and trials go at once, as sums read those tables alone."""
    query = f"{_PLACE} AND deleted_at IS NULL"
    rows = [row for call_id in ids for row in raw.execute(query, (call_id, project))]
    before = blocks.counts_of(raw, (rid for _, _, rid in rows))
    blocks.remove_usage(raw, rows)
    raw.executemany("DELETE FROM eval_trials WHERE rid = ?", [(rid,) for _, _, rid in rows])
    raw.executemany("UPDATE calls SET deleted_at = ? WHERE rid = ?", [(at, rid) for _, _, rid in rows])
    _sum_up(raw, (rid for _, _, rid in rows))
    blocks.count_change(raw, before, Counter())


def purge_older(raw: sqlite3.Connection, project: int, before: int, limit: int) -> int:
    """Remove at most `limit` calls that started before an instant, with everything of theirs; returns how many."""
    rows = raw.execute(
        "SELECT project, started_at, rid FROM calls WHERE project = ? AND started_at < ? ORDER BY started_at LIMIT ?",
        (project, before, limit),
    ).fetchall()
    _remove(raw, rows)
    return len(rows)


def purge(raw: sqlite3.Connection, project: int, ids: Sequence[str]) -> int:
    """Remove calls, hidden ones and halves too, with everything of theirs; returns how many."""
    rows = [row for call_id in dict.fromkeys(ids) for row in raw.execute(_PLACE, (call_id, project))]
    marks = ", ".join("?" * len(ids))
    raw.execute(f"DELETE FROM call_endings WHERE project = ? AND call IN ({marks})", (project, *ids))
    _remove(raw, rows)
    blocks.remove_empty(raw, project)
    return len(rows)


def _remove(raw: sqlite3.Connection, rows: Sequence[blocks.Place]) -> None:
    blocks.count_change(raw, blocks.counts_of(raw, (rid for _, _, rid in rows)), Counter())
    blocks.remove_usage(raw, rows)
    search.withdraw(raw, [rid for _, _, rid in rows], is_removed=True)
    rids = [(rid,) for _, _, rid in rows]
    for table in _BODIES:
        raw.executemany(f"DELETE FROM {table} WHERE rid = ?", rids)
    raw.executemany("DELETE FROM calls WHERE rid = ?", rids)
    search.lower(raw)


TRIAL_TABLES = (
    f"""CREATE TABLE IF NOT EXISTS eval_trials (
        project INTEGER NOT NULL, evaluation TEXT NOT NULL, row_digest TEXT NOT NULL, started_at INTEGER NOT NULL,
        rid INTEGER NOT NULL, scores TEXT, has_refs INTEGER NOT NULL, is_spilled INTEGER NOT NULL,
        predict INTEGER, predict_at INTEGER, tokens INTEGER, own_tokens INTEGER, {COLUMN} INTEGER,
        PRIMARY KEY (project, evaluation, row_digest, started_at, rid)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS eval_trials_rid ON eval_trials (rid)",
)
ReadFile = Callable[[str], str]
_TRIAL_HEAD = """SELECT c.project, c.id, c.parent_id, c.started_at, c.spilled, bi.inputs -> '$.example',
    bi.inputs -> '$.model', bo.output -> '$.scores'
    FROM calls c JOIN names n ON n.k = c.op JOIN body_in bi ON bi.rid = c.rid LEFT JOIN body_out bo ON bo.rid = c.rid
    WHERE c.rid = ? AND c.deleted_at IS NULL AND c.started_at IS NOT NULL AND c.parent_id IS NOT NULL
    AND n.label IN ({})""".format(", ".join(f"'{name}'" for name in sorted(TRIAL_OPS)))
_STEPS = """SELECT c.rid, c.started_at, n.v, bi.attributes ->> '$.weave.score',
    bi.attributes ->> '$._weave_eval_meta.score', bi.inputs -> '$.self'
    FROM calls c INDEXED BY calls_parent JOIN names n ON n.k = c.op JOIN body_in bi ON bi.rid = c.rid
    WHERE c.parent_id = ? AND c.project = ? AND c.deleted_at IS NULL AND c.started_at IS NOT NULL
    ORDER BY c.started_at, c.id"""
_TOKENS = "SELECT sum(total) FROM usage WHERE project = ? AND started_at = ? AND rid = ?"
_TRIAL = "CROSS JOIN eval_trials t ON t.rid = c.rid"
_INSERT_TRIAL = f"INSERT INTO eval_trials VALUES ({', '.join('?' * 13)})"


def refresh_trials(raw: sqlite3.Connection, rids: Iterable[int], read_file: ReadFile) -> None:
    """Make the rows of these calls again; a call that is no live trial has none."""
    for rid in rids:
        raw.execute("DELETE FROM eval_trials WHERE rid = ?", (rid,))
        head = raw.execute(_TRIAL_HEAD, (rid,)).fetchone()
        if head is not None:
            row = _row(raw, rid, head, read_file)
            raw.execute(_INSERT_TRIAL, (*row, checksum(row)))


def refresh_all_trials(raw: sqlite3.Connection, read_file: ReadFile) -> None:
    """Make the rows of all calls that are trials, for a file that has none yet."""
    marks = ", ".join("?" * len(TRIAL_OPS))
    query = f"SELECT rid FROM calls WHERE op IN (SELECT k FROM names WHERE label IN ({marks}))"
    refresh_trials(raw, [rid for (rid,) in raw.execute(query, sorted(TRIAL_OPS))], read_file)


def _row(raw: sqlite3.Connection, rid: int, head: Sequence[Any], read_file: ReadFile) -> tuple[str | int | None, ...]:
    project, call_id, parent_id, started_at, spilled, example, model, scores = head
    if spilled & SPILLED_IN and (whole := _whole(raw, rid, "inputs", read_file)) is not None:
        example = jsontext.dumps(whole.get("example"))
    if spilled & SPILLED_OUT and (whole := _whole(raw, rid, "output", read_file)) is not None:
        scores = jsontext.dumps(whole.get("scores"))
    scores = scores if scores is not None and scores.startswith("{") else None
    digest = row_digest(None if example is None else jsontext.loads(example.encode()))
    step = predict_step(list(_steps(raw, call_id, project)), None if model is None else orjson.loads(model))
    own = _tokens(raw, project, started_at, rid)
    tokens = own if step is None else _tokens(raw, project, step.started_at, step.rid)
    has_refs = int(scores is not None and f'"{refs.INTERNAL}' in scores)
    place = (step.rid, step.started_at) if step else (None, None)
    is_spilled = int(spilled & SPILLED_OUT != 0)
    return (project, parent_id, digest, started_at, rid, scores, has_refs, is_spilled, *place, tokens, own)


def _whole(raw: sqlite3.Connection, rid: int, field: str, read_file: ReadFile) -> dict[str, Any] | None:
    """A large field as it was sent; None when it is not in a file or no object."""
    found = raw.execute("SELECT blob FROM call_files WHERE rid = ? AND field = ?", (rid, field)).fetchone()
    value = None if found is None else jsontext.loads(read_file(found[0]).encode())
    return value if isinstance(value, dict) else None


def _steps(raw: sqlite3.Connection, call_id: str, project: int) -> Iterator[Step]:
    for rid, started_at, op_name, marked, noted, self_value in raw.execute(_STEPS, (call_id, project)):
        value = None if self_value is None else orjson.loads(self_value)
        yield Step(rid, started_at, op_name, marked == "true" or bool(noted), value)


def _tokens(raw: sqlite3.Connection, project: int, started_at: int, rid: int) -> int | None:
    total: int | None = raw.execute(_TOKENS, (project, started_at, rid)).fetchone()[0]
    return total


class TrialRows:
    """Keeps the rows up to date; runs in the writer thread, behind the writing of the calls themselves."""

    def __init__(self, names: Names, read_file: ReadFile, projects_with_trials: Iterable[str]) -> None:
        self._names = names
        self._read_file = read_file
        self._projects = set(projects_with_trials)

    def note(self, raw: sqlite3.Connection, starts: Sequence[Start], ends: Sequence[End]) -> None:
        """These halves of calls were written: make again the rows of the trials that they are or belong to."""
        fresh = [start for start in starts if _is_trial(start.op_name)]
        self._projects.update(start.project for start in fresh)
        for project in self._projects.intersection(half.project for part in (starts, ends) for half in part):
            number = self._names.number(raw, project)
            own = [start.id for start in fresh if start.project == project]
            started = {start.id for start in starts if start.project == project}
            ended = [end.id for end in ends if end.project == project and end.id not in started]
            parents = {start.parent_id for start in starts if start.project == project and start.parent_id}
            parents.update(_parents(raw, number, ended))
            changed = set(_rids(raw, number, own))
            changed.update(_rids(raw, number, [*started.difference(own), *ended, *parents], _TRIAL))
            refresh_trials(raw, sorted(changed), self._read_file)

    def deleted(self, raw: sqlite3.Connection, project: str, ids: Sequence[str]) -> None:
        """These calls were hidden (with their own rows): make again the rows of the trials that they belonged to."""
        if project in self._projects:
            number = self._names.number(raw, project)
            parents = _parents(raw, number, ids)
            refresh_trials(raw, _rids(raw, number, parents, _TRIAL), self._read_file)


@cache_texts()
def _is_trial(op_name: str) -> bool:
    return refs.operation_name(op_name) in TRIAL_OPS


def projects_with_trials(raw: sqlite3.Connection) -> list[str]:
    """The projects (internal ids) that have trials."""
    found: list[str] = []
    number = 0
    while (row := raw.execute("SELECT min(project) FROM eval_trials WHERE project > ?", (number,)).fetchone())[0]:
        number = row[0]
        found.append(str(raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone()[0]))
    return found


def _parents(raw: sqlite3.Connection, project: int, ids: Iterable[str]) -> set[str]:
    query = "SELECT parent_id FROM calls WHERE id = ? AND project = ? AND parent_id IS NOT NULL"
    return {parent for call_id in ids for (parent,) in raw.execute(query, (call_id, project))}


def _rids(raw: sqlite3.Connection, project: int, ids: Iterable[str], join: str = "") -> list[int]:
    query = f"SELECT c.rid FROM calls c {join} WHERE c.id = ? AND c.project = ?"
    return [rid for call_id in ids for (rid,) in raw.execute(query, (call_id, project))]
