"""The typed query tree as an SQL condition, with the typing and null rules of the contract (trace-core, section 5)."""

from dataclasses import dataclass

from heddle.errors import Forbidden
from heddle.store.sqlite import jsonpath
from heddle.store.sqlite.expressions import FieldSql, Place, feedback_rows, feedback_text, field_sql, queue_rows
from heddle.store.sqlite.jsonpath import is_word
from heddle.wire import callfields, times
from heddle.wire.callfields import CallField, Kind
from heddle.wire.calls import STATUS_WORDS
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

Parameters = list[Scalar]
_SQL_OPERATORS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


@dataclass(frozen=True, slots=True)
class Value:
    """An operand as SQL; `type` is text, number, time, refs, null or json; `field` where it is a bare field."""

    sql: str
    type: str
    parameters: tuple[Scalar, ...] = ()
    field: FieldSql | None = None
    literal: Literal | None = None


class Conditions:
    """Compiles one query; afterwards `fields` are those it read, `indexable` the expressions an index could serve."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.fields: list[CallField] = []
        self.parameters: Parameters = []
        self.indexable: list[tuple[str, str]] = []

    def compile(self, operation: Operation) -> str:
        """The SQL of an operation; its parameters are appended to `parameters` in order."""
        for conjunct in operation.operands if isinstance(operation, And) else (operation,):
            self._note_indexable(conjunct)
        return self._condition(operation)

    def _note_indexable(self, operand: Operand) -> None:
        """Remember a top-level comparison of a JSON path with a constant: an expression index can answer it."""
        if not (
            isinstance(operand, Compare) and isinstance(operand.left, Field) and isinstance(operand.right, Literal)
        ):
            return
        field = field_sql(callfields.resolve(operand.left.path), self._place)
        if field.json is not None and field.json.body and not _holds_for_missing(operand.op, operand.right.value):
            expression = self._cast(field, operand.right.value, operand.op == "eq")
            alias = field.json.source.split(".")[0]
            self.indexable.append((field.json.body, expression.replace(f"{alias}.", "")))

    def _condition(self, operand: Operand) -> str:
        match operand:
            case And(operands):
                return _balanced([self._condition(item) for item in operands], "AND")
            case Or(operands):
                return _balanced([self._condition(item) for item in operands], "OR")
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
        if value.type in ("text", "json"):
            return f"(ifnull({value.sql}, '') <> '')"
        return f"(ifnull({value.sql}, 0) <> 0)"

    def _value(self, operand: Operand) -> Value:
        match operand:
            case Literal():
                return _literal_value(operand)
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

    def _field(self, path: str) -> FieldSql:
        field = callfields.resolve(path)
        self.fields.append(field)
        return field_sql(field, self._place)

    def _size(self, value: Value) -> Value:
        if value.literal is not None:
            text = value.literal.value
            return _literal_value(Literal(len(text) if isinstance(text, str) else None))
        json = value.field.json if value.field else None
        if json is not None:
            return Value(json.read(jsonpath.size), "number")
        if value.type == "text":
            return Value(f"length({value.sql})", "number", value.parameters)
        return Value("NULL", "number")

    def _convert(self, value: Value, target: str) -> Value:
        if value.literal is not None:
            return _convert_literal(value.literal.value, target)
        json = value.field.json if value.field else None
        if target == "exists":
            always = value.type == "json" and not (json is not None and json.nullable)
            return Value("1" if always else f"({value.sql} IS NOT NULL)", "number", () if always else value.parameters)
        if json is not None and (json.parts or value.field is None or value.field.field is None):
            return Value(json.cast(target), "text" if target == "string" else "number")
        text = value.sql if value.type in ("text", "json") else f"CAST({value.sql} AS TEXT)"
        if target == "string":
            return Value(text, "text", value.parameters)
        read = {"int": jsonpath.integer_of_text, "double": jsonpath.double_of_text, "bool": jsonpath.bool_of_text}[
            target
        ]
        # Reading repeats its operand many times, so the operand is computed once and named.
        return Value(f"(SELECT {read('w.v')} FROM (SELECT {text} AS v) w)", "number", value.parameters)

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
        if (first.type in ("text", "json")) != (second.type in ("text", "json")):
            return "NULL"
        self.parameters.extend((*first.parameters, *second.parameters))
        return f"({first.sql} {_SQL_OPERATORS[op]} {second.sql})"

    def _special(self, op: str, first: Value, second: Value) -> str | None:
        """Comparisons with a way of their own: refs, feedback of many values, names that are kept as numbers."""
        field = first.field
        literal = second.literal.value if second.literal else None
        if field is None or field.field is None:
            return None
        if field.type == "refs":
            return self._has_ref(field.field, literal, exact=True) if op == "eq" else "NULL"
        if field.field.kind is Kind.QUEUE and op == "eq":
            return self._in_queue([literal])
        if field.multi_value and op == "eq":
            return self._any_feedback(field.field, "=", literal)
        if op == "eq" and field.field.kind is Kind.COMPUTED and field.field.column == "status":
            # As the number itself: an index of failed calls serves it.
            return f"(c.status = {STATUS_WORDS.index(literal) if literal in STATUS_WORDS else -1})"
        if op == "eq" and field.field.column in ("op_name", "wb_user_id") and isinstance(literal, str):
            self.parameters.append(literal)
            column = "op" if field.field.column == "op_name" else "user"
            return f"(c.{column} = ifnull((SELECT k FROM names WHERE v = ?), -1))"
        return None

    def _has_ref(self, field: CallField, literal: Scalar, exact: bool) -> str:
        if not isinstance(literal, str):
            return "0"
        side = 0 if field.column == "input_refs" else 1
        match = "n.v = ?" if exact else "instr(n.v, ?) > 0"
        self.parameters.append(literal)
        rows = f"FROM call_refs r JOIN names n ON n.k = r.ref WHERE r.rid = c.rid AND r.side = {side}"
        return f"EXISTS (SELECT 1 {rows} AND {match})"

    def _in_queue(self, queues: list[Scalar]) -> str:
        """A call can be in several queues: any of them counts."""
        self.parameters.extend(queues)
        marks = ", ".join("?" * len(queues))
        return f"EXISTS (SELECT 1 {queue_rows(self._place)} AND q.queue_id IN ({marks}))"

    def _any_feedback(self, field: CallField, test: str, literal: Scalar) -> str:
        if not isinstance(literal, str):
            return "0"
        value = feedback_text(field)
        self.parameters.append(literal)
        if test == "folded":
            condition = f"instr(unicode_lower({value}), unicode_lower(?)) > 0"
        else:
            condition = f"instr({value}, ?) > 0" if test == "contains" else f"{value} = ?"
        return f"EXISTS (SELECT 1 {feedback_rows(field, self._place)} AND {condition})"

    def _is_null(self, value: Value) -> str:
        if value.field is not None and value.field.multi_value and value.field.field is not None:
            field = value.field.field
            filled = f" AND {feedback_text(field)} <> ''" if field.path or field.column != "payload" else ""
            return f"(NOT EXISTS (SELECT 1 {feedback_rows(field, self._place)}{filled}))"
        self.parameters.extend(value.parameters)
        return f"({value.sql} IS NULL)"

    def _typed(self, value: Value, other: Value, equality: bool) -> Value:
        """The value as a comparison with `other` needs it: JSON cast by a constant's type, constants as instants."""
        if value.literal is not None and other.type == "time":
            return _instant(value.literal.value)
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
            return jsonpath.plain_text(json.source, json.parts)
        return field.sql

    def _in(self, left: Operand, items: tuple[Operand, ...]) -> str:
        value = self._value(left)
        constants = [item.value for item in items if isinstance(item, Literal)]
        if value.field is not None and value.field.type == "refs" and value.field.field is not None:
            tests = [self._has_ref(value.field.field, item, exact=True) for item in constants]
            return "(" + " OR ".join(tests or ["0"]) + ")"
        if value.field is not None and value.field.field is not None and value.field.field.kind is Kind.QUEUE:
            return self._in_queue(constants)
        if len(constants) == len(items):
            value = self._shared_cast(value, constants)
        self.parameters.extend(value.parameters)
        members = []
        for item in items:
            member = self._value(item)
            if member.literal is not None and value.type == "time":
                member = _instant(member.literal.value)
            if member.type != "null" and (member.type in ("text", "json")) == (value.type in ("text", "json")):
                members.append(member.sql)
                self.parameters.extend(member.parameters)
        return f"({value.sql} IN ({', '.join(members)}))" if members else self._never(value)

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
            return Value(jsonpath.plain_text(json.source, json.parts), "text")
        return value

    def _contains(self, left: Operand, substr: Operand, folded: bool) -> str:
        value, part = self._value(left), self._value(substr)
        if part.literal is not None and isinstance(part.literal.value, (int, float)):
            raise Forbidden("Illegal type of the substr of $contains: a text is needed, not a number")
        field = value.field
        if field is not None and field.field is not None and part.literal is not None:
            if field.type == "refs":
                return self._has_ref(field.field, part.literal.value, exact=True)
            if field.multi_value:
                return self._any_feedback(field.field, "folded" if folded else "contains", part.literal.value)
        if value.type not in ("text", "json") or part.type not in ("text", "json"):
            return "0"
        haystack, needle = value.sql, part.sql
        parameters = (*value.parameters, *part.parameters)
        if folded:
            lower = "lower" if part.literal is not None and str(part.literal.value).isascii() else "unicode_lower"
            haystack, needle = f"{lower}({haystack})", f"{lower}({needle})"
        self.parameters.extend(parameters)
        return f"(ifnull(instr({haystack}, {needle}), 0) > 0)"


def _holds_for_missing(op: str, literal: Scalar) -> bool:
    """True when a call without the value (or still without an end) can match: a walk from the bodies would miss it."""
    if isinstance(literal, str):
        return op in ("lt", "lte") or literal == ""
    return literal is None


def _balanced(conditions: list[str], word: str) -> str:
    """Conditions joined as a tree of little depth: SQLite bounds the depth of an expression, not its length."""
    if len(conditions) == 1:
        return f"({conditions[0]})"
    middle = len(conditions) // 2
    return f"({_balanced(conditions[:middle], word)} {word} {_balanced(conditions[middle:], word)})"


def _literal_value(literal: Literal) -> Value:
    value = literal.value
    if value is None:
        return Value("NULL", "null", literal=literal)
    if isinstance(value, str):
        return Value("?", "text", (value,), literal=literal)
    if isinstance(value, bool):
        return Value("?", "number", (int(value),), literal=literal)
    return Value("?", "number", (bound_number(value),), literal=literal)


def _instant(value: Scalar) -> Value:
    """A constant compared with a time column: unix seconds or ISO text; null when it is no instant."""
    if isinstance(value, bool) or value is None:
        return Value("NULL", "null")
    micros = times.parse(value) if isinstance(value, str) else round(min(max(value, -(10**12)), 10**12) * times.SECOND)
    return Value("NULL", "null") if micros is None else Value("?", "time", (micros,))


def _convert_literal(value: Scalar, target: str) -> Value:
    if target == "exists":
        return Value("1" if value is not None else "0", "number")
    if value is None:
        return Value("NULL", "null")
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    if target == "string":
        return _literal_value(Literal(text))
    try:
        if target == "bool":
            number: int | float = {"true": 1, "false": 0}.get(text.lower(), -1)
            number = int(text) if number < 0 else number
        else:
            number = int(text) if target == "int" else float(text)
    except ValueError:
        return Value("NULL", "null")
    return _literal_value(Literal(number))
