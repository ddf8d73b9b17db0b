"""Conditions over agent spans: the query language with typed custom attributes.

A name that is no field means the custom attribute of that key and of the type of the constant that it stands beside;
`custom_attrs_int.retries` and its like name one type. A text that is not said equals both null and the empty text.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from heddle.errors import InvalidField, InvalidRequest
from heddle.store.control.agents.fields import COSTS, CUSTOM_TYPES, UNREAD, Fields, column_name
from heddle.store.control.agents.sql import Listed
from heddle.store.control.agents.table import MORE_NUMBERS, MORE_TEXTS, SHOWN, TEXTS, TOKENS, agent_spans
from heddle.store.control.expressions import Expression, QueryCondition
from heddle.store.query.compiler import Kind
from heddle.wire.query import And, Compare, Contains, Convert, Field, In, Literal, Not, Operand, Operation, Or, Size

_FIELDS = frozenset((*TEXTS, *TOKENS, *MORE_TEXTS, *MORE_NUMBERS, "started_at", "ended_at"))
_COMPUTED = frozenset(("duration_ms", "total_tokens", *COSTS))
_MAPS: dict[type, str] = {
    bool: "custom_attrs_bool",
    int: "custom_attrs_int",
    float: "custom_attrs_float",
    str: "custom_attrs_string",
}
_READ_AS: dict[str, type] = {"int": int, "double": float, "bool": bool, "string": str, "exists": str}


@dataclass(frozen=True, slots=True)
class Targets:
    """Spans that stand out by what was said about them, their turn (trace) or their conversation."""

    span_ids: Sequence[str] = ()
    trace_ids: Sequence[str] = ()
    conversation_ids: Sequence[str] = ()

    def condition(self) -> Expression:
        """The spans as a condition."""
        c = agent_spans.c
        named = ((c.span_id, self.span_ids), (c.trace_id, self.trace_ids), (c.conversation_id, self.conversation_ids))
        tests = [Listed(column, items) for column, items in named if items]
        return sa.or_(*tests) if tests else sa.false()


@dataclass(frozen=True, slots=True)
class SpanFilter:
    """Which spans of a project: started in `[after, before)` microseconds, matching a query and all targets."""

    project: str
    after: int | None = None
    before: int | None = None
    query: Operation | None = None
    targets: Sequence[Targets] = ()
    conditions: Sequence[Expression] = field(default=())

    async def compiled(self, fields: Fields) -> Expression:
        """The filter as one condition, made off the event loop where a client's query is in it."""
        return self.compile(fields) if self.query is None else await asyncio.to_thread(self.compile, fields)

    def compile(self, fields: Fields) -> Expression:
        """The filter as one condition."""
        c = agent_spans.c
        tests: list[Expression] = [c.project == self.project, SHOWN]
        if self.after is not None:
            tests.append(c.started_at >= self.after)
        if self.before is not None:
            tests.append(c.started_at < self.before)
        if self.query is not None:
            tests.append(condition(self.query, fields))
        tests += [target.condition() for target in self.targets]
        return sa.and_(*tests, *self.conditions)


def condition(query: Operation, fields: Fields) -> Expression:
    """A query as a condition; raises InvalidField for a name that means nothing, InvalidRequest for bad constants."""
    resolved = _typed(query, None)
    assert not isinstance(resolved, (Literal, Field, Convert, Size))
    return QueryCondition(resolved, fields.value)


def _typed(operand: Operand, beside: type | None) -> Operand:
    """The operand with every name resolved; `beside` is the type of the constant that it stands beside."""
    match operand:
        case Field(path):
            return Field(_path(path, beside))
        case Literal():
            return operand
        case Convert(inner, to):
            return Convert(_typed(inner, _READ_AS[to]), to)
        case Size(inner):
            return Size(_typed(inner, None))
        case And(operands):
            return And(tuple(_typed(item, None) for item in operands))
        case Or(operands):
            return Or(tuple(_typed(item, None) for item in operands))
        case Not(inner):
            return Not(_typed(inner, None))
        case Compare(op, left, right):
            return _compared(Compare(op, left, right))
        case In(left, items):
            return In(_typed(left, _common(items)), tuple(_typed(item, None) for item in items))
        case Contains(whole, part, folded):
            return Contains(_typed(whole, str), _typed(part, None), folded)


def _compared(test: Compare) -> Operand:
    for value, other in ((test.left, test.right), (test.right, test.left)):
        if isinstance(other, Literal) and other.value is None:
            if test.op != "eq":
                raise InvalidRequest(f"${test.op} cannot compare with null")
            return _missing(value)
    return Compare(test.op, _typed(test.left, _kind(test.right)), _typed(test.right, _kind(test.left)))


def _missing(value: Operand) -> Operand:
    """A condition that holds where nothing is said."""
    named = _typed(value, None)
    if isinstance(named, Field) and Fields().value(named.path).kind is Kind.TEXT and "." not in named.path:
        return Compare("eq", named, Literal(""))
    return Compare("eq", Convert(named, "exists"), Literal(0))


def _path(path: str, beside: type | None) -> str:
    column = column_name(path)
    if column in _FIELDS or column in _COMPUTED:
        return column
    source, dot, key = path.partition(".")
    if source in CUSTOM_TYPES:
        if not (dot and key):
            raise InvalidField(f"{source} needs a key: {source}.<key>")
        return path
    if column in UNREAD:
        return column
    if beside is None:
        raise InvalidField(
            f"Unknown field: {path[:200]}; a custom attribute stands beside a constant or is named with its type: "
            f"{', '.join(f'{name}.<key>' for name in CUSTOM_TYPES)}"
        )
    return f"{_MAPS[beside]}.{path}"


def _kind(operand: Operand) -> type | None:
    if isinstance(operand, Literal):
        return None if operand.value is None else type(operand.value)
    return _READ_AS[operand.to] if isinstance(operand, Convert) else None


def _common(items: Sequence[Operand]) -> type | None:
    kinds = {kind for item in items if (kind := _kind(item)) is not None}
    if kinds == {int, float}:
        return float
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidRequest(f"The constants of one $in list must have one type, got {names}")
    return kinds.pop() if kinds else None
