"""What a statement is about: constants that are bound, and rows that travel in its text where they are many."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from heddle.store.clickhouse.client import Clickhouse, Row
from heddle.store.clickhouse.schema import listed, quoted

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_PARAMETER_BYTES = 3000
"""Parameters are part of the address of a request, of which servers and what is before them allow some KiB."""


class Bound:
    """Gathers what a statement binds; the same constant is bound once, so that equal expressions stay equal."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self._definitions: dict[str, str] = {}
        self._tables: list[str] = []
        self._known: dict[tuple[str, str], str] = {}
        self._size = 0

    def value(self, value: str | int | float) -> str:
        """The SQL of a constant."""
        if isinstance(value, str):
            return self._bound("String", value, quoted(value))
        return self._bound("Int64" if isinstance(value, int) else "Float64", value, repr(value))

    def values(self, values: Sequence[str] | Sequence[int]) -> str:
        """The SQL of a list, as it stands behind IN; not empty."""
        kind = "String" if isinstance(values[0], str) else "Int64"
        return self._bound(f"Array({kind})", list(values), listed(values))

    def _bound(self, kind: str, value: Any, literal: str) -> str:
        """A parameter, while there is room for one, else the literal."""
        key = (kind, literal)
        # An address spells what is not ASCII with three characters a byte.
        size = 20 + (len(literal) if literal.isascii() else 12 * len(literal))
        if key not in self._known and self._size + size <= _PARAMETER_BYTES:
            self._size += size
            name = f"p{len(self.parameters)}"
            self.parameters[name] = value
            self._known[key] = f"{{{name}:{kind}}}"
        return self._known.get(key, literal)

    def table(self, columns: tuple[tuple[str, str], ...], rows: Sequence[tuple[str | int, ...]]) -> str:
        """The name of a table of the statement alone; `columns` are pairs of name and type."""
        name = f"sent_{len(self._tables)}"
        kinds = ", ".join(kind for _, kind in columns)
        row = ", ".join(f"t.{number} AS {column}" for number, (column, _) in enumerate(columns, 1))
        content = f"CAST([{listed(rows)[1:-1]}], 'Array(Tuple({kinds}))')"
        self._tables.append(f"{name} AS (SELECT {row} FROM (SELECT arrayJoin({content}) AS t))")
        return name

    def define(self, expression: str) -> str:
        """The name of an expression, which may be a query of one row."""
        return self._definitions.setdefault(expression, f"defined_{len(self._definitions)}")

    def with_clause(self) -> str:
        """The tables and definitions, as a statement begins."""
        definitions = (f"{expression} AS {name}" for expression, name in self._definitions.items())
        items = ", ".join([*self._tables, *definitions])
        return f"WITH {items} " if items else ""


async def rows(clickhouse: Clickhouse, sql: str, bound: Bound) -> list[Row]:
    """The rows of a SELECT."""
    return await clickhouse.read(lambda client: rows_of(client, sql, bound))


def rows_of(client: "Client", sql: str, bound: Bound) -> list[Row]:
    """The rows of a SELECT, in the thread of the caller."""
    return [tuple(row) for row in client.query(sql, parameters=bound.parameters).result_rows]


def columns_of(client: "Client", sql: str, bound: Bound) -> Iterator[Sequence[Sequence[Any]]]:
    """The columns of a SELECT, block by block, in the thread of the caller."""
    with client.query_column_block_stream(sql, parameters=bound.parameters) as stream:
        yield from stream
