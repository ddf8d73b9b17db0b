"""Which rows of evaluations a query selects and in what order, as SQL over the rows of `trial_rows`.

A row's value at a path is the JSON text of the first trial that has one there; of scores, the order takes the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.errors import InvalidRequest
from heddle.store import jsonpath
from heddle.store.conditions import FieldSql, Value
from heddle.store.jsonpath import quote
from heddle.store.sqlite.conditions import Conditions, Parameters
from heddle.store.sqlite.expressions import JsonValue, Place
from heddle.wire.query import Operand, Operation, Scalar, split_path
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
    """The statement that lists rows; `parameters` come in the order of its marks."""

    project: str
    number: int
    evaluations: tuple[str, ...]
    joins: dict[str, None] = field(default_factory=dict)
    trial_values: dict[str, str] = field(default_factory=dict)
    row_values: dict[str, str] = field(default_factory=dict)
    data_values: dict[str, str] = field(default_factory=dict)
    spreads: dict[str, str] = field(default_factory=dict)
    where: list[str] = field(default_factory=list)
    where_parameters: Parameters = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    intersection: bool = False
    has_mentions: bool = False
    """True when some value of a trial or row stands in the statement more than once."""

    @property
    def parameters(self) -> Parameters:
        """What the marks stand for."""
        needed = [len(self.evaluations)] if self.intersection and len(self.evaluations) > 1 else []
        return [self.number, *self.evaluations, *needed, *self.where_parameters]

    def sql(self, columns: str) -> str:
        """The SELECT over rows `r`, with its order."""
        marks = ", ".join("?" * len(self.evaluations))
        values = "".join(f", {sql} AS {name}" for name, sql in self.trial_values.items())
        trials = f"SELECT t.row_digest, t.evaluation, t.rid{values}" + (
            f", {_PLACE} AS place" if self.row_values else ""
        )
        trials += f" FROM eval_trials t {' '.join(self.joins)} WHERE t.project = ? AND t.evaluation IN ({marks})"
        rows = "SELECT v.row_digest" + "".join(f", {sql} AS {name}" for name, sql in self.row_values.items())
        rows += " FROM v GROUP BY v.row_digest"
        if self.intersection and len(self.evaluations) > 1:
            rows += " HAVING count(DISTINCT v.evaluation) = ?"
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
        conditions = []
        for item in items:
            compiled = RowConditions(selection, item.evaluation)
            conditions.append(compiled.compile(item.query))
            selection.where_parameters.extend(compiled.parameters)
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


@dataclass(frozen=True, slots=True)
class ScoreValue(JsonValue):
    """A score: booleans read as numbers are 1 and 0."""

    def cast(self, target: str) -> str:
        """The value read as `string`, `int`, `double` or `bool`."""
        if target in ("int", "double"):
            return JsonValue(self.counted, ()).cast(target)
        return JsonValue(self.source, ()).cast(target)

    @property
    def counted(self) -> str:
        """The JSON text with booleans as digits."""
        return f"(SELECT CASE {self.source} WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE {self.source} END)"


class RowConditions(Conditions):
    """The query language over a row's values: scores, inputs, output and the digest."""

    def __init__(self, selection: RowSelection, evaluation: str | None) -> None:
        super().__init__(Place(selection.number, selection.project, ""))
        self._selection = selection
        self._evaluation = evaluation

    def compile(self, operation: Operation) -> str:
        """The SQL of an operation; its parameters are appended to `parameters` in order."""
        return self._condition(operation)

    def _field(self, path: str) -> FieldSql:
        if "\x00" in path:
            raise InvalidRequest("Field path contains a NUL character")
        if path == "row_digest":
            return FieldSql("r.row_digest", "text")
        kind = ScoreValue if path.startswith("scores.") else JsonValue
        value = kind(self._selection.first(path, self._evaluation), ())
        return FieldSql(value.cast("string"), "json", value)

    def _convert(self, value: Value, target: str) -> Value:
        json = value.field.json if value.field is not None else None
        if target == "exists" and isinstance(json, JsonValue):
            return Value(f"({json.source} IS NOT NULL)", "number")
        return super()._convert(value, target)

    def _cast(self, field: FieldSql, literal: Scalar, equality: bool) -> str:
        if isinstance(field.json, ScoreValue) and literal in ("0", "1"):
            return JsonValue(field.json.counted, ()).cast("string")
        return super()._cast(field, literal, equality)

    def _note_indexable(self, operand: Operand) -> None:
        """Rows of evaluations have no path indexes."""
