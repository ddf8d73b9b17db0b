"""Statements that are run often at little cost: compiled once, not at every run."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler


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
        insert = postgresql.insert if dialect_name == "postgresql" else sqlite.insert
        statement = insert(self._table)
        changes = {name: statement.excluded[name] for name in self._columns if name not in self._places}
        statement = statement.on_conflict_do_update(index_elements=self._places, set_=changes)
        compiled = statement.compile(dialect=_dialect(dialect_name), column_keys=self._columns)
        if compiled.positional:
            assert list(compiled.positiontup or ()) == list(self._columns), compiled.positiontup
        return str(compiled), compiled.positional


class Prepared:
    """A statement without lists (`in_`) whose bound parameters are given by name at each run."""

    def __init__(self, statement: sa.ClauseElement) -> None:
        self._statement = statement
        self._compiled = cache(self._compile)

    def __call__(self, connection: sa.Connection, **values: Any) -> sa.CursorResult[*tuple[Any, ...]]:
        """Run the statement."""
        text, positions, fixed = self._compiled(connection.dialect.name)
        held = {**fixed, **values}
        if positions is None:
            return connection.exec_driver_sql(text, held)
        return connection.exec_driver_sql(text, tuple([held[name] for name in positions]))

    def _compile(self, dialect_name: str) -> tuple[str, tuple[str, ...] | None, dict[str, Any]]:
        compiled = self._statement.compile(dialect=_dialect(dialect_name))
        assert isinstance(compiled, SQLCompiler)
        positions = tuple(compiled.positiontup or ()) if compiled.positional else None
        return str(compiled), positions, {name: value for name, value in compiled.params.items() if value is not None}


def _dialect(name: str) -> sa.Dialect:
    dialect: sa.Dialect = postgresql.dialect() if name == "postgresql" else sqlite.dialect()  # type: ignore[no-untyped-call]
    return dialect
