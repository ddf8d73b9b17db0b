"""Small tables as requests see them: named fields, conditions, order, pages, counts.

The control tables are on SQLite or PostgreSQL; either database understands what stands here.
"""

from array import array
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from heddle.errors import InvalidRequest
from heddle.store.control.repository import Executor
from heddle.store.query.compiler import STRUCTURES, Compiler, Dialect, JsonValue, Kind, Value, contained
from heddle.store.query.postgresql import PostgresDialect
from heddle.store.query.sqlite import SqliteDialect
from heddle.wire import times
from heddle.wire.jsontext import dump_list
from heddle.wire.query import And, Compare, Field, In, Literal, Operand, Operation, Or, fields, split_path

Expression = sa.ColumnElement[Any]
_DIALECTS = {"sqlite": SqliteDialect, "postgresql": PostgresDialect}


_BOUND: dict[type, sa.types.TypeEngine[Any]] = {str: sa.Text(), int: sa.BigInteger(), float: sa.Float()}


class AnyNumber(sa.TypeDecorator[int | float]):
    """A number as the database gives it, whole or not."""

    impl = sa.Float
    cache_ok = True

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> None:
        """Nothing is done to it: as floating point, whole numbers of more than 53 bits would be others."""


_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    **dict.fromkeys(("text", "scalar"), sa.Text()),
    **dict.fromkeys(("integer", "size"), sa.BigInteger()),
    **dict.fromkeys(("boolean", "exists"), sa.Integer()),
    "double": sa.Float(),
    "number": AnyNumber(),
}


class Written(sa.ColumnElement[Any]):
    """SQL that a dialect writes over the SQL of other expressions."""

    inherit_cache = False

    def __init__(self, write: Callable[..., str], *sources: Expression, kind: sa.types.TypeEngine[Any]) -> None:
        self.write = write
        self.sources = sources
        self.type = kind


class JsonRead(Written):
    """The value at a path of a JSON text, in a reading of `Dialect.read`."""

    inherit_cache = False

    def __init__(self, source: Expression, parts: tuple[str, ...], reading: str) -> None:
        def write(dialect: Dialect, text: str) -> str:
            return f"({JsonValue(dialect, text, parts).read(reading)})"

        super().__init__(write, source, kind=_TYPES[reading])


class CodePoints(Written):
    """A text that sorts and compares by code points."""

    inherit_cache = False

    def __init__(self, source: Expression) -> None:
        super().__init__(lambda dialect, text: dialect.by_code_points(text), source, kind=sa.Text())


class Condition(sa.ColumnElement[bool]):
    """A condition that is written as it is: without the `= 1` that would keep SQLite from using an index."""

    inherit_cache = False
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> "Condition":
        """Itself: every condition here brings its own parentheses."""
        del against
        return self


class Containing(Condition):
    """True when a text lies inside another, with `folded` whatever the case."""

    inherit_cache = False

    def __init__(self, whole: Expression, part: str, folded: bool = True) -> None:
        self.write: Callable[..., str] = lambda dialect, whole, part: contained(dialect, whole, part, folded)
        self.sources = whole, sa.literal(part, sa.Text())


class Ending(Condition):
    """True when a text ends with another, which is not empty."""

    inherit_cache = False

    def __init__(self, whole: Expression, end: str) -> None:
        def write(dialect: Dialect, whole: str, written: str) -> str:
            if isinstance(dialect, PostgresDialect):
                return f"(right({whole}, length({written})) = {written})"
            # LIKE takes no notice of case on SQLite, and texts are counted up to a zero character.
            return f"(substr(CAST({whole} AS BLOB), -{len(end.encode())}) = CAST({written} AS BLOB))"

        self.write: Callable[..., str] = write
        self.sources = whole, sa.literal(end, sa.Text())


class Listed(Condition):
    """True when a value is one of many; they travel as one parameter, however many they are.

    `items` is the values, or the name of the parameter that will hold texts as `dump_list` writes them.
    """

    inherit_cache = False

    def __init__(self, value: Expression, items: Sequence[str | int | float] | str) -> None:
        is_number = bool(items) and not isinstance(items, str) and not isinstance(items[0], str)

        def write(dialect: Dialect, value: str, listed: str) -> str:
            if not is_number:
                return f"({value} IN {dialect.listed(listed)})"
            if not isinstance(dialect, PostgresDialect):
                return f"({value} IN (SELECT value FROM json_each({listed})))"
            numbers = f"SELECT item::double precision FROM json_array_elements_text(({listed})::json) AS items(item)"
            return f"({value} IN ({numbers}))"

        self.write: Callable[..., str] = write
        if isinstance(items, str):
            bound = sa.bindparam(items, type_=sa.Text())
        else:
            bound = sa.bindparam("listed", dump_list(list(items)), sa.Text(), unique=True)
        self.sources = value, bound


class DistinctList(Written):
    """Aggregate: the different texts of a group as a JSON list."""

    inherit_cache = False

    def __init__(self, text: Expression) -> None:
        def write(dialect: Dialect, text: str) -> str:
            is_postgres = isinstance(dialect, PostgresDialect)
            return f"json_agg(DISTINCT {text})::text" if is_postgres else f"json_group_array(DISTINCT {text})"

        super().__init__(write, text, kind=sa.Text())


class Sum(Written):
    """Aggregate: the sum of floating-point numbers, infinite beyond the largest of them; null without any.

    With `is_mean`, the sum by their count.
    """

    inherit_cache = False

    def __init__(self, number: Expression, is_mean: bool = False) -> None:
        def write(dialect: Dialect, number: str) -> str:
            if not isinstance(dialect, PostgresDialect):
                return f"avg({number})" if is_mean else f"sum({number})"
            return f"(heddle_sum({number})" + (f" / nullif(count({number}), 0))" if is_mean else ")")

        super().__init__(write, number, kind=sa.Float())


class Whole(Written):
    """A number that is not negative without its fraction."""

    inherit_cache = False

    def __init__(self, number: Expression) -> None:
        def write(dialect: Dialect, number: str) -> str:
            return f"floor({number})::bigint" if isinstance(dialect, PostgresDialect) else f"CAST({number} AS INTEGER)"

        super().__init__(write, number, kind=sa.BigInteger())


@dataclass(frozen=True, slots=True)
class Column:
    """What a request can name: a kind and an expression; `json` where it is a path (column, parts) into JSON."""

    kind: Kind
    expression: Expression
    json: tuple[Expression, tuple[str, ...]] | None = None


class QueryCondition(Condition):
    """A query over what `resolve` gives for its fields, as a condition: `$eq` with null selects nothing.

    Raises what `resolve` does for an unknown field (InvalidRequest).
    """

    inherit_cache = False

    def __init__(self, operation: Operation, resolve: Callable[[str], Column]) -> None:
        self.operation = operation
        self.columns = {path: resolve(path) for path in fields(operation)}


class _Bound:
    """Binds constants as parameters of the statement that is being compiled."""

    def __init__(self, compiler: SQLCompiler, options: dict[str, Any]) -> None:
        self.compiler = compiler
        self.options = options

    def value(self, value: str | int | float) -> str:
        parameter = sa.bindparam("constant", value, _BOUND[type(value)], unique=True)
        return self.compiler.process(parameter, **self.options)

    def values(self, values: Sequence[str | int | float]) -> str:
        kind = float if float in map(type, values) else type(values[0])
        parameter = sa.bindparam("constants", list(values), _BOUND[kind], unique=True, expanding=True)
        return self.compiler.process(parameter, **self.options)

    def dialect(self) -> Dialect:
        return _DIALECTS[self.compiler.dialect.name](self)


@compiles(Written)
@compiles(Containing)
@compiles(Ending)
@compiles(Listed)
def _written(element: Written | Containing | Ending | Listed, compiler: SQLCompiler, **options: Any) -> str:
    dialect = _Bound(compiler, options).dialect()
    return element.write(dialect, *(compiler.process(source, **options) for source in element.sources))


@compiles(QueryCondition)
def _query(element: QueryCondition, compiler: SQLCompiler, **options: Any) -> str:
    dialect = _Bound(compiler, options).dialect()

    def value(path: str) -> Value:
        column = element.columns[path]
        if column.json is None:
            return Value(column.kind, compiler.process(column.expression, **options))
        source, parts = column.json
        text = compiler.process(source, **options)
        return Value(column.kind, None if parts else text, JsonValue(dialect, text, parts))

    return Compiler(dialect, value, null_equals=False).condition(element.operation)


Row = dict[str, Any]

MAX_PATH_LENGTH = 2000
_MAX_INTEGER = 2**63 - 1
SLICE_ROWS = 250
"""Rows that are in memory at the same time while a list without a limit is answered."""


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
    rest: AsyncIterator[list[Row]] | None = None
    """Of a list without a limit, what follows these rows."""


class RowTable:
    """A table as requests see it: named columns, its own order, and the columns whose values single out few rows.

    It has numbers of rows, `seq`.
    """

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

    async def read(self, executor: Executor, within: Expression, request: RowRequest) -> Selection:
        """What `select` finds; without a limit in slices: the rows of now, but for those removed meanwhile."""
        if request.limit is not None:
            return await executor.read(lambda connection: self.select(connection, within, request))
        first = replace(request, limit=SLICE_ROWS)
        found = await executor.read(lambda connection: self.select(connection, within, first))
        if len(found.rows) < SLICE_ROWS:
            return found
        behind = replace(request, offset=(request.offset or 0) + SLICE_ROWS)

        def look(connection: sa.Connection) -> tuple[Selection, "array[int]"]:
            chosen = self._chosen([self.table.c.seq], within, behind)
            return self.select(connection, within, first), array("q", connection.execute(chosen).scalars())

        found, numbers = await executor.read(look, is_long=True)
        return replace(found, rest=self._read_rest(executor, within, request, numbers)) if numbers else found

    async def _read_rest(
        self, executor: Executor, within: Expression, request: RowRequest, numbers: "array[int]"
    ) -> AsyncIterator[list[Row]]:
        seq, outputs = self.table.c.seq, self._outputs(request)
        columns, readers = [output.expression for output in outputs], _readers(outputs)
        for start in range(0, len(numbers), SLICE_ROWS):
            part = numbers[start : start + SLICE_ROWS].tolist()
            statement = sa.select(*columns, seq).where(within, seq.in_(part))

            def read(connection: sa.Connection, statement: sa.Select[Any] = statement) -> dict[int, Row]:
                return {row[-1]: _row(row[:-1], readers) for row in connection.execute(statement)}

            found = await executor.read(read, is_long=True)
            yield [found.pop(number) for number in part if number in found]

    def select(self, connection: sa.Connection, within: Expression, request: RowRequest) -> Selection:
        """The rows inside `within` (the project's rows) that a request asks for.

        Raises InvalidRequest for unknown fields, negative limits and a number where text is needed.
        """
        if request.limit is not None and request.limit < 0:
            raise InvalidRequest("Limit must be non-negative")
        if request.offset is not None and request.offset < 0:
            raise InvalidRequest("Offset must be non-negative")
        outputs = self._outputs(request)
        columns = [output.expression for output in outputs]
        condition = self._condition(within, request)
        if any(output.counts for output in outputs):
            statement = self._chosen(columns, within, replace(request, limit=None, offset=None))
            return self._counted(connection, condition, statement, outputs, request)
        offset = request.offset or 0
        rows = self._rows(connection, self._chosen(columns, within, request), outputs)
        if (offset and not rows) or (request.limit is not None and len(rows) == request.limit):
            return Selection(rows, self._count(connection, condition))
        return Selection(rows, offset + len(rows))

    def _condition(self, within: Expression, request: RowRequest) -> Expression:
        return within if request.query is None else sa.and_(within, QueryCondition(request.query, self.value))

    def _chosen(self, columns: Sequence[Expression], within: Expression, request: RowRequest) -> sa.Select[Any]:
        statement = sa.select(*columns).select_from(self.table).where(self._condition(within, request))
        few = request.query is not None and pins(request.query, self.selective)
        statement = statement.order_by(*self.ordering(request.sort_by, few))
        if request.limit is not None:
            statement = statement.limit(min(request.limit, _MAX_INTEGER))
        return statement.offset(min(request.offset, _MAX_INTEGER)) if request.offset else statement

    def _outputs(self, request: RowRequest) -> "list[_Output]":
        """Each field once; all columns when none is named."""
        names = [name for field in request.fields or ["*"] for name in (self.columns if field == "*" else [field])]
        return [self._output(name) for name in dict.fromkeys(names)]

    def _output(self, name: str) -> "_Output":
        if name.lower() == "count(*)":
            return _Output(name, sa.literal(0), None, counts=True)
        key = name.removesuffix("_dump") if name.removesuffix("_dump") in self.columns else name
        value = self.value(key)
        if value.kind in (Kind.JSON, *STRUCTURES):
            return _Output(key, value.expression, orjson.Fragment)
        return _Output(key, value.expression, times.to_iso if value.kind is Kind.INSTANT else None)

    def _rows(self, connection: sa.Connection, statement: sa.Select[Any], outputs: "list[_Output]") -> list[Row]:
        readers = _readers(outputs)
        return [_row(row, readers) for row in connection.execute(statement)]

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


Reader = tuple[str, Callable[[Any], Any] | None]


def _readers(outputs: Sequence[_Output]) -> list[Reader]:
    return [(output.key, output.read) for output in outputs]


def _row(row: Sequence[Any], readers: Sequence[Reader]) -> Row:
    return {
        key: item if read is None or item is None else read(item)
        for (key, read), item in zip(readers, row, strict=True)
    }


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
