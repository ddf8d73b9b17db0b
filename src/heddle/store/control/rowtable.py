"""Small tables as requests see them: named fields, conditions, order, pages, counts.

Contract: trace-core, section 5, "Fields for feedback/cost queries" and "Sort".
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.expressions import CodePoints, Column, Expression, JsonRead, QueryCondition
from heddle.store.query.compiler import STRUCTURES, Kind
from heddle.wire import times
from heddle.wire.query import And, Compare, Field, In, Literal, Operand, Operation, Or, split_path

Row = dict[str, Any]

MAX_PATH_LENGTH = 2000
_MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sort:
    """One term of an order."""

    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class RowRequest:
    """What to select; None means all fields, no condition, the table's own order, all rows."""

    fields: Sequence[str] | None = None
    query: Operation | None = None
    sort_by: Sequence[Sort] | None = None
    limit: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected rows, and how many match before limit and offset."""

    rows: list[Row]
    total: int


class RowTable:
    """A table as requests see it: named columns, its own order, and the columns whose values single out few rows."""

    def __init__(
        self,
        table: sa.Table,
        columns: Mapping[str, Column],
        order: Sequence[Expression],
        selective: Collection[str] = (),
    ) -> None:
        self.table = table
        self.columns = dict(columns)
        self.order = list(order)
        self.selective = frozenset(selective)

    def value(self, path: str) -> Column:
        """What a dotted path names; raises InvalidRequest for an unknown one."""
        column = self.columns.get(path)
        if column is not None:
            is_read = column.kind is Kind.JSON or column.kind in STRUCTURES
            return Column(column.kind, column.expression, (column.expression, ()) if is_read else None)
        head, dot, tail = path.partition(".")
        column = self.columns.get(head) or self.columns.get(head.removesuffix("_dump"))
        if column is not None and len(path) <= MAX_PATH_LENGTH:
            if column.kind is Kind.JSON:
                parts = tuple(split_path(tail)) if dot else ()
                text = JsonRead(column.expression, parts, "text") if parts else column.expression
                return Column(Kind.TEXT, text, (column.expression, parts))
            if column.kind is Kind.TEXT_MAP and tail:
                return Column(Kind.TEXT, JsonRead(column.expression, (tail,), "scalar"))
            if column.kind is Kind.NUMBER_MAP and tail:
                return Column(Kind.NUMBER, JsonRead(column.expression, (tail,), "number"))
        raise InvalidRequest(f"Unknown field: {path[:200]}")

    def select(self, connection: sa.Connection, within: Expression, request: RowRequest) -> Selection:
        """The rows inside `within` (the project's rows) that a request asks for.

        Raises InvalidRequest for unknown fields and negative limits, Forbidden for a number where text is needed.
        """
        if request.limit is not None and request.limit < 0:
            raise InvalidRequest("Limit must be non-negative")
        if request.offset is not None and request.offset < 0:
            raise InvalidRequest("Offset must be non-negative")
        condition = within if request.query is None else sa.and_(within, QueryCondition(request.query, self.value))
        names = self._names(request.fields)
        outputs = [self._output(name) for name in names]
        statement = sa.select(*[output.expression for output in outputs]).select_from(self.table).where(condition)
        few = request.query is not None and pins(request.query, self.selective)
        statement = statement.order_by(*self.ordering(request.sort_by, few))
        if any(output.counts for output in outputs):
            return self._counted(connection, condition, statement, outputs, request)
        rows = self._rows(connection, self._paged(statement, request), outputs)
        offset = request.offset or 0
        if (offset and not rows) or (request.limit is not None and len(rows) == request.limit):
            return Selection(rows, self._count(connection, condition))
        return Selection(rows, offset + len(rows))

    def _names(self, fields: Sequence[str] | None) -> list[str]:
        """The asked fields, each once; all columns when none is named."""
        names = [name for field in fields or ["*"] for name in (self.columns if field == "*" else [field])]
        return list(dict.fromkeys(names))

    def _output(self, name: str) -> "_Output":
        if name.lower() == "count(*)":
            return _Output(name, sa.literal(0), None, counts=True)
        key = name.removesuffix("_dump") if name.removesuffix("_dump") in self.columns else name
        value = self.value(key)
        if value.kind in (Kind.JSON, *STRUCTURES):
            return _Output(key, value.expression, orjson.Fragment)
        return _Output(key, value.expression, times.to_iso if value.kind is Kind.INSTANT else None)

    def _rows(self, connection: sa.Connection, statement: sa.Select[Any], outputs: "list[_Output]") -> list[Row]:
        readers = [(output.key, output.read) for output in outputs]
        return [
            {
                key: item if read is None or item is None else read(item)
                for (key, read), item in zip(readers, row, strict=True)
            }
            for row in connection.execute(statement)
        ]

    def _counted(
        self,
        connection: sa.Connection,
        condition: Expression,
        statement: sa.Select[Any],
        outputs: "list[_Output]",
        request: RowRequest,
    ) -> Selection:
        """One row with the count; other fields beside it are those of the last row."""
        total = self._count(connection, condition)
        last: Row = {output.key: None for output in outputs}
        if total and len(outputs) > 1:
            last = self._rows(connection, statement.offset(total - 1), outputs)[0]
        last |= {output.key: total for output in outputs if output.counts}
        return Selection([] if request.limit == 0 or request.offset else [last], total)

    def _count(self, connection: sa.Connection, condition: Expression) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(self.table).where(condition)).scalar_one())

    @staticmethod
    def _paged(statement: sa.Select[Any], request: RowRequest) -> sa.Select[Any]:
        limit, offset = request.limit, request.offset
        if limit is not None:
            statement = statement.limit(min(limit, _MAX_INTEGER))
        return statement.offset(min(offset, _MAX_INTEGER)) if offset else statement

    def ordering(self, sort_by: Sequence[Sort] | None, few: bool) -> list[Expression]:
        """ORDER BY: nulls last either way; a JSON field by existence, number, text; ties in the table's own order.

        With `few` rows to be expected, terms are written so that the planner does not walk through the whole project
        in the order of an index instead of looking for these rows.
        """
        terms: list[Expression] = []
        for sort in sort_by or ():
            value = self.value(sort.field)
            if value.json is not None and value.kind not in STRUCTURES:
                column, parts = value.json
                if parts:
                    terms.append(sa.desc(JsonRead(column, parts, "exists")))
                    terms.append(_directed(JsonRead(column, parts, "double"), sort.descending))
                terms.append(_directed(CodePoints(value.expression), sort.descending))
            else:
                by_text = value.kind is Kind.TEXT
                expression = CodePoints(value.expression) if by_text else value.expression
                plain = expression + 0 if few and value.kind is Kind.INSTANT else expression
                terms.append(_directed(plain, sort.descending))
        return [*terms, *((term + 0 if few else term) for term in self.order)]


@dataclass(frozen=True, slots=True)
class _Output:
    """One selected field: its key in the answer, its SQL, and how its value is read."""

    key: str
    expression: Expression
    read: Callable[[Any], Any] | None
    counts: bool = False


def _directed(expression: Expression, descending: bool) -> Expression:
    term: Expression = sa.desc(expression) if descending else sa.asc(expression)
    return term.nulls_last()


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
