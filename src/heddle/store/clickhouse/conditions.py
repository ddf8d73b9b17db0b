"""The typed query tree as a condition of ClickHouse."""

from collections.abc import Sequence

from heddle.store import conditions
from heddle.store.clickhouse import jsonread
from heddle.store.clickhouse.expressions import Place, feedback_rows, feedback_text, field_sql
from heddle.store.conditions import FieldSql, Value
from heddle.wire import callfields
from heddle.wire.callfields import CallField, Kind
from heddle.wire.calls import STATUS_WORDS
from heddle.wire.query import Literal, Scalar


class Conditions(conditions.Conditions):
    """Compiles one query; constants are bound where the place says."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def _field(self, path: str) -> FieldSql:
        return field_sql(callfields.resolve(path), self._place)

    def _constant(self, value: str | int | float) -> tuple[str, tuple[Scalar, ...]]:
        return self._place.bound.value(value), ()

    def _length(self, text: str) -> str:
        return f"lengthUTF8({text})"

    def _spelled(self, number: str) -> str:
        return f"toString({number})"

    def _reread(self, text: str, target: str) -> str:
        read = {"int": jsonread.integer_of_text, "double": jsonread.double_of_text, "bool": jsonread.bool_of_text}
        return read[target](f"ifNull({text}, '')")

    def _among(self, value: Value, members: list[Value]) -> str:
        constants = [member.literal.value for member in members if member.literal is not None]
        texts = [constant for constant in constants if isinstance(constant, str)]
        if len(texts) == len(members):
            return f"({value.sql} IN {self._place.bound.values(texts)})"
        # IN would turn every member into the type of the value.
        return conditions.balanced([f"({value.sql} = {member.sql})" for member in members], "OR")

    def _equals_column(self, field: CallField, literal: Scalar) -> str | None:
        if field.kind is Kind.COMPUTED and field.column == "status":
            return f"(c.status = {STATUS_WORDS.index(literal) if literal in STATUS_WORDS else len(STATUS_WORDS)})"
        return None

    def _has_ref(self, field: CallField, literal: Scalar) -> str:
        return f"has(c.{field.column}, {self._place.bound.value(literal)})" if isinstance(literal, str) else "0"

    def _in_queue(self, queues: Sequence[Scalar]) -> str:
        """A call can be in several queues: any of them counts."""
        texts = [queue for queue in queues if isinstance(queue, str)]
        if not texts:
            return "0"
        chosen = f"queue_id IN {self._place.bound.values(texts)}"
        return f"(c.id IN (SELECT call_id FROM {self._place.lookups.queue_items} WHERE {chosen}))"

    def _any_feedback(self, field: CallField, test: str, literal: Scalar) -> str:
        if not isinstance(literal, str):
            return "0"
        value, constant = feedback_text(field, self._place), self._place.bound.value(literal)
        condition = f"{value} = {constant}"
        if test != "=":
            condition = self._within(value, constant, test == "folded", None)
        return f"(c.id IN (SELECT call_id FROM {feedback_rows(field, self._place)} WHERE {condition}))"

    def _no_feedback(self, field: CallField) -> str:
        filled = field.path or field.column != "payload"
        chosen = f" WHERE {feedback_text(field, self._place)} != ''" if filled else ""
        return f"(c.id NOT IN (SELECT call_id FROM {feedback_rows(field, self._place)}{chosen}))"

    def _within(self, whole: str, part: str, folded: bool, literal: Literal | None) -> str:
        if folded:
            lower = "lower" if literal is not None and str(literal.value).isascii() else "lowerUTF8"
            whole, part = f"{lower}({whole})", f"{lower}({part})"
        return f"(ifNull(position({whole}, {part}), 0) > 0)"
