"""Which rows a calls query selects and in what order, as SQL."""

import sqlite3
from dataclasses import dataclass, field

from heddle.store import jsonpath
from heddle.store.conditions import FieldSql
from heddle.store.ordering import keyset_direction, ordered_terms
from heddle.store.sqlite import call_cost
from heddle.store.sqlite.conditions import Conditions, Parameters
from heddle.store.sqlite.expressions import Place, field_sql
from heddle.store.sqlite.names import NameReader
from heddle.wire import callfields, refs
from heddle.wire.callfields import CallField, Kind
from heddle.wire.calls import CallsQuery, Filter


@dataclass(slots=True)
class Selection:
    """FROM, WHERE and ORDER BY of a calls query; `keyset` is the direction of an order by (started_at, id) alone."""

    where: list[str] = field(default_factory=list)
    parameters: Parameters = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    bodies: set[str] = field(default_factory=set)
    indexable: list[tuple[str, str]] = field(default_factory=list)
    keyset: str = ""
    driver: str = ""

    def source(self) -> str:
        """The FROM clause; a body table whose index answers the query drives the join."""
        if self.driver == "body_in":
            joins = ["body_in bi CROSS JOIN calls c ON c.rid = bi.rid"]
        elif self.driver == "body_out":
            joins = ["body_out bo CROSS JOIN calls c ON c.rid = bo.rid"]
        else:
            joins = ["calls c"]
        if "body_in" in self.bodies and self.driver != "body_in":
            joins.append("CROSS JOIN body_in bi ON bi.rid = c.rid")
        if "body_out" in self.bodies and self.driver != "body_out":
            joins.append("LEFT JOIN body_out bo ON bo.rid = c.rid")
        return " ".join(joins)

    def sql(self, columns: str, extra: str = "", order: bool = True) -> str:
        """The whole SELECT; `extra` is one more condition."""
        conditions = " AND ".join([*self.where, extra] if extra else self.where)
        ordered = f" ORDER BY {', '.join(self.order)}" if order and self.order else ""
        return f"SELECT {columns} FROM {self.source()} WHERE {conditions}{ordered}"


def select(raw: sqlite3.Connection, names: NameReader, query: CallsQuery) -> Selection | None:
    """Compile a query; None when the project has no call at all. Raises InvalidField for a field that calls lack."""
    number = names.number(raw, query.project)
    place = Place(number or 0, query.project, refs.external_project(query.project) or "", query.retention, query.expand)
    selection = Selection(["c.project = ?", "c.deleted_at IS NULL", "c.started_at IS NOT NULL"], [place.number])
    conditions = Conditions(place)
    compiled = conditions.compile(query.query) if query.query is not None else ""
    terms = ordered_terms(query.sort)
    for term in terms:
        sort_field = callfields.resolve(term.field)
        selection.order.extend(_order(field_sql(sort_field, place), term.descending))
        selection.bodies |= _bodies(sort_field)
    if number is None:
        return None
    for sql, parameters in _filter(raw, names, number, query.filter):
        selection.where.append(sql)
        selection.parameters.extend(parameters)
    if query.cost is not None:
        selection.where.append(call_cost.condition(raw, query.cost))
    if compiled:
        selection.where.append(compiled)
        selection.parameters.extend(conditions.parameters)
        selection.indexable = conditions.indexable
        for item in conditions.fields:
            selection.bodies |= _bodies(item)
    selection.keyset = keyset_direction(terms)
    return selection


def _bodies(item: CallField) -> set[str]:
    if item.kind is Kind.JSON:
        return {"body_in" if item.column in ("inputs", "attributes", "otel_dump") else "body_out"}
    return {"body_out"} if item.column == "exception" else set()


def _order(sort_field: FieldSql, descending: bool) -> list[str]:
    """Sort keys of a field: nulls last both ways; JSON and feedback by presence, then as number, then as text."""
    direction = "DESC" if descending else "ASC"
    if sort_field.field is not None and sort_field.field.kind is Kind.FEEDBACK:
        return [
            f"({sort_field.sql} <> '') DESC",
            f"{jsonpath.double_of_text(sort_field.sql)} {direction} NULLS LAST",
            f"{sort_field.sql} {direction}",
        ]
    json = sort_field.json
    if json is not None:
        text = json.cast("string")
        return [
            f"ifnull({json.present()}, 0) DESC",
            f"{json.cast('double')} {direction} NULLS LAST",
            f"{text} {direction} NULLS LAST",
        ]
    if sort_field.sql in ("c.started_at", "c.id"):
        return [f"{sort_field.sql} {direction}"]
    return [f"{sort_field.sql} {direction} NULLS LAST"]


def _filter(raw: sqlite3.Connection, names: NameReader, project: int, chosen: Filter) -> list[tuple[str, Parameters]]:
    conditions: list[tuple[str, Parameters]] = []
    if chosen.op_names:
        conditions.append((_numbers("c.op", names.numbers(raw, chosen.op_names)), []))
    if chosen.user_ids:
        conditions.append((_numbers("c.user", names.numbers(raw, chosen.user_ids)), []))
    for side, listed in ((0, chosen.input_refs), (1, chosen.output_refs)):
        if listed:
            inside = _numbers("ref", names.numbers(raw, listed))
            conditions.append(
                (f"c.rid IN (SELECT rid FROM call_refs WHERE project = ? AND side = {side} AND {inside})", [project])
            )
    texts = (
        ("c.parent_id", chosen.parent_ids or None),
        ("c.trace_id", chosen.trace_ids or None),
        ("c.id", chosen.call_ids or None),
        ("c.run_id", chosen.run_ids or None),
        ("c.thread_id", chosen.thread_ids),
        ("c.turn_id", chosen.turn_ids),
    )
    for column, values in texts:
        if values is not None:
            marks = ", ".join("?" * len(values))
            conditions.append((f"{column} IN ({marks})" if len(values) != 1 else f"{column} = ?", list(values)))
    if chosen.roots_only:
        conditions.append(("c.parent_id IS NULL", []))
    return conditions


def _numbers(column: str, numbers: list[int]) -> str:
    """Membership of a column in numbers that stand in the text, as there may be more than SQLite binds."""
    if len(numbers) == 1:
        return f"{column} = {numbers[0]}"
    return f"{column} IN ({', '.join(map(str, numbers))})"
