"""Sessions for the third opinion: complete calls with feedback, then random queries, where all should agree.

Left out is what the server of the reference on ClickHouse answers otherwise than its server in memory, see `DISPUTED`.
"""

import random
from datetime import timedelta

from tests.conformance.differential import calls, queries
from tests.conformance.differential.operations import Json, Operation, World, iso

DISPUTED = {
    "texts with blanks around a number": "heddle reads them as the number, as the server in memory does (section 5)",
    "the text 'null'": "it is a string and compares as itself (section 5); there it counts as missing",
    "texts that JSON escapes, or beyond ASCII": "a string compares as itself (section 5); there as its JSON has it",
    "number texts, and parts of them": "they match numbers too (section 5); there strings alone",
    "the order by an element of a list": "by presence, number and text (section 5); there it is another one",
    "5.0": "its text is 5 (section 5); there it is 5.0, and a list of literals of both kinds of numbers is refused",
    "integer parts of a path over an object": "heddle finds the key; there such a part is a list index only",
    "1e16 and 0.0001": "numbers compare as numbers and print shortest; there large floats are no integers",
    "true read as bool": "booleans convert to booleans (section 5); there only their texts do",
    "null in static columns": "`= null` works on them (section 5); there complete calls hold 0 and empty texts instead",
    "text of lists and objects": "minified JSON text (section 5); there scalars alone have a text",
    "numbers compared with texts": "never true (section 5); there 400",
    "parts of a millisecond in latency_ms": "the floor of the difference (section 6); there the difference of floors",
}
"""What is not compared, and who is right by the contract (trace-core) where the two differ."""

_INTEGERS: list[Json] = [0, 1, 2, 5, 7, -3, 10, 255, 256]
_FLOATS: list[Json] = [0.5, 1.5, 5.25, 5.7, -2.25]
_NUMBER_TEXTS: list[Json] = ["0", "1", "5", "5.7", "-2", "0.5"]
_TEXTS: list[Json] = ["a", "A", "abc", "ABC", "b", "zebra", "a.b", "it's"]
_SCALARS = [*_INTEGERS, *_FLOATS, *_NUMBER_TEXTS, *_TEXTS]
_PATHS = ["i", "f", "n", "s", "m", "d.x", "d.y.z", "l.0", "l.1.k", "k\\.dot", "missing", "d.missing.x"]
_SORTED = ["i", "f", "n", "s", "m", "d.x"]
_SCORES: list[Json] = [5, 0.5, 7]


def generate(seed: int, count: int, asked: int) -> list[Operation]:
    """Writes of `count` calls with feedback, then `asked` queries for the ids of calls."""
    world = World(random.Random(seed))
    for _ in range(count // 10):
        batch = [_call(world) for _ in range(10)]
        world.send("/v2/⟦project⟧/calls/complete", {"batch": batch})
    for call in world.calls:
        if world.chance(0.5):
            row = {"feedback_type": "quality", "payload": {"score": world.pick(_SCORES)}, "weave_ref": call.ref}
            world.send("/feedback/create", {"project_id": "⟦project⟧", **row})
    for _ in range(asked):
        world.send("/calls/stream_query", _query(world))
    return world.operations


def _call(world: World) -> dict[str, Json]:
    part, call = calls.started(world)
    world.calls.append(call)
    ended_at = iso(call.started_at + timedelta(milliseconds=world.rng.randrange(1, 9_000)))
    texts = {"inputs": _payload(world), "output": _payload(world), "attributes": _payload(world)}
    return part | texts | {"ended_at": ended_at, "summary": {"score": world.pick(_SCALARS)}, "display_name": None}


def _payload(world: World) -> dict[str, Json]:
    full: dict[str, Json] = {name: world.pick(_SCALARS) for name in ("m", "k.dot")}
    full |= {"i": world.pick(_INTEGERS), "f": world.pick(_FLOATS), "n": world.pick(_NUMBER_TEXTS)}
    full |= {"s": world.pick(_TEXTS), "z": None, "d": {"x": world.pick(_SCALARS), "y": {"z": world.pick(_SCALARS)}}}
    full |= {"l": [world.pick(_SCALARS), {"k": world.pick(_SCALARS)}]}
    return {key: value for key, value in full.items() if world.chance(0.7)}


def _query(world: World) -> dict[str, Json]:
    body: dict[str, Json] = {"project_id": "⟦project⟧", "columns": ["id"]}
    body["query"] = {"$expr": _operation(world, world.rng.randint(0, 2))}
    if world.chance(0.5):
        fields = [f"{world.pick(['inputs', 'output'])}.{world.pick(_SORTED)}", "started_at", "trace_id", "op_name"]
        body["sort_by"] = [{"field": world.pick(fields), "direction": world.pick(["asc", "desc"])}]
    return body


def _operation(world: World, depth: int) -> Json:
    if depth and world.chance(0.6):
        connective = world.pick(["$and", "$or", "$not"])
        inner = [_operation(world, depth - 1) for _ in range(1 if connective == "$not" else world.rng.randint(1, 3))]
        return {connective: inner}
    return world.pick([_dynamic, _dynamic, _membership, _contains, _converted, _static, _feedback])(world)


def _field(world: World) -> Json:
    return {"$getField": f"{world.pick(['inputs', 'output', 'attributes'])}.{world.pick(_PATHS)}"}


def _dynamic(world: World) -> Json:
    literal = world.pick([*_INTEGERS, *_FLOATS, *_TEXTS, "", None])
    return {world.pick(queries.COMPARISONS) if literal is not None else "$eq": [_field(world), {"$literal": literal}]}


def _membership(world: World) -> Json:
    pool = world.pick([_INTEGERS, _FLOATS, _TEXTS])
    return {"$in": [_field(world), [{"$literal": item} for item in world.some(pool, 4)]]}


def _contains(world: World) -> Json:
    substr = {"$literal": world.pick(["a", "A", "b", "e", "'", "zeb"])}
    return {"$contains": {"input": _field(world), "substr": substr, "case_insensitive": world.chance(0.5)}}


def _converted(world: World) -> Json:
    target, pool = world.pick([("int", _INTEGERS), ("double", _FLOATS), ("string", _TEXTS)])
    converted = {"$convert": {"input": _field(world), "to": target}}
    return {world.pick(queries.COMPARISONS): [converted, {"$literal": world.pick(pool)}]}


def _static(world: World) -> Json:
    call = world.pick(world.calls)
    name, value = world.pick(
        [("id", call.id), ("trace_id", call.trace_id), ("op_name", call.op_name)]
        + [("started_at", call.started_at.timestamp()), ("summary.weave.latency_ms", 3000)]
        + [("summary.weave.status", "success"), ("summary.weave.trace_name", "judge")]
    )
    return {world.pick(queries.COMPARISONS): [{"$getField": name}, {"$literal": value}]}


def _feedback(world: World) -> Json:
    field = {"$getField": "feedback.[quality].payload.score"}
    return {world.pick(queries.COMPARISONS): [field, {"$literal": world.pick(_SCORES)}]}
