"""Trials on ClickHouse: the verbs of the embedded store, over private SQLite copies of the evaluations asked for last.

A copy follows what is stored: each look asks which versions there are, and reads the calls that are new or changed.
"""

import asyncio
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from heddle.store.clickhouse.call_table import IS_SPAN, LABEL, RID, USAGE, usage_of
from heddle.store.clickhouse.calls import Spots, fetch
from heddle.store.clickhouse.client import Clickhouse, Client, Row, rows_of
from heddle.store.clickhouse.schema import CALLS, TABLE_ROWS, listed
from heddle.store.clickhouse.usage_repeats import around, outer_spans
from heddle.store.sqlite import trials as embedded
from heddle.store.sqlite.call_writes import SPILLED_IN, SPILLED_OUT, TRIAL_TABLES, refresh_trials
from heddle.store.sqlite.database import Session, open_scratch, run_in
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.schema import CALL_TABLES
from heddle.store.sqlite.trials import RowSelection
from heddle.wire.calls import BODY_OUT, CallRow, CallsQuery
from heddle.wire.trials import TRIAL_OPS, Trial, TrialsPage, TrialsQuery, TrialStats

_FEW = 2000
"""So many calls are asked for by number; of more than these all are read, and those that are known left out."""
_PART = 1000
_TABLES = (
    *(statement for statement in CALL_TABLES if statement.startswith("CREATE TABLE")),
    "CREATE INDEX calls_parent ON calls (parent_id, project) WHERE parent_id IS NOT NULL",
    *TRIAL_TABLES,
    "CREATE TABLE table_rows (project TEXT, digest TEXT, val TEXT, PRIMARY KEY (project, digest)) WITHOUT ROWID",
)
_EMPTIED = ("calls", "body_in", "body_out", "call_files", "usage")
_LIVE = f"FROM {CALLS} AS c FINAL WHERE c.project = {{project:String}} AND c.deleted_at = 0"
_HEAD = f"""{RID} AS rid, c.version, c.id, c.parent_id, c.op_name, c.started_at, c.ended_at, c.files, c.trace_id,
    {IS_SPAN}, {USAGE}"""
_USAGE_AT, _TEXTS_AT = 10, 17
_TRIAL_TEXTS = "c.inputs, '{}', c.output"
# Of the inputs of a step only `self` is asked for; a text that ClickHouse cannot read comes whole.
_STEP_TEXTS = """if(isValidJSON(c.inputs), if(JSONHas(c.inputs, 'self'),
    concat('{"self":', JSONExtractRaw(c.inputs, 'self'), '}'), '{}'), c.inputs), c.attributes, NULL"""
_INSERT_CALL = """INSERT INTO calls (rid, id, parent_id, op, started_at, ended_at, trace_id, project, status, spilled)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)"""
_TRIALS_ABOVE = """SELECT t.rid FROM calls k JOIN calls t ON t.id = k.parent_id AND t.project = k.project
    JOIN eval_trials e ON e.rid = t.rid WHERE k.rid = ?"""


class TrialCopy:
    """The copy for one set of evaluations of a project; one thread at a time may use it."""

    def __init__(self, project: str, evaluations: Sequence[str], read_file: Callable[[str], str]) -> None:
        self._project = project
        self._read_file = read_file
        ops = listed(sorted(TRIAL_OPS))
        self._trials = f"{_LIVE} AND c.parent_id IN {listed(evaluations)} AND {LABEL} IN {ops}"
        self._versions: dict[int, int] = {}
        self.session: Session = open_scratch()
        self._names = Names()
        for statement in _TABLES:
            self.session.raw.execute(statement)
        self._number = self._names.number(self.session.raw, project)

    def follow(self, client: Client) -> None:
        """Copy what is new or changed, and drop what is gone."""
        trials = self._asked(client, f"SELECT {RID}, c.version, c.started_at {self._trials}")
        steps: list[Row] = []
        below = ""
        if trials:
            instants = [row[2] for row in trials]
            near = around("1", min(instants), max(instants) + 1)
            below = f"{_LIVE} AND {near} AND c.parent_id IN (SELECT c.id {self._trials})"
            steps = self._asked(client, f"SELECT {RID}, c.version, c.started_at {below}")
        present = {rid: version for rid, version, _ in (*trials, *steps)}
        changed = {rid for rid, version in present.items() if self._versions.get(rid) != version}
        gone = self._versions.keys() - present.keys()
        raw = self.session.raw
        raw.execute("BEGIN")
        touched = self._trials_above([*gone, *(changed & self._versions.keys())])
        self._remove(gone | (changed & self._versions.keys()))
        for source, texts, rows in ((self._trials, _TRIAL_TEXTS, trials), (below, _STEP_TEXTS, steps)):
            self._copy(client, f"SELECT {_HEAD}, {texts} {source}", changed.intersection(row[0] for row in rows))
        touched.update(row[0] for row in trials if row[0] in changed)
        touched.update(self._trials_above(changed.difference(row[0] for row in trials)))
        refresh_trials(raw, sorted(touched | gone), self._read_file)
        raw.execute("COMMIT")

    def add_table_rows(self, client: Client) -> None:
        """Copy the rows of datasets that the trials are about."""
        raw = self.session.raw
        missing = raw.execute(
            """SELECT DISTINCT row_digest FROM eval_trials
            WHERE row_digest NOT IN (SELECT digest FROM table_rows)"""
        ).fetchall()
        for first in range(0, len(missing), _PART):
            digests = listed(row[0] for row in missing[first : first + _PART])
            sql = f"""SELECT digest, any(val) FROM {TABLE_ROWS}
                WHERE project = {{project:String}} AND digest IN {digests} GROUP BY digest"""
            found = rows_of(client, sql, {"project": self._project})
            raw.executemany("INSERT INTO table_rows VALUES (?, ?, ?)", [(self._project, *row) for row in found])

    def _asked(self, client: Client, sql: str) -> list[Row]:
        return rows_of(client, sql, {"project": self._project})

    def _trials_above(self, rids: Iterable[int]) -> set[int]:
        raw = self.session.raw
        return {row[0] for rid in rids for row in raw.execute(_TRIALS_ABOVE, (rid,))}

    def _remove(self, rids: Collection[int]) -> None:
        for table in _EMPTIED:
            self.session.raw.executemany(f"DELETE FROM {table} WHERE rid = ?", [(rid,) for rid in rids])
        for rid in rids:
            del self._versions[rid]

    def _copy(self, client: Client, sql: str, wanted: Collection[int]) -> None:
        """Read and insert the wanted ones of the calls that a statement selects."""
        if not wanted:
            return
        if len(wanted) <= _FEW:
            sql += f" AND rid IN {listed(wanted)}"
        with client.query_row_block_stream(sql, parameters={"project": self._project}) as blocks:
            for block in blocks:
                self._insert(client, [row for row in block if row[0] in wanted])

    def _insert(self, client: Client, rows: Sequence[Row]) -> None:
        raw, number = self.session.raw, self._names.number
        spending = {row[8] for row in rows if row[9] and row[_USAGE_AT]}
        outer = outer_spans(client, self._project, spending)
        raw.executemany(_INSERT_CALL, self._heads(rows))
        bodies = [(row[0], *row[_TEXTS_AT:]) for row in rows]
        raw.executemany("INSERT INTO body_in (rid, inputs, attributes) VALUES (?, ?, ?)", [row[:3] for row in bodies])
        ended = [(row[0], row[3]) for row in bodies if row[3] is not None]
        raw.executemany("INSERT INTO body_out (rid, output, summary) VALUES (?, ?, '{}')", ended)
        files = [(row[0], *item) for row in rows for item in row[7].items()]
        raw.executemany("INSERT INTO call_files VALUES (?, ?, ?)", files)
        used = [
            (self._number, row[5], row[0], number(raw, entry.model), *entry[1:])
            for row in rows
            if row[_USAGE_AT] and not (row[9] and row[2] in outer)
            for entry in usage_of(row[_USAGE_AT:_TEXTS_AT])
        ]
        marks = ", ".join("?" * 10)
        raw.executemany(f"INSERT INTO usage VALUES ({marks})", used)
        # What is below a span decides about its usage, and may come without a new version of the span.
        self._versions.update((row[0], -1 if row[9] and row[_USAGE_AT] else row[1]) for row in rows)

    def _heads(self, rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
        raw = self.session.raw
        for rid, _, call_id, parent_id, op_name, started_at, ended_at, files, trace_id, *_ in rows:
            spilled = sum({SPILLED_OUT if name in BODY_OUT else SPILLED_IN for name in files})
            op = self._names.number(raw, op_name)
            yield rid, call_id, parent_id, op, started_at, ended_at, trace_id, self._number, spilled

    def close(self) -> None:
        """Forget everything."""
        self.session.close()


T = TypeVar("T")
_COPIES = 4


class Trials:
    """Keeps copies of the evaluations that were asked for last."""

    def __init__(self, clickhouse: Clickhouse, read_file: Callable[[str], str]) -> None:
        self._clickhouse = clickhouse
        self._read_file = read_file
        self._copies: OrderedDict[tuple[str, tuple[str, ...]], _CopiedTrials] = OrderedDict()

    async def page(self, query: TrialsQuery) -> TrialsPage:
        async with self._copy(query.project, query.evaluations) as copied:
            return await copied.page(query)

    async def of_rows(
        self, project: str, evaluations: Sequence[str], row_digests: Sequence[str], with_children: bool
    ) -> list[Trial]:
        async with self._copy(project, evaluations) as copied:
            return await copied.of_rows(project, evaluations, row_digests, with_children)

    async def refs_in_scores(self, project: str, evaluations: Sequence[str]) -> set[str]:
        async with self._copy(project, evaluations) as copied:
            return await copied.refs_in_scores(project, evaluations)

    async def fold(
        self,
        query: TrialsQuery,
        with_children: bool,
        with_usage: bool,
        fold: Callable[[Iterable[TrialStats]], T],
        with_answers: bool = False,
    ) -> T:
        """What a function makes of all trials of the selected rows, in order; runs in a reader thread."""
        async with self._copy(query.project, query.evaluations) as copied:
            return await copied.fold(query, with_children, with_usage, fold, with_answers)

    @asynccontextmanager
    async def _copy(self, project: str, evaluations: Sequence[str]) -> AsyncIterator[embedded.Trials]:
        """The verbs over the copy of some evaluations, for this task alone."""
        key = (project, tuple(sorted(evaluations)))
        copied = self._copies.get(key)
        if copied is None:
            copied = self._copies[key] = _CopiedTrials(self._clickhouse, *key, self._read_file)
        self._copies.move_to_end(key)
        while len(self._copies) > _COPIES:
            _, oldest = self._copies.popitem(last=False)
            if not oldest.lock.locked():
                oldest.close()
        async with copied.lock:
            yield copied
            if self._copies.get(key) is not copied:
                copied.close()


class _CopiedTrials(embedded.Trials):
    """The embedded store's verbs over one copy, made when it is first read, and again after a failure.

    Whole calls come from ClickHouse.
    """

    def __init__(
        self, clickhouse: Clickhouse, project: str, evaluations: Sequence[str], read_file: Callable[[str], str]
    ) -> None:
        super().__init__(self, read_file)
        self.lock = asyncio.Lock()
        self._clickhouse = clickhouse
        self._project = project
        self._evaluations = evaluations
        self._copy: TrialCopy | None = None

    async def read(self, work: Callable[[Session], T]) -> T:
        """Bring the copy in step with what is stored, then run `work` on it."""
        return await self._clickhouse.read(lambda client: self._run(client, work))

    def _run(self, client: Client, work: Callable[[Session], T]) -> T:
        copy = self._copy or TrialCopy(self._project, self._evaluations, self._read_file)
        try:
            copy.follow(client)
        except BaseException:
            # Nothing is left half way that could be gone on with.
            self._copy = None
            copy.close()
            raise
        self._copy = copy
        return run_in(copy.session, work, self._clickhouse.timeout)

    def close(self) -> None:
        """Drop the copy."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _prepare(self, raw: sqlite3.Connection, query: TrialsQuery) -> RowSelection | None:
        selection = super()._prepare(raw, query)
        if selection is not None and selection.data_values and self._copy is not None:
            self._clickhouse.run(self._copy.add_table_rows)
        return selection

    def _calls(self, raw: sqlite3.Connection, rids: Sequence[int], columns: frozenset[str]) -> list[CallRow]:
        numbers = ",".join(map(str, rids))
        found = raw.execute(f"SELECT rid, started_at FROM calls WHERE rid IN ({numbers})")
        starts: dict[int, int] = dict(found.fetchall())
        known = [rid for rid in rids if rid in starts]
        if not known:
            return []
        places = Spots(array("q", known), array("q", [starts[rid] for rid in known]))
        query = CallsQuery(self._project, columns=columns)
        return self._clickhouse.run(lambda client: fetch(client, query, places, self._read_file))
