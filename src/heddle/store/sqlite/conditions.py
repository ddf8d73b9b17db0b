"""The typed query tree as a condition of SQLite."""

from collections.abc import Sequence

from heddle.store import conditions, jsonpath
from heddle.store.conditions import FieldSql
from heddle.store.sqlite.expressions import JsonValue, Place, feedback_rows, feedback_text, field_sql, queue_rows
from heddle.wire import callfields
from heddle.wire.callfields import CallField, Kind
from heddle.wire.calls import STATUS_WORDS
from heddle.wire.query import And, Compare, Field, Literal, Operand, Operation, Scalar

Parameters = list[Scalar]


class Conditions(conditions.Conditions):
    """Compiles one query; afterwards `fields` are those it read, `indexable` the expressions an index could serve."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self.fields: list[CallField] = []
        self.indexable: list[tuple[str, str]] = []

    def compile(self, operation: Operation) -> str:
        """The SQL of an operation; its parameters are appended to `parameters` in order."""
        for conjunct in operation.operands if isinstance(operation, And) else (operation,):
            self._note_indexable(conjunct)
        return super().compile(operation)

    def _note_indexable(self, operand: Operand) -> None:
        """Remember a top-level comparison of a JSON path with a constant: an expression index can answer it."""
        if not (
            isinstance(operand, Compare) and isinstance(operand.left, Field) and isinstance(operand.right, Literal)
        ):
            return
        field = field_sql(callfields.resolve(operand.left.path), self._place)
        json, constant = field.json, operand.right.value
        if isinstance(json, JsonValue) and json.body and not conditions.holds_for_missing(operand.op, constant):
            expression = self._cast(field, constant, operand.op == "eq")
            alias = json.source.split(".")[0]
            self.indexable.append((json.body, expression.replace(f"{alias}.", "")))

    def _field(self, path: str) -> FieldSql:
        field = callfields.resolve(path)
        self.fields.append(field)
        return field_sql(field, self._place)

    def _constant(self, value: str | int | float) -> tuple[str, tuple[Scalar, ...]]:
        return "?", (value,)

    def _length(self, text: str) -> str:
        return f"length({text})"

    def _spelled(self, number: str) -> str:
        return f"CAST({number} AS TEXT)"

    def _reread(self, text: str, target: str) -> str:
        read = {"int": jsonpath.integer_of_text, "double": jsonpath.double_of_text, "bool": jsonpath.bool_of_text}
        # Reading repeats its operand many times, so the operand is computed once and named.
        return f"(SELECT {read[target]('w.v')} FROM (SELECT {text} AS v) w)"

    def _equals_column(self, field: CallField, literal: Scalar) -> str | None:
        if field.kind is Kind.COMPUTED and field.column == "status":
            # As the number itself: an index of failed calls serves it.
            return f"(c.status = {STATUS_WORDS.index(literal) if literal in STATUS_WORDS else -1})"
        if field.column in ("op_name", "wb_user_id") and isinstance(literal, str):
            self.parameters.append(literal)
            column = "op" if field.column == "op_name" else "user"
            return f"(c.{column} = ifnull((SELECT k FROM names WHERE v = ?), -1))"
        return None

    def _has_ref(self, field: CallField, literal: Scalar) -> str:
        if not isinstance(literal, str):
            return "0"
        side = 0 if field.column == "input_refs" else 1
        self.parameters.append(literal)
        rows = f"FROM call_refs r JOIN names n ON n.k = r.ref WHERE r.rid = c.rid AND r.side = {side}"
        return f"EXISTS (SELECT 1 {rows} AND n.v = ?)"

    def _in_queue(self, queues: Sequence[Scalar]) -> str:
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

    def _no_feedback(self, field: CallField) -> str:
        filled = f" AND {feedback_text(field)} <> ''" if field.path or field.column != "payload" else ""
        return f"(NOT EXISTS (SELECT 1 {feedback_rows(field, self._place)}{filled}))"

    def _within(self, whole: str, part: str, folded: bool, literal: Literal | None) -> str:
        if folded:
            lower = "lower" if literal is not None and str(literal.value).isascii() else "unicode_lower"
            whole, part = f"{lower}({whole})", f"{lower}({part})"
        return f"(ifnull(instr({whole}, {part}), 0) > 0)"
