"""Tables declared as dataclasses: one declaration makes the columns, the rows, and the way between them."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.store.control.schema import Executor, Instance, metadata
from heddle.wire import jsontext


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T")
R = TypeVar("R", bound=_Dataclass)

Key = Annotated[T, "primary_key"]
"""A column of the primary key."""
Indexed = Annotated[T, "index"]
Unique = Annotated[T, "unique"]
Integer = Annotated[int, sa.Integer()]
"""A whole number of 32 bits; `int` alone has 64."""

Serial = Annotated[int, sa.BigInteger().with_variant(sa.Integer(), "sqlite")]
"""A number that the database gives, as the only column of a primary key."""


class Json(sa.TypeDecorator[Any]):
    """A value as minified JSON text; a text is taken for JSON as it is."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """The text that is stored."""
        return value if value is None or isinstance(value, str) else jsontext.dumps(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        """The value that was stored."""
        return None if value is None else orjson.loads(value)


class Flag(sa.TypeDecorator[bool]):
    """True or false as 1 or 0."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: bool | None, dialect: sa.Dialect) -> int | None:  # noqa: ARG002
        """The number that is stored."""
        return None if value is None else int(value)

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> bool | None:  # noqa: ARG002
        """The flag that was stored."""
        return None if value is None else bool(value)


def stored_type(column: "sa.Column[Any]") -> sa.types.TypeEngine[Any]:
    """The type of a column in the database, under the values that Python sees."""
    return column.type.impl_instance if isinstance(column.type, sa.TypeDecorator) else column.type


_TYPES: dict[Any, type[sa.types.TypeEngine[Any]]] = {
    str: sa.Text, int: sa.BigInteger, float: sa.Float, bool: Flag, bytes: sa.LargeBinary,
}  # fmt: skip


class Mapped(Generic[R]):
    """The rows of a table as instances of a dataclass, whose fields are the columns.

    `declared` are further columns, constraints and indexes. With `of`, the dataclass reads some columns of that table.
    """

    def __init__(
        self, kind: type[R], name: str = "", *declared: sa.schema.SchemaItem, of: sa.Table | None = None, **options: Any
    ) -> None:
        self.kind = kind
        self._names = [field.name for field in dataclasses.fields(kind)]
        if of is None:
            hints = typing.get_type_hints(kind, include_extras=True)
            columns = [_column(name, hints[name]) for name in self._names]
            self.table = sa.Table(name, metadata, *columns, *declared, **options)
        else:
            self.table, self._names = of, [name for name in self._names if name in of.c]
        self.c = self.table.c
        self._columns = [self.c[name] for name in self._names]

    def select(self, *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """The rows under conditions."""
        return sa.select(*self._columns).where(*where)

    def row(self, found: Sequence[Any]) -> R:
        """A row of `select`."""
        return self.kind(**dict(zip(self._names, found, strict=True)))

    def values(self, row: R) -> dict[str, Any]:
        """The columns of a row, without a number that the database gives."""
        given = self.table.autoincrement_column
        return {name: getattr(row, name) for name in self._names if given is None or name != given.name}

    def insert(self, connection: sa.Connection, row: R, **extra: Any) -> None:
        """Store a row; `extra` are values of columns that the dataclass lacks."""
        connection.execute(self.table.insert().values(self.values(row) | extra))

    def insert_new(self, connection: sa.Connection, row: R) -> None:
        """Store a row unless its key or another unique value is taken."""
        connection.execute(dialect_insert(connection, self.table).values(self.values(row)).on_conflict_do_nothing())

    def first(self, connection: sa.Connection, query: sa.Select[Any]) -> R | None:
        """The first row of a `select`."""
        found = connection.execute(query).first()
        return None if found is None else self.row(found)

    def all(self, connection: sa.Connection, query: sa.Select[Any]) -> list[R]:
        """The rows of a `select`."""
        return [self.row(found) for found in connection.execute(query)]


def _column(name: str, hint: Any) -> "sa.Column[Any]":
    """A column from the annotation of a field: its Python type, `None` for NULL, and what `Annotated` adds."""
    options: dict[str, Any] = {}
    kind: sa.types.TypeEngine[Any] | None = None
    nullable = False
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            hint = arguments[0]
            for extra in arguments[1:]:
                if isinstance(extra, str):
                    options[extra] = True
                elif isinstance(extra, sa.TextClause):
                    options["server_default"] = extra
                else:
                    kind = extra
        elif origin in (types.UnionType, typing.Union) and type(None) in arguments:
            nullable = True
            hint = arguments[0]
        else:
            break
    return sa.Column(name, kind if kind is not None else _TYPES.get(hint, Json)(), nullable=nullable, **options)


def dialect_insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT with the conflict clauses of the connection's database."""
    return (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)


def upsert(connection: sa.Connection, table: sa.Table, key: Iterable[str], rows: Any) -> None:
    """Insert rows (their values by column), each in place of the one with the same unique `key`."""
    statement = dialect_insert(connection, table)
    names = rows[0] if isinstance(rows, list) else rows
    changed = {name: statement.excluded[name] for name in names if name not in key}
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=changed), rows)


class Repository:
    """What is done with some tables; each call is one transaction."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self.instance = instance or Instance()

    async def _first(self, mapped: Mapped[R], *where: sa.ColumnElement[bool]) -> R | None:
        query = mapped.select(*where)
        return await self._executor.read(lambda connection: mapped.first(connection, query))

    async def _all(self, mapped: Mapped[R], query: sa.Select[Any]) -> list[R]:
        return await self._executor.read(lambda connection: mapped.all(connection, query))

    async def _scalar(self, query: "sa.Select[T]") -> T | None:
        return await self._executor.read(lambda connection: connection.execute(query).scalar())

    async def _tuples(self, query: sa.Executable) -> list[Any]:
        return await self._executor.read(lambda connection: list(connection.execute(query)))

    async def _execute(self, statement: sa.UpdateBase, size: int = 0) -> int:
        """Run one change; returns how many rows it touched."""
        return await self._executor.write(lambda connection: connection.execute(statement).rowcount, size)

    async def _count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        return await self._scalar(sa.select(sa.func.count()).select_from(table).where(*where)) or 0
