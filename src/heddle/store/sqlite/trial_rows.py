"""One short row per trial of an evaluation, derived from its calls in the transaction that writes them.

Reading 40,000 trials from the bodies of calls takes a second; of these rows it takes a tenth. A row holds nothing that
is not in the calls, so it can be made again at any time (`refresh`).
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import orjson

from heddle.store.sqlite.call_writes import SPILLED_IN, SPILLED_OUT
from heddle.store.sqlite.names import Names
from heddle.wire import jsontext, refs
from heddle.wire.batched import batched
from heddle.wire.calls import End, Start
from heddle.wire.trials import TRIAL_OPS, Step, predict_step, row_digest

TABLES = (
    """CREATE TABLE IF NOT EXISTS eval_trials (
        project INTEGER NOT NULL, evaluation TEXT NOT NULL, row_digest TEXT NOT NULL, started_at INTEGER NOT NULL,
        rid INTEGER NOT NULL, scores TEXT, has_refs INTEGER NOT NULL, is_spilled INTEGER NOT NULL,
        predict INTEGER, predict_at INTEGER, tokens INTEGER, own_tokens INTEGER,
        PRIMARY KEY (project, evaluation, row_digest, started_at, rid)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS eval_trials_rid ON eval_trials (rid)",
)
ReadFile = Callable[[str], str]

_HEAD = """SELECT c.project, c.id, c.parent_id, c.started_at, c.spilled, bi.inputs -> '$.example',
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
_INSERT = "INSERT INTO eval_trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def refresh(raw: sqlite3.Connection, rids: Iterable[int], read_file: ReadFile) -> None:
    """Make the rows of these calls again; a call that is no live trial has none."""
    for rid in rids:
        raw.execute("DELETE FROM eval_trials WHERE rid = ?", (rid,))
        head = raw.execute(_HEAD, (rid,)).fetchone()
        if head is not None:
            raw.execute(_INSERT, _row(raw, rid, head, read_file))


def refresh_all(raw: sqlite3.Connection, read_file: ReadFile) -> None:
    """Make the rows of all calls that are trials, for a file that has none yet."""
    marks = ", ".join("?" * len(TRIAL_OPS))
    query = f"SELECT rid FROM calls WHERE op IN (SELECT k FROM names WHERE label IN ({marks}))"
    refresh(raw, [rid for (rid,) in raw.execute(query, sorted(TRIAL_OPS))], read_file)


def _row(raw: sqlite3.Connection, rid: int, head: Sequence[Any], read_file: ReadFile) -> tuple[object, ...]:
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
    has_refs = scores is not None and f'"{refs.INTERNAL}' in scores
    place = (step.rid, step.started_at) if step else (None, None)
    is_spilled = spilled & SPILLED_OUT != 0
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

    def __init__(self, names: Names, read_file: ReadFile, known_projects: Iterable[str]) -> None:
        self._names = names
        self._read_file = read_file
        self._projects = set(known_projects)

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
            refresh(raw, sorted(changed), self._read_file)

    def deleted(self, raw: sqlite3.Connection, project: str, ids: Sequence[str]) -> None:
        """These calls were hidden (with their own rows): make again the rows of the trials that they belonged to."""
        if project in self._projects:
            number = self._names.number(raw, project)
            parents = _parents(raw, number, ids)
            refresh(raw, list(_rids(raw, number, parents, _TRIAL)), self._read_file)


@lru_cache(maxsize=4096)
def _is_trial(op_name: str) -> bool:
    return refs.operation_name(op_name) in TRIAL_OPS


def known_projects(raw: sqlite3.Connection) -> list[str]:
    """The projects (internal ids) that have trials."""
    found: list[str] = []
    number = 0
    while (row := raw.execute("SELECT min(project) FROM eval_trials WHERE project > ?", (number,)).fetchone())[0]:
        number = row[0]
        found.append(str(raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone()[0]))
    return found


def _parents(raw: sqlite3.Connection, project: int, ids: Iterable[str]) -> Iterator[str]:
    for chunk in batched(ids):
        marks = ",".join("?" * len(chunk))
        query = f"SELECT parent_id FROM calls WHERE project = ? AND id IN ({marks}) AND parent_id IS NOT NULL"
        yield from {row[0] for row in raw.execute(query, (project, *chunk))}


def _rids(raw: sqlite3.Connection, project: int, ids: Iterable[str], join: str = "") -> Iterator[int]:
    for chunk in batched(ids):
        marks = ",".join("?" * len(chunk))
        query = f"SELECT c.rid FROM calls c {join} WHERE c.project = ? AND c.id IN ({marks})"
        yield from [row[0] for row in raw.execute(query, (project, *chunk))]
