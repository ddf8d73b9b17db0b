"""Random feedback and prices."""

from datetime import timedelta

from tests.conformance.differential.operations import Json, World, iso, without_nulls
from tests.conformance.differential.values import LLMS, scalar

EMOJI = ["👍", "🎉", "👍🏾", "not an emoji", "👍👍"]


def target(world: World) -> str:
    """The ref a feedback row hangs on: a call or an object."""
    if world.calls and world.chance(0.9):
        return str(world.pick(world.calls).ref)
    return str(world.pick(world.versions).ref) if world.versions else "weave:///⟦project⟧/call/none"


def quality(world: World) -> dict[str, Json]:
    """A custom row; `score` is always a number and `ok` always a truth value, so that statistics agree."""
    payload: dict[str, Json] = {
        "score": world.pick([0, 1, 5, 0.5, -2.25]),
        "ok": world.chance(0.5),
        "any": scalar(world),
    }
    payload |= {"label": world.pick(["good", "bad", "5"]), "deep": {"x": world.pick([1, 2, 3])}, "tags": ["a", 1]}
    return {"feedback_type": "quality", "payload": {key: item for key, item in payload.items() if world.chance(0.8)}}


def runnable(world: World) -> dict[str, Json]:
    """The row of a scorer, with its typed columns."""
    judges = [version for version in world.versions if version.name == "judge"]
    if not judges:
        return quality(world)
    row: dict[str, Json] = {
        "feedback_type": "wandb.runnable.judge" if world.chance(0.9) else "wandb.runnable.other",
        "payload": {"output": {"score": world.pick([0, 1, 0.5]), "why": "x"}},
        "runnable_ref": world.pick(judges).ref,
        "call_ref": world.pick(world.calls).ref if world.calls and world.chance(0.9) else None,
        "scorer_tags": world.some(["fast", "Slow", "x"]),
        "scorer_ratings": {"quality": world.pick([0.5, 1.0, 0.0])},
        "scorer_tag_reasons": {"fast": "because"} if world.chance(0.5) else {},
    }
    objects = [version.ref for version in world.versions if version.kind == "object"]
    if objects and world.chance(0.5):
        row["trigger_ref"] = world.pick(objects)
    return row


def annotation(world: World) -> dict[str, Json]:
    """A human judgement that its annotation spec allows or refuses."""
    specs = [version for version in world.versions if version.name == "spec"]
    others = [version for version in world.versions if version.kind == "object"]
    if not others:
        return quality(world)
    return {
        "feedback_type": "wandb.annotation.spec",
        "payload": {"value": world.pick([0.5, 1, 2, "good", "other", True, None])} if world.chance(0.9) else {},
        "annotation_ref": world.pick(specs if specs and world.chance(0.9) else others).ref,
    }


def feedback(world: World) -> dict[str, Json]:
    """One feedback row of any type; some break the rules of their type."""
    roll = world.rng.random()
    if roll < 0.45:
        row = quality(world)
    elif roll < 0.6:
        row = {"feedback_type": "wandb.note.1", "payload": {"note": world.pick(["good", "bad", "", "x" * 1025, "é"])}}
    elif roll < 0.75:
        row = {"feedback_type": "wandb.reaction.1", "payload": {"emoji": world.pick(EMOJI)}}
    elif roll < 0.85:
        row = runnable(world)
    elif roll < 0.93:
        row = annotation(world)
    else:
        odd: list[dict[str, Json]] = [
            {"feedback_type": "wandb.note.1", "payload": {"text": "no note"}},
            {"feedback_type": "wandb.annotation.x", "payload": {"value": 1}},
            {"feedback_type": "wandb.runnable", "payload": {"output": 1}},
            {"feedback_type": "custom", "payload": {}, "scorer_tags": ["x"]},
            {"feedback_type": "custom", "payload": {}, "call_ref": target(world)},
            {"feedback_type": "wandb.agent_user_feedback", "payload": {}},
            {"feedback_type": "wandb.agent_user_feedback", "payload": {}, "scorer_tags": ["up"]},
            {"feedback_type": "custom", "payload": [1]},
        ]
        row = world.pick(odd)
    row |= {"project_id": "⟦project⟧", "weave_ref": target(world), "creator": world.maybe("Jane", 0.3)}
    if world.names_feedback or world.chance(0.7):
        row["id"] = world.uuid()
        world.feedback_ids.append(row["id"])
    return without_nulls(row)


def create(world: World) -> None:
    """One row or a batch of rows."""
    if world.chance(0.7):
        row = feedback(world)
        step = world.send("/feedback/create", row)
        if "id" not in row:
            world.feedback_ids.append(f"⟦{step}.id⟧")
        return
    batch = [feedback(world) for _ in range(world.rng.randint(0, 3))]
    world.send("/feedback/batch/create", {"batch": batch})


def by_ids(world: World, ids: list[str]) -> Json:
    """The purge query shapes: allowed and refused."""
    chosen = world.some(ids) if ids else ["none"]
    equals = [{"$eq": [{"$getField": "id"}, {"$literal": item}]} for item in chosen]
    shapes: list[Json] = [equals[0]] * 3 + [{"$or": equals}]
    shapes.append({"$in": [{"$getField": "id"}, [{"$literal": item} for item in chosen]]})
    if world.chance(0.2):
        shapes = [{"$and": equals}, {"$eq": [{"$getField": "creator"}, {"$literal": "x"}]}, {"$gt": equals[0]["$eq"]}]
    return {"$expr": world.pick(shapes)}


def purge(world: World) -> None:
    """Delete feedback by id."""
    world.send("/feedback/purge", {"project_id": "⟦project⟧", "query": by_ids(world, world.feedback_ids)})


def replace(world: World) -> None:
    """Replace a row, sometimes with one that is refused."""
    if world.feedback_ids:
        old = world.pick(world.feedback_ids)
        world.send("/feedback/replace", feedback(world) | {"feedback_id": old})


FIELDS = ["id", "weave_ref", "creator", "feedback_type", "payload", "payload.score", "payload.label", "payload.deep.x"]
FIELDS += [
    "scorer_tags",
    "scorer_ratings",
    "scorer_ratings.quality",
    "runnable_ref",
    "wb_user_id",
    "payload.any",
    "project_id",
]


def row_condition(world: World, depth: int = 1) -> Json:
    """A condition over the columns of feedback."""
    roll = world.rng.random()
    if depth and roll < 0.3:
        return {world.pick(["$and", "$or"]): [row_condition(world, depth - 1) for _ in range(world.rng.randint(1, 3))]}
    if depth and roll < 0.4:
        return {"$not": [row_condition(world, depth - 1)]}
    comparator = world.pick(["$eq", "$eq", "$gt", "$gte", "$lt", "$lte"])
    literals: dict[str, list[Json]] = {
        "feedback_type": ["quality", "wandb.note.1", "wandb.reaction.1"],
        "creator": ["Jane", "x"],
        "payload.score": [0, 1, 5, 0.5, "0.5", 1.0],
        "payload.ok": [True, False, "true"],
        "payload.any": [0, 1, 5, 5.0, "5", "a", True, ""],
        "payload.deep.x": [1, 2.0, "3"],
        "payload.label": ["good", "bad", 5],
        "scorer_ratings.quality": [0.5, 1.0, 1],
        "created_at": ["2020-01-01", "2099-01-01T00:00:00Z", 0, 4e9],
        "weave_ref": [target(world)],
    }
    name = world.pick(sorted(literals))
    literal = world.pick(literals[name])
    if roll < 0.55 and name not in ("created_at", "payload.ok", "scorer_ratings.quality"):
        return {"$in": [{"$getField": name}, [{"$literal": item} for item in world.some(literals[name])]]}
    if roll < 0.68:
        field = world.pick(["payload.label", "scorer_tags", "creator", "feedback_type", "payload"])
        substring = world.pick(["good", "fast", "FAST", "slow", "a", "Ja", "wandb", "é"]) if world.chance(0.95) else 5
        flags = {"case_insensitive": True} if world.chance(0.4) else {}
        return {"$contains": {"input": {"$getField": field}, "substr": {"$literal": substring}} | flags}
    if roll < 0.72:
        return {"$eq": [{"$literal": 1}, {"$literal": world.pick([1, 2])}]}
    return {comparator: [{"$getField": name}, {"$literal": literal}]}


def query(world: World) -> None:
    """Select feedback rows."""
    body: dict[str, Json] = {"project_id": "⟦project⟧"}
    body["query"] = {"$expr": row_condition(world, 2)} if world.chance(0.7) else None
    if world.chance(0.4):
        body["fields"] = world.pick([["count(*)"], world.rng.sample(FIELDS, 3), world.rng.sample(FIELDS, 2)])
    ordered = False
    if world.chance(0.4):
        names = [world.pick(["payload.score", "payload.any", "feedback_type", "creator", "weave_ref", "payload"])]
        body["sort_by"] = [{"field": name, "direction": world.pick(["asc", "desc"])} for name in names]
        if world.names_feedback:  # ids that each server makes itself sort differently
            body["sort_by"].append({"field": "id", "direction": "asc"})
            ordered = True
            body["limit"] = world.maybe(world.pick([1, 2, 5, 0]), 0.3)
            body["offset"] = world.maybe(world.pick([1, 2]), 0.2)
    if world.chance(0.03):
        body["fields"] = ["nonsense"]
    world.send("/feedback/query", without_nulls(body), ordered=ordered)


def stats(world: World) -> None:
    """Statistics and the discovered schema of payloads."""
    body: dict[str, Json] = {"project_id": "⟦project⟧", "start": "⟦now-3600⟧", "end": "⟦now+7200⟧"}
    body["feedback_type"] = world.maybe(world.pick(["quality", "wandb.runnable.judge", "wandb.note.1"]), 0.7)
    if world.chance(0.3):
        world.send("/feedback/payload_schema", without_nulls(body))
        return
    if world.chance(0.15):
        world.send("/feedback/aggregate", {"project_id": "⟦project⟧", "after_ms": 0, "before_ms": 4_102_444_800_000})
        return
    metrics: list[Json] = []
    if world.chance(0.7):
        numeric = {"json_path": world.pick(["score", "deep.x", "output.score", "missing"]), "value_type": "numeric"}
        numeric["aggregations"] = world.pick([[], ["avg"], ["sum", "count", "min", "max"]])
        numeric["percentiles"] = world.pick([[], [50], [5, 99.5]])
        metrics.append(numeric)
    if world.chance(0.4):
        aggregations = world.pick([[], ["count_true"], ["count_false", "count_true"]])
        metrics.append({"json_path": "ok", "value_type": "boolean", "aggregations": aggregations})
    body["metrics"] = metrics
    body["granularity"] = world.maybe(world.pick([600, 3600]), 0.4)
    world.send("/feedback/stats", without_nulls(body))


def cost_create(world: World) -> None:
    """Add prices of invented models, so that no default price plays a part."""
    costs: dict[str, Json] = {}
    for llm in world.rng.sample(LLMS, world.rng.randint(1, 2)):
        price = {
            "prompt_token_cost": world.pick([0.0, 1e-6, 0.002, 3]),
            "completion_token_cost": world.pick([1e-6, 0.5]),
        }
        if world.chance(0.5):
            price |= {"cache_read_input_token_cost": 1e-7, "cache_creation_input_token_cost": 0.25}
        price |= without_nulls({"provider_id": world.maybe("mine", 0.4)})
        price["effective_date"] = iso(world.moment(30) - timedelta(days=world.pick([0, 0, 0, 1500])))
        costs[llm] = price
    step = world.send("/cost/create", {"project_id": "⟦project⟧", "costs": costs})
    world.cost_ids.extend(f"⟦{step}.ids.{index}.0⟧" for index in range(len(costs)))


def cost_query(world: World) -> None:
    """List prices."""
    conditions: list[Json] = [
        {"$eq": [{"$literal": 1}, {"$literal": 1}]},
        {"$eq": [{"$getField": "llm_id"}, {"$literal": world.pick(LLMS)}]},
        {"$in": [{"$getField": "llm_id"}, [{"$literal": llm} for llm in world.some(LLMS)]]},
        {"$gt": [{"$getField": "prompt_token_cost"}, {"$literal": 0.001}]},
        {"$gt": [{"$getField": "effective_date"}, {"$literal": iso(world.moment(30))}]},
        {"$contains": {"input": {"$getField": "provider_id"}, "substr": {"$literal": "in"}}},
    ]
    body: dict[str, Json] = {"project_id": "⟦project⟧"}
    body["query"] = {"$expr": world.pick(conditions)} if world.chance(0.7) else None
    body["fields"] = world.maybe(["llm_id", "prompt_token_cost", "effective_date"], 0.3)
    ordered = False
    if world.chance(0.4):
        body["sort_by"] = [
            {"field": world.pick(["effective_date", "llm_id"]), "direction": world.pick(["asc", "desc"])}
        ]
    if world.chance(0.04):
        body["limit"] = -1
    world.send("/cost/query", without_nulls(body), ordered=ordered)


def cost_purge(world: World) -> None:
    """Remove prices by id."""
    world.send("/cost/purge", {"project_id": "⟦project⟧", "query": by_ids(world, world.cost_ids)})
