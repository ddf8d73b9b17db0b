"""Expressions of SQLAlchemy that the dialects of the query language write: JSON values, parts of texts, whole queries.

The control tables are on SQLite or PostgreSQL; either database understands what stands here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from heddle.store.query.compiler import Compiler, Dialect, JsonValue, Kind, Value, contained
from heddle.store.query.postgresql import PostgresDialect
from heddle.store.query.sqlite import SqliteDialect
from heddle.wire.query import Operation, fields

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
    """True when a text lies inside another, whatever the case."""

    inherit_cache = False

    def __init__(self, whole: Expression, part: str) -> None:
        self.write: Callable[..., str] = lambda dialect, whole, part: contained(dialect, whole, part, folded=True)
        self.sources = whole, sa.literal(part, sa.Text())


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
def _written(element: Written | Containing, compiler: SQLCompiler, **options: Any) -> str:
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

    return Compiler(dialect, value, null_equals=False).compile(element.operation)
