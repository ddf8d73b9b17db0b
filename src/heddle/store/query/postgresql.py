"""Queries in the SQL of PostgreSQL, with functions that its migrations define (`heddle_json` and its like)."""

import re

from heddle.store.query.compiler import Dialect, JsonValue, Kind
from heddle.wire import times

_ODD_INDEX = re.compile(r"(\s+[+-]?|[+-])\d+$")
"""What PostgreSQL takes for a place in a list and the query language for a key."""
_OF_DAY = f"mod(mod(w.v, {times.DAY}) + {times.DAY}, {times.DAY})"
_LOWER = 'lower({} COLLATE "und-x-icu")'


class PostgresDialect(Dialect):
    """PostgreSQL; texts that are not columns compare by the code points of the other side."""

    true, false = "true", "false"

    def read(self, json: JsonValue, reading: str) -> str:
        value = _at(f"heddle_json({json.source})", json.parts)
        if reading == "exists":
            return f"({value} IS NOT NULL)::int"
        if reading == "scalar":
            return f"({value} #>> '{{}}')"
        return f"heddle_{'text' if reading == 'word' else reading}({value})"

    def reread(self, text: str, reading: str) -> str:
        return f"heddle_{reading}_of({text})"

    def spelled(self, number: str, kind: Kind) -> str:
        if kind is Kind.INSTANT:
            # Days and the rest apart: a number of seconds is floating point, which does not hold all microseconds.
            days, rest = f"((w.v - {_OF_DAY}) / {times.DAY})::int", f"{_OF_DAY} * interval '1 microsecond'"
            at = f"timestamp '1970-01-01' + {days} * interval '1 day' + {rest}"
            text = f"""to_char({at}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
            return f"(SELECT {text} FROM (SELECT ({number})::bigint AS v OFFSET 0) AS w)"
        as_float = "pg_typeof(w.v)::text = 'double precision' THEN heddle_spelled(w.v::double precision)"
        text = f"CASE WHEN {as_float} ELSE heddle_spelled(w.v::numeric) END"
        # Without OFFSET the planner would write the number into each of its places, which multiplies where these nest.
        return f"(SELECT {text} FROM (SELECT {number} AS v OFFSET 0) AS w)"

    def lowered(self, text: str, is_ascii: bool) -> str:  # noqa: ARG002  # one function serves all
        return _LOWER.format(text)

    def within(self, whole: str, part: str) -> str:
        return f"(coalesce(strpos({whole}, {part}), 0) > 0)"

    def by_code_points(self, text: str) -> str:
        return f'({text} COLLATE "C")'

    def as_number(self, condition: str) -> str:
        return f"{condition}::int"

    def listed(self, items: str) -> str:
        # The driver has written the marks as it writes those of texts (see postgres/values.py): once more than columns.
        texts = f"replace({items}, chr(1114111) || '1', chr(1114111))"
        return f"(SELECT item FROM json_array_elements_text(({texts})::json) AS items(item))"

    def has_member(self, texts: str, item: str, folded: bool) -> str:
        test = f"{_LOWER.format('item')} = {_LOWER.format(item)}" if folded else f"item = {item}"
        return f"EXISTS (SELECT 1 FROM json_array_elements_text(heddle_json({texts})) AS items(item) WHERE {test})"


def _at(value: str, parts: tuple[str, ...]) -> str:
    """The JSON value at a path, null when it is missing."""
    if any("\x00" in part for part in parts):
        return "NULL::json"
    if any(_ODD_INDEX.match(part) for part in parts):
        # PostgreSQL would take such a part for a place in a list.
        for part in parts:
            step = f"{value} #> ARRAY[{_quote(part)}]::text[]"
            is_odd = _ODD_INDEX.match(part)
            value = f"(CASE WHEN json_typeof({value}) = 'object' THEN {step} END)" if is_odd else f"({step})"
        return value
    return f"({value} #> ARRAY[{', '.join(map(_quote, parts))}]::text[])"


def _quote(text: str) -> str:
    # Percent signs are doubled because the driver reads the statement as a format; zero bytes cannot be written at all.
    return "'" + text.replace("\x00", "").replace("'", "''").replace("%", "%%") + "'"
