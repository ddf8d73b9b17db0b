"""JSON text columns read inside SQL, for SQLite and PostgreSQL, with the typing rules of the query language.

Every function here returns an SQL expression that either database understands; see `wire/query.py` for the rules.
"""

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from heddle.store import jsonpath

_ODD_INDEX = re.compile(r"(\s+[+-]?|[+-])\d+$")
"""What PostgreSQL takes for a place in a list and the query language for a key."""


class AnyNumber(sa.TypeDecorator[int | float]):
    """A number as the database gives it, whole or not."""

    impl = sa.Float
    cache_ok = True

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> None:
        """Nothing is done to it: as floating point, whole numbers of more than 53 bits would be others."""


class JsonRead(sa.ColumnElement[Any]):
    """The value at a path of a JSON text: `reading` is text, integer, double, boolean, scalar, size or exists."""

    inherit_cache = False

    def __init__(self, source: sa.ColumnElement[Any], parts: tuple[str, ...], reading: str) -> None:
        self.source = source
        self.parts = parts
        self.reading = reading
        self.type = _TYPES[reading]


class Reread(sa.ColumnElement[Any]):
    """A text read as `integer`, `double` or `boolean`; null when it is none."""

    inherit_cache = False

    def __init__(self, source: sa.ColumnElement[Any], reading: str) -> None:
        self.source = source
        self.reading = reading
        self.type = _TYPES[reading]


class Spelled(sa.ColumnElement[str]):
    """A number or an instant (microseconds) as text: 5.0 is `5`."""

    inherit_cache = False

    def __init__(self, source: sa.ColumnElement[Any], instant: bool) -> None:
        self.source = source
        self.instant = instant
        self.type = sa.Text()


class Lowered(sa.ColumnElement[str]):
    """A text in lower case, beyond ASCII too."""

    inherit_cache = False

    def __init__(self, source: sa.ColumnElement[Any]) -> None:
        self.source = source
        self.type = sa.Text()


class CodePoints(sa.ColumnElement[str]):
    """A text that sorts and compares by code points."""

    inherit_cache = False

    def __init__(self, source: sa.ColumnElement[Any]) -> None:
        self.source = source
        self.type = sa.Text()


class Condition(sa.ColumnElement[bool]):
    """A condition that is written as it is: without the `= 1` that would keep SQLite from using an index."""

    inherit_cache = False
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> "Condition":
        """Itself: every condition here brings its own parentheses."""
        del against
        return self


def bracketed(condition: sa.ColumnElement[Any], compiler: SQLCompiler, options: dict[str, Any]) -> str:
    """The SQL of a condition in brackets; no pair more than needed, because SQLite limits how deep they may be."""
    text = compiler.process(condition, **options)
    return text if isinstance(condition, Condition) else f"({text})"


class Negation(Condition):
    """The opposite of a condition; unknown stays unknown."""

    inherit_cache = False

    def __init__(self, condition: sa.ColumnElement[Any]) -> None:
        self.condition = condition


class Truth(sa.ColumnElement[int]):
    """A condition as 1, 0 or null."""

    inherit_cache = False

    def __init__(self, condition: sa.ColumnElement[Any]) -> None:
        self.condition = condition
        self.type = sa.Integer()


class Within(Condition):
    """True when a text lies inside another."""

    inherit_cache = False

    def __init__(self, whole: sa.ColumnElement[Any], part: sa.ColumnElement[Any]) -> None:
        self.whole = whole
        self.part = part


class Member(Condition):
    """True when a JSON list of texts holds a text, with `folded` in any case."""

    inherit_cache = False

    def __init__(self, source: sa.ColumnElement[Any], item: sa.ColumnElement[Any], folded: bool) -> None:
        self.source = source
        self.item = item
        self.folded = folded


_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "text": sa.Text(),
    "scalar": sa.Text(),
    "integer": sa.BigInteger(),
    "double": sa.Float(),
    "number": AnyNumber(),
    "boolean": sa.Integer(),
    "exists": sa.Integer(),
    "size": sa.BigInteger(),
}


_READINGS = {
    "text": jsonpath.text,
    "integer": jsonpath.integer,
    "double": jsonpath.double,
    "boolean": jsonpath.boolean,
    "size": jsonpath.size,
}


@compiles(JsonRead, "sqlite")
def _read_sqlite(element: JsonRead, compiler: SQLCompiler, **options: Any) -> str:
    source = compiler.process(element.source, **options)
    if element.reading == "exists":
        tests = [f"json_type({source}, {path}) IS NOT NULL" for path in jsonpath.path_literals(element.parts)]
        return f"({' OR '.join(tests)})" if tests else "(1 = 0)"
    if element.reading in ("scalar", "number"):
        return jsonpath.scalar(source, element.parts)
    return f"({_READINGS[element.reading](source, element.parts)})"


@compiles(JsonRead, "postgresql")
def _read_postgresql(element: JsonRead, compiler: SQLCompiler, **options: Any) -> str:
    source = compiler.process(element.source, **options)
    value = _pg_at(f"heddle_json({source})", element.parts)
    if element.reading == "exists":
        return f"({value} IS NOT NULL)::int"
    if element.reading == "scalar":
        return f"({value} #>> '{{}}')"
    return f"heddle_{element.reading}({value})"


def _pg_at(value: str, parts: tuple[str, ...]) -> str:
    """The JSON value at a path, null when it is missing."""
    if any("\x00" in part for part in parts):
        return "NULL::json"
    if any(_ODD_INDEX.match(part) for part in parts):
        # PostgreSQL would take such a part for a place in a list.
        for part in parts:
            step = f"{value} #> ARRAY[{_pg_quote(part)}]::text[]"
            value = (
                f"(CASE WHEN json_typeof({value}) = 'object' THEN {step} END)"
                if _ODD_INDEX.match(part)
                else f"({step})"
            )
        return value
    return f"({value} #> ARRAY[{', '.join(map(_pg_quote, parts))}]::text[])"


@compiles(Negation)
def _negation(element: Negation, compiler: SQLCompiler, **options: Any) -> str:
    return f"(NOT {bracketed(element.condition, compiler, options)})"


@compiles(Truth, "sqlite")
def _truth_sqlite(element: Truth, compiler: SQLCompiler, **options: Any) -> str:
    return bracketed(element.condition, compiler, options)


@compiles(Truth, "postgresql")
def _truth_postgresql(element: Truth, compiler: SQLCompiler, **options: Any) -> str:
    return f"{bracketed(element.condition, compiler, options)}::int"


def _once(expression: str, source: str) -> str:
    """An expression over `once.v`, where `source` is written and computed only once."""
    return f"(SELECT {expression} FROM (SELECT {source} AS v) AS once)"


@compiles(Reread, "sqlite")
def _reread_sqlite(element: Reread, compiler: SQLCompiler, **options: Any) -> str:
    read = {"integer": jsonpath.integer_of_text, "double": jsonpath.double_of_text, "boolean": jsonpath.bool_of_text}
    return _once(read[element.reading]("once.v"), compiler.process(element.source, **options))


@compiles(Reread, "postgresql")
def _reread_postgresql(element: Reread, compiler: SQLCompiler, **options: Any) -> str:
    return f"heddle_{element.reading}_of({compiler.process(element.source, **options)})"


@compiles(Spelled, "sqlite")
def _spelled_sqlite(element: Spelled, compiler: SQLCompiler, **options: Any) -> str:
    text = "CASE WHEN once.v = round(once.v) THEN printf('%.0f', once.v) ELSE CAST(once.v AS TEXT) END"
    if element.instant:
        seconds = "strftime('%Y-%m-%dT%H:%M:%S', once.v / 1000000, 'unixepoch')"
        text = f"{seconds} || printf('.%06dZ', once.v % 1000000)"
    return _once(text, compiler.process(element.source, **options))


@compiles(Spelled, "postgresql")
def _spelled_postgresql(element: Spelled, compiler: SQLCompiler, **options: Any) -> str:
    source = compiler.process(element.source, **options)
    if element.instant:
        form = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
        return f"to_char(to_timestamp(({source})::numeric / 1000000) AT TIME ZONE 'UTC', '{form}')"
    kind = "double precision" if isinstance(element.source.type, sa.Float) else "numeric"
    return f"heddle_spelled(({source})::{kind})"


@compiles(Lowered, "sqlite")
def _lowered_sqlite(element: Lowered, compiler: SQLCompiler, **options: Any) -> str:
    return f"unicode_lower({compiler.process(element.source, **options)})"


@compiles(Lowered, "postgresql")
def _lowered_postgresql(element: Lowered, compiler: SQLCompiler, **options: Any) -> str:
    return f'lower({compiler.process(element.source, **options)} COLLATE "und-x-icu")'


@compiles(CodePoints, "sqlite")
def _code_points_sqlite(element: CodePoints, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.source, **options)


@compiles(CodePoints, "postgresql")
def _code_points_postgresql(element: CodePoints, compiler: SQLCompiler, **options: Any) -> str:
    return f'({compiler.process(element.source, **options)} COLLATE "C")'


@compiles(Within, "sqlite")
def _within_sqlite(element: Within, compiler: SQLCompiler, **options: Any) -> str:
    whole, part = compiler.process(element.whole, **options), compiler.process(element.part, **options)
    return f"(ifnull(instr({whole}, {part}), 0) > 0)"


@compiles(Within, "postgresql")
def _within_postgresql(element: Within, compiler: SQLCompiler, **options: Any) -> str:
    whole, part = compiler.process(element.whole, **options), compiler.process(element.part, **options)
    return f"(coalesce(strpos({whole}, {part}), 0) > 0)"


@compiles(Member, "sqlite")
def _member_sqlite(element: Member, compiler: SQLCompiler, **options: Any) -> str:
    source, item = compiler.process(element.source, **options), compiler.process(element.item, **options)
    test = f"unicode_lower(value) = unicode_lower({item})" if element.folded else f"value = {item}"
    return f"EXISTS (SELECT 1 FROM json_each({source}) WHERE {test})"


@compiles(Member, "postgresql")
def _member_postgresql(element: Member, compiler: SQLCompiler, **options: Any) -> str:
    source, item = compiler.process(element.source, **options), compiler.process(element.item, **options)
    test = (
        f'lower(item COLLATE "und-x-icu") = lower({item} COLLATE "und-x-icu")' if element.folded else f"item = {item}"
    )
    return f"EXISTS (SELECT 1 FROM json_array_elements_text(heddle_json({source})) AS items(item) WHERE {test})"


def _pg_quote(text: str) -> str:
    # Percent signs are doubled because the driver reads the statement as a format; zero bytes cannot be written at all.
    return "'" + text.replace("\x00", "").replace("'", "''").replace("%", "%%") + "'"
