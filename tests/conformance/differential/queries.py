"""Random `$expr` queries and sorts over calls, every operator, field family and literal type."""

from datetime import timedelta

from tests.conformance.differential.operations import Json, World, iso
from tests.conformance.differential.values import FLOATS, INTEGERS, LLMS, NUMBER_TEXTS, PAYLOAD_PATHS, SCALARS, TEXTS

COMPARISONS = ["$eq", "$gt", "$gte", "$lt", "$lte"]
TEXT_COLUMNS = [
    *("id", "trace_id", "parent_id", "thread_id", "turn_id", "op_name", "display_name", "exception", "wb_user_id"),
    "wb_run_id",
]
NUMBER_COLUMNS = ["wb_run_step", "wb_run_step_end", "summary.weave.latency_ms"]
TIME_COLUMNS = ["started_at", "ended_at", "deleted_at", "expire_at"]
COMPUTED_TEXTS = ["summary.weave.status", "summary.weave.trace_name"]
STATUSES = ["success", "error", "running", "descendant_error", "other"]
FEEDBACK_FIELDS = [
    *("feedback.[quality].payload.score", "feedback.[quality].payload.label", "feedback.[quality].payload.ok"),
    *("feedback.[quality].payload.deep.x", "feedback.[quality].payload", "feedback.[*].payload.score"),
    *("feedback.[wandb.runnable.judge].payload.output.score", "feedback.[wandb.runnable.judge].runnable_ref"),
    *("feedback.[wandb.note.1].payload.note", "feedback.[wandb.reaction.1].payload.emoji"),
    *("feedback.[wandb.reaction.1].payload.alias", "feedback.[wandb.runnable.judge].trigger_ref"),
]
BAD_FIELDS = ["nonsense", "summary.weave.costs", "storage_size_bytes", "feedback.[x].other", "input.x", "feedback.x"]


def dynamic_field(world: World) -> str:
    """A path into one of the JSON columns."""
    column = world.pick(["inputs", "inputs", "output", "attributes", "summary"])
    if column == "summary":
        tails = ["score", "status_counts.error", "usage", f"usage.{world.pick(LLMS)}.requests", "missing"]
        return f"summary.{world.pick(tails)}"
    if world.chance(0.05):
        return str(column)
    return f"{column}.{world.pick(PAYLOAD_PATHS)}"


def any_field(world: World) -> str:
    """A field of any family that may be filtered and sorted by."""
    roll = world.rng.random()
    if roll < 0.5:
        return dynamic_field(world)
    families = [TEXT_COLUMNS, NUMBER_COLUMNS, TIME_COLUMNS, COMPUTED_TEXTS, FEEDBACK_FIELDS]
    return str(world.pick(world.pick(families)))


def literal_for(world: World, name: str) -> Json:
    """A literal that has a chance to match the field; now and then one of another type."""
    if world.chance(0.08):
        return world.pick([*TEXTS, True, False] if name in TIME_COLUMNS else [*SCALARS[:-1]])
    if name in TIME_COLUMNS:
        return time_literal(world)
    if name in COMPUTED_TEXTS:
        return world.pick(STATUSES) if name.endswith("status") else world.pick(["predict", "judge", "renamed", "a"])
    if name in NUMBER_COLUMNS:
        return world.pick([0, 1, 3, 10, 1000, 2.0, 1.5, "3"])
    if name in TEXT_COLUMNS:
        return text_literal(world, name)
    if name.startswith("feedback."):
        return feedback_literal(world, name)
    return world.pick([*SCALARS[:-1], world.pick(INTEGERS), world.pick(FLOATS), world.pick(NUMBER_TEXTS)])


def time_literal(world: World) -> Json:
    """A moment as unix seconds, ISO text in several spellings, or a date."""
    moment = world.pick(world.calls).started_at if world.calls and world.chance(0.5) else world.moment()
    forms = [
        int(moment.timestamp()),
        moment.timestamp(),
        iso(moment),
        moment.isoformat(),
        moment.replace(tzinfo=None).isoformat(sep=" "),
        moment.date().isoformat(),
        (moment + timedelta(hours=2)).isoformat().replace("+00:00", "+02:00"),
    ]
    return world.pick(forms)


def text_literal(world: World, name: str) -> Json:
    """A value of a text column."""
    if not world.calls:
        return "x"
    call = world.pick(world.calls)
    known = {"id": call.id, "trace_id": call.trace_id, "parent_id": call.id, "turn_id": call.id}
    known |= {"thread_id": call.thread_id or "t1", "op_name": call.op_name, "wb_user_id": "local"}
    return known.get(name) or world.pick(["renamed", "boom", "x", "", "predict"])


def feedback_literal(world: World, name: str) -> Json:
    """A value of a feedback field."""
    if name.endswith("_ref"):
        return world.pick(world.versions).ref if world.versions else "none"
    if "note" in name:
        return world.pick(["good", "bad", "goo", ""])
    if "reaction" in name:
        return world.pick(["👍", ":thumbs_up:", "🎉"])
    return world.pick([0, 1, 5, 0.5, "5", "0.5", "good", "bad", True, "true", ""])


def operation(world: World, depth: int = 2) -> Json:
    """A random operation, nested at most so deep."""
    roll = world.rng.random() if depth > 0 else world.rng.uniform(0.42, 1.0)
    if roll < 0.28:
        connective = world.pick(["$and", "$or"])
        return {connective: [operation(world, depth - 1) for _ in range(world.rng.randint(1, 3))]}
    if roll < 0.42:
        return {"$not": [operation(world, depth - 1)]}
    if roll < 0.55:
        return membership(world)
    if roll < 0.67:
        return contains(world)
    return comparison(world)


def comparison(world: World) -> Json:
    """Field or convert against a literal, a field against a field, or two literals."""
    roll = world.rng.random()
    name = any_field(world)
    comparator = world.pick(COMPARISONS)
    if roll < 0.12:
        return {"$eq": [{"$getField": name}, {"$literal": None}]}
    if roll < 0.17:
        return {comparator: [{"$getField": dynamic_field(world)}, {"$getField": dynamic_field(world)}]}
    if roll < 0.20:
        return {comparator: [{"$literal": world.pick(INTEGERS)}, {"$literal": world.pick(FLOATS)}]}
    if roll < 0.23:
        return {comparator: [{"$literal": world.pick(TEXTS)}, {"$literal": world.pick(TEXTS)}]}
    if roll < 0.38:
        return convert_comparison(world, comparator)
    operands = [{"$getField": name}, {"$literal": literal_for(world, name)}]
    multi = name.startswith(("feedback.[wandb.note", "feedback.[wandb.reaction"))
    return {comparator: operands[::-1] if world.chance(0.15) and not multi else operands}


def convert_comparison(world: World, comparator: str) -> Json:
    """A `$convert` of a field compared with a literal of the type it converts to."""
    target = world.pick(["int", "double", "bool", "string", "exists"])
    name = any_field(world) if target == "exists" else dynamic_field(world)
    if target == "exists":
        comparator, literal = "$eq", world.chance(0.5)
    elif target == "string":
        literal = world.pick([*TEXTS, *NUMBER_TEXTS])
    elif target == "bool":
        comparator, literal = "$eq", world.chance(0.5)
    else:
        literal = world.pick(INTEGERS if target == "int" else FLOATS)
    if world.chance(0.1):
        comparator, literal = "$eq", None
    return {comparator: [{"$convert": {"input": {"$getField": name}, "to": target}}, {"$literal": literal}]}


def membership(world: World) -> Json:
    """`$in` with lists of one type, of mixed types, or empty."""
    name = any_field(world)
    while name in TIME_COLUMNS:
        name = any_field(world)
    if world.chance(0.06):
        elements: list[Json] = []
    elif name in [*TEXT_COLUMNS, *COMPUTED_TEXTS] or name.startswith("feedback."):
        elements = [literal_for(world, name) for _ in range(3)]
    else:
        pools = [INTEGERS, FLOATS, [*INTEGERS, *FLOATS], TEXTS, NUMBER_TEXTS, [True, False], [*TEXTS, *INTEGERS]]
        elements = world.some(world.pick(pools), 4)
    return {"$in": [{"$getField": name}, [{"$literal": element} for element in elements]]}


def contains(world: World) -> Json:
    """`$contains` on text of any family; rarely a number, which is refused."""
    name = any_field(world)
    while name in [*TIME_COLUMNS, *NUMBER_COLUMNS]:
        name = any_field(world)
    substring = world.pick(
        ["a", "A", "b", "e", "é", "É", ".", "5", "", "pre", "weave", "{", ":", "good", "👍", "zz", "🙂"]
    )
    if world.chance(0.02):
        substring = 5
    body: dict[str, Json] = {"input": {"$getField": name}, "substr": {"$literal": substring}}
    if world.chance(0.5):
        body["case_insensitive"] = world.chance(0.6)
    return {"$contains": body}


def query(world: World) -> Json:
    """A whole query; rarely one that must be refused."""
    if world.chance(0.03):
        bad = {"$eq": [{"$getField": world.pick(BAD_FIELDS)}, {"$literal": 1}]}
        refused = [bad, {"$and": []}, {"$or": []}, {"$and": [comparison(world), bad]}]
        refused += [{"$getField": "id"}, {"$eq": [{"$literal": 1}]}, {"$nope": []}, {"$not": []}]
        return {"$expr": world.pick(refused)}
    return {"$expr": operation(world, world.rng.randint(0, 3))}


def sort_by(world: World) -> list[Json]:
    """One to three sort terms; rarely a field that must be refused."""
    fields = [any_field(world) for _ in range(world.rng.randint(1, 3))]
    if world.chance(0.02):
        fields.append(world.pick(BAD_FIELDS))
    return [{"field": name, "direction": world.pick(["asc", "desc"])} for name in fields]
