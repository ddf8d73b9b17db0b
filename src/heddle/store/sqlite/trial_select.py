"""Which rows of evaluations a query selects and in what order, as SQL over the rows of `trial_rows`.

A row's value at a path is the JSON text of the first trial that has one there; of scores, the order takes the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from heddle.errors import InvalidRequest
from heddle.store.query import sqlite as jsonpath
from heddle.store.query.compiler import Compiler, Json, Kind, Value
from heddle.store.query.sqlite import Parameters, SqliteDialect, quote
from heddle.wire.query import Scalar, split_path
from heddle.wire.trials import OUTPUT_KEYS, TrialFilter, TrialSort, TrialsQuery

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
            return _filled(jsonpath.fragment(f"({_SCORES})", parts))
        if head == "output":
            self.joins[_OUTPUT_JOIN] = None
            places = [*((key, *parts) for key in OUTPUT_KEYS), *([parts] if parts else [])]
            return _filled(f"coalesce({', '.join(jsonpath.fragment(f'({_OUTPUT})', place) for place in places)})")
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
        value = _filled(jsonpath.fragment("y.j", parts), f"(SELECT {data} AS j) y")
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
    number = jsonpath.double(fragment, ())
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
            Compiler(dialect, partial(_value, selection, dialect, item.evaluation)).compile(item.query)
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
    number, text = jsonpath.double(value, ()), jsonpath.text(value, ())
    filled = f"({value} IS NOT NULL) DESC"
    return [filled, f"({number} IS NOT NULL) DESC", f"{number} {direction} NULLS LAST", f"{text} {direction}"]


class RowJson(Json):
    """The JSON text of a row's value, null where there is none."""

    __slots__ = ()

    def exists(self) -> str:
        """The condition that there is a value."""
        return f"({self.source} IS NOT NULL)"


class Score(RowJson):
    """A score: booleans read as numbers are 1 and 0."""

    __slots__ = ()

    def _counted(self) -> Json:
        """The same with booleans as digits."""
        text = f"(SELECT CASE {self.source} WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE {self.source} END)"
        return Json(self.dialect, text)

    def read(self, reading: str) -> str:
        """The SQL of the value in a reading."""
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
