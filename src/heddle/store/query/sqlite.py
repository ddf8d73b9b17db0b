"""Queries in the SQL of SQLite: how it reads a JSON text by path with the typing rules of the query language.

Paths stand in the SQL text as literals, not as parameters, so that an expression index on the same text is used.
"""

from collections.abc import Callable, Sequence
from itertools import product

from heddle.store.query.compiler import Dialect, JsonValue, Kind
from heddle.wire.query import Scalar

_MAX_EITHER = 3
_WHITESPACE = "' ' || char(9, 10, 11, 12, 13)"


def quote(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def path_literals(parts: tuple[str, ...]) -> list[str]:
    """The SQL literals of the SQLite paths that the parts can mean: an integer part is a list index or a key.

    Empty when SQLite has no way to write such a path (the field is then missing in every row).
    """
    steps: list[list[str]] = []
    free = _MAX_EITHER
    for part in parts:
        label = _label(part)
        if label is None:
            return []
        either = _is_index(part) and free > 0
        free -= either
        steps.append([f"[{int(part)}]", label] if either else [f"[{int(part)}]" if _is_index(part) else label])
    return [quote("$" + "".join(chosen)) for chosen in product(*steps)]


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10


def _label(part: str) -> str | None:
    if "\x00" in part:
        return None
    if '"' not in part and "\\" not in part:
        return f'."{part}"'
    if part and not any(character in part for character in ".[]"):
        return "." + part.replace("\\", "\\\\").replace('"', '\\"')
    return None


def _either(parts: tuple[str, ...], source: str, expression: Callable[[str], str], missing: str) -> str:
    *others, last = path_literals(parts) or [""]
    if not last:
        return missing
    cases = " ".join(f"WHEN json_type({source}, {path}) IS NOT NULL THEN {expression(path)}" for path in others)
    return f"CASE {cases} ELSE {expression(last)} END" if cases else expression(last)


def text(source: str, parts: tuple[str, ...]) -> str:
    """The value as text: strings as they are, missing and null empty, containers as JSON, 5.0 as `5`."""

    def expression(path: str) -> str:
        return (
            f"CASE json_type({source}, {path}) WHEN 'text' THEN {source} ->> {path} "
            f"WHEN 'integer' THEN {source} -> {path} "
            f"WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'object' THEN {source} -> {path} "
            f"WHEN 'array' THEN {source} -> {path} "
            f"WHEN 'real' THEN CASE WHEN {source} ->> {path} = round({source} ->> {path}) "
            f"THEN printf('%.0f', {source} ->> {path}) ELSE {source} -> {path} END ELSE '' END"
        )

    return _either(parts, source, expression, "''")


def plain_text(source: str, parts: tuple[str, ...]) -> str:
    """The value when it is a string, empty when missing; equals `text` when compared with a word."""
    return _either(parts, source, lambda path: f"ifnull({source} ->> {path}, '')", "''")


def integer_of_text(value: str) -> str:
    """A text as an integer, null when it is none; `value` is an SQL expression."""
    trimmed = f"trim({value}, {_WHITESPACE})"
    digits = f"ltrim({trimmed}, '+-')"
    return (
        f"CASE WHEN {digits} <> '' AND {digits} NOT GLOB '*[^0-9]*' AND length({digits}) >= length({trimmed}) - 1 "
        f"THEN CAST({trimmed} AS INTEGER) END"
    )


def double_of_text(value: str) -> str:
    """A text as a floating-point number, null when it is none."""
    trimmed = f"trim({value}, {_WHITESPACE})"
    return (
        f"CASE WHEN json_valid({trimmed}) THEN CASE WHEN json_type({trimmed}) IN ('integer', 'real') "
        f"THEN CAST({trimmed} AS REAL) END ELSE CAST({integer_of_text(value)} AS REAL) END"
    )


def bool_of_text(value: str) -> str:
    """A text as 0, 1 (or a small integer), null when it is none."""
    return (
        f"CASE {value} WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE "
        f"CASE WHEN {integer_of_text(value)} BETWEEN 0 AND 255 THEN {integer_of_text(value)} END END"
    )


def integer(source: str, parts: tuple[str, ...]) -> str:
    """The value as an integer: numbers without fraction and texts of digits."""

    def expression(path: str) -> str:
        value = f"({source} ->> {path})"
        return (
            f"CASE json_type({source}, {path}) WHEN 'integer' THEN {value} "
            f"WHEN 'real' THEN CASE WHEN {value} = round({value}) THEN CAST({value} AS INTEGER) END "
            f"WHEN 'text' THEN {integer_of_text(value)} END"
        )

    return _either(parts, source, expression, "NULL")


def double(source: str, parts: tuple[str, ...]) -> str:
    """The value as a floating-point number: numbers and texts of numbers."""

    def expression(path: str) -> str:
        value = f"({source} ->> {path})"
        return (
            f"CASE json_type({source}, {path}) WHEN 'integer' THEN CAST({value} AS REAL) WHEN 'real' THEN {value} "
            f"WHEN 'text' THEN {double_of_text(value)} END"
        )

    return _either(parts, source, expression, "NULL")


def boolean(source: str, parts: tuple[str, ...]) -> str:
    """The value as 0 or 1: booleans, their words, and small integers as they are."""

    def expression(path: str) -> str:
        value = f"({source} ->> {path})"
        return (
            f"CASE json_type({source}, {path}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 "
            f"WHEN 'integer' THEN CASE WHEN {value} BETWEEN 0 AND 255 THEN {value} END "
            f"WHEN 'real' THEN CASE WHEN {value} = round({value}) AND {value} BETWEEN 0 AND 255 "
            f"THEN CAST({value} AS INTEGER) END "
            f"WHEN 'text' THEN {bool_of_text(value)} END"
        )

    return _either(parts, source, expression, "NULL")


def size(source: str, parts: tuple[str, ...]) -> str:
    """How many elements a list or an object has, characters a string; null for anything else."""

    def expression(path: str) -> str:
        return (
            f"CASE json_type({source}, {path}) WHEN 'array' THEN json_array_length({source}, {path}) "
            f"WHEN 'text' THEN length({source} ->> {path}) "
            f"WHEN 'object' THEN (SELECT count(*) FROM json_each({source}, {path})) END"
        )

    return _either(parts, source, expression, "NULL")


def present(source: str, parts: tuple[str, ...]) -> str:
    """1 when the path holds something other than null, else 0."""
    return _either(parts, source, lambda path: f"(ifnull(json_type({source}, {path}), 'null') <> 'null')", "0")


def fragment(source: str, parts: tuple[str, ...]) -> str:
    """The JSON text at the path, null when missing."""
    return _either(parts, source, lambda path: f"({source} -> {path})", "NULL")


def scalar(source: str, parts: tuple[str, ...]) -> str:
    """The SQL value at the path (containers as JSON text), null when missing."""
    return _either(parts, source, lambda path: f"({source} ->> {path})", "NULL")


def exists(source: str, parts: tuple[str, ...]) -> str:
    """1 when the path holds anything, null included, else 0."""
    tests = [f"json_type({source}, {path}) IS NOT NULL" for path in path_literals(parts)]
    return f"({' OR '.join(tests)})" if tests else "(1 = 0)"


_READERS = {
    "text": text,
    "word": plain_text,
    "integer": integer,
    "double": double,
    "boolean": boolean,
    "number": scalar,
    "scalar": scalar,
    "fragment": fragment,
    "size": size,
    "present": present,
    "exists": exists,
}
_REREADERS = {"integer": integer_of_text, "double": double_of_text, "boolean": bool_of_text}


class Parameters:
    """The constants of a statement by name: `given` is what it is run with (names that it lacks do no harm)."""

    def __init__(self) -> None:
        self.given: dict[str, Scalar] = {}

    def value(self, value: str | int | float) -> str:
        """The SQL of a constant."""
        name = f"p{len(self.given)}"
        self.given[name] = value
        return f":{name}"

    def values(self, values: Sequence[str | int | float]) -> str:
        """The SQL of a list as it stands behind IN."""
        return f"({', '.join(map(self.value, values))})"


class SqliteDialect(Dialect):
    """SQLite, on connections that have the function `unicode_lower`."""

    def read(self, json: JsonValue, reading: str) -> str:
        """The SQL of a JSON value; a source that is a query of its own runs once."""
        reader = _READERS[reading]
        if not json.source.startswith("("):
            return reader(json.source, json.parts)
        value = reader("s.j", json.parts)
        value = f"CASE WHEN s.j IS NOT NULL THEN {value} END" if json.nullable else value
        return f"(SELECT {value} FROM (SELECT {json.source} AS j) s)"

    def reread(self, text: str, reading: str) -> str:
        """The SQL of a text read anew; reading repeats its operand many times, so that it is computed once."""
        return _once(_REREADERS[reading]("w.v"), text)

    def spelled(self, number: str, kind: Kind) -> str:
        """The SQL of a number or an instant as text."""
        text = "CASE WHEN typeof(w.v) = 'real' AND w.v = round(w.v) THEN printf('%.0f', w.v)"
        text += " ELSE CAST(w.v AS TEXT) END"
        if kind is Kind.INSTANT:
            seconds = "strftime('%Y-%m-%dT%H:%M:%S', w.v / 1000000, 'unixepoch')"
            text = f"{seconds} || printf('.%06dZ', w.v % 1000000)"
        return _once(text, number)

    def lowered(self, text: str, is_ascii: bool) -> str:
        """The SQL of a text in lower case."""
        return f"{'lower' if is_ascii else 'unicode_lower'}({text})"

    def within(self, whole: str, part: str) -> str:
        """The condition that a text is part of another."""
        return f"(ifnull(instr({whole}, {part}), 0) > 0)"

    def has_member(self, texts: str, item: str, folded: bool) -> str:
        """The condition that a JSON list holds a text."""
        test = f"unicode_lower(value) = unicode_lower({item})" if folded else f"value = {item}"
        return f"EXISTS (SELECT 1 FROM json_each({texts}) WHERE {test})"


def _once(expression: str, source: str) -> str:
    """An expression over `w.v`, where `source` is written and computed only once."""
    return f"(SELECT {expression} FROM (SELECT {source} AS v) AS w)"
