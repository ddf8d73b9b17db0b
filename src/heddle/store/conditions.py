"""The typed query tree as an SQL condition, with the typing and null rules of the contract (trace-core, section 5).

What is the same in every dialect is here; a dialect says how fields, constants and readings are written.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.errors import Forbidden
from heddle.wire import times
from heddle.wire.callfields import MULTI_VALUE_FEEDBACK, CallField, Kind
from heddle.wire.query import (
    And,
    Compare,
    Contains,
    Convert,
    Field,
    In,
    Literal,
    Not,
    Operand,
    Operation,
    Or,
    Scalar,
    Size,
    bound_number,
)

_SQL_OPERATORS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class JsonReading(Protocol):
    """A JSON text and a path inside it; `nullable` when the text itself may be null, as what a ref leads to."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The path."""
        ...

    @property
    def nullable(self) -> bool:
        """True when there may be no text."""
        ...

    def cast(self, target: str) -> str:
        """The SQL of the value read as `string`, `int`, `double` or `bool`."""
        ...

    def plain_text(self) -> str:
        """The SQL of the value as text, which need only be right where it is compared with a word (see `is_word`)."""
        ...

    def size(self) -> str:
        """The SQL of the number of elements or characters; null for anything else."""
        ...

    def present(self) -> str:
        """The SQL of 1 where the value is there and not null, else 0."""
        ...


@dataclass(frozen=True, slots=True)
class FieldSql:
    """A field ready for use: `sql` without parameters, its type, and the JSON value behind it where there is one."""

    sql: str
    type: str
    json: JsonReading | None = None
    field: CallField | None = None

    @property
    def multi_value(self) -> bool:
        """True for feedback types of which a call can have many rows."""
        return (
            self.field is not None
            and self.field.kind is Kind.FEEDBACK
            and self.field.feedback_type in MULTI_VALUE_FEEDBACK
        )


@dataclass(frozen=True, slots=True)
class Value:
    """An operand as SQL; `type` is text, number, time, refs, null or json; `field` where it is a bare field."""

    sql: str
    type: str
    parameters: tuple[Scalar, ...] = ()
    field: FieldSql | None = None
    literal: Literal | None = None

    @property
    def is_text(self) -> bool:
        """True for what compares as text."""
        return self.type in ("text", "json")


class Conditions(ABC):
    """Compiles one query; `parameters` are those of positional marks, in order, where the dialect has such."""

    def __init__(self) -> None:
        self.parameters: list[Scalar] = []

    @abstractmethod
    def _field(self, path: str) -> FieldSql:
        """The SQL of a field path; raises InvalidField for one that rows lack."""

    @abstractmethod
    def _constant(self, value: str | int | float) -> tuple[str, tuple[Scalar, ...]]:
        """The SQL of a constant and its positional parameters."""

    @abstractmethod
    def _length(self, text: str) -> str:
        """The SQL of the number of characters of a text."""

    @abstractmethod
    def _spelled(self, number: str) -> str:
        """The SQL of a number as text."""

    @abstractmethod
    def _reread(self, text: str, target: str) -> str:
        """The SQL of a text read as `int`, `double` or `bool`."""

    @abstractmethod
    def _equals_column(self, field: CallField, literal: Scalar) -> str | None:
        """An equality that a column answers better than the field's own SQL, None for all others."""

    @abstractmethod
    def _has_ref(self, field: CallField, literal: Scalar) -> str:
        """The condition that a call names a ref."""

    @abstractmethod
    def _in_queue(self, queues: Sequence[Scalar]) -> str:
        """The condition that a call is in any of some annotation queues."""

    @abstractmethod
    def _any_feedback(self, field: CallField, test: str, literal: Scalar) -> str:
        """The condition that any feedback row equals (`=`), `contains` or, whatever the case, contains (`folded`)."""

    @abstractmethod
    def _no_feedback(self, field: CallField) -> str:
        """The condition that a call has no feedback row with the value."""

    @abstractmethod
    def _within(self, whole: str, part: str, folded: bool, literal: Literal | None) -> str:
        """The condition that a text is part of another; `literal` where the part is a constant."""

    def compile(self, operation: Operation) -> str:
        """The SQL of an operation; its parameters are appended to `parameters` in order."""
        return self._condition(operation)

    def _condition(self, operand: Operand) -> str:
        match operand:
            case And(operands):
                return balanced([self._condition(item) for item in operands], "AND")
            case Or(operands):
                return balanced([self._condition(item) for item in operands], "OR")
            case Not(inner):
                return f"(NOT {self._condition(inner)})"
            case Compare(op, left, right):
                return self._compare(op, left, right)
            case In(left, items):
                return self._in(left, items)
            case Contains(left, substr, folded):
                return self._contains(left, substr, folded)
            case _:
                return self._truth(self._value(operand))

    def _truth(self, value: Value) -> str:
        self.parameters.extend(value.parameters)
        return f"(ifnull({value.sql}, '') <> '')" if value.is_text else f"(ifnull({value.sql}, 0) <> 0)"

    def _value(self, operand: Operand) -> Value:
        match operand:
            case Literal():
                return self._literal(operand.value)
            case Field(path):
                field = self._field(path)
                return Value(field.sql, field.type, field=field)
            case Convert(inner, target):
                return self._convert(self._value(inner), target)
            case Size(inner):
                return self._size(self._value(inner))
            case _:
                outer, self.parameters = self.parameters, []
                sql = self._condition(operand)
                value = Value(sql, "number", tuple(self.parameters))
                self.parameters = outer
                return value

    def _literal(self, value: Scalar) -> Value:
        literal = Literal(value)
        if value is None:
            return Value("NULL", "null", literal=literal)
        kind = "text" if isinstance(value, str) else "number"
        bound = value if isinstance(value, str) else int(value) if isinstance(value, bool) else bound_number(value)
        sql, parameters = self._constant(bound)
        return Value(sql, kind, parameters, literal=literal)

    def _instant(self, value: Scalar) -> Value:
        """A constant compared with a time column: unix seconds or ISO text; null when it is no instant."""
        if isinstance(value, bool) or value is None:
            return Value("NULL", "null")
        seconds = value if isinstance(value, str) else min(max(value, -(10**12)), 10**12)
        micros = times.parse(seconds) if isinstance(seconds, str) else round(seconds * times.SECOND)
        if micros is None:
            return Value("NULL", "null")
        sql, parameters = self._constant(micros)
        return Value(sql, "time", parameters)

    def _size(self, value: Value) -> Value:
        if value.literal is not None:
            text = value.literal.value
            return self._literal(len(text) if isinstance(text, str) else None)
        json = value.field.json if value.field else None
        if json is not None:
            return Value(json.size(), "number")
        if value.type == "text":
            return Value(self._length(value.sql), "number", value.parameters)
        return Value("NULL", "number")

    def _convert(self, value: Value, target: str) -> Value:
        if value.literal is not None:
            return self._convert_literal(value.literal.value, target)
        json = value.field.json if value.field else None
        if target == "exists":
            always = value.type == "json" and not (json is not None and json.nullable)
            return Value("1" if always else f"({value.sql} IS NOT NULL)", "number", () if always else value.parameters)
        if json is not None and (json.parts or value.field is None or value.field.field is None):
            return Value(json.cast(target), "text" if target == "string" else "number")
        text = value.sql if value.is_text else self._spelled(value.sql)
        if target == "string":
            return Value(text, "text", value.parameters)
        return Value(self._reread(text, target), "number", value.parameters)

    def _convert_literal(self, value: Scalar, target: str) -> Value:
        if target == "exists":
            return Value("1" if value is not None else "0", "number")
        if value is None:
            return Value("NULL", "null")
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        if target == "string":
            return self._literal(text)
        try:
            if target == "bool":
                number: int | float = {"true": 1, "false": 0}.get(text.lower(), -1)
                number = int(text) if number < 0 else number
            else:
                number = int(text) if target == "int" else float(text)
        except ValueError:
            return Value("NULL", "null")
        return self._literal(number)

    def _compare(self, op: str, left: Operand, right: Operand) -> str:
        first, second = self._value(left), self._value(right)
        if op == "eq" and second.literal is not None and second.literal.value is None:
            return self._is_null(first)
        special = self._special(op, first, second) if second.literal is not None else None
        if special is not None:
            return special
        first, second = self._typed(first, second, op == "eq"), self._typed(second, first, op == "eq")
        if "null" in (first.type, second.type):
            times_read = [value for value in (first, second) if value.type == "time"]
            return self._never(times_read[0]) if op == "eq" and times_read else "NULL"
        if first.is_text != second.is_text:
            return "NULL"
        self.parameters.extend((*first.parameters, *second.parameters))
        return f"({first.sql} {_SQL_OPERATORS[op]} {second.sql})"

    def _special(self, op: str, first: Value, second: Value) -> str | None:
        """Comparisons with a way of their own: refs, queues, feedback of many values, columns kept in another form."""
        literal = second.literal.value if second.literal else None
        field = first.field
        if field is None or field.field is None:
            return None
        if field.type == "refs":
            return self._has_ref(field.field, literal) if op == "eq" else "NULL"
        if op != "eq":
            return None
        if field.field.kind is Kind.QUEUE:
            return self._in_queue([literal])
        if field.multi_value:
            return self._any_feedback(field.field, "=", literal)
        return self._equals_column(field.field, literal)

    def _is_null(self, value: Value) -> str:
        if value.field is not None and value.field.multi_value and value.field.field is not None:
            return self._no_feedback(value.field.field)
        self.parameters.extend(value.parameters)
        return f"({value.sql} IS NULL)"

    def _typed(self, value: Value, other: Value, equality: bool) -> Value:
        """The value as a comparison with `other` needs it: JSON cast by a constant's type, constants as instants."""
        if value.literal is not None and other.type == "time":
            return self._instant(value.literal.value)
        if value.field is not None and value.field.json is not None and other.literal is not None:
            literal = other.literal.value
            kind = "number" if isinstance(literal, (bool, int, float)) else "text"
            return Value(self._cast(value.field, literal, equality), kind)
        return value

    def _cast(self, field: FieldSql, literal: Scalar, equality: bool) -> str:
        json = field.json
        assert json is not None
        if isinstance(literal, bool):
            return json.cast("bool")
        if isinstance(literal, int):
            return json.cast("int")
        if isinstance(literal, float):
            return json.cast("double")
        if equality and isinstance(literal, str) and is_word(literal) and not json.nullable and json.parts:
            return json.plain_text()
        return field.sql

    def _in(self, left: Operand, items: tuple[Operand, ...]) -> str:
        value = self._value(left)
        constants = [item.value for item in items if isinstance(item, Literal)]
        if value.field is not None and value.field.type == "refs" and value.field.field is not None:
            field = value.field.field
            return "(" + " OR ".join([self._has_ref(field, item) for item in constants] or ["0"]) + ")"
        if value.field is not None and value.field.field is not None and value.field.field.kind is Kind.QUEUE:
            return self._in_queue(constants)
        if len(constants) == len(items):
            value = self._shared_cast(value, constants)
        self.parameters.extend(value.parameters)
        members: list[Value] = []
        for item in items:
            member = self._value(item)
            if member.literal is not None and value.type == "time":
                member = self._instant(member.literal.value)
            if member.type != "null" and member.is_text == value.is_text:
                members.append(member)
                self.parameters.extend(member.parameters)
        return self._among(value, members) if members else self._never(value)

    def _among(self, value: Value, members: list[Value]) -> str:
        """The condition that a value is one of others."""
        return f"({value.sql} IN ({', '.join(member.sql for member in members)}))"

    def _never(self, value: Value) -> str:
        """False; unknown when the value is null (the parameters of the value are bound already)."""
        return f"({value.sql} IS NULL AND NULL)"

    def _shared_cast(self, value: Value, constants: list[Scalar]) -> Value:
        """All constants numeric: the field is cast once; all words: the cheaper text is enough."""
        json = value.field.json if value.field else None
        if json is None or not constants:
            return value
        kinds = {type(constant) for constant in constants}
        if kinds <= {int, float}:
            return Value(json.cast("int" if kinds == {int} else "double"), "number")
        if kinds == {bool}:
            return Value(json.cast("bool"), "number")
        words = kinds == {str} and all(is_word(str(constant)) for constant in constants)
        if words and json.parts and not json.nullable:
            return Value(json.plain_text(), "text")
        return value

    def _contains(self, left: Operand, substr: Operand, folded: bool) -> str:
        value, part = self._value(left), self._value(substr)
        if part.literal is not None and isinstance(part.literal.value, (int, float)):
            raise Forbidden("Illegal type of the substr of $contains: a text is needed, not a number")
        field = value.field
        if field is not None and field.field is not None and part.literal is not None:
            if field.type == "refs":
                return self._has_ref(field.field, part.literal.value)
            if field.multi_value:
                return self._any_feedback(field.field, "folded" if folded else "contains", part.literal.value)
        if not value.is_text or not part.is_text:
            return "0"
        condition = self._within(value.sql, part.sql, folded, part.literal)
        self.parameters.extend((*value.parameters, *part.parameters))
        return condition


def is_word(literal: str) -> bool:
    """True when only a JSON string can have this text: not empty, no number, no bool, no container."""
    return bool(literal) and literal[0].isalpha() and literal.lower() not in ("true", "false", "nan", "inf", "infinity")


def holds_for_missing(op: str, literal: Scalar) -> bool:
    """True when a call without the value (or still without an end) can match: a walk from the bodies would miss it."""
    if isinstance(literal, str):
        return op in ("lt", "lte") or literal == ""
    return literal is None


def balanced(conditions: list[str], word: str) -> str:
    """Conditions joined as a tree of little depth: databases bound the depth of an expression, not its length."""
    if len(conditions) == 1:
        return f"({conditions[0]})"
    middle = len(conditions) // 2
    return f"({balanced(conditions[:middle], word)} {word} {balanced(conditions[middle:], word)})"
