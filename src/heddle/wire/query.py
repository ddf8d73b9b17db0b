"""The query language: `{"$expr": operation}` parsed into typed nodes (contract: trace-core, section 5)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from typing import Literal as OneOf

from pydantic import PlainValidator, WithJsonSchema

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.wire.search import parse_search

Scalar = str | int | float | bool | None
Comparison = OneOf["eq", "gt", "gte", "lt", "lte"]
Target = OneOf["double", "string", "int", "bool", "exists"]
Place = tuple[str | int, ...]

MAX_INTEGER = 2**63 - 1
_HUGE = 10**300
MAX_NESTING = 100
MAX_LITERALS = 20_000
MAX_OPERATIONS = 4000
_OPERATORS = re.compile(rb'"\$(?!literal"|getField")[A-Za-z]+"\s*+:')
"""Comparisons and what joins and converts; each becomes some hundred characters of SQL."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Field:
    """A dotted path into a row."""

    path: str


@dataclass(frozen=True, slots=True)
class Convert:
    """An operand read as another type; what cannot be read is null."""

    input: "Operand"
    to: Target


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    operands: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of them."""

    operands: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    operand: "Operand"


@dataclass(frozen=True, slots=True)
class Compare:
    """Two operands compared."""

    op: Comparison
    left: "Operand"
    right: "Operand"


@dataclass(frozen=True, slots=True)
class In:
    """Membership in a list of operands."""

    left: "Operand"
    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Contains:
    """A text inside a text."""

    input: "Operand"
    substr: "Operand"
    case_insensitive: bool


@dataclass(frozen=True, slots=True)
class Size:
    """How many elements a list or an object has, or characters a text; null for anything else."""

    input: "Operand"


@dataclass(frozen=True, slots=True)
class Search:
    """Words, phrases and prefixes anywhere in a row; with `any_of_trace` in any row of its trace."""

    text: str
    any_of_trace: bool = False


Operation = And | Or | Not | Compare | In | Contains | Search
Operand = Literal | Field | Convert | Size | Operation


def parse_query(value: Any, place: Place = ("body", "query")) -> Operation:
    """The operation of `{"$expr": ...}`; raises ValidationFailed at the place that is wrong."""
    if isinstance(value, Operation):
        return value
    if not isinstance(value, dict) or "$expr" not in value:
        raise ValidationFailed.at([*place, "$expr"], "Field required", "missing")
    operation = _operand(value["$expr"], (*place, "$expr"), 0)
    if isinstance(operation, (Literal, Field, Convert, Size)):
        raise ValidationFailed.at([*place, "$expr"], "The top level of a query must be an operation")
    _check_size(operation)
    return operation


def check_text(body: bytes) -> None:
    """Refuse the text of a query that is far too large, before it is parsed; raises InvalidRequest."""
    if b'"$expr"' in body:
        operations = sum(1 for _ in _OPERATORS.finditer(body)) - 1
        if operations > MAX_OPERATIONS:
            raise _too_many(operations)


def _too_many(operations: int) -> InvalidRequest:
    return InvalidRequest(
        f"A query can hold at most {MAX_OPERATIONS} operations, this one has {operations}; "
        "one $in takes the place of many $eq"
    )


def _check_size(operation: Operation) -> None:
    """Refuse a query that no store could answer soon; raises InvalidRequest."""
    literals = operations = 0
    pending: list[Operand] = [operation]
    while pending:
        operand = pending.pop()
        literals += isinstance(operand, Literal)
        operations += not isinstance(operand, (Literal, Field))
        pending.extend(_inner(operand))
    if literals > MAX_LITERALS:
        raise InvalidRequest(f"A query can have at most {MAX_LITERALS} literals, got {literals}")
    if operations > MAX_OPERATIONS:
        raise _too_many(operations)


def _inner(operand: Operand) -> tuple[Operand, ...]:
    match operand:
        case And(operands) | Or(operands):
            return operands
        case Convert(inner, _) | Not(inner) | Size(inner):
            return (inner,)
        case Compare(_, left, right) | Contains(left, right, _):
            return (left, right)
        case In(left, items):
            return (left, *items)
        case _:
            return ()


_OBJECT_KEYS = frozenset(("_type", "_class_name", "_bases"))


def parse_stored(value: Any) -> Operation:
    """Parse a query that is stored inside an object, where SDKs add class names; raises ValidationFailed."""
    return parse_query(_without_class_names(value))


def _without_class_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_class_names(item) for key, item in value.items() if key not in _OBJECT_KEYS}
    return [_without_class_names(item) for item in value] if isinstance(value, list) else value


def _operand(value: Any, place: Place, level: int) -> Operand:
    if level > MAX_NESTING:
        raise InvalidRequest(f"Query is nested deeper than {MAX_NESTING} levels")
    if not isinstance(value, dict) or len(value) != 1:
        raise ValidationFailed.at(place, "An operand must be an object with exactly one $ key")
    name, argument = next(iter(value.items()))
    parse = _PARSERS.get(name)
    if parse is None:
        raise ValidationFailed.at([*place, str(name)[:100]], f"Unknown operator; expected one of {', '.join(_PARSERS)}")
    return parse(argument, (*place, name), level + 1)


def _operands(value: Any, place: Place, level: int) -> tuple[Operand, ...]:
    if not isinstance(value, list):
        raise ValidationFailed.at(place, "Input should be a valid list", "list_type")
    return tuple(_operand(item, (*place, index), level) for index, item in enumerate(value))


def _exactly(count: int, value: Any, place: Place, level: int) -> tuple[Operand, ...]:
    operands = _operands(value, place, level)
    if len(operands) != count:
        raise ValidationFailed.at(place, f"Expected a list of exactly {count}, got {len(operands)}", "value_error")
    return operands


def _literal(value: Any, _place: Place, _level: int) -> Literal:
    if isinstance(value, (dict, list)):
        raise InvalidRequest("$literal must not be an object or a list")
    return Literal(value)


def _field(value: Any, place: Place, _level: int) -> Field:
    if not isinstance(value, str):
        raise ValidationFailed.at(place, "Input should be a valid string", "string_type")
    return Field(value)


def _convert(value: Any, place: Place, level: int) -> Convert:
    _require(value, ("input", "to"), place)
    if value["to"] not in ("double", "string", "int", "bool", "exists"):
        raise ValidationFailed.at(
            [*place, "to"], "Input should be 'double', 'string', 'int', 'bool' or 'exists'", "enum"
        )
    return Convert(_operand(value["input"], (*place, "input"), level), value["to"])


def _size(value: Any, place: Place, level: int) -> Size:
    return Size(_operand(value, place, level))


def _contains(value: Any, place: Place, level: int) -> Contains:
    _require(value, ("input", "substr"), place)
    folded = value.get("case_insensitive", False)
    if folded is not None and not isinstance(folded, bool):
        raise ValidationFailed.at([*place, "case_insensitive"], "Input should be a valid boolean", "bool_type")
    left = _operand(value["input"], (*place, "input"), level)
    return Contains(left, _operand(value["substr"], (*place, "substr"), level), bool(folded))


def _search(value: Any, place: Place, _level: int) -> Search:
    _require(value, ("text",), place)
    text, any_of_trace = value["text"], value.get("any_of_trace", False)
    if not isinstance(text, str):
        raise ValidationFailed.at([*place, "text"], "Input should be a valid string", "string_type")
    if not isinstance(any_of_trace, bool):
        raise ValidationFailed.at([*place, "any_of_trace"], "Input should be a valid boolean", "bool_type")
    parse_search(text)
    return Search(text, any_of_trace)


def _require(value: Any, names: tuple[str, ...], place: Place) -> None:
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise ValidationFailed.at([*place, name], "Field required", "missing")


def _joined(make: Callable[[tuple[Operand, ...]], Operation], word: str) -> Callable[[Any, Place, int], Operand]:
    def parse(value: Any, place: Place, level: int) -> Operand:
        operands = _operands(value, place, level)
        if not operands:
            raise InvalidRequest(f"Empty {word} operation")
        return make(operands)

    return parse


def _compared(op: Comparison) -> Callable[[Any, Place, int], Operand]:
    def parse(value: Any, place: Place, level: int) -> Operand:
        left, right = _exactly(2, value, place, level)
        return Compare(op, left, right)

    return parse


def _in(value: Any, place: Place, level: int) -> In:
    if not isinstance(value, list) or len(value) != 2:
        raise ValidationFailed.at(place, "Expected [operand, [operand, ...]]", "value_error")
    return In(_operand(value[0], (*place, 0), level), _operands(value[1], (*place, 1), level))


_PARSERS: dict[str, Callable[[Any, Place, int], Operand]] = {
    "$literal": _literal,
    "$getField": _field,
    "$convert": _convert,
    "$size": _size,
    "$and": _joined(And, "AND"),
    "$or": _joined(Or, "OR"),
    "$not": lambda value, place, level: Not(_exactly(1, value, place, level)[0]),
    "$eq": _compared("eq"),
    "$gt": _compared("gt"),
    "$gte": _compared("gte"),
    "$lt": _compared("lt"),
    "$lte": _compared("lte"),
    "$in": _in,
    "$contains": _contains,
    "$search": _search,
}


def fields(operand: Operand) -> Iterator[str]:
    """Every field path that an operand reads."""
    if isinstance(operand, Field):
        yield operand.path
    for inner in _inner(operand):
        yield from fields(inner)


def searches(operand: Operand) -> Iterator[Search]:
    """Every text search in an operand."""
    if isinstance(operand, Search):
        yield operand
    for inner in _inner(operand):
        yield from searches(inner)


def bound_number(value: int | float) -> int | float:
    """The number as a store can bind it: integers beyond 64 bits as floats of at most 1e300."""
    if not isinstance(value, int) or abs(value) <= MAX_INTEGER:
        return value
    return float(max(min(value, _HUGE), -_HUGE))


def split_path(path: str) -> list[str]:
    r"""The parts of a dotted path; `\.` is a dot inside a part."""
    parts, current, escaped = [], "", False
    for character in path:
        if escaped:
            current += character if character == "." else "\\" + character
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == ".":
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current + ("\\" if escaped else "")]


QueryBody = Annotated[
    And | Or | Not | Compare | In | Contains | Search,
    PlainValidator(parse_query),
    WithJsonSchema(
        {
            "title": "Query",
            "type": "object",
            "required": ["$expr"],
            "properties": {
                "$expr": {
                    "type": "object",
                    "description": "One operation: $and, $or, $not, $eq, $gt, $gte, $lt, $lte, $in, $contains "
                    "or $search over $literal, $getField, $convert, $size and further operations.",
                }
            },
        }
    ),
]
