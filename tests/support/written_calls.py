"""Random halves of calls, and what both stores hold of them, in one shape."""

import random
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.store.clickhouse.assembly import COLUMNS
from heddle.store.clickhouse.schema import CALLS
from heddle.store.control.pending_calls import call_halves
from heddle.wire import refs, times
from heddle.wire.calls import CallRow, CallsQuery, End, Start, Usage
from tests.support.two_stores import TwoStores

Json = Any
PROJECT = refs.internal_project("team/written")
OTHER = refs.internal_project("team/written-too")
BODIES = frozenset(("inputs", "attributes", "otel_dump", "output", "summary", "exception"))
AT = 1_700_000_000_000_000
_TEXTS = ("", "a", "it's", "\\", "\t\n", "naïve ☃ 𝒳", "\0", "'; DROP TABLE calls --", "{p:String}", "x" * 5000)
INSTANTS = (
    *(times.FIRST, times.FIRST + 1, times.LAST, times.LAST - 999_999, 0, -1, -50, -1_000_000, -999_999),
    *(1_234_567_890_123_456, 2**53 + 1, -(2**53) - 1, -86_400_000_001, -2_208_988_800_000_001),
    *(-2_208_988_800_000_000, 10_413_792_000_000_000, 10_413_791_999_999_999, -62_130_240_000_000_001),
)
"""Microseconds at both ends of the calendar, around 1970, before 1900, from 2300 on, and beyond what floats hold."""
_NUMBERS = (0, -1, 1.5, 2**63 - 1, -(2**63), 1e300, True, None)
_INSTANTS = (-(10**15), -1, 0, 1, 1_700_000_000_000_000, 1_700_000_000_000_001, 5 * 10**15)


def first_half(call_id: str = "c", at: int = AT, **fields: Json) -> Start:
    """A plain start."""
    return Start(PROJECT, call_id, "t", "op", at, "{}", "{}", "ada", **fields)


def second_half(call_id: str = "c", **fields: Json) -> End:
    """A plain end."""
    return End(PROJECT, call_id, AT + 5, '"out"', "{}", 0, **fields)


def call_id(number: int) -> str:
    """The id of a call, some of them odd."""
    return {1: "it's\0odd", 2: "\\\U0010ffff0", 3: "☃ 𝒳"}.get(number, f"call-{number}")


def halves(chance: random.Random, names: int, with_usage: bool) -> tuple[list[Start], list[End]]:
    """Some halves of calls, of few different ids, so that they meet in every way.

    They are spans of OpenTelemetry only where no call has usage: SQLite settles that of spans when it writes.
    """
    starts = [start(chance, call_id(chance.randrange(names))) for _ in range(chance.randrange(4))]
    ends = [end(chance, call_id(chance.randrange(names))) for _ in range(chance.randrange(4))]
    for first in starts if with_usage else ():
        first.otel_dump = None
    for second in ends if with_usage else ():
        second.usage = tokens(chance)
    return starts, ends


def start(chance: random.Random, call_id: str) -> Start:
    """A start with random fields."""
    found = Start(
        chance.choice((PROJECT, PROJECT, OTHER)),
        call_id,
        chance.choice(("trace-1", "trace-2")),
        chance.choice(_TEXTS),
        chance.choice(_INSTANTS),
        _json(chance),
        _json(chance),
        chance.choice(("ada", "bob")),
        parent_id=chance.choice((None, "call-0", "call-1", call_id)),
        thread_id=chance.choice((None, "", "thread")),
        turn_id=chance.choice((None, call_id)),
        display_name=chance.choice((None, *_TEXTS)),
        run_id=chance.choice((None, "run")),
        run_step=chance.choice((None, 0, 2**63 - 1)),
        otel_dump=chance.choice((None, None, _json(chance))),
        files=chance.choice(({}, {"inputs": "blob-1"}, {"attributes": "blob-2", "otel_dump": "blob-3"})),
        refs=chance.choice(([], ["ref-1"], ["ref-1", "ref-2"])),
    )
    found.size = len(found.inputs) + len(found.attributes)
    return found


def end(chance: random.Random, call_id: str) -> End:
    """An end with random fields."""
    found = End(
        chance.choice((PROJECT, PROJECT, OTHER)),
        call_id,
        chance.choice(_INSTANTS),
        chance.choice((None, _json(chance))),
        _json(chance),
        chance.randrange(3),
        exception=chance.choice((None, *_TEXTS)),
        run_step_end=chance.choice((None, 7)),
        refs=chance.choice(([], ["ref-3"])),
        files=chance.choice(({}, {"output": "blob-4"}, {"summary": "blob-5"})),
    )
    found.size = len(found.output or "") + len(found.summary)
    return found


def tokens(chance: random.Random) -> list[Usage]:
    """Usage of some models, of one of them twice."""
    models = chance.sample(("gpt", "claude", "", "naïve"), chance.randrange(3))
    return [Usage(model, 1, chance.randrange(9), 2, chance.choice((None, 5)), 3, 10**9) for model in (*models, *models)]


def _json(chance: random.Random) -> str:
    numbers = [chance.choice(_NUMBERS) for _ in range(chance.randrange(3))]
    return orjson.dumps({chance.choice(_TEXTS): chance.choice(_TEXTS), "n": numbers}).decode()


async def statuses(stores: TwoStores) -> dict[str, int]:
    """The status of each live call of the project on ClickHouse; fails where one is there twice."""
    return {call_id: row["status"] for call_id, row in (await in_clickhouse(stores, PROJECT)).items()}


async def waiting(stores: TwoStores) -> set[str]:
    """The ids of the calls of which a half waits."""
    return await stores.control.read(lambda connection: set(connection.execute(sa.select(call_halves.c.id)).scalars()))


async def in_sqlite(stores: TwoStores, project: str) -> dict[str, Json]:
    """The live calls of a project by id, with their usage."""
    query = CallsQuery(project, columns=BODIES, shortened=True)
    found = {row.id: row async for part in stores.sqlite.calls.stream(query) for row in part}
    usage = {row.id: row.usage for row in await stores.sqlite.calls.usage(query)}
    return {call_id: _shape(row, usage[call_id]) for call_id, row in found.items()}


def _shape(row: CallRow, usage: list[Usage]) -> Json:
    names: tuple[str, ...] = (
        "trace_id",
        "parent_id",
        "op_name",
        "started_at",
        "ended_at",
        "status",
        "thread_id",
        "turn_id",
        "run_id",
    )
    names += ("run_step", "run_step_end", "user", "kind", "error_group", "display_name", "size", *sorted(BODIES))
    return {name: getattr(row, name) for name in names} | {"usage": sorted(tuple(entry) for entry in usage)}


async def in_clickhouse(stores: TwoStores, project: str) -> dict[str, Json]:
    """The same; fails where a call is there twice."""
    query = f"SELECT {', '.join(COLUMNS)} FROM {CALLS} FINAL WHERE deleted_at = 0 AND project = {{project:String}}"
    found: dict[str, Json] = {}
    for values in await stores.clickhouse.rows(query, {"project": project}):
        row = dict(zip(COLUMNS, values, strict=True))
        assert row["id"] not in found, f"{row['id']} is there twice"
        usage = zip(*(row[name] for name in COLUMNS if name.startswith("usage_")), strict=True)
        named = {name: row[name] for name in row if name in CallRow.__slots__ and name not in ("rid", "id")}
        found[row["id"]] = named | {"size": row["size_in"] + row["size_out"], "usage": sorted(usage)}
    return found


async def refs_and_files(stores: TwoStores, project: str) -> tuple[Json, Json]:
    """By id, the refs of both sides and the files of live calls, in SQLite and in ClickHouse."""
    names = "(SELECT k FROM names WHERE v = ?)"
    live = f"c.project = {names} AND c.deleted_at IS NULL AND c.started_at IS NOT NULL"
    of_refs = (
        f"SELECT c.id, r.side, n.v FROM call_refs r JOIN calls c USING (rid) JOIN names n ON n.k = r.ref WHERE {live}"
    )
    of_files = f"SELECT c.id, f.field, f.blob FROM call_files f JOIN calls c USING (rid) WHERE {live}"

    async def read(sql: str) -> list[Json]:
        return await stores.control.read(lambda connection: list(connection.exec_driver_sql(sql, (project,))))

    embedded = {tuple(row) for sql in (of_refs, of_files) for row in await read(sql)}
    query = (
        f"SELECT id, input_refs, output_refs, files FROM {CALLS} FINAL WHERE deleted_at = 0 AND project = {{p:String}}"
    )
    grown: set[Json] = set()
    for call_id, inputs, outputs, files in await stores.clickhouse.rows(query, {"p": project}):
        grown |= {(call_id, side, ref) for side, listed in enumerate((inputs, outputs)) for ref in listed}
        grown |= {(call_id, name, blob) for name, blob in files.items()}
    return embedded, grown
