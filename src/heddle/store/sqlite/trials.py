"""Trials on the embedded store: rows of evaluations by page, with their calls, and sums over all.

A row's value at a path is the JSON text of the first trial that has one there; of scores, the order takes the mean.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import orjson

from heddle.errors import InvalidRequest
from heddle.store.query.compiler import Compiler, JsonValue, Kind, Value
from heddle.store.query.sqlite import Parameters, SqliteDialect, quote, read
from heddle.store.sqlite.call_table import fetch
from heddle.store.sqlite.database import Session, SessionReads, reads
from heddle.store.sqlite.names import NameReader
from heddle.wire import refs, times
from heddle.wire.calls import CallRow, Usage
from heddle.wire.query import Scalar, split_path
from heddle.wire.trials import OUTPUT_KEYS, Trial, TrialFilter, TrialSort, TrialsPage, TrialsQuery, TrialStats

WHOLE_OUTPUT, WHOLE_INPUTS, PLAIN_SCORES = "heddle_whole_output", "heddle_whole_inputs", "heddle_plain_scores"
"""SQL functions that the connection has while such a query runs."""

_SCORES = f"CASE WHEN t.has_refs THEN {PLAIN_SCORES}(t.scores) ELSE t.scores END"
_OUTPUT = f"CASE WHEN t.is_spilled THEN {WHOLE_OUTPUT}(t.rid) ELSE bo.output END"
_EXAMPLE = (
    f"SELECT CASE WHEN c.spilled & 1 THEN {WHOLE_INPUTS}(c.rid) ELSE bi.inputs END -> '$.example' "
    "FROM calls c JOIN body_in bi ON bi.rid = c.rid WHERE c.rid = g.{rid}"
)
_DATA = "coalesce((SELECT val FROM table_rows WHERE project = {project} AND digest = g.row_digest), ({example}))"
_PLACE = "printf('%019d%019d', t.started_at + 100000000000000000, t.rid)"
_PLACE_LENGTH = 38
_OUTPUT_JOIN = "LEFT JOIN body_out bo ON bo.rid = t.rid"


@dataclass(slots=True)
class RowSelection:
    """The statement that lists rows."""

    project: str
    number: int
    evaluations: tuple[str, ...]
    joins: dict[str, None] = field(default_factory=dict)
    trial_values: dict[str, str] = field(default_factory=dict)
    row_values: dict[str, str] = field(default_factory=dict)
    data_values: dict[str, str] = field(default_factory=dict)
    spreads: dict[str, str] = field(default_factory=dict)
    where: list[str] = field(default_factory=list)
    parameters: Parameters = field(default_factory=Parameters)
    order: list[str] = field(default_factory=list)
    intersection: bool = False
    has_mentions: bool = False
    """True when some value of a trial or row stands in the statement more than once."""

    within: str = ""
    """The condition on trials `t`: those of the evaluations."""

    def __post_init__(self) -> None:
        listed = self.parameters.values(self.evaluations)
        self.within = f"t.project = {self.number} AND t.evaluation IN {listed}"

    def sql(self, columns: str) -> str:
        """The SELECT over rows `r`, with its order."""
        values = "".join(f", {sql} AS {name}" for name, sql in self.trial_values.items())
        trials = f"SELECT t.row_digest, t.evaluation, t.rid{values}" + (
            f", {_PLACE} AS place" if self.row_values else ""
        )
        trials += f" FROM eval_trials t {' '.join(self.joins)} WHERE {self.within}"
        rows = "SELECT v.row_digest" + "".join(f", {sql} AS {name}" for name, sql in self.row_values.items())
        rows += " FROM v GROUP BY v.row_digest"
        if self.intersection and len(self.evaluations) > 1:
            rows += f" HAVING count(DISTINCT v.evaluation) = {len(self.evaluations)}"
        data = "".join(f", {sql} AS {name}" for name, sql in self.data_values.items())
        source = "r" + "".join(f" LEFT JOIN {name} ON {name}.row_digest = r.row_digest" for name in self.spreads)
        # Without the word, SQLite computes a value again at each of its mentions.
        once = "MATERIALIZED" if self.has_mentions else ""
        parts = [f"v AS {once} ({trials})", f"g AS {once} ({rows})"]
        parts += [f"r AS MATERIALIZED (SELECT g.*{data} FROM g)" if data else "r AS (SELECT * FROM g)"]
        parts += [f"{name} AS ({sql})" for name, sql in self.spreads.items()]
        where = f" WHERE {' AND '.join(self.where)}" if self.where else ""
        order = f" ORDER BY {', '.join([*self.order, 'r.row_digest'])}"
        return f"WITH {', '.join(parts)} SELECT {columns} FROM {source}{where}{order}"

    def fragment(self, path: str) -> str:
        """The name of a trial's JSON text at a path; null where there is none. Raises InvalidRequest."""
        name = f"f{len(self.trial_values)}"
        return self._named(self.trial_values, name, self._fragment(path))

    def _fragment(self, path: str) -> str:
        head, *rest = split_path(path)
        parts = tuple(rest)
        if head == "scores" and parts:
            return _filled(read(f"({_SCORES})", parts, "fragment"))
        if head == "output":
            self.joins[_OUTPUT_JOIN] = None
            places = [*((key, *parts) for key in OUTPUT_KEYS), *([parts] if parts else [])]
            return _filled(f"coalesce({', '.join(read(f'({_OUTPUT})', place, 'fragment') for place in places)})")
        raise InvalidRequest(
            f"Unsupported eval results field: '{path[:200]}'. "
            "Supported prefixes: scores.*, inputs.*, output.*, row_digest."
        )

    def first(self, path: str, evaluation: str | None) -> str:
        """The name of a row's JSON text at a path: that of the first trial (of one evaluation) that has one."""
        self.has_mentions = True
        head, *parts = split_path(path)
        if head == "inputs":
            return self._data(tuple(parts), evaluation)
        value = self.fragment(path)
        own = f"v.{value} IS NOT NULL{self._scope(evaluation)}"
        sql = f"substr(min(CASE WHEN {own} THEN v.place || v.{value} END), {_PLACE_LENGTH + 1})"
        return "r." + self._named(self.row_values, f"a{len(self.row_values)}", sql)

    def _data(self, parts: tuple[str, ...], evaluation: str | None) -> str:
        """The name of the JSON text at a path of a row's data, where (an evaluation) has a trial about the row."""
        rid = f"min(CASE WHEN 1{self._scope(evaluation)} THEN v.rid END)"
        rid = self._named(self.row_values, f"a{len(self.row_values)}", rid)
        data = _DATA.format(project=quote(self.project), example=_EXAMPLE.format(rid=rid))
        value = _filled(read("y.j", parts, "fragment"), f"(SELECT {data} AS j) y")
        sql = f"CASE WHEN g.{rid} IS NOT NULL THEN {value} END"
        return "r." + self._named(self.data_values, f"i{len(self.data_values)}", sql)

    def mean(self, path: str, evaluation: str | None) -> str:
        """The name of a row's mean number at a path."""
        number = self._number(path)
        sql = f"avg(CASE WHEN 1{self._scope(evaluation)} THEN v.{number} END)"
        return "r." + self._named(self.row_values, f"a{len(self.row_values)}", sql)

    def spread(self, path: str) -> str:
        """The name of how far a row's means of the evaluations lie apart."""
        self.has_mentions = True
        means = f"SELECT row_digest, avg({self._number(path)}) AS x FROM v GROUP BY row_digest, evaluation"
        sql = f"SELECT row_digest, max(x) - min(x) AS x FROM ({means}) GROUP BY row_digest"
        return self._named(self.spreads, f"d{len(self.spreads)}", sql) + ".x"

    def _number(self, path: str) -> str:
        text = self._fragment(path)
        sql = f"(SELECT {as_number('w.j')} FROM (SELECT {text} AS j) w)"
        return self._named(self.trial_values, f"f{len(self.trial_values)}", sql)

    def _scope(self, evaluation: str | None) -> str:
        if evaluation is None:
            return ""
        return " AND 0" if "\x00" in evaluation else f" AND v.evaluation = {quote(evaluation)}"

    @staticmethod
    def _named(names: dict[str, str], name: str, sql: str) -> str:
        known = next((found for found, same in names.items() if same == sql), None)
        names[known or name] = sql
        return known or name


def as_number(fragment: str) -> str:
    """A JSON text as a number: booleans are 1 and 0, and texts of numbers count."""
    number = read(fragment, (), "double")
    return f"CASE {fragment} WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 ELSE {number} END"


def _filled(fragment: str, source: str = "") -> str:
    """The JSON text (of a source), null where it is null or the empty text."""
    inner = f"SELECT {fragment} AS j" + (f" FROM {source}" if source else "")
    return f"(SELECT CASE WHEN x.j NOT IN ('null', '\"\"') THEN x.j END FROM ({inner}) x)"


def select_rows(query: TrialsQuery, number: int) -> RowSelection:
    """Compile a query; raises InvalidRequest for a field that rows lack."""
    selection = RowSelection(query.project, number, query.evaluations, intersection=query.intersection)
    _filter(selection, query.filters, query.any_filter)
    for term in query.sort:
        selection.order.extend(_order(selection, term))
    return selection


def _filter(selection: RowSelection, filters: Sequence[TrialFilter], any_filter: bool) -> None:
    """Conditions of the same evaluation hold together; those of several hold all, or any of them."""
    groups: dict[str | None, list[TrialFilter]] = {}
    for item in filters:
        groups.setdefault(item.evaluation, []).append(item)
    clauses = []
    for items in groups.values():
        dialect = SqliteDialect(selection.parameters)
        conditions = [
            Compiler(dialect, partial(_value, selection, dialect, item.evaluation)).condition(item.query)
            for item in items
        ]
        clauses.append(f"({' AND '.join(conditions)})")
    if clauses:
        selection.where.append(f"({(' OR ' if any_filter else ' AND ').join(clauses)})")


def _order(selection: RowSelection, term: TrialSort) -> list[str]:
    direction = "DESC" if term.descending else "ASC"
    if term.path.startswith("scores."):
        if term.mode == "difference" and len(selection.evaluations) > 1:
            return [f"{selection.spread(term.path)} {direction} NULLS LAST"]
        return [f"{selection.mean(term.path, term.evaluation)} {direction} NULLS LAST"]
    value = selection.first(term.path, term.evaluation)
    number, text = read(value, (), "double"), read(value, (), "text")
    filled = f"({value} IS NOT NULL) DESC"
    return [filled, f"({number} IS NOT NULL) DESC", f"{number} {direction} NULLS LAST", f"{text} {direction}"]


class RowJson(JsonValue):
    """The JSON text of a row's value, null where there is none."""

    __slots__ = ()

    def exists(self) -> str:
        return f"({self.source} IS NOT NULL)"


class Score(RowJson):
    """A score: booleans read as numbers are 1 and 0."""

    __slots__ = ()

    def _counted(self) -> JsonValue:
        """The same with booleans as digits."""
        text = f"(SELECT CASE {self.source} WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE {self.source} END)"
        return JsonValue(self.dialect, text)

    def read(self, reading: str) -> str:
        return self.dialect.read(self._counted() if reading in ("integer", "double") else self, reading)

    def beside(self, constants: Sequence[Scalar], equality: bool) -> Value | None:
        """The value as its comparison with constants needs it."""
        if list(constants) in (["0"], ["1"]):
            return Value(Kind.TEXT, self._counted().read("text"))
        return super().beside(constants, equality)


def _value(selection: RowSelection, dialect: SqliteDialect, evaluation: str | None, path: str) -> Value:
    """A row's value in a query: scores, inputs, output and the digest."""
    if "\x00" in path:
        raise InvalidRequest("Field path contains a NUL character")
    if path == "row_digest":
        return Value(Kind.TEXT, "r.row_digest")
    kind = Score if path.startswith("scores.") else RowJson
    return Value(Kind.JSON, json=kind(dialect, selection.first(path, evaluation)))


_TRIAL_COLUMNS = frozenset({"inputs", "output", "attributes", "summary"})
_CHILD_COLUMNS = frozenset({"inputs", "attributes", "summary"})
# How long the call of the model took, else what the trial itself says; an answer is looked for where nothing is scored.
_ANSWERS = f"""CASE WHEN t.predict IS NOT NULL
    THEN (SELECT (p.ended_at - p.started_at) * 1.0 / {times.SECOND} FROM calls p WHERE p.rid = t.predict)
    ELSE (SELECT CASE json_type(o.output, '$.model_latency') WHEN 'object' THEN o.output ->> '$.model_latency.mean'
        WHEN 'real' THEN o.output ->> '$.model_latency' WHEN 'integer' THEN o.output ->> '$.model_latency' END
        FROM body_out o WHERE o.rid = t.rid) END,
    t.is_spilled OR ifnull(t.scores, '{{}}') <> '{{}}' OR EXISTS (SELECT 1 FROM body_out o WHERE o.rid = t.rid
        AND coalesce(o.output ->> '$.output', o.output ->> '$.model_output') IS NOT NULL),
    (SELECT c.id FROM calls c WHERE c.rid = t.rid)"""
T = TypeVar("T")
Placed = tuple[int, int]


class Trials:
    """Reads the rows of `eval_trials`; the calls themselves are read for the rows of a page only."""

    def __init__(self, readers: SessionReads, read_file: Callable[[str], str]) -> None:
        self._readers = readers
        self._read_file = read_file
        self._names = NameReader()
        self._local = threading.local()

    @reads
    def page(self, session: Session, query: TrialsQuery) -> TrialsPage:
        selection = self._prepare(session.raw, query)
        if selection is None:
            return TrialsPage([], 0)
        given = selection.parameters.given
        limit = -1 if query.limit is None else query.limit
        sql = selection.sql("r.row_digest, count(*) OVER ()") + f" LIMIT {limit} OFFSET {query.offset}"
        found = session.raw.execute(sql, given).fetchall()
        if found:
            return TrialsPage([row[0] for row in found], found[0][1])
        count = f"SELECT count(*) FROM ({selection.sql('1')})"
        return TrialsPage([], session.raw.execute(count, given).fetchone()[0])

    @reads
    def of_rows(
        self,
        session: Session,
        project: str,
        evaluations: Sequence[str],
        row_digests: Sequence[str],
        with_children: bool,
    ) -> list[Trial]:
        number = self._names.number(session.raw, project)
        if number is None:
            return []
        digests, listed = ", ".join("?" * len(row_digests)), ", ".join("?" * len(evaluations))
        sql = f"""SELECT row_digest, evaluation, started_at, rid, predict, predict_at, tokens, own_tokens
            FROM eval_trials WHERE project = ? AND evaluation IN ({listed}) AND row_digest IN ({digests})"""
        found = session.raw.execute(sql, (number, *evaluations, *row_digests)).fetchall()
        return list(self._trials(session.raw, number, row_digests, found, with_children))

    def _trials(
        self, raw: sqlite3.Connection, project: int, digests: Sequence[str], found: list[Any], with_children: bool
    ) -> Iterator[Trial]:
        place = {digest: index for index, digest in enumerate(digests)}
        calls = {row.rid: row for row in self._calls(raw, [row[3] for row in found], _TRIAL_COLUMNS)}
        found = sorted(
            (row for row in found if row[3] in calls), key=lambda row: (place[row[0]], row[2], calls[row[3]].id)
        )
        children = self._children(raw, project, [calls[row[3]].id for row in found]) if with_children else {}
        predicts = [row[5:3:-1] if with_children and row[4] else (row[2], row[3]) for row in found]
        usage = self._usage(raw, project, predicts)
        for (digest, evaluation, _, rid, predict, _, tokens, own), priced in zip(found, predicts, strict=True):
            call = calls[rid]
            steps = children.get(call.id, [])
            step = next((child for child in steps if child.rid == predict), None)
            total = tokens if with_children else own
            yield Trial(digest, evaluation, call, steps, step, total, usage.get(priced, []))

    def _calls(self, raw: sqlite3.Connection, rids: Sequence[int], columns: frozenset[str]) -> list[CallRow]:
        return fetch(raw, self._names, rids, columns, self._read_file)

    def _children(self, raw: sqlite3.Connection, project: int, ids: Sequence[str]) -> dict[str, list[CallRow]]:
        if not ids:
            return {}
        marks = ", ".join("?" * len(ids))
        sql = f"""SELECT rid FROM calls INDEXED BY calls_parent WHERE project = ? AND parent_id IN ({marks})
            AND deleted_at IS NULL AND started_at IS NOT NULL ORDER BY started_at, id"""
        children: dict[str, list[CallRow]] = {}
        for child in self._calls(raw, [row[0] for row in raw.execute(sql, (project, *ids))], _CHILD_COLUMNS):
            children.setdefault(child.parent_id or "", []).append(child)
        return children

    def _usage(self, raw: sqlite3.Connection, project: int, places: Sequence[Placed]) -> dict[Placed, list[Usage]]:
        """The usage of calls by (start, row number)."""
        if not places:
            return {}
        listed = ", ".join(f"({started_at}, {rid})" for started_at, rid in places)
        sql = f"""WITH k(at, rid) AS (VALUES {listed})
            SELECT u.started_at, u.rid, u.model, u.requests, u.prompt, u.completion, u.total, u.cache_read,
            u.cache_creation FROM k CROSS JOIN usage u ON u.project = ? AND u.started_at = k.at AND u.rid = k.rid"""
        usage: dict[Placed, list[Usage]] = {}
        for at, rid, model, *numbers in raw.execute(sql, (project,)):
            usage.setdefault((at, rid), []).append(Usage(self._names.text(raw, model) or "", *numbers))
        return usage

    @reads
    def refs_in_scores(self, session: Session, project: str, evaluations: Sequence[str]) -> set[str]:
        marks = ", ".join("?" * len(evaluations))
        sql = f"SELECT scores FROM eval_trials WHERE project = ? AND evaluation IN ({marks}) AND has_refs"
        rows = session.raw.execute(sql, (self._names.number(session.raw, project) or 0, *evaluations))
        return {ref for (scores,) in rows for ref in refs.find(orjson.loads(scores))}

    @reads
    def fold(
        self,
        session: Session,
        query: TrialsQuery,
        with_children: bool,
        with_usage: bool,
        fold: Callable[[Iterable[TrialStats]], T],
        with_answers: bool = False,
    ) -> T:
        """What a function makes of all trials of the selected rows, in order; runs in a reader thread."""
        raw = session.raw
        selection = self._prepare(raw, query)
        if selection is None:
            return fold(())
        priced = (
            ("ifnull(t.predict_at, t.started_at)", "ifnull(t.predict, t.rid)")
            if with_children
            else ("t.started_at", "t.rid")
        )
        tokens = "t.tokens" if with_children else "t.own_tokens"
        answers = _ANSWERS if with_answers else "NULL, 1, ''"
        columns = f"t.evaluation, t.row_digest, t.started_at, t.rid, {_SCORES}, {tokens}, {priced[0]}, {answers}"
        source, more = "eval_trials t", ""
        if with_usage:
            more = ", u.model, u.requests, u.prompt, u.completion, u.total, u.cache_read, u.cache_creation"
            source += (
                f" LEFT JOIN usage u ON u.project = t.project AND u.started_at = {priced[0]} AND u.rid = {priced[1]}"
            )
        where = selection.within
        if selection.where or selection.intersection:
            where += f" AND t.row_digest IN ({selection.sql('r.row_digest')})"
        order = "t.evaluation, t.row_digest, t.started_at, t.rid"
        rows = raw.execute(
            f"SELECT {columns}{more} FROM {source} WHERE {where} ORDER BY {order}", selection.parameters.given
        )
        return fold(self._with_usage(raw, rows) if with_usage else (_stats_of_row(row, ()) for row in rows))

    def _with_usage(self, raw: sqlite3.Connection, rows: Iterable[Any]) -> Iterator[TrialStats]:
        for _, group in groupby(rows, key=lambda row: row[3]):
            entries = list(group)
            usage = [Usage(self._names.text(raw, row[10]) or "", *row[11:]) for row in entries if row[10] is not None]
            yield _stats_of_row(entries[0], usage)

    def _prepare(self, raw: sqlite3.Connection, query: TrialsQuery) -> RowSelection | None:
        """The compiled query, with the SQL functions that it calls; None for a project without any call."""
        number = self._names.number(raw, query.project)
        selection = select_rows(query, number or 0)
        self._local.values = query.values
        if getattr(self._local, "connection", None) is not raw:
            self._add_functions(raw)
            self._local.connection = raw
        return None if number is None else selection

    def _add_functions(self, raw: sqlite3.Connection) -> None:
        """Give this thread's connection the SQL functions that the statements of `trial_select` call."""

        def whole(rid: int, field: str) -> str | None:
            found = raw.execute("SELECT blob FROM call_files WHERE rid = ? AND field = ?", (rid, field)).fetchone()
            return None if found is None else self._read_file(found[0])

        raw.create_function(WHOLE_OUTPUT, 1, lambda rid: whole(rid, "output"))
        raw.create_function(WHOLE_INPUTS, 1, lambda rid: whole(rid, "inputs"))
        raw.create_function(PLAIN_SCORES, 1, lambda scores: plain_scores(scores, self._local.values))


def _stats_of_row(row: Sequence[Any], usage: Sequence[Usage]) -> TrialStats:
    return TrialStats(row[0], row[1], row[2], row[4], row[5], row[6], usage, row[7], bool(row[8]), row[9])


def plain_scores(scores: str, values: Mapping[str, str]) -> str:
    """Scores with the refs that have a value replaced by it."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return orjson.Fragment(values[value]) if value in values else value
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return orjson.dumps(plain(orjson.loads(scores))).decode()
