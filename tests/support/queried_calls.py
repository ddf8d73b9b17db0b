"""Random calls with everything that queries of calls look at, written to both stores, and random queries over them."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from heddle.store.clickhouse.calls import CallReads
from heddle.store.clickhouse.store import TableRows
from heddle.store.control.annotation_queues import annotation_queue_items
from heddle.store.control.feedback import SPANS, STRUCTURES, feedback
from heddle.store.control.objects import NewVersion, Objects
from heddle.store.control.table_rows import ControlRowTexts
from heddle.wire import jsontext, refs
from heddle.wire.calls import CallRow, CallsQuery, End, Filter, SortTerm, Start, Usage
from heddle.wire.query import parse_query
from tests.conformance.differential import queries, values
from tests.conformance.differential.operations import Call, World
from tests.support.two_stores import TwoStores

Json = Any
PROJECT = refs.internal_project("team/queried")
OTHER = refs.internal_project("team/else")
BODIES = frozenset(("inputs", "attributes", "otel_dump", "output", "summary", "exception"))
EXPAND = (("inputs", "r"), ("inputs", "h", "r"), ("inputs", "r", "next"), ("output", "r"))
_OPS = (f"{refs.INTERNAL}{PROJECT}/op/predict:v1", f"{refs.INTERNAL}{PROJECT}/op/a%20b/c:v2", "plain", "a:b/c", "é")
_DIGEST = "x" * 43
_START = 1_709_300_000_000_000
HOSTILE: tuple[Json, ...] = (
    {"": 1, "a.b": {"c": 2}, "0": "zero", "l": [0, [1, {"0": "x"}]], 'q"k': 3, "b\\k": 4, "n\nk": 5, "'": "it's"},
    {"i": 2**63 - 1, "f": 1e22, "n": "9" * 30, "s": 'tab\tline\n\\ "q" \' ☃ \u2028', "b": [True, None, {}], "m": -0.0},
    {"i": -(2**63), "f": 1.5e-7, "n": "-0", "s": " \x0b7\r\n", "m": {"k": [[], {}]}, "d": {"x": "A" * 3000}},
    {"i": [5], "f": "1e400", "n": "+5", "s": "TRUE", "b": "false", "m": "İ ΣΑΣ ẞ", "d": None},
)


@dataclass(frozen=True)
class Asked:
    """One random query in both forms: of the stores, and in words for a failing test."""

    query: CallsQuery
    words: str


async def written(stores: TwoStores, seed: int, count: int) -> World:
    """Write random calls, feedback, queue items and objects to both stores; what the queries may name of them."""
    world = World(random.Random(seed))
    objects = await _objects(stores)
    halves = [_call(world, number, objects) for number in range(count)]
    for first in range(0, count, 20):
        part = halves[first : first + 20]
        await stores.write([start for starts, _ in part for start in starts], [end for _, ends in part for end in ends])
    await _feedback(stores, world)
    await _queue_items(stores, world)
    await stores.delete(PROJECT, [world.calls[3].id])
    await stores.rename(PROJECT, world.calls[5].id, "renamed")
    return world


async def _objects(stores: TwoStores) -> list[str]:
    """Refs of objects, of rows of datasets, and of nothing."""
    known = [f"{refs.INTERNAL}{PROJECT}/object/o{number}:{'d' * 43}" for number in range(3)]
    rows = f"{known[2]}{refs.ROWS}{_DIGEST}"
    vals = [{"a": 1, "next": known[1], "s": "abc"}, {"a": "5", "next": rows, "l": [1, {"k": "é"}]}, {"rows": "none"}]
    store = Objects(stores.control)
    for number, val in enumerate(vals):
        text = jsontext.dumps(val)
        await store.create(NewVersion(PROJECT, "object", f"o{number}", "d" * 43, text, len(text), None, None, "ada"))
    row = {_DIGEST: jsontext.dumps({"a": 7, "next": "end"})}
    for texts in (TableRows(stores.clickhouse), ControlRowTexts(stores.control)):
        await stores.control.write(await texts.put(PROJECT, row))
    return [*known, rows, f"{known[0]}x", f"{refs.INTERNAL}{OTHER}/object/o0:{'d' * 43}"]


def _call(world: World, number: int, objects: list[str]) -> tuple[list[Start], list[End]]:
    rng = world.rng
    call_id, document = f"{number:04}-{rng.randrange(10**6)}", _document(world, objects)
    start = Start(
        PROJECT if world.chance(0.95) else OTHER,
        call_id,
        world.pick(["t1", "t2", f"trace-{number}"]),
        world.pick(list(_OPS)),
        _START + rng.randrange(-5, 20) * 10**9 + rng.randrange(10**6),
        jsontext.dumps(document),
        jsontext.dumps(values.payload(world)),
        world.pick(["local", "bob", "ann:*"]),
        parent_id=world.pick(world.calls).id if world.calls and world.chance(0.6) else None,
        thread_id=world.maybe(world.pick(["", "t1", "t2"])),
        turn_id=world.maybe(call_id),
        display_name=world.maybe(world.pick(["", "renamed", "x"]), 0.3),
        run_id=world.maybe("run", 0.2),
        run_step=world.maybe(rng.randrange(4), 0.4),
        refs=world.some(objects) if world.chance(0.5) else [],
        size=rng.randrange(2000),
    )
    world.calls.append(Call(call_id, start.trace_id, start.op_name, start.thread_id, _moment(start), True))
    return [start], [_end(world, start, objects)] if world.chance(0.8) else []


def _moment(start: Start) -> datetime:
    """The start as the generator of queries keeps it."""
    return datetime.fromtimestamp(start.started_at / 10**6, UTC)


def _document(world: World, objects: list[str]) -> Json:
    if world.chance(0.2):
        return world.pick(list(HOSTILE))
    document = values.payload(world)
    if world.chance(0.6):
        document |= {"r": world.pick(objects), "h": {"r": world.pick([*objects, {"a": 5}, 5, None])}}
    return document


def _end(world: World, start: Start, objects: list[str]) -> End:
    rng = world.rng
    usage = [Usage(model, 1, rng.randrange(50), rng.randrange(50), None, 0, 0) for model in world.some(["m", "n"], 2)]
    return End(
        start.project,
        start.id,
        start.started_at + rng.randrange(-5000, 3_000_000),
        world.pick([None, "null", "5", '"text"', jsontext.dumps(_document(world, objects)), "[1,2]"]),
        jsontext.dumps({"score": values.scalar(world), "usage": values.usage(world)}),
        rng.randrange(3),
        exception=world.maybe("boom", 0.3),
        run_step_end=world.maybe(rng.randrange(4), 0.3),
        usage=list({entry.model: entry for entry in usage}.values()) if world.chance(0.5) else [],
        refs=world.some(objects) if world.chance(0.3) else [],
        size=rng.randrange(2000),
    )


async def _feedback(stores: TwoStores, world: World) -> None:
    payloads: dict[str, list[Json]] = {
        "quality": [{"score": 5, "label": "good", "ok": True}, {"score": "0.5", "deep": {"x": 1}}, {"score": None}],
        "wandb.runnable.judge": [{"output": {"score": 0.5}}, {"output": {"score": "bad"}}],
        "wandb.note.1": [{"note": "good"}, {"note": "bad"}, {"note": ""}],
        "wandb.reaction.1": [{"emoji": "👍", "alias": ":thumbs_up:"}, {"emoji": "🎉", "alias": ":tada:"}],
    }
    rows = []
    for number in range(len(world.calls) * 2):
        kind = world.pick(list(payloads))
        row = {
            **dict.fromkeys(STRUCTURES, "{}"),
            **SPANS,
            "id": f"feedback-{number}",
            "project": PROJECT,
            "weave_ref": f"{refs.INTERNAL}{PROJECT}/call/{world.pick(world.calls).id}",
            "feedback_type": kind,
            "payload": jsontext.dumps(world.pick(payloads[kind])),
            "created_at": number,
            "wb_user_id": "local",
            "runnable_ref": world.maybe("weave-trace-internal:///x/op/judge:v1"),
            "trigger_ref": world.maybe("none"),
        }
        rows.append(row)
    await stores.control.write(lambda connection: connection.execute(feedback.insert(), rows))


async def _queue_items(stores: TwoStores, world: World) -> None:
    columns = [column for column in annotation_queue_items.columns if not column.nullable]
    rows = [
        {column.name: 0 if isinstance(column.type, sa.Integer) else "" for column in columns}
        | {"id": f"item-{number}", "project": PROJECT, "queue_id": f"queue-{number % 3}", "call_id": call.id}
        for number, call in enumerate(world.calls)
        if number % 2
    ]
    await stores.control.write(lambda connection: connection.execute(annotation_queue_items.insert(), rows))


def asked(world: World) -> Asked:
    """A random query: conditions, filter, order, window and expansion."""
    expression = {"$expr": _operation(world)}
    order = tuple(SortTerm(queries.any_field(world), world.chance(0.5)) for _ in range(world.rng.randint(0, 2)))
    query = CallsQuery(
        PROJECT,
        _filter(world) if world.chance(0.3) else Filter(),
        parse_query(expression) if world.chance(0.9) else None,
        order or None,
        world.pick([None, None, 0, 1, 7]),
        world.pick([0, 0, 3]),
        expand=EXPAND if world.chance(0.3) else (),
        retention=world.pick([None, 10**12]),
    )
    return Asked(query, f"{jsontext.dumps(expression)} {query}")


def _operation(world: World) -> Json:
    if world.chance(0.7):
        return queries.operation(world, world.rng.randint(0, 2))
    path = world.pick(["inputs.r.a", "inputs.h.r.a", "inputs.r.next.a", "inputs.r.next.next", "output.r.l.1.k"])
    path = world.pick([path, "inputs.", "inputs.a\\.b.c", "inputs.0", "inputs.l.1.1.0", "inputs.'", "inputs", "output"])
    field: Json = {"$getField": path}
    if world.chance(0.2):
        field = {"$size": field}
    if world.chance(0.2):
        field = {"$convert": {"input": field, "to": world.pick(["int", "double", "string", "bool", "exists"])}}
    if world.chance(0.15):
        names = [f"queue-{number}" for number in range(4)]
        return {"$in": [{"$getField": "annotation_queue_items.queue_id"}, [{"$literal": world.pick(names)}]]}
    return {world.pick(queries.COMPARISONS): [field, {"$literal": world.pick([*values.SCALARS, "zero", "end", 3])}]}


def _filter(world: World) -> Filter:
    ids = tuple(call.id for call in world.some(world.calls, 20))
    chosen = {
        "op_names": tuple(world.some([*_OPS, "a:*", f"{refs.INTERNAL}{PROJECT}/op/predict:*"])),
        "input_refs": (f"{refs.INTERNAL}{PROJECT}/object/o0:*", f"{refs.INTERNAL}{PROJECT}/object/o1:{'d' * 43}"),
        "output_refs": (f"{refs.INTERNAL}{PROJECT}/object/o2:*",),
        "parent_ids": ids,
        "trace_ids": ("t1",),
        "call_ids": ids,
        "thread_ids": world.pick([(), ("t1",), ("", "t2")]),
        "turn_ids": ids,
        "user_ids": ("local", "ann:*"),
        "run_ids": ("run",),
        "roots_only": True,
    }
    return Filter(**{name: chosen[name] for name in world.some(list(chosen), 2)})


def reads_of(stores: TwoStores) -> CallReads:
    """The reading verbs on ClickHouse; a file's content is its name."""
    return CallReads(stores.clickhouse, stores.control, lambda name: name)


async def listed(reads: Any, query: CallsQuery) -> list[CallRow]:
    """All calls of a query, their row numbers set to 0, as each store numbers them itself."""
    found = [row async for rows in reads.stream(query) for row in rows]
    for row in found:
        row.rid = 0
    return found
