"""The typed query tree (`wire/query.py`) as an SQL condition: typing and null rules, the same for every database.

A table says what a field path means (`Resolve`), a dialect how values are written and read. A condition is true, false
or unknown (null).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Protocol

from heddle.errors import InvalidRequest
from heddle.wire import times
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
    Or,
    Scalar,
    Search,
    Size,
    bound_number,
)

_SQL_OPERATORS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_READINGS = {"string": "text", "int": "integer", "double": "double", "bool": "boolean"}
_MOST_JOINED = 8


class Kind(Enum):
    """What a field or an operand holds."""

    TEXT = "text"
    NUMBER = "number"
    INSTANT = "instant"
    JSON = "json"
    REFS = "refs"
    TEXTS = "list of strings"
    TEXT_MAP = "strings by key"
    NUMBER_MAP = "numbers by key"
    NULL = "null"


STRUCTURES = (Kind.TEXTS, Kind.TEXT_MAP, Kind.NUMBER_MAP)


class Binder(Protocol):
    """Binds the constants of one statement."""

    def value(self, value: str | int | float) -> str:
        """The SQL of a constant."""

    def values(self, values: Sequence[str | int | float]) -> str:
        """The SQL of a list as it stands behind IN."""


@dataclass(slots=True)
class Dialect(ABC):
    """How one database writes what the compiler asks for."""

    bound: Binder
    true: ClassVar[str] = "1"
    false: ClassVar[str] = "0"

    @abstractmethod
    def read(self, json: "JsonValue", reading: str) -> str:
        """The SQL of a JSON value in one of these readings.

        `text` (as comparisons see it, missing is empty), `word` (cheaper, right beside a word), `integer`, `double`,
        `boolean` (null where it is none), `number` (any), `scalar`, `fragment` (its JSON), `size`, `present` and
        `exists` (1 or 0; null does not count as present).
        """

    @abstractmethod
    def reread(self, text: str, reading: str) -> str:
        """The SQL of a text read as `integer`, `double` or `boolean`; null when it is none."""

    @abstractmethod
    def spelled(self, number: str, kind: Kind) -> str:
        """The SQL of a number or an instant as text; 5.0 is `5`."""

    @abstractmethod
    def lowered(self, text: str, is_ascii: bool) -> str:
        """The SQL of a text in lower case; with `is_ascii` other letters do not matter."""

    @abstractmethod
    def within(self, whole: str, part: str) -> str:
        """The condition that a text is part of another."""

    def length(self, text: str) -> str:
        """The SQL of the number of characters of a text."""
        return f"length({text})"

    def by_code_points(self, text: str) -> str:
        """The SQL of a text that sorts by code points."""
        return text

    def as_number(self, condition: str) -> str:
        """The SQL of a condition as 1, 0 or null."""
        return condition

    def as_double(self, number: str) -> str:
        """The SQL of a number as a floating-point one."""
        return f"CAST({number} AS REAL)"

    def among(self, value: str, constants: Sequence[str | int | float], others: Sequence[str]) -> str:
        """The condition that a value is one of some constants or other values; at least one is given."""
        tests = [f"({value} IN {self.bound.values(constants)})"] if constants else []
        return balanced([*tests, *(f"({value} = {other})" for other in others)], "OR")

    def listed(self, items: str) -> str:
        """The SQL of the texts of a list that `dump_list` wrote, as it stands behind IN."""
        raise NotImplementedError

    def has_member(self, texts: str, item: str, folded: bool) -> str:
        """The condition that a JSON list of strings holds a text, with `folded` in any case."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON text (an SQL expression) and a path inside it; `nullable` where the text itself may be null.

    `others` are further paths: the value is that of the first path with one.
    """

    dialect: Dialect
    source: str
    parts: tuple[str, ...] = ()
    nullable: bool = False
    others: tuple[tuple[str, ...], ...] = ()

    def read(self, reading: str) -> str:
        """The SQL of the value in a reading of `Dialect.read`."""
        paths = [replace(self, parts=parts, others=()) for parts in (self.parts, *self.others)]
        values = [self.dialect.read(path, reading) for path in paths]
        cases = " ".join(
            f"WHEN {self.dialect.read(path, 'present')} THEN {value}"
            for path, value in zip(paths[:-1], values[:-1], strict=True)
        )
        return f"(CASE {cases} ELSE {values[-1]} END)" if cases else values[-1]

    def exists(self) -> str:
        """The condition that `$convert` to `exists` means: what can be missing is empty text, and that is there."""
        return f"({self.read('text')} IS NOT NULL)" if self.nullable else self.dialect.true

    def beside(self, constants: Sequence[Scalar], equality: bool) -> "Value | None":
        """The value as its comparison with constants needs it: read as their type; None: as text."""
        kinds = {type(constant) for constant in constants}
        if kinds == {bool}:
            return Value(Kind.NUMBER, self.read("boolean"))
        if kinds and kinds <= {int, float}:
            return Value(Kind.NUMBER, self.read("integer" if kinds == {int} else "double"))
        is_plain = equality and bool(self.parts) and not self.nullable and kinds == {str}
        if is_plain and all(is_word(str(constant)) for constant in constants):
            return Value(Kind.TEXT, self.read("word"))
        return None


class Members(Protocol):
    """Tests of a field that a row may have many values of, or that is kept in another form; None: as any field."""

    def equals(self, constants: Sequence[Scalar]) -> str | None:
        """The condition that any value equals one of some constants."""

    def contains(self, text: Scalar, folded: bool) -> str | None:
        """The condition that any value contains a text."""

    def missing(self) -> str | None:
        """The condition that there is no value."""


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: its SQL, or the constant that is bound where it is used, or the JSON value that is read there."""

    kind: Kind
    sql: str | None = None
    json: JsonValue | None = None
    constant: Literal | None = None
    members: Members | None = None

    @property
    def is_text(self) -> bool:
        """True for what compares as text."""
        return self.kind in (Kind.TEXT, Kind.JSON)


Resolve = Callable[[str], Value]
"""Gives the value of a field path; raises InvalidRequest (InvalidField) for one that rows lack."""
_NULL = Value(Kind.NULL, "NULL", constant=Literal(None))


class Compiler:
    """Compiles queries over one table; `null_equals` makes `$eq` with null a test for what is missing.

    `search` gives the condition of a text search, where the table has one.
    """

    def __init__(
        self,
        dialect: Dialect,
        resolve: Resolve,
        null_equals: bool = True,
        search: Callable[[Search], str] | None = None,
    ) -> None:
        self._dialect = dialect
        self._resolve = resolve
        self._null_equals = null_equals
        self._search = search

    def sql(self, value: Value) -> str:
        """The SQL of an operand."""
        if value.sql is not None:
            return value.sql
        if value.constant is not None and value.constant.value is not None:
            return self._dialect.bound.value(_bindable(value.constant.value))
        return value.json.read("text") if value.json is not None else "NULL"

    def condition(self, operand: Operand) -> str:
        """A query as a condition, in brackets where it needs some."""
        match operand:
            case And():
                return balanced([self.condition(item) for item in _flat(operand, And)], "AND")
            case Or():
                return balanced([self.condition(item) for item in _flat(operand, Or)], "OR")
            case Not(Not(inner)):
                return self.condition(inner)
            case Not(inner):
                return f"(NOT {self.condition(inner)})"
            case Compare(op, left, right):
                return self._compare(op, self._value(left), self._value(right))
            case In(left, items):
                return self._in(self._value(left), [self._value(item) for item in items])
            case Contains(left, substr, folded):
                return self._contains(self._value(left), self._value(substr), folded)
            case Search():
                if self._search is None:
                    raise InvalidRequest("Only calls can be searched with $search")
                return self._search(operand)
            case _:
                return self._truth(self._value(operand))

    def _truth(self, value: Value) -> str:
        """What a bare operand means as a condition: neither empty, 0 nor null."""
        if value.kind in STRUCTURES:
            return f"({self.sql(value)} NOT IN ('[]', '{{}}'))"
        if value.kind is Kind.NULL:
            return self._dialect.false
        nothing = "''" if value.is_text else "0"
        return f"(coalesce({self.sql(value)}, {nothing}) <> {nothing})"

    def _value(self, operand: Operand) -> Value:
        match operand:
            case Literal():
                return _constant(operand.value)
            case Field(path):
                return self._resolve(path)
            case Convert(inner, target):
                return self._convert(self._value(inner), target)
            case Size(inner):
                return self._size(self._value(inner))
            case _:
                return Value(Kind.NUMBER, self._dialect.as_number(self.condition(operand)))

    def _size(self, value: Value) -> Value:
        """Elements of a list or an object, characters of a text; null for what has none."""
        if value.constant is not None:
            text = value.constant.value
            return _constant(len(text) if isinstance(text, str) else None)
        if value.json is not None:
            return Value(Kind.NUMBER, value.json.read("size"))
        return Value(Kind.NUMBER, self._dialect.length(self.sql(value)) if value.kind is Kind.TEXT else "NULL")

    def _convert(self, value: Value, target: str) -> Value:
        if value.constant is not None:
            return _converted(value.constant.value, target)
        if target == "exists":
            test = f"({self.sql(value)} IS NOT NULL)" if value.json is None else value.json.exists()
            return Value(Kind.NUMBER, self._dialect.as_number(test))
        reading = _READINGS[target]
        if value.json is not None and reading != "text":
            return Value(Kind.NUMBER, value.json.read(reading))
        text = self.sql(value)
        if value.kind in (Kind.NUMBER, Kind.INSTANT):
            text = self._dialect.spelled(text, value.kind)
        return Value(Kind.TEXT, text) if reading == "text" else Value(Kind.NUMBER, self._dialect.reread(text, reading))

    def _compare(self, op: str, left: Value, right: Value) -> str:
        if right.constant is not None:
            constant = right.constant.value
            if op == "eq" and constant is None and self._null_equals:
                return (left.members and left.members.missing()) or f"({self.sql(left)} IS NULL)"
            if left.members is not None and op == "eq" and (found := left.members.equals([constant])) is not None:
                return found
        if left.kind is Kind.REFS:
            return "NULL"
        first, second = self._beside(left, right, op == "eq"), self._beside(right, left, op == "eq")
        kinds = (first.kind, second.kind)
        if Kind.NULL in kinds or any(kind in STRUCTURES for kind in kinds):
            # What is no instant differs from every instant, while null is unknown.
            is_null = any(side.constant is not None and side.constant.value is None for side in (left, right))
            instants = [side for side in (first, second) if side.kind is Kind.INSTANT]
            return self._never(instants[0]) if op == "eq" and instants and not is_null else "NULL"
        if first.is_text != second.is_text:
            return "NULL"
        text = self.sql(first)
        if op != "eq" and first.is_text:
            text = self._dialect.by_code_points(text)
        return f"({text} {_SQL_OPERATORS[op]} {self.sql(second)})"

    def _beside(self, value: Value, other: Value, equality: bool) -> Value:
        """The value as a comparison with `other` needs it: JSON read as a constant's type, constants as instants."""
        if value.constant is not None:
            return _instant(value.constant.value) if other.kind is Kind.INSTANT else value
        if value.json is not None and value.kind not in STRUCTURES and other.constant is not None:
            return value.json.beside([other.constant.value], equality) or value
        return value

    def _in(self, left: Value, items: list[Value]) -> str:
        constants = [item.constant.value for item in items if item.constant is not None]
        if left.members is not None and (found := left.members.equals(constants)) is not None:
            return found
        if left.json is not None and left.kind not in STRUCTURES and len(constants) == len(items):
            left = left.json.beside(constants, True) or left
        same: list[str | int | float] = []
        others: list[str] = []
        for item in items:
            member = item
            if item.constant is not None and left.kind is Kind.INSTANT:
                member = _instant(item.constant.value)
            if Kind.NULL is member.kind or left.kind in STRUCTURES or member.is_text != left.is_text:
                continue
            if member.constant is not None and member.constant.value is not None:
                same.append(_bindable(member.constant.value))
            else:
                others.append(self.sql(member))
        return self._dialect.among(self.sql(left), same, others) if same or others else self._never(left)

    def _never(self, value: Value) -> str:
        """False; unknown when the value is null."""
        return f"({self.sql(value)} IS NULL AND NULL)"

    def _contains(self, whole: Value, part: Value, folded: bool) -> str:
        if part.kind is Kind.NUMBER:
            raise InvalidRequest(
                "Illegal type of argument in query: the substr of $contains must be a string, not a number"
            )
        if whole.members is not None and part.constant is not None:
            found = whole.members.contains(part.constant.value, folded)
            if found is not None:
                return found
        if whole.kind is Kind.TEXTS and part.is_text:
            return self._dialect.has_member(self.sql(whole), self.sql(part), folded)
        if not (whole.is_text and part.is_text):
            return self._dialect.false
        return contained(
            self._dialect,
            self.sql(whole),
            self.sql(part),
            folded,
            part.constant is not None and str(part.constant.value).isascii(),
        )


def contained(dialect: Dialect, whole: str, part: str, folded: bool, is_ascii: bool = False) -> str:
    """The condition that a text is part of another, with `folded` in any case; `is_ascii` tells of the part."""
    if folded:
        whole, part = dialect.lowered(whole, is_ascii), dialect.lowered(part, is_ascii)
    return dialect.within(whole, part)


def _constant(value: Scalar) -> Value:
    if value is None:
        return _NULL
    return Value(Kind.TEXT if isinstance(value, str) else Kind.NUMBER, constant=Literal(value))


def _bindable(value: str | int | float) -> str | int | float:
    """A constant as databases take it: booleans are 1 and 0, numbers of at most 64 bits."""
    return value if isinstance(value, str) else int(value) if isinstance(value, bool) else bound_number(value)


def _instant(value: Scalar) -> Value:
    """A constant beside a time column: unix seconds or ISO text; null when it is no instant."""
    if isinstance(value, bool) or value is None:
        return _NULL
    micros = times.parse(value) if isinstance(value, str) else round(min(max(value, -(10**12)), 10**12) * times.SECOND)
    return _NULL if micros is None else Value(Kind.INSTANT, constant=Literal(micros))


def _converted(value: Scalar, target: str) -> Value:
    if target == "exists":
        return _constant(int(value is not None))
    if value is None:
        return _NULL
    if isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if target == "string":
        return _constant(text)
    try:
        if target == "bool":
            return _constant({"true": 1, "false": 0}[text] if text in ("true", "false") else int(text))
        return _constant(int(text) if target == "int" else float(text))
    except ValueError:
        return _NULL


def is_word(literal: str) -> bool:
    """True when only a JSON string can have this text: not empty, no number, no bool, no container."""
    return bool(literal) and literal[0].isalpha() and literal.lower() not in ("true", "false", "nan", "inf", "infinity")


def _flat(operand: And | Or, kind: type[And | Or]) -> Iterator[Operand]:
    """The operands, with those of operands of the same kind in their place: brackets are scarce (see `balanced`)."""
    for item in operand.operands:
        if isinstance(item, kind):
            yield from _flat(item, kind)
        else:
            yield item


def conjuncts_of(operation: Operand) -> Iterator[Operand]:
    """The operations that must all hold."""
    return _flat(operation, And) if isinstance(operation, And) else iter((operation,))


def balanced(conditions: list[str], word: str) -> str:
    """Conditions (each in its brackets) joined as a tree of little depth: databases bound that, not the length."""
    if len(conditions) == 1:
        return conditions[0]
    if len(conditions) <= _MOST_JOINED:
        return f"({f' {word} '.join(conditions)})"
    middle = len(conditions) // 2
    return f"({balanced(conditions[:middle], word)} {word} {balanced(conditions[middle:], word)})"
