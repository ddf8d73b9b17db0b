"""Tables declared as dataclasses, the rows in them, and what runs statements on the control database."""

import asyncio
import dataclasses
import os
import secrets
import socket
import types
import typing
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib import import_module
from typing import Annotated, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

from heddle import aio
from heddle.errors import NotFound
from heddle.wire import jsontext

T = TypeVar("T")
P = ParamSpec("P")
NOTHING: Mapping[str, Any] = types.MappingProxyType({})

metadata = sa.MetaData()


class Executor(Protocol):
    """Runs work on the control database, away from the event loop."""

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        """Run `work` inside a transaction and return after its commit; `size` is its payload in bytes.

        An exception of `work` undoes what this work did (nothing else) and is raised here.
        Raises Busy when too much waits and StorageFull when the disk is full.
        """

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        """Run `work` on a read-only connection; who reads everything takes turns with others who do (`is_long`)."""


@dataclass(slots=True)
class WriteStats:
    """What was written since the start, for the metrics."""

    groups: int = 0
    """Commits; `seconds` is the time that they took, `items` the pieces of work in them, `written_bytes` their size."""
    seconds: float = 0.0
    items: int = 0
    written_bytes: int = 0
    calls: int = 0
    """Calls whose start is stored."""
    waiting_bytes: int = 0

    def count_group(self, items: int, size: int, seconds: float) -> None:
        """Count a commit."""
        self.groups += 1
        self.seconds += seconds
        self.items += items
        self.written_bytes += size


@dataclass(frozen=True, slots=True)
class Instance:
    """One running server as the owner of leases; another one after a restart."""

    is_shared: bool = False
    """Other servers may work on the same tables; otherwise what an earlier server left is nobody's."""
    owner: str = field(default_factory=lambda: f"{socket.gethostname()[:100]}/{os.getpid()}/{secrets.token_hex(4)}")
    looks: "Looks" = field(default_factory=lambda: Looks(), compare=False, repr=False)


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


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
            self.table = sa.Table(name, metadata, *columns_of(kind, self._names), *declared, **options)
        else:
            self.table, self._names = of, [name for name in self._names if name in of.c]
        self.c = self.table.c
        self._columns = [self.c[name] for name in self._names]
        self._insert = self.table.insert()

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
        set_values(connection, self._insert, self.values(row) | extra)

    def insert_new(self, connection: sa.Connection, row: R) -> None:
        """Store a row unless its key or another unique value is taken."""
        connection.execute(dialect_insert(connection, self.table).values(self.values(row)).on_conflict_do_nothing())

    def first(
        self, connection: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any] | None = None
    ) -> R | None:
        """The first row of a `select`, with `values` of its parameters."""
        found = connection.execute(query, values).first()
        return None if found is None else self.row(found)

    def require(self, connection: sa.Connection, row_id: str) -> R:
        """The row of an id; raises NotFound, so that nothing is stored below what was deleted meanwhile."""
        found = self.first(connection, self.select(self.table.c.id == row_id))
        if found is None:
            raise NotFound(f"{row_id!r} not found")
        return found

    def all(self, connection: sa.Connection, query: sa.Select[Any]) -> list[R]:
        """The rows of a `select`."""
        return [self.row(found) for found in connection.execute(query)]


def columns_of(kind: type[_Dataclass], names: Iterable[str]) -> "list[sa.Column[Any]]":
    """The columns that some fields of a dataclass are."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_column(name, hints[name]) for name in names]


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
    return _insert(connection.dialect.name, table)


def upsert(
    connection: sa.Connection, table: sa.Table, key: Iterable[str], rows: Any, added: Collection[str] = ()
) -> None:
    """Insert rows (their values by column), each in place of the one with the same unique `key`.

    The columns `added` are counts: what is there is added to them.
    """
    statement = dialect_insert(connection, table)
    names = rows[0] if isinstance(rows, list) else rows
    changed = {name: statement.excluded[name] for name in names if name not in key}
    changed |= {name: table.c[name] + statement.excluded[name] for name in added}
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

    async def _scalar(self, query: "sa.Select[T]", values: Mapping[str, Any] | None = None) -> T | None:
        return await self._executor.read(lambda connection: connection.execute(query, values).scalar())

    async def _scalars(self, query: "sa.Select[T]") -> list[T]:
        return await self._executor.read(lambda connection: [row[0] for row in connection.execute(query)])

    async def _tuples(self, query: sa.Executable) -> list[Any]:
        return await self._executor.read(lambda connection: list(connection.execute(query)))

    async def _execute(self, statement: sa.UpdateBase) -> int:
        """Run one change; returns how many rows it touched."""
        return await self._executor.write(lambda connection: connection.execute(statement).rowcount)

    async def _count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        return await self._scalar(sa.select(sa.func.count()).select_from(table).where(*where)) or 0


def begins_with(column: sa.ColumnElement[Any], text: str) -> sa.ColumnElement[bool]:
    """The condition that a text begins with another one."""
    # LIKE takes no notice of case on SQLite.
    return sa.func.substr(column, 1, len(text)) == text


def set_values(
    connection: sa.Connection,
    statement: sa.Update | sa.Insert,
    changes: Mapping[str, Any],
    given: Mapping[str, Any] = NOTHING,
) -> int:
    """Set columns to values or formulas, with the other parameters of the statement; returns how many rows it touched.

    Values are parameters, so that a statement that is kept is compiled once.
    """
    formulas = {name: value for name, value in changes.items() if isinstance(value, sa.ClauseElement)}
    values = {name: value for name, value in changes.items() if name not in formulas}
    return connection.execute(statement.values(formulas) if formulas else statement, {**values, **given}).rowcount


_MAX_REMEMBERED = 1000


class ProjectCache(Generic[T]):
    """What was read of projects, remembered until it changes where no other server writes."""

    def __init__(self, instance: Instance) -> None:
        self._is_shared = instance.is_shared
        self._known: dict[str, T] = {}
        self._changes = 0

    async def get(self, project: str, read: Callable[[], Awaitable[T]]) -> T:
        """What is known of a project, else what `read` gives."""
        if project in self._known:
            return self._known[project]
        changes, found = self._changes, await read()
        if changes == self._changes and not self._is_shared:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[project] = found
        return found

    def forget(self, project: str) -> None:
        """Read anew what has changed."""
        # Counted after the commit: a read that began before it must not put its older answer into the cache.
        self._changes += 1
        self._known.pop(project, None)


class _Runs(Protocol):
    _executor: Executor


S = TypeVar("S", bound=_Runs)


def reads(
    work: Callable[Concatenate[S, sa.Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a method of a repository one piece of work on a read-only connection, which it is called without."""

    @wraps(work)
    async def run(self: S, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._executor.read(lambda connection: work(self, connection, *args, **named))

    return run


def writes(
    work: Callable[Concatenate[S, sa.Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a method of a repository one transaction, whose connection it is called without; it has ended by then."""

    @wraps(work)
    async def run(self: S, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._executor.write(lambda connection: work(self, connection, *args, **named))

    return run


class Upsert:
    """Inserts rows of a table, or updates those that share the columns `places` (a unique constraint).

    `columns` names the values of a row in order. The statement is compiled once per dialect and run on plain tuples:
    compiling and binding it through the toolkit each time costs more than the insert itself.
    """

    def __init__(self, table: sa.Table, columns: Sequence[str], places: Sequence[str]) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._places = tuple(places)
        self._compiled = cache(self._compile)

    def __call__(self, connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write the rows, each a tuple in the order of the columns."""
        if not rows:
            return
        text, positional = self._compiled(connection.dialect.name)
        if positional:
            connection.exec_driver_sql(text, list(rows))
        else:
            connection.exec_driver_sql(text, [dict(zip(self._columns, row, strict=True)) for row in rows])

    def _compile(self, dialect_name: str) -> tuple[str, bool]:
        statement = _insert(dialect_name, self._table)
        changes = {name: statement.excluded[name] for name in self._columns if name not in self._places}
        statement = statement.on_conflict_do_update(index_elements=self._places, set_=changes)
        compiled = statement.compile(dialect=_dialect(dialect_name), column_keys=self._columns)
        if compiled.positional:
            assert list(compiled.positiontup or ()) == list(self._columns), compiled.positiontup
        return str(compiled), compiled.positional


class Prepared:
    """A statement whose bound parameters are given by name at each run; a list of texts is bound for `Listed`."""

    def __init__(self, statement: sa.ClauseElement) -> None:
        self._statement = statement
        self._compiled = cache(self._compile)

    def __call__(self, connection: sa.Connection, **values: Any) -> sa.CursorResult[*tuple[Any, ...]]:
        """Run the statement."""
        text, positions, fixed = self._compiled(connection.dialect.name)
        lists = {name: jsontext.dump_list(value) for name, value in values.items() if isinstance(value, list)}
        held = {**fixed, **values, **lists}
        if positions is None:
            return connection.exec_driver_sql(text, held)
        return connection.exec_driver_sql(text, tuple([held[name] for name in positions]))

    def _compile(self, dialect_name: str) -> tuple[str, tuple[str, ...] | None, dict[str, Any]]:
        compiled = self._statement.compile(dialect=_dialect(dialect_name))
        assert isinstance(compiled, SQLCompiler)
        positions = tuple(compiled.positiontup or ()) if compiled.positional else None
        return str(compiled), positions, {name: value for name, value in compiled.params.items() if value is not None}


class Question:
    """Something that a server asks again and again: columns of one row; parameters of one name have one value."""

    def __init__(self, *columns: sa.ColumnElement[Any]) -> None:
        self.columns = columns


_TOGETHER_SECONDS = 0.001
"""So long a question waits for others."""


class Looks:
    """What the parts of one server ask of tables that others change, too: one read for all who ask at a time."""

    def __init__(self) -> None:
        self._asked = set[Question]()
        self._values: dict[str, Any] = {}
        self._reading: asyncio.Task[dict[Question, tuple[Any, ...]]] | None = None
        self._began: float | None = None

    def seconds_to_next(self, every: float) -> float:
        """How long to wait for the next look, where each is so many seconds after the one before."""
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        left = every - (now - self._began) % every
        # A timer that went off a little early belongs to the look that has been.
        return left if left > every / 100 else left + every

    async def ask(self, executor: Executor, question: Question, **values: Any) -> tuple[Any, ...]:
        """The values of a question's columns, as they are after it was asked."""
        self._asked.add(question)
        self._values |= values
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(executor))
        return (await aio.shield(self._reading))[question]

    async def _read(self, executor: Executor) -> dict[Question, tuple[Any, ...]]:
        await asyncio.sleep(_TOGETHER_SECONDS)
        asked, values = frozenset(self._asked), self._values
        self._asked, self._values, self._reading = set(), {}, None
        questions, statement = _prepare(asked)
        found = iter(await executor.read(lambda connection: statement(connection, **values).one()))
        return {question: tuple([next(found) for _ in question.columns]) for question in questions}


@cache
def _prepare(asked: frozenset[Question]) -> tuple[tuple[Question, ...], Prepared]:
    questions = tuple(asked)
    return questions, Prepared(sa.select(*(column for question in questions for column in question.columns)))


def _insert(dialect_name: str, table: sa.Table) -> Any:
    return import_module(f"sqlalchemy.dialects.{dialect_name}").insert(table)


def _dialect(name: str) -> sa.Dialect:
    dialect: sa.Dialect = import_module(f"sqlalchemy.dialects.{name}").dialect()
    return dialect
