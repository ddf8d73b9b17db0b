"""Queries in the SQL of SQLite: how it reads a JSON text by path with the typing rules of the query language.

Paths stand in the SQL text as literals, not as parameters, so that an expression index on the same text is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from heddle.store.query.compiler import Dialect, JsonValue, Kind
from heddle.wire.jsontext import dump_list
from heddle.wire.jsontypes import is_index
from heddle.wire.query import Scalar

_MAX_EITHER = 3
_MARK = "char(1114111)"
LISTED_TEXT = f"replace(replace(value, {_MARK} || '0', char(0)), {_MARK} || '1', {_MARK})"
"""One text of a list that `dump_list` wrote, as json_each gives it."""
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
        either = is_index(part) and free > 0
        free -= either
        steps.append([f"[{int(part)}]", label] if either else [f"[{int(part)}]" if is_index(part) else label])
    return [quote("$" + "".join(chosen)) for chosen in product(*steps)]


def _label(part: str) -> str | None:
    if "\x00" in part:
        return None
    if '"' not in part and "\\" not in part:
        return f'."{part}"'
    if part and not any(character in part for character in ".[]"):
        return "." + part.replace("\\", "\\\\").replace('"', '\\"')
    return None


def read(source: str, parts: tuple[str, ...], reading: str) -> str:
    """The SQL of the value at a path of a JSON text in a reading of `Dialect.read`."""
    paths = path_literals(parts)
    if reading == "exists":
        tests = [f"json_type({source}, {path}) IS NOT NULL" for path in paths]
        return f"({' OR '.join(tests)})" if tests else "(1 = 0)"
    expression, missing = _READINGS[reading]
    if not paths:
        return missing
    *others, last = paths
    cases = " ".join(f"WHEN json_type({source}, {path}) IS NOT NULL THEN {expression(source, path)}" for path in others)
    return f"CASE {cases} ELSE {expression(source, last)} END" if cases else expression(source, last)


def _text(source: str, path: str) -> str:
    return (
        f"CASE json_type({source}, {path}) WHEN 'text' THEN {source} ->> {path} "
        f"WHEN 'integer' THEN {source} -> {path} "
        f"WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'object' THEN {source} -> {path} "
        f"WHEN 'array' THEN {source} -> {path} "
        f"WHEN 'real' THEN CASE WHEN {source} ->> {path} = round({source} ->> {path}) "
        f"THEN printf('%.0f', {source} ->> {path}) ELSE {source} -> {path} END ELSE '' END"
    )


def _integer(source: str, path: str) -> str:
    value = f"({source} ->> {path})"
    return (
        f"CASE json_type({source}, {path}) WHEN 'integer' THEN {value} "
        f"WHEN 'real' THEN CASE WHEN {value} = round({value}) THEN CAST({value} AS INTEGER) END "
        f"WHEN 'text' THEN {_integer_of_text(value)} END"
    )


def _double(source: str, path: str) -> str:
    value = f"({source} ->> {path})"
    return (
        f"CASE json_type({source}, {path}) WHEN 'integer' THEN CAST({value} AS REAL) WHEN 'real' THEN {value} "
        f"WHEN 'text' THEN {_double_of_text(value)} END"
    )


def _boolean(source: str, path: str) -> str:
    value = f"({source} ->> {path})"
    return (
        f"CASE json_type({source}, {path}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 "
        f"WHEN 'integer' THEN CASE WHEN {value} BETWEEN 0 AND 255 THEN {value} END "
        f"WHEN 'real' THEN CASE WHEN {value} = round({value}) AND {value} BETWEEN 0 AND 255 "
        f"THEN CAST({value} AS INTEGER) END "
        f"WHEN 'text' THEN {_bool_of_text(value)} END"
    )


def _size(source: str, path: str) -> str:
    return (
        f"CASE json_type({source}, {path}) WHEN 'array' THEN json_array_length({source}, {path}) "
        f"WHEN 'text' THEN length({source} ->> {path}) "
        f"WHEN 'object' THEN (SELECT count(*) FROM json_each({source}, {path})) END"
    )


def _scalar(source: str, path: str) -> str:
    return f"({source} ->> {path})"


def _integer_of_text(value: str) -> str:
    trimmed = f"trim({value}, {_WHITESPACE})"
    digits = f"ltrim({trimmed}, '+-')"
    return (
        f"CASE WHEN {digits} <> '' AND {digits} NOT GLOB '*[^0-9]*' AND length({digits}) >= length({trimmed}) - 1 "
        f"THEN CAST({trimmed} AS INTEGER) END"
    )


def _double_of_text(value: str) -> str:
    trimmed = f"trim({value}, {_WHITESPACE})"
    return (
        f"CASE WHEN json_valid({trimmed}) THEN CASE WHEN json_type({trimmed}) IN ('integer', 'real') "
        f"THEN CAST({trimmed} AS REAL) END ELSE CAST({_integer_of_text(value)} AS REAL) END"
    )


def _bool_of_text(value: str) -> str:
    return (
        f"CASE {value} WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE "
        f"CASE WHEN {_integer_of_text(value)} BETWEEN 0 AND 255 THEN {_integer_of_text(value)} END END"
    )


_READINGS: dict[str, tuple[Callable[[str, str], str], str]] = {
    "text": (_text, "''"),
    "word": (lambda source, path: f"ifnull({source} ->> {path}, '')", "''"),
    "integer": (_integer, "NULL"),
    "double": (_double, "NULL"),
    "boolean": (_boolean, "NULL"),
    "number": (_scalar, "NULL"),
    "scalar": (_scalar, "NULL"),
    "fragment": (lambda source, path: f"({source} -> {path})", "NULL"),
    "size": (_size, "NULL"),
    "present": (lambda source, path: f"(ifnull(json_type({source}, {path}), 'null') <> 'null')", "0"),
}
"""How a value at one path is written in each reading, and what stands for a path that SQLite cannot write."""
_REREADINGS = {"integer": _integer_of_text, "double": _double_of_text, "boolean": _bool_of_text}


_MOST_NAMED = 1000
_IN_LISTS: dict[type, str] = {str: LISTED_TEXT, int: "value"}
"""How items of a JSON list are read, by the type of all of them; SQLite may read a float as one next to it."""


@dataclass(slots=True)
class Parameters:
    """The constants of a statement by name: `given` is what it is run with (names that it lacks do no harm)."""

    given: dict[str, Scalar] = field(default_factory=dict)

    def value(self, value: str | int | float) -> str:
        name = f"p{len(self.given)}"
        self.given[name] = value
        return f":{name}"

    def values(self, values: Sequence[str | int | float]) -> str:
        # SQLite compares each name with all before it, and takes 32,766 of them where it is built as usual.
        if len(values) > _MOST_NAMED and len(kinds := set(map(type, values))) == 1 and kinds <= _IN_LISTS.keys():
            return f"(SELECT {_IN_LISTS[kinds.pop()]} FROM json_each({self.value(dump_list(values))}))"
        return f"({', '.join(map(self.value, values))})"


class SqliteDialect(Dialect):
    """SQLite, on connections that have the function `unicode_lower`."""

    def read(self, json: JsonValue, reading: str) -> str:
        """The SQL of a JSON value; a source that is a query of its own runs once."""
        if not json.source.startswith("("):
            return read(json.source, json.parts, reading)
        value = read("s.j", json.parts, reading)
        value = f"CASE WHEN s.j IS NOT NULL THEN {value} END" if json.nullable else value
        return f"(SELECT {value} FROM (SELECT {json.source} AS j) s)"

    def reread(self, text: str, reading: str) -> str:
        """The SQL of a text read anew; reading repeats its operand many times, so that it is computed once."""
        return _once(_REREADINGS[reading]("w.v"), text)

    def spelled(self, number: str, kind: Kind) -> str:
        text = "CASE WHEN typeof(w.v) = 'real' AND w.v = round(w.v) THEN printf('%.0f', w.v)"
        text += " ELSE CAST(w.v AS TEXT) END"
        if kind is Kind.INSTANT:
            rest = "((w.v % 1000000 + 1000000) % 1000000)"
            seconds = f"strftime('%Y-%m-%dT%H:%M:%S', (w.v - {rest}) / 1000000, 'unixepoch')"
            text = f"{seconds} || printf('.%06dZ', {rest})"
        return _once(text, number)

    def lowered(self, text: str, is_ascii: bool) -> str:
        return f"{'lower' if is_ascii else 'unicode_lower'}({text})"

    def within(self, whole: str, part: str) -> str:
        return f"(ifnull(instr({whole}, {part}), 0) > 0)"

    def listed(self, items: str) -> str:
        return f"(SELECT {LISTED_TEXT} FROM json_each({items}))"

    def has_member(self, texts: str, item: str, folded: bool) -> str:
        test = f"unicode_lower(value) = unicode_lower({item})" if folded else f"value = {item}"
        return f"EXISTS (SELECT 1 FROM json_each({texts}) WHERE {test})"


def _once(expression: str, source: str) -> str:
    """An expression over `w.v`, where `source` is written and computed only once."""
    return f"(SELECT {expression} FROM (SELECT {source} AS v) AS w)"
