"""Operands of a query over the small tables: SQL expressions with a kind, and how kinds are read as others.

Contract: trace-core, section 5: typing of dynamic fields, constants beside time columns, `$convert`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import sqlalchemy as sa

from heddle.store.control.jsonread import JsonRead, Reread, Spelled
from heddle.wire import times
from heddle.wire.query import Literal, Scalar, bound_number

Expression = sa.ColumnElement[Any]

_READINGS = {"int": "integer", "double": "double", "bool": "boolean"}


class Kind(Enum):
    """What a column or an operand holds."""

    TEXT = "text"
    NUMBER = "number"
    INSTANT = "instant"
    JSON = "json"
    TEXTS = "list of texts"
    TEXT_MAP = "texts by key"
    NUMBER_MAP = "numbers by key"
    NULL = "null"


STRUCTURES = (Kind.TEXTS, Kind.TEXT_MAP, Kind.NUMBER_MAP)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that requests can name."""

    kind: Kind
    expression: Expression


@dataclass(frozen=True, slots=True)
class Value:
    """An operand as SQL; `json` where it is a path (column, parts) into JSON, `literal` where it is a constant."""

    expression: Expression
    kind: Kind
    json: tuple[Expression, tuple[str, ...]] | None = None
    literal: Literal | None = None

    @property
    def family(self) -> Kind:
        """The kind that decides what the value compares with: JSON text is text."""
        return Kind.TEXT if self.kind is Kind.JSON else self.kind


def is_text(literal: Literal | None) -> bool:
    """True for a text constant."""
    return literal is not None and isinstance(literal.value, str)


def beside(value: Value, other: Value) -> Value:
    """The value as its comparison with `other` needs it: JSON read as a constant's type, constants as instants."""
    if value.literal is not None:
        return instant(value.literal) if other.kind is Kind.INSTANT else value
    if value.json is not None and other.literal is not None:
        reading = _reading(other.literal.value)
        if reading is not None:
            return Value(JsonRead(*value.json, reading), Kind.NUMBER)
    return value


def _reading(constant: Scalar) -> str | None:
    if isinstance(constant, bool):
        return "boolean"
    if isinstance(constant, int):
        return "integer"
    return "double" if isinstance(constant, float) else None


def shared_reading(constants: list[Scalar]) -> str | None:
    """How JSON beside all of these constants is read; None: as text."""
    readings = {_reading(constant) for constant in constants}
    if readings == {"integer", "double"}:
        return "double"
    return readings.pop() if len(readings) == 1 else None


def constant(literal: Literal) -> Value:
    """A constant; booleans are 1 and 0."""
    value = literal.value
    if value is None:
        return Value(sa.null(), Kind.NULL, literal=literal)
    if isinstance(value, str):
        return Value(sa.literal(value, sa.Text()), Kind.TEXT, literal=literal)
    number = int(value) if isinstance(value, bool) else bound_number(value)
    kind = sa.Float() if isinstance(number, float) else sa.BigInteger()
    return Value(sa.literal(number, kind), Kind.NUMBER, literal=literal)


def plain(value: Value) -> Any:
    """The Python value behind a constant."""
    assert isinstance(value.expression, sa.BindParameter)
    return value.expression.value


def instant(literal: Literal) -> Value:
    """A constant beside a time column: unix seconds or ISO text; null when it is no instant."""
    value = literal.value
    if isinstance(value, bool) or value is None:
        return Value(sa.null(), Kind.NULL, literal=literal)
    micros = times.parse(value) if isinstance(value, str) else round(min(max(value, -(10**12)), 10**12) * times.SECOND)
    if micros is None:
        return Value(sa.null(), Kind.NULL, literal=literal)
    return Value(sa.literal(micros, sa.BigInteger()), Kind.INSTANT, literal=literal)


def sized(value: Value) -> Value:
    """`$size`: elements of a list or an object, characters of a text; null for what has none."""
    if value.literal is not None:
        text = value.literal.value
        return constant(Literal(len(text) if isinstance(text, str) else None))
    if value.json is not None:
        return Value(JsonRead(*value.json, "size"), Kind.NUMBER)
    if value.kind in STRUCTURES:
        return Value(JsonRead(value.expression, (), "size"), Kind.NUMBER)
    if value.kind is Kind.TEXT:
        return Value(sa.func.length(value.expression, type_=sa.BigInteger()), Kind.NUMBER)
    return constant(Literal(None))


def _as_text(value: Value) -> Expression:
    if value.kind in (Kind.NUMBER, Kind.INSTANT):
        return Spelled(value.expression, value.kind is Kind.INSTANT)
    return value.expression


def _converted_constant(value: Scalar, target: str) -> Value:
    if target == "exists":
        return constant(Literal(value is not None))
    if value is None:
        return constant(Literal(None))
    text = _spelled(value)
    try:
        read: Scalar = text
        if target == "bool":
            read = {"true": 1, "false": 0}[text] if text in ("true", "false") else int(text)
        elif target != "string":
            read = int(text) if target == "int" else float(text)
    except ValueError:
        read = None
    return constant(Literal(read))


def _spelled(value: str | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def converted(value: Value, target: str) -> Value:
    """`$convert`: the value read as double, string, int, bool or exists; null when it cannot be."""
    if value.literal is not None:
        return _converted_constant(value.literal.value, target)
    if target == "exists":
        always = value.json is not None or value.kind in STRUCTURES
        return Value(sa.literal(1) if always else sa.case((value.expression.is_(None), 0), else_=1), Kind.NUMBER)
    if value.kind is Kind.NULL:
        return value
    if target == "string":
        return Value(_as_text(value), Kind.TEXT)
    reading = _READINGS[target]
    if value.json is not None and value.json[1]:
        return Value(JsonRead(*value.json, reading), Kind.NUMBER)
    return Value(Reread(_as_text(value), reading), Kind.NUMBER)
