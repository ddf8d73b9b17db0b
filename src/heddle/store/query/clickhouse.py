"""Queries in the SQL of ClickHouse: how it reads a JSON text by path with the typing rules of the query language.

A value is read out of its raw JSON text (empty when the path leads nowhere). A lambda names that text, so that it is
written and computed once however often an expression looks at it.
"""

from collections.abc import Callable, Sequence

from heddle.store.query.compiler import Dialect, JsonValue, Kind, balanced
from heddle.wire import times
from heddle.wire.jsontypes import is_index

Bind = Callable[[str], str]
"""Gives the SQL of a constant."""

_BLANK = "[\\\\x09-\\\\x0d ]*"
_INTEGER = f"'^{_BLANK}([+-]?[0-9]+){_BLANK}$'"
_JSON_NUMBER = "-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NUMBER = f"'^{_BLANK}({_JSON_NUMBER}|[+-]?[0-9]+){_BLANK}$'"
_WHOLE, _POINT = "73910462850163", "58261907430582"
_POWERS = {"e": "40713958264917", "e-": "91450273689154", "e[+]": "63092718450376"}
"""Marks in the place of what makes a number something else than an integer, and before such a number."""
_LONG = "([[:,]-?)([0-9]{19,})\\\\b", f"\\\\1{_WHOLE}\\\\2"
_POINT_ZERO = "([[:,]-?)([0-9]+)[.]0\\\\b", f"\\\\1{_WHOLE}\\\\2{_POINT}0"
_MARKED = [_LONG, _POINT_ZERO]
_MARKED += [
    (f"([[:,]-?)([0-9]+)(?:[.]([0-9]+))?{power}([0-9]+)\\\\b", f"\\\\1{_WHOLE}\\\\2{_POINT}\\\\3{mark}\\\\4")
    for power, mark in _POWERS.items()
]
_READ_BACK = [(_WHOLE, "")]
_READ_BACK += [(before + mark, power.replace("[+]", "+")) for before in (_POINT, "") for power, mark in _POWERS.items()]
_READ_BACK += [(_POINT, ".")]
_REWRITTEN = "[[:,]-?[0-9]+(?:[.]0\\\\b|[.]?[0-9]*e|[0-9]{18})"
_EXACT = "9223372036854774784.0"
"""The largest float below 2^63: integers up to it are read exactly, those beyond as floats."""


_CYCLE = 146_097 * times.DAY
"""After so many days (400 years) the calendar is the same."""
_CYCLES = f"intDiv(v - positiveModulo(v + 2208988800000000, {_CYCLE}) + 2208988800000000, {_CYCLE})"
"""How many of them an instant is before or after the years 1900 to 2299, which are all that ClickHouse knows."""
_KNOWN = f"fromUnixTimestamp64Micro(v - {_CYCLES} * {_CYCLE} - positiveModulo(v, {times.SECOND}), 'UTC')"
_INSTANT = (
    f"concat(leftPad(toString(toYear({_KNOWN}) + 400 * {_CYCLES}), 4, '0'), "
    f"formatDateTime({_KNOWN}, '-%m-%dT%H:%i:%S'), "
    f"'.', leftPad(toString(positiveModulo(v, {times.SECOND})), 6, '0'), 'Z')"
)


def once(source: str, name: str, expression: str) -> str:
    """An expression over `name`, which stands for `source`."""
    return f"arrayMap({name} -> {expression}, [{source}])[1]"


def fragment(source: str, parts: tuple[str, ...], bind: Bind) -> str:
    """The raw JSON text at a path; an integer part is a list index, or the key of an object."""
    keys: list[str] = []
    for part in parts:
        if is_index(part):
            item = f"if(startsWith(j, '['), JSONExtractRaw(j, {int(part) + 1}), JSONExtractRaw(j, {bind(part)}))"
            source, keys = once(_below(source, keys), "j", item), []
        else:
            keys.append(bind(part))
    return _below(source, keys)


def _below(source: str, keys: list[str]) -> str:
    return f"JSONExtractRaw({', '.join((source, *keys))})" if keys else source


def text(source: str, parts: tuple[str, ...], bind: Bind) -> str:
    """The value as text: strings as they are, missing and null empty, containers as JSON, 5.0 as `5`, -0.0 as `0`."""
    number = once("toFloat64OrZero(v)", "f", "if(f = trunc(f), printf('%.0f', f), v)")
    rewritten = f"match(v, '^[[{{]') AND match({source}, '{_REWRITTEN}')" if parts else "0"
    return once(
        fragment(source, parts, bind),
        "v",
        "multiIf(startsWith(v, '\"'), JSONExtractString(v), v = 'null', '', v = '-0', '0', "
        f"match(v, '^-?[0-9]+[.eE]'), {number}, {rewritten}, {_exact(source, parts, bind)}, v)",
    )


def _exact(source: str, parts: tuple[str, ...], bind: Bind) -> str:
    """The raw text of a container as it was written, while ClickHouse writes 2.0 as 2 and long integers as texts.

    Such numbers are made integers with marks in them, which it leaves as they are (as texts), and are read back from
    those. What looks like such a number inside a text is changed and changed back the same way.
    """
    for pattern, replacement in _MARKED:
        source = f"replaceRegexpAll({source}, '{pattern}', '{replacement}')"
    found = f"replaceRegexpAll({fragment(source, parts, bind)}, '\"(-?{_WHOLE}[0-9]+)\"', '\\\\1')"
    for mark, character in _READ_BACK:
        found = f"replaceAll({found}, '{mark}', '{character}')"
    return found


def plain_text(source: str, parts: tuple[str, ...], bind: Bind) -> str:
    """The value when it is a string; equals `text` when compared with a word."""
    if any(part.isdigit() for part in parts):
        return once(fragment(source, parts, bind), "v", "if(startsWith(v, '\"'), JSONExtractString(v), v)")
    return f"JSONExtractString({', '.join((source, *map(bind, parts)))})"


def integer(raw: str) -> str:
    """The value as an integer: numbers without fraction and texts of digits."""
    digits = f"if(startsWith(v, '\"'), extract(JSONExtractString(v), {_INTEGER}), v)"
    return once(once(raw, "v", digits), "t", _integer_of_digits("t"))


def double(raw: str) -> str:
    """The value as a floating-point number: numbers and texts of numbers."""
    digits = f"multiIf(startsWith(v, '\"'), extract(JSONExtractString(v), {_NUMBER}), match(v, '^[-0-9]'), v, '')"
    return once(raw, "v", f"toFloat64OrNull({digits})")


def boolean(raw: str) -> str:
    """The value as 0 or 1: booleans, their words, and small integers as they are."""
    return bool_of_text(once(raw, "v", "if(startsWith(v, '\"'), JSONExtractString(v), v)"))


def size(raw: str) -> str:
    """How many elements a list or an object has, characters a string; null for anything else."""
    return once(
        raw,
        "v",
        "multiIf(match(v, '^[[{]'), toInt64(JSONLength(v)), "
        "startsWith(v, '\"'), toInt64(lengthUTF8(JSONExtractString(v))), NULL)",
    )


def present(raw: str) -> str:
    """1 when the path holds something other than null, else 0."""
    return f"({raw} NOT IN ('', 'null'))"


def integer_of_text(value: str) -> str:
    """A text as an integer, null when it is none."""
    return once(f"extract({value}, {_INTEGER})", "t", _integer_of_digits("t"))


def double_of_text(value: str) -> str:
    """A text as a floating-point number, null when it is none."""
    return f"toFloat64OrNull(extract({value}, {_NUMBER}))"


def bool_of_text(value: str) -> str:
    """A text as 0, 1 (or a small integer), null when it is none."""
    small = once(integer_of_text("t"), "i", "if(i BETWEEN 0 AND 255, i, NULL)")
    return once(value, "t", f"multiIf(t = 'true', 1, t = 'false', 0, {small})")


def _integer_of_digits(digits: str) -> str:
    """A text of a number as an integer; null for a fraction, and for what is no number."""
    beyond = "toInt128(greatest(least(f, 1e38), -1e38))"
    large = f"multiIf(isNull(f) OR f != trunc(f), NULL, abs(f) <= {_EXACT}, toInt128OrNull({digits}), {beyond})"
    return (
        f"if(match({digits}, '^[+-]?[0-9]{{1,18}}$'), toInt128OrNull({digits}), "
        f"{once(f'toFloat64OrNull({digits})', 'f', large)})"
    )


class ClickhouseDialect(Dialect):
    """ClickHouse."""

    def read(self, json: JsonValue, reading: str) -> str:
        """The SQL of a JSON value; null only where its text is."""
        source = f"ifNull({json.source}, '')" if json.nullable else json.source
        bind: Bind = self.bound.value
        if reading == "word":
            return plain_text(source, json.parts, bind)
        if reading == "text":
            value = text(source, json.parts, bind)
        else:
            value = fragment(source, json.parts, bind)
            if reading in _READERS:
                value = _READERS[reading](value)
        if not json.nullable or reading in ("fragment", "present"):
            return value
        return f"if(isNull({json.source}), NULL, {value})"

    def reread(self, text: str, reading: str) -> str:
        return _REREADERS[reading](f"ifNull({text}, '')")

    def spelled(self, number: str, kind: Kind) -> str:
        if kind is Kind.INSTANT:
            return once(number, "v", _INSTANT)
        return f"toString({number})"

    def lowered(self, text: str, is_ascii: bool) -> str:
        return f"{'lower' if is_ascii else 'lowerUTF8'}({text})"

    def within(self, whole: str, part: str) -> str:
        return f"(ifNull(position({whole}, {part}), 0) > 0)"

    def length(self, text: str) -> str:
        return f"lengthUTF8({text})"

    def as_double(self, number: str) -> str:
        return f"toFloat64({number})"

    def among(self, value: str, constants: Sequence[str | int | float], others: Sequence[str]) -> str:
        texts = [constant for constant in constants if isinstance(constant, str)]
        if len(texts) == len(constants) and not others:
            return f"({value} IN {self.bound.values(texts)})"
        # IN would turn every member into the type of the value.
        members = [*map(self.bound.value, constants), *others]
        return balanced([f"({value} = {member})" for member in members], "OR")


_READERS = {"integer": integer, "double": double, "boolean": boolean, "size": size, "present": present}
_REREADERS = {"integer": integer_of_text, "double": double_of_text, "boolean": bool_of_text}
