"""Small pieces of SQL that SQLite and PostgreSQL spell differently."""

from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from heddle.store.control.expressions import Condition

_ZEROS = (
    r"CASE WHEN strpos({items}, '\u0000') = 0 THEN {items}"
    r" ELSE regexp_replace({items}, '(?<!\\)((?:\\\\)*)\\u0000', '\1' || chr(1114111) || '0', 'g') END"
)
"""A JSON list with zero characters as texts of PostgreSQL have them (see postgres/values.py)."""


class DistinctList(sa.ColumnElement[str]):
    """Aggregate: the different texts of a group as a JSON list."""

    inherit_cache = False

    def __init__(self, text: sa.ColumnElement[Any]) -> None:
        self.text = text
        self.type = sa.Text()


class Listed(Condition):
    """True when a value is one of many; they travel as one parameter, however many they are.

    `items` is the values, or the name of the parameter that will hold texts as a JSON list.
    """

    inherit_cache = False

    def __init__(self, value: sa.ColumnElement[Any], items: Sequence[str | int | float] | str) -> None:
        self.value = value
        if isinstance(items, str):
            self.is_number = False
            self.items = sa.bindparam(items, type_=sa.Text())
            return
        numbers = bool(items) and not isinstance(items[0], str)
        self.is_number = numbers
        self.items = sa.bindparam("listed", orjson.dumps(list(items)).decode(), sa.Text(), unique=True)


class Whole(sa.ColumnElement[int]):
    """A number that is not negative without its fraction."""

    inherit_cache = False

    def __init__(self, number: sa.ColumnElement[Any]) -> None:
        self.number = number
        self.type = sa.BigInteger()


@compiles(DistinctList, "sqlite")
def _distinct_sqlite(element: DistinctList, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_group_array(DISTINCT {compiler.process(element.text, **options)})"


@compiles(DistinctList, "postgresql")
def _distinct_postgresql(element: DistinctList, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_agg(DISTINCT {compiler.process(element.text, **options)})::text"


@compiles(Listed, "sqlite")
def _listed_sqlite(element: Listed, compiler: SQLCompiler, **options: Any) -> str:
    value, items = compiler.process(element.value, **options), compiler.process(element.items, **options)
    return f"({value} IN (SELECT value FROM json_each({items})))"


@compiles(Listed, "postgresql")
def _listed_postgresql(element: Listed, compiler: SQLCompiler, **options: Any) -> str:
    value, items = compiler.process(element.value, **options), compiler.process(element.items, **options)
    kind = "::double precision" if element.is_number else ""
    listed = items if element.is_number else _ZEROS.format(items=items)
    return f"({value} IN (SELECT item{kind} FROM json_array_elements_text(({listed})::json) AS items(item)))"


@compiles(Whole, "sqlite")
def _whole_sqlite(element: Whole, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST({compiler.process(element.number, **options)} AS INTEGER)"


@compiles(Whole, "postgresql")
def _whole_postgresql(element: Whole, compiler: SQLCompiler, **options: Any) -> str:
    return f"floor({compiler.process(element.number, **options)})::bigint"
