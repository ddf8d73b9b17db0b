"""The typed query tree over the small tables as SQLAlchemy conditions.

Contract: trace-core, section 5, "Fields for feedback/cost queries". A condition is true, false or unknown (null).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from heddle.errors import Forbidden
from heddle.store.control.jsonread import (
    CodePoints,
    Condition,
    JsonRead,
    Lowered,
    Member,
    Negation,
    Truth,
    Within,
    bracketed,
)
from heddle.store.control.rowvalues import (
    STRUCTURES,
    Expression,
    Kind,
    Value,
    beside,
    constant,
    converted,
    instant,
    is_text,
    plain,
    shared_reading,
    sized,
)
from heddle.wire.query import And, Compare, Contains, Convert, Field, In, Literal, Not, Operand, Operation, Or, Size

_GROUP = 200
_OPERATORS: dict[str, Callable[[Expression, Expression], Expression]] = {
    "eq": lambda left, right: left == right,
    "gt": lambda left, right: left > right,
    "gte": lambda left, right: left >= right,
    "lt": lambda left, right: left < right,
    "lte": lambda left, right: left <= right,
}


class Junction(Condition):
    """Conditions joined by AND or OR, written in groups of groups: SQLite limits how deep an expression may be."""

    inherit_cache = False

    def __init__(self, word: str, conditions: Sequence[Expression]) -> None:
        self.word = word
        self.conditions = conditions


@compiles(Junction)
def _junction(element: Junction, compiler: SQLCompiler, **options: Any) -> str:
    parts = [bracketed(condition, compiler, options) for condition in element.conditions]
    word = f" {element.word} "
    while len(parts) > _GROUP:
        parts = [f"({word.join(parts[start : start + _GROUP])})" for start in range(0, len(parts), _GROUP)]
    return parts[0] if len(parts) == 1 else f"({word.join(parts)})"


def pins(query: Operand, columns: Collection[str]) -> bool:
    """True when a query names the values of one of the columns, so that an index on it leaves few rows."""
    match query:
        case And(operands):
            return any(pins(operand, columns) for operand in operands)
        case Or(operands):
            return all(pins(operand, columns) for operand in operands)
        case Compare("eq", Field(path), Literal()) | Compare("eq", Literal(), Field(path)) | In(Field(path), _):
            return path in columns
        case _:
            return False


class Conditions:
    """Compiles queries; `resolve` gives the operand of a field path and raises InvalidRequest for an unknown one."""

    def __init__(self, resolve: Callable[[str], Value]) -> None:
        self._resolve = resolve

    def compile(self, operation: Operation) -> Expression:
        """The query as a condition; unknown (null) selects no row."""
        return self._condition(operation)

    def _condition(self, operand: Operand) -> Expression:
        match operand:
            case And() | Or():
                word = "AND" if isinstance(operand, And) else "OR"
                return Junction(word, [self._condition(item) for item in _flat(operand, type(operand))])
            case Not(Not(inner)):
                return self._condition(inner)
            case Not(inner):
                return Negation(self._condition(inner))
            case Compare(op, left, right):
                return self._compare(op, self._value(left), self._value(right))
            case In(left, items):
                return self._in(self._value(left), [self._value(item) for item in items])
            case Contains(whole, substr, folded):
                return self._contains(self._value(whole), self._value(substr), folded)
            case _:
                return _truth(self._value(operand))

    def _value(self, operand: Operand) -> Value:
        match operand:
            case Literal():
                return constant(operand)
            case Field(path):
                return self._resolve(path)
            case Convert(inner, target):
                return converted(self._value(inner), target)
            case Size(inner):
                return sized(self._value(inner))
            case _:
                return Value(Truth(self._condition(operand)), Kind.NUMBER)

    def _compare(self, op: str, left: Value, right: Value) -> Expression:
        first, second = beside(left, right), beside(right, left)
        kinds = (first.kind, second.kind)
        if Kind.NULL in kinds or any(kind in STRUCTURES for kind in kinds):
            # A text that is no instant differs from every instant, while null is unknown.
            unlike = op == "eq" and Kind.INSTANT in kinds and any(is_text(side.literal) for side in (left, right))
            return sa.false() if unlike else sa.null()
        if first.family is not second.family:
            return sa.null()
        if op != "eq" and first.family is Kind.TEXT:
            return _OPERATORS[op](CodePoints(first.expression), second.expression)
        return _OPERATORS[op](first.expression, second.expression)

    def _in(self, left: Value, items: list[Value]) -> Expression:
        constants = [item.literal.value for item in items if item.literal is not None]
        cast = shared_reading(constants) if len(constants) == len(items) else None
        if cast is not None and left.json is not None:
            left = Value(JsonRead(*left.json, cast), Kind.NUMBER)
        same: list[Any] = []
        tests: list[Expression] = []
        for item in items:
            member = instant(item.literal) if item.literal is not None and left.kind is Kind.INSTANT else item
            if member.kind is Kind.NULL or left.kind in STRUCTURES or member.family is not left.family:
                continue
            if item.literal is not None:
                same.append(plain(member))
            else:
                tests.append(left.expression == member.expression)
        if same:
            tests.append(
                left.expression.in_(sa.bindparam("items", same, _item_type(same), unique=True, expanding=True))
            )
        # Null in nothing is unknown, everything else in nothing is false.
        return Junction("OR", tests) if tests else sa.and_(left.expression.is_(None), sa.null())

    def _contains(self, whole: Value, part: Value, folded: bool) -> Expression:
        if whole.kind is Kind.TEXTS:
            return Member(whole.expression, part.expression, folded) if part.kind is Kind.TEXT else sa.false()
        if part.kind is Kind.NUMBER:
            raise Forbidden("Illegal type of the substr of $contains: a text is needed, not a number")
        if whole.family is not Kind.TEXT or part.family is not Kind.TEXT:
            return sa.false()
        if folded:
            return Within(Lowered(whole.expression), Lowered(part.expression))
        return Within(whole.expression, part.expression)


def _flat(operand: And | Or, kind: type[And | Or]) -> Iterator[Operand]:
    """The operands, with those of operands of the same kind in their place: brackets are scarce (see `bracketed`)."""
    for item in operand.operands:
        if isinstance(item, kind):
            yield from _flat(item, kind)
        else:
            yield item


def _item_type(items: Sequence[Any]) -> sa.types.TypeEngine[Any]:
    if isinstance(items[0], str):
        return sa.Text()
    return sa.Float() if any(isinstance(item, float) for item in items) else sa.BigInteger()


def _truth(value: Value) -> Expression:
    """What a bare operand means as a condition: neither empty, 0 nor null."""
    if value.kind is Kind.NULL:
        return sa.false()
    if value.kind in STRUCTURES:
        return value.expression.not_in(["[]", "{}"])
    nothing: str | int = "" if value.family is Kind.TEXT else 0
    return sa.func.coalesce(value.expression, nothing) != nothing
