"""Groups of agent spans and what is computed over them, as SQL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.errors import InvalidField, InvalidRequest
from heddle.store.control.agents.fields import (
    BOOLEAN,
    CUSTOM_TYPES,
    DATETIME,
    NUMBER,
    STRING,
    Fields,
    Typed,
    column_name,
)
from heddle.store.control.agents.query import condition
from heddle.store.control.agents.table import MORE_TEXTS, TEXTS
from heddle.store.control.expressions import Expression
from heddle.wire.query import Operation

AGGREGATIONS = {
    DATETIME: frozenset(("min", "max", "count", "count_distinct")),
    NUMBER: frozenset(("sum", "avg", "min", "max", "count", "count_distinct")),
    BOOLEAN: frozenset(("count", "count_distinct", "count_true", "count_false")),
    STRING: frozenset(("count", "count_distinct")),
}
"""What can be computed over values of a type."""
ZERO_OF_NOTHING = frozenset(("sum", "count", "count_distinct", "count_true", "count_false"))


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A value of a span: a field, a derived value, or a custom attribute (`source` is its map)."""

    source: str
    key: str


@dataclass(frozen=True, slots=True)
class GroupRef:
    """What spans are grouped by, and its name in the answer."""

    source: str
    key: str
    alias: str


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a group: an aggregation of a value, over the spans that match `filter`."""

    alias: str
    aggregation: str
    value: ValueRef | None = None
    value_type: str | None = None
    filter: Operation | None = None


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Keeps the groups whose figure lies in `[low, high]`; instants are microseconds."""

    group_by: tuple[GroupRef, ...]
    measure: Measure
    low: float | None
    high: float | None
    is_instant: bool = False


def group_expression(fields: Fields, ref: GroupRef) -> Typed:
    """What a group reference groups by; raises InvalidField where spans cannot be grouped by it."""
    if ref.source in CUSTOM_TYPES:
        return fields.custom(ref.source, ref.key)
    column = column_name(ref.key)
    if column in (*TEXTS, *MORE_TEXTS):
        return fields.field(column)
    raise InvalidField(f"Spans cannot be grouped by {ref.key[:200]}")


def value_expression(fields: Fields, ref: ValueRef, expected: str | None) -> Typed:
    """A value whose nothing is null; raises InvalidField for an unknown one, InvalidRequest for another type."""
    typed = fields.value_of(ref.source, ref.key)
    if expected is not None and typed.type != expected:
        raise InvalidRequest(f"{ref.key[:200]} is of the type {typed.type}, not {expected}")
    if typed.type == STRING and ref.source == "field":
        return Typed(sa.func.nullif(typed.expression, ""), STRING)
    return typed


def aggregate(fields: Fields, measure: Measure) -> Typed:
    """The figure of a measure; raises InvalidRequest for an aggregation that its type does not allow."""
    kept = None if measure.filter is None else condition(measure.filter, fields)
    if measure.value is None:
        if measure.aggregation != "count":
            raise InvalidRequest(f"{measure.aggregation} needs a value (measure {measure.alias})")
        return Typed(sa.func.count() if kept is None else sa.func.count(sa.case((kept, 1))), NUMBER)
    return aggregated(measure.aggregation, value_expression(fields, measure.value, measure.value_type), kept)


def aggregated(name: str, value: Typed, kept: Expression | None = None) -> Typed:
    """An aggregation of a value over the spans that `kept` holds for."""
    if name not in AGGREGATIONS[value.type]:
        raise InvalidRequest(f"{name} cannot be computed over values of the type {value.type}")
    taken = value.expression if kept is None else sa.case((kept, value.expression))
    if name == "count":
        return Typed(sa.func.count(taken), NUMBER)
    if name == "count_distinct":
        return Typed(sa.func.count(sa.distinct(taken)), NUMBER)
    if name in ("count_true", "count_false"):
        wanted = 1 if name == "count_true" else 0
        return Typed(sa.func.count(sa.case((taken == wanted, 1))), NUMBER)
    if name in ("sum", "avg"):
        added = taken if name == "avg" else value.summed if kept is None else sa.case((kept, value.summed))
        # As floating point: sums of whole numbers would fail beyond 64 bits.
        return Typed(getattr(sa.func, name)(sa.cast(added, sa.Float())), NUMBER)
    return Typed(getattr(sa.func, name)(taken), value.type)


def having(fields: Fields, filters: Sequence[GroupFilter]) -> list[Expression]:
    """The conditions that group filters put on groups; raises InvalidRequest for bounds of another type."""
    tests: list[Expression] = []
    for item in filters:
        figure = aggregate(fields, item.measure)
        if item.is_instant != (figure.type == DATETIME):
            raise InvalidRequest(f"The bounds of {item.measure.alias} must be of its type, {figure.type}")
        if item.low is not None:
            tests.append(figure.expression >= item.low)
        if item.high is not None:
            tests.append(figure.expression <= item.high)
    return tests


def labelled(typed: Sequence[tuple[str, Typed]]) -> list[Any]:
    """Columns of a SELECT with their names."""
    return [value.expression.label(name) for name, value in typed]
