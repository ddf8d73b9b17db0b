"""Calls and the tokens that they used by blocks of ten minutes and by days, kept in each transaction that writes.

`call_blocks` counts the live calls that have started, `usage_blocks` sums up the rows of `usage`. SQLite's triggers
would keep both as well, but triple the time of an insert: even an empty one costs a journal of its own for every row.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from heddle.store.query.compiler import conjuncts_of
from heddle.store.sqlite.names import NameReader
from heddle.wire import times
from heddle.wire.aggregates import AggregateRow, CallAggregate, Measure
from heddle.wire.batched import batched
from heddle.wire.calls import ERROR, STATUS_WORDS, CallsQuery, Filter, UniformRun
from heddle.wire.query import Compare, Field, In, Literal, Not, Operand

BLOCK = 600 * times.SECOND
WIDTHS = (BLOCK, times.DAY)
_NUMBER = "({1}started_at - ({1}started_at < 0) * ({0} - 1)) / {0}"
_KEY = f"project, {_NUMBER}, op, parent_id IS NULL, status"
COUNTED = "started_at IS NOT NULL AND deleted_at IS NULL"
_OF_CALLS = f"""SELECT project, started_at, op, parent_id IS NULL, status FROM calls
    WHERE rid IN (SELECT value FROM json_each(?)) AND {COUNTED}"""
_CALLS_SUMMED = [
    f"SELECT {width}, {_KEY.format(width, '')}, count(*) FROM calls WHERE {COUNTED} GROUP BY 2, 3, 4, 5, 6"
    for width in WIDTHS
]
_ADD = """INSERT INTO call_blocks VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET calls = calls + excluded.calls"""
CALL_BLOCKS = (
    """CREATE TABLE IF NOT EXISTS call_blocks (
        width INTEGER NOT NULL, project INTEGER NOT NULL, block INTEGER NOT NULL, op INTEGER NOT NULL,
        root INTEGER NOT NULL, status INTEGER NOT NULL, calls INTEGER NOT NULL,
        PRIMARY KEY (width, project, block, op, root, status)) WITHOUT ROWID""",
    *(f"INSERT OR REPLACE INTO call_blocks {summed}" for summed in _CALLS_SUMMED),
    """CREATE INDEX IF NOT EXISTS calls_latency
        ON calls (project, ((ended_at - started_at - 999 * (ended_at < started_at)) / 1000))
        WHERE ended_at IS NOT NULL AND deleted_at IS NULL""",
    f"""CREATE INDEX IF NOT EXISTS calls_failed ON calls (project, started_at)
        WHERE status = {ERROR} AND deleted_at IS NULL""",
)
"""The counts, what is stored already, and the indexes by which the slowest and the failed calls are found."""
_SUMS = {
    "calls": "1",
    "totals": "({0}total IS NOT NULL)",
    "tokens": "ifnull({0}total, {0}prompt + {0}completion)",
    **{name: "{0}" + name for name in ("requests", "prompt", "completion")},
    "total": "ifnull({0}total, 0)",
    **{name: "{0}" + name for name in ("cache_read", "cache_creation")},
}
"""The columns of sums, and what each sums up of the columns of `usage`; `totals` are rows that report a total."""
_SUMMED = ", ".join(value.format("u.") for value in _SUMS.values())
_USAGE_SUMMED = [
    f"""SELECT {width}, u.project, {_NUMBER.format(width, "u.")}, u.model, u.repeated,
        {", ".join(f"sum({value.format('u.')})" for value in _SUMS.values())} FROM usage u GROUP BY 2, 3, 4, 5"""
    for width in WIDTHS
]
_ADD_USAGE = f"""INSERT INTO usage_blocks VALUES ({", ".join("?" * (5 + len(_SUMS)))})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)}"""
USAGE_BLOCKS = (
    f"""CREATE TABLE IF NOT EXISTS usage_blocks (
        width INTEGER NOT NULL, project INTEGER NOT NULL, block INTEGER NOT NULL, model INTEGER NOT NULL,
        repeated INTEGER NOT NULL, {", ".join(f"{name} INTEGER NOT NULL" for name in _SUMS)},
        PRIMARY KEY (width, project, block, model, repeated)) WITHOUT ROWID""",
    *(f"INSERT OR REPLACE INTO usage_blocks {summed}" for summed in _USAGE_SUMMED),
)
"""The sums, and those of what is stored already."""
WRONG_BLOCKS = {
    table: f"""WITH summed AS MATERIALIZED ({" UNION ALL ".join(summed)}),
        kept AS (SELECT * FROM {table} WHERE calls <> 0)
        SELECT count(*) FROM (SELECT * FROM (SELECT * FROM kept EXCEPT SELECT * FROM summed)
        UNION ALL SELECT * FROM (SELECT * FROM summed EXCEPT SELECT * FROM kept))"""
    for table, summed in (("call_blocks", _CALLS_SUMMED), ("usage_blocks", _USAGE_SUMMED))
}
"""The queries that count what is not summed up in a table as it is in its rows."""
_PLACE = "project = ? AND started_at = ? AND rid = ?"
_INSERT_USAGE = """INSERT INTO usage (project, started_at, rid, model, requests, prompt, completion, total, cache_read,
    cache_creation) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

CallBlocks = Counter[tuple[int, ...]]
Place = tuple[int, int, int]
"""Where the usage of a call is: its project, its start (0 before that is known) and its row number."""
UsageRow = tuple[int, int, int, int, int, int, int, int | None, int, int]
"""A row of `usage` as it is inserted: a place, the model and the columns of numbers."""


def counts_of(raw: sqlite3.Connection, rids: Iterable[int]) -> CallBlocks:
    """What the calls of some row numbers add to the blocks."""
    numbers = list(rids)
    # One text for any number of calls, as SQLite takes long to read a new one.
    return counts_of_new(raw.execute(_OF_CALLS, (json.dumps(numbers),))) if numbers else Counter()


def counts_of_new(calls: Iterable[tuple[int, int, int, int, int]]) -> CallBlocks:
    """What calls add by their project, start, op, whether they are roots, and status."""
    blocks = Counter((project, start // BLOCK, op, root, status) for project, start, op, root, status in calls)
    found: CallBlocks = Counter()
    for (project, block, *rest), count in blocks.items():
        found[BLOCK, project, block, *rest] = count
        found[times.DAY, project, block * BLOCK // times.DAY, *rest] += count
    return found


def count_change(raw: sqlite3.Connection, before: CallBlocks, after: CallBlocks) -> None:
    """Bring the blocks from what calls added to them before a write to what they add after it."""
    after.subtract(before)
    raw.executemany(_ADD, [(*key, calls) for key, calls in after.items() if calls])


def remove_empty(raw: sqlite3.Connection, project: int) -> None:
    """Remove the blocks of a project whose calls are all gone."""
    for table in ("call_blocks", "usage_blocks"):
        raw.execute(f"DELETE FROM {table} WHERE width IN (?, ?) AND project = ? AND calls = 0", (*WIDTHS, project))


def insert_usage(raw: sqlite3.Connection, rows: Iterable[UsageRow]) -> None:
    """Store what calls used that have no usage yet; of two rows of one call and model the last counts."""
    stored = list({row[:4]: row for row in rows}.values())
    if not stored:
        return
    raw.executemany(_INSERT_USAGE, stored)
    found: dict[tuple[int, ...], list[int]] = {}
    for project, started_at, _, model, requests, prompt, completion, total, read, created in stored:
        tokens = prompt + completion if total is None else total
        sums = (1, total is not None, tokens, requests, prompt, completion, total or 0, read, created)
        key = (project, started_at // BLOCK, model, 0)
        known = found.get(key)
        found[key] = list(sums) if known is None else [*map(int.__add__, known, sums)]
    _add_usage(raw, found)


def remove_usage(raw: sqlite3.Connection, places: Iterable[Place]) -> None:
    """Remove what calls used."""
    changed = list(places)
    if not changed:
        return
    _add_usage(raw, _negated(_sums_of(raw, changed)))
    raw.executemany(f"DELETE FROM usage WHERE {_PLACE}", changed)


def mark_repeated(raw: sqlite3.Connection, places: Iterable[Place]) -> None:
    """Mark what calls used as reported by others, too."""
    changed = list(places)
    new = {key: sums for key, sums in _sums_of(raw, changed).items() if not key[-1]}
    if new:
        raw.executemany(f"UPDATE usage SET repeated = 1 WHERE {_PLACE}", changed)
        _add_usage(raw, _negated(new) | {(*key, 1): sums for (*key, _), sums in new.items()})


def move_usage(raw: sqlite3.Connection, place: Place, started_at: int) -> None:
    """Let the usage of a call be where it has started now."""
    if place[1] != started_at:
        known = _sums_of(raw, [place])
        raw.execute(f"UPDATE usage SET started_at = ? WHERE {_PLACE}", (started_at, *place))
        _add_usage(raw, _negated(known))
        _add_usage(raw, {(project, started_at // BLOCK, *key): sums for (project, _, *key), sums in known.items()})


def _sums_of(raw: sqlite3.Connection, places: Sequence[Place]) -> dict[tuple[int, ...], list[int]]:
    """The sums of what is stored at some places, by project, ten minutes, model and whether it is repeated."""
    found: dict[tuple[int, ...], list[int]] = {}
    for chunk in batched(places):
        values = ",".join(["(?, ?, ?)"] * len(chunk))
        sql = f"""WITH p (project, started_at, rid) AS (VALUES {values})
            SELECT u.project, u.started_at, u.model, u.repeated, {_SUMMED} FROM p CROSS JOIN usage u
            ON u.project = p.project AND u.started_at = p.started_at AND u.rid = p.rid"""
        for project, started_at, model, repeated, *sums in raw.execute(sql, [*chain.from_iterable(chunk)]):
            key = (project, started_at // BLOCK, model, repeated)
            found[key] = [*map(int.__add__, found.get(key, [0] * len(sums)), sums)]
    return found


def _negated(blocks: dict[tuple[int, ...], list[int]]) -> dict[tuple[int, ...], list[int]]:
    return {key: [-number for number in sums] for key, sums in blocks.items()}


def _add_usage(raw: sqlite3.Connection, blocks: dict[tuple[int, ...], list[int]]) -> None:
    """Add sums of ten minutes to those that are kept, also to those of their days."""
    changes = {(BLOCK, *key): sums for key, sums in blocks.items()}
    for (project, block, *rest), sums in blocks.items():
        day = (times.DAY, project, block * BLOCK // times.DAY, *rest)
        changes[day] = [*map(int.__add__, changes.get(day, [0] * len(sums)), sums)]
    raw.executemany(_ADD_USAGE, [(*key, *sums) for key, sums in changes.items()])


def count(raw: sqlite3.Connection, names: NameReader, query: CallsQuery) -> int | None:
    """How many calls a query selects; None where the blocks do not have the answer."""
    chosen = _conditions(raw, names, query)
    if chosen is None:
        return None
    sql = f"SELECT ifnull(sum(calls), 0) FROM call_blocks WHERE width = {times.DAY} AND {chosen}"
    found = int(raw.execute(sql).fetchone()[0])
    return found if query.limit is None else min(found, query.limit)


Read = Callable[[UniformRun, int], list[AggregateRow]]
"""Reads the blocks of a width that a run is made of."""


def reader_of(raw: sqlite3.Connection, names: NameReader, request: CallAggregate) -> Read | None:
    """What reads the answer out of blocks; None where they do not have it."""
    columns = _call_columns(request.measures) if request.of == "calls" else _usage_columns(request.measures)
    known = {"op"} if request.of == "calls" else {"model"}
    if columns is None or request.split is not None or request.most or not {*request.group_by} <= known:
        return None
    chosen = _conditions(raw, names, request.query)
    if chosen is None or (request.of != "calls" and (request.query.filter != Filter() or request.query.query)):
        return None
    table = "call_blocks" if request.of == "calls" else "usage_blocks"
    chosen += " AND repeated = 0" if request.of == "totals" else ""

    keys = request.group_by
    grouped = ", ".join(str(number + 1) for number in range(1 + len(keys)))

    def read(run: UniformRun, size: int) -> list[AggregateRow]:
        places = ", ".join([f"(block * {size} - {run.start}) / {run.width} + {run.first}", *keys])
        inside = f"width = {size} AND block >= {run.lower // size} AND block < {run.upper // size}"
        sums = ", ".join(value.format(size) for value in columns.values())
        sql = f"""SELECT {places}, {sums} FROM {table} WHERE {inside} AND {chosen}
            GROUP BY {grouped} HAVING sum(calls) > 0"""
        rows = []
        for bucket, *found in raw.execute(sql):
            texts = tuple(names.text(raw, key) or "" for key in found[: len(keys)])
            rows.append(AggregateRow(bucket, texts, dict(zip(columns, found[len(keys) :], strict=True))))
        return rows

    return read


def parts_of(run: UniformRun) -> Iterator[tuple[UniformRun, int]]:
    """The parts of a run that whole blocks of a width make up, the widest first; of width 0 what no block does."""
    widths = [width for width in reversed(WIDTHS) if run.start % width == 0 and run.width % width == 0]
    for lower, upper, width in _parts(run.lower, run.upper, widths):
        yield run._replace(lower=lower, upper=upper), width


def _parts(lower: int, upper: int, widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    if lower >= upper:
        return
    if not widths:
        yield lower, upper, 0
        return
    width, *smaller = widths
    first = min(-(-lower // width) * width, upper)
    last = max(upper // width * width, first)
    if first < last:
        yield first, last, width
    yield from _parts(lower, first, smaller)
    yield from _parts(last, upper, smaller)


_CALL_SUMS = {("count", None): "sum(calls)", ("sum", "error_count"): f"sum(calls * (status = {ERROR}))"}
_USAGE_NAMES = {"input_tokens": "prompt", "output_tokens": "completion", "total_tokens": "total"}
_USAGE_NAMES |= {f"{name}_input_tokens": name for name in ("cache_read", "cache_creation")}


def _call_columns(measures: Sequence[Measure]) -> dict[str, str] | None:
    """The SQL of measures over `call_blocks`, by name; None where one is not kept."""
    keys = {item.alias: (item.function, None if item.value is None else item.value.key) for item in measures}
    found = {alias: _CALL_SUMS.get(key) for alias, key in keys.items()}
    return None if None in found.values() else {name: sql for name, sql in found.items() if sql}


def _usage_columns(measures: Sequence[Measure]) -> dict[str, str] | None:
    """The SQL of measures over `usage_blocks`, by name; None where one is not kept."""
    found: dict[str, str] = {}
    for item in measures:
        key = item.value.key if item.value is not None and item.value.source == "field" else ""
        column = _USAGE_NAMES.get(key, key)
        if item.function == "count" and item.value is None:
            found[item.alias] = "sum(calls)"
        elif item.function == "sum" and column in _SUMS and column not in ("calls", "totals"):
            found[item.alias] = f"sum({column})"
        elif item.function == "min" and key == "started_at":
            # An instant of the run for which prices are asked: they do not change within one.
            found[item.alias] = "min(block * {0})"
        else:
            return None
    return found


def _conditions(raw: sqlite3.Connection, names: NameReader, query: CallsQuery) -> str | None:
    """The SQL of what a query selects of the blocks; None where it asks for more than ops, roots and states."""
    chosen = replace(query.filter, op_names=None, roots_only=False)
    if query.cost is not None or query.used is not None or chosen != Filter():
        return None
    where = f"project = {names.number(raw, query.project) or 0}"
    where += " AND root = 1" if query.filter.roots_only else ""

    def among(texts: Iterable[str]) -> str:
        return f"({', '.join(map(str, names.numbers(raw, texts)))})"

    for operation in conjuncts_of(query.query) if query.query is not None else ():
        statuses, ops, no = _statuses(operation), _op_names(operation), isinstance(operation, Not)
        if statuses is not None:
            where += f" AND status IN ({', '.join(map(str, statuses))})"
        elif ops is not None:
            where += f" AND op {'NOT ' * no}IN {among(ops)}"
        else:
            return None
    return where + (f" AND op IN {among(query.filter.op_names)}" if query.filter.op_names else "")


def _op_names(operation: Operand) -> list[str] | None:
    """The names of ops that a query asks for, or against, where it asks for nothing else."""
    match operation:
        case In(Field("op_name"), items) | Not(In(Field("op_name"), items)):
            names = [item.value for item in items if isinstance(item, Literal)]
            texts = [name for name in names if isinstance(name, str) and not name.endswith(":*")]
            return texts if len(texts) == len(items) else None
    return None


def _statuses(operation: Operand) -> list[int] | None:
    """The states that a query asks for where it asks for nothing else."""
    match operation:
        case Compare("eq", Field("summary.weave.status"), Literal(value)):
            words = [value]
        case In(Field("summary.weave.status"), items) if all(isinstance(item, Literal) for item in items):
            words = [item.value for item in items if isinstance(item, Literal)]
        case _:
            return None
    return [STATUS_WORDS.index(word) for word in words if isinstance(word, str) and word in STATUS_WORDS]
