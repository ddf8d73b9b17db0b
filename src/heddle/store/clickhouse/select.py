"""Which rows a calls query selects and in what order, as SQL of ClickHouse."""

from dataclasses import dataclass, field

from heddle.store.clickhouse import call_cost
from heddle.store.clickhouse.bound import Bound
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.conditions import Conditions
from heddle.store.clickhouse.expressions import Lookups, Place, field_sql
from heddle.store.clickhouse.jsonread import double_of_text
from heddle.store.clickhouse.lookups import LookUp, asked_fields
from heddle.store.conditions import FieldSql, balanced
from heddle.store.control.schema import Executor
from heddle.store.ordering import keyset_direction, ordered_terms
from heddle.wire import callfields
from heddle.wire.callfields import Kind
from heddle.wire.calls import CallsQuery, Filter

INSERTION_ORDER = ("c.inserted_at", "c.id")


@dataclass(slots=True)
class Selection:
    """WHERE and ORDER BY of a calls query; `keyset` is the direction of an order by (started_at, id) alone."""

    bound: Bound
    where: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    keyset: str = ""

    def sql(self, columns: str, extra: str = "", order: bool = True, group: str = "", joins: str = "") -> str:
        """The whole SELECT; `extra` is one more condition, `joins` stand behind the table of calls."""
        conditions = " AND ".join([*self.where, extra] if extra else self.where)
        grouped = f" GROUP BY {group}" if group else ""
        ordered = f" ORDER BY {', '.join(self.order)}" if order and self.order else ""
        source = f"calls AS c FINAL {joins}" if joins else "calls AS c FINAL"
        return f"{self.bound.with_clause()}SELECT {columns} FROM {source} WHERE {conditions}{grouped}{ordered}"


async def select(clickhouse: Clickhouse, control: Executor, query: CallsQuery) -> Selection:
    """Compile a query, with what it needs of the control tables; raises InvalidField for a field that calls lack."""
    asked_fields(query)
    bound = Bound()
    selection = Selection(bound, [f"c.project = {bound.value(query.project)}", "c.deleted_at = 0"])
    selection.where.extend(_filter(bound, query))
    place = Place(query.project, query.retention, query.expand, bound, Lookups())
    await LookUp(clickhouse, control, query, place).run(selection.where)
    if query.query is not None:
        selection.where.append(Conditions(place).compile(query.query))
    if query.cost is not None:
        sql = selection.sql(call_cost.COLUMNS, call_cost.HAS_USAGE, order=False)
        selection.where.append(await call_cost.condition(clickhouse, sql, bound, query, query.cost))
    terms = ordered_terms(query.sort)
    for term in terms:
        selection.order.extend(_order(field_sql(callfields.resolve(term.field), place), term.descending))
    selection.order = selection.order or [*INSERTION_ORDER]
    selection.keyset = keyset_direction(terms)
    return selection


def _order(sort_field: FieldSql, descending: bool) -> list[str]:
    """Sort keys of a field: nulls last both ways; JSON and feedback by presence, then as number, then as text."""
    direction = "DESC" if descending else "ASC"
    if sort_field.field is not None and sort_field.field.kind is Kind.FEEDBACK:
        return [
            f"({sort_field.sql} != '') DESC",
            f"{double_of_text(sort_field.sql)} {direction} NULLS LAST",
            f"{sort_field.sql} {direction}",
        ]
    json = sort_field.json
    if json is not None:
        numbers, texts = f"{json.cast('double')} {direction} NULLS LAST", f"{json.cast('string')} {direction}"
        return [f"{json.present()} DESC", numbers, f"{texts} NULLS LAST"]
    if sort_field.sql in ("c.started_at", "c.id"):
        return [f"{sort_field.sql} {direction}"]
    return [f"{sort_field.sql} {direction} NULLS LAST"]


def _filter(bound: Bound, query: CallsQuery) -> list[str]:
    chosen = query.filter
    conditions = []
    for column, listed in (("c.op_name", chosen.op_names), ("c.user", chosen.user_ids)):
        if listed:
            conditions.append(_named(bound, column, listed))
    for column, listed in (("c.input_refs", chosen.input_refs), ("c.output_refs", chosen.output_refs)):
        if listed:
            conditions.append(f"arrayExists(r -> {_named(bound, 'r', listed)}, {column})")
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
            conditions.append(f"{column} IN {bound.values(values)}" if values else "0")
    if chosen.call_ids:
        conditions.append(started_as(bound, query.project, chosen))
    if chosen.roots_only:
        conditions.append("c.parent_id IS NULL")
    return conditions


def started_as(bound: Bound, project: str, chosen: Filter) -> str:
    """The instants at which calls started, which is how the table of calls finds them quickly."""
    ids = bound.values(chosen.call_ids or ())
    return f"c.started_at IN (SELECT started_at FROM call_keys WHERE project = {bound.value(project)} AND id IN {ids})"


def _named(bound: Bound, column: str, listed: tuple[str, ...]) -> str:
    """Membership in exact texts and `...:*` wildcards."""
    exact = [text for text in listed if not text.endswith(":*")]
    tests = [f"{column} IN {bound.values(exact)}"] if exact else []
    tests += [f"startsWith({column}, {bound.value(text[:-1])})" for text in listed if text.endswith(":*")]
    return balanced(tests, "OR")
