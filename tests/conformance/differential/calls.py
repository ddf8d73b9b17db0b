"""Random writes and reads of calls, threads and usage."""

from datetime import timedelta

from tests.conformance.differential import queries
from tests.conformance.differential.operations import EPOCH, Call, Json, World, iso, without_nulls
from tests.conformance.differential.values import payload, scalar, summary

OP_NAMES = ["predict", "judge", "embed", "a long op name"]


def op_name(world: World) -> str:
    """A plain name or the ref of a published op."""
    ops = [version.ref for version in world.versions if version.kind == "op"]
    return str(world.pick(ops)) if ops and world.chance(0.6) else str(world.pick(OP_NAMES))


def started(world: World) -> tuple[dict[str, Json], Call]:
    """The start part of a new call, root or child of an earlier one."""
    parent = world.pick(world.calls) if world.calls and world.chance(0.6) else None
    moment = world.moment()
    call = Call(
        id=world.uuid(),
        trace_id=parent.trace_id if parent else world.uuid(),
        op_name=op_name(world),
        thread_id=world.maybe(world.pick(["t1", "t2", "t3"]), 0.4),
        started_at=moment,
    )
    part = {
        "project_id": "⟦project⟧",
        "id": call.id,
        "trace_id": call.trace_id,
        "parent_id": parent.id if parent else None,
        "op_name": call.op_name,
        "display_name": world.maybe(world.pick(["renamed", "Ａ", "x"]), 0.2),
        "thread_id": call.thread_id,
        "turn_id": call.id if call.thread_id and world.chance(0.7) else None,
        "started_at": iso(moment),
        "attributes": payload(world) if world.chance(0.7) else {},
        "inputs": payload(world),
        "wb_run_id": world.maybe("⟦project⟧/" + world.pick(["run1", "run2"]), 0.2),
        "wb_run_step": world.maybe(world.rng.randint(0, 4), 0.3),
    }
    return part, call


def ended(world: World, call: Call) -> dict[str, Json]:
    """The end part of a call."""
    call.ended = True
    output = payload(world) if world.chance(0.6) else world.pick([scalar(world), [scalar(world)], None])
    return {
        "project_id": "⟦project⟧",
        "id": call.id,
        "ended_at": iso(call.started_at + timedelta(microseconds=world.rng.randrange(1, 9_000_000))),
        "exception": world.maybe(world.pick(["boom", "x"]), 0.2),
        "output": output,
        "summary": summary(world),
        "wb_run_step_end": world.maybe(world.rng.randint(0, 4), 0.2),
    }


def complete(world: World) -> dict[str, Json]:
    """One complete call."""
    part, call = started(world)
    world.calls.append(call)
    return part | ended(world, call)


def write_complete(world: World) -> None:
    """POST a batch of complete calls."""
    world.send("/v2/⟦project⟧/calls/complete", {"batch": [complete(world) for _ in range(world.rng.randint(1, 4))]})


def write_start_end(world: World) -> None:
    """A start and an end on their own, in either order, sometimes only one of them."""
    start, call = started(world)
    parts = [("start", start)] if world.chance(0.85) else []
    if world.chance(0.7):
        parts.append(("end", ended(world, call)))
    if len(parts) == 2 and world.chance(0.3):
        parts.reverse()
    for kind, part in parts:
        world.send(f"/call/{kind}", {kind: part})
    if any(kind == "start" for kind, _ in parts):
        world.calls.append(call)


def write_v2(world: World) -> None:
    """The single-call routes of the newer write path, the end sometimes without a start."""
    start, call = started(world)
    if world.chance(0.9):
        world.send("/v2/⟦project⟧/call/start", {"start": start})
        world.calls.append(call)
    if world.chance(0.8):
        world.send("/v2/⟦project⟧/call/end", {"end": ended(world, call)})


def write_batch(world: World) -> None:
    """A legacy batch with starts and ends mixed."""
    batch: list[Json] = []
    for _ in range(world.rng.randint(1, 4)):
        start, call = started(world)
        world.calls.append(call)
        batch.append({"mode": "start", "req": {"start": start}})
        if world.chance(0.7):
            batch.append({"mode": "end", "req": {"end": ended(world, call)}})
    world.rng.shuffle(batch)
    world.send("/call/upsert_batch", {"batch": batch})


def write_late_end(world: World) -> None:
    """End a call that is still running."""
    running = [call for call in world.calls if not call.ended]
    if running:
        world.send("/call/end", {"end": ended(world, world.pick(running))})


def write_again(world: World) -> None:
    """Send the start or the whole of a known call again, with other values."""
    call = world.pick(world.calls)
    part, fresh = started(world)
    part |= {"id": call.id, "trace_id": call.trace_id, "op_name": call.op_name, "started_at": iso(call.started_at)}
    part |= {"parent_id": None, "turn_id": None}
    fresh.id, fresh.started_at = call.id, call.started_at
    if world.chance(0.5):
        world.send("/call/start", {"start": part})
        return
    world.send("/v2/⟦project⟧/calls/complete", {"batch": [part | ended(world, fresh)]})
    call.ended = True


def update(world: World) -> None:
    """Rename a call, clear its name, or ask for nothing."""
    call_id = world.pick(world.calls).id if world.calls and world.chance(0.95) else world.uuid()
    name = world.pick(["renamed", "x", "", "other"]) if world.chance(0.95) else None
    world.send("/call/update", {"project_id": "⟦project⟧", "call_id": call_id, "display_name": name})


def delete(world: World) -> None:
    """Delete one or two calls, sometimes unknown ones."""
    ids = [call.id for call in world.some(world.calls, 2)] if world.calls else []
    if world.chance(0.2) or not ids:
        ids.append(world.uuid())
    if world.chance(0.03):
        ids = [world.uuid()] * 1001
    world.send("/calls/delete", {"project_id": "⟦project⟧", "call_ids": ids})


def call_filter(world: World) -> dict[str, Json] | None:
    """One or two random filter keys."""
    if not world.calls:
        return None
    refs = [version.ref for version in world.versions] or ["weave:///⟦project⟧/object/none:x"]
    wild = [ref.rsplit(":", 1)[0] + ":*" for ref in refs]
    calls = world.some(world.calls)
    choices: dict[str, Json] = {
        "op_names": world.some([*OP_NAMES, *[call.op_name for call in calls], *wild, "predict:*"]),
        "input_refs": world.some([*refs, *wild]),
        "output_refs": world.some([*refs, *wild]),
        "parent_ids": [call.id for call in calls],
        "trace_ids": [call.trace_id for call in calls],
        "call_ids": [call.id for call in calls],
        "thread_ids": world.some(["t1", "t2", "none"]),
        "turn_ids": [call.id for call in calls],
        "trace_roots_only": True,
        "wb_user_ids": world.some(["local", "someone"]),
        "wb_run_ids": world.some(["run1", "⟦project⟧/run2", "none"]),
    }
    keys = world.rng.sample(sorted(choices), world.rng.randint(1, 2))
    chosen: dict[str, Json] = {key: choices[key] for key in keys}
    if world.chance(0.01):
        chosen = {world.pick(["op_names", "trace_ids", "call_ids", "parent_ids", "thread_ids"]): ["x"] * 1001}
    elif world.chance(0.05):
        chosen[world.pick([key for key in choices if key != "trace_roots_only"])] = []
    return chosen


def selection(world: World) -> dict[str, Json]:
    """Project, filter and query."""
    body: dict[str, Json] = {"project_id": "⟦project⟧"}
    body["filter"] = call_filter(world) if world.chance(0.35) else None
    body["query"] = queries.query(world) if world.chance(0.75) else None
    return without_nulls(body)


def stream_query(world: World) -> None:
    """Read calls with everything that the route knows."""
    body = selection(world)
    ordered = True
    if world.chance(0.6):
        body["sort_by"] = queries.sort_by(world)
    elif world.chance(0.05):
        body["sort_by"], ordered = [], False
    if ordered and world.chance(0.35):
        body["limit"] = world.pick([0, 1, 2, 5, 10, 100, -1] if world.chance(0.1) else [1, 2, 5, 10])
    if ordered and world.chance(0.2):
        body["offset"] = world.pick([0, 1, 3, 7, 100])
    if world.chance(0.25):
        names = [
            "id",
            "inputs",
            "inputs.i",
            "output",
            "attributes.d.x",
            "summary",
            "ended_at",
            "display_name",
            "parent_id",
        ]
        body["columns"] = world.some([*names, "thread_id", "exception", "wb_user_id", "summary.usage"], 4)
    if world.chance(0.2):
        body["include_costs"] = True
    if world.chance(0.2):
        body["include_feedback"] = True
    if world.chance(0.1):
        body["include_storage_size"] = True
        body["include_total_storage_size"] = True
    world.send("/calls/stream_query", body, ordered=ordered)


EXPANDED = [
    (["inputs.r"], ["inputs.r", "inputs.r.name", "inputs.r.score", "inputs.r.deep.x", "inputs.r.missing"]),
    (["inputs.r", "inputs.r.next"], ["inputs.r.next.name", "inputs.r.next.score", "inputs.r.name"]),
    (["inputs.r", "inputs.r.next", "inputs.r.next.next"], ["inputs.r.next.next.name", "inputs.r.next.next.score"]),
    (["output.r"], ["output.r.name", "output.r.score", "output.s"]),
    (["inputs.h.r"], ["inputs.h.r.score", "inputs.h.r.name"]),
    (["attributes.r", "inputs.r"], ["attributes.r.score", "inputs.r.name"]),
]


def expanded_query(world: World) -> None:
    """Filter and sort through refs, and return their values."""
    columns, fields = world.pick(EXPANDED)
    name = world.pick(fields)
    literal = world.pick([0, 1, 5, 0.5, "a", "b", "", "5", "true"])
    comparator = world.pick(queries.COMPARISONS)
    body: dict[str, Json] = {"project_id": "⟦project⟧", "expand_columns": columns}
    if world.chance(0.6):
        body["query"] = {"$expr": {comparator: [{"$getField": name}, {"$literal": literal}]}}
    if world.chance(0.5):
        body["sort_by"] = [{"field": world.pick(fields), "direction": world.pick(["asc", "desc"])}]
    if world.chance(0.4):
        body["return_expanded_column_values"] = False
    if world.chance(0.3):
        body["columns"] = ["inputs", "output"]
    world.send("/calls/stream_query", body)


def read(world: World) -> None:
    """Read one call, sometimes one that is not there."""
    call_id = world.pick(world.calls).id if world.calls and world.chance(0.9) else world.uuid()
    body = {"project_id": "⟦project⟧", "id": call_id, "include_costs": world.chance(0.4)}
    world.send("/call/read", body | {"include_storage_size": world.chance(0.2)})


def query_stats(world: World) -> None:
    """Count calls."""
    body = selection(world)
    if world.chance(0.3):
        body["limit"] = world.pick([1, 2, 5, 50, 0, -1])
    if world.chance(0.2):
        body["include_total_storage_size"] = True
    world.send("/calls/query_stats", body)


def usage(world: World) -> None:
    """Rolled-up usage of a trace or of chosen roots."""
    costs = {"project_id": "⟦project⟧", "include_costs": world.chance(0.5)}
    if world.chance(0.5) and world.calls:
        ids = [call.id for call in world.some(world.calls)]
        world.send("/calls/usage", costs | {"call_ids": world.pick([ids, ids, [*ids, world.uuid()], []])})
        return
    chosen = (
        world.pick([{"trace_ids": [call.trace_id for call in world.some(world.calls)]}, None]) if world.calls else None
    )
    body = costs | without_nulls({"filter": chosen, "query": queries.query(world) if world.chance(0.2) else None})
    world.send("/trace/usage", body)


def stats(world: World) -> None:
    """Time series of calls and usage."""
    start = EPOCH + timedelta(hours=world.rng.randint(-5, 300))
    span = timedelta(hours=world.pick([1, 24, 200, 700, 744, 745, -1]))
    body: dict[str, Json] = {"project_id": "⟦project⟧", "start": iso(start), "end": iso(start + span)}
    metrics = [
        {"metric": name, "aggregations": ["sum", "count"]} for name in ("input_tokens", "output_tokens", "total_tokens")
    ]
    body["usage_metrics"] = world.maybe(metrics[: world.rng.randint(1, 3)], 0.8)
    metrics = [{"metric": name, "aggregations": ["sum"]} for name in ("call_count", "error_count")]
    metrics.append({"metric": "latency_ms", "aggregations": ["sum", "min", "max"]})
    body["call_metrics"] = world.maybe(metrics[: world.rng.randint(1, 3)], 0.8)
    body["granularity"] = world.maybe(world.pick([3600, 7200, 86400]), 0.5)
    if world.calls and world.chance(0.4):
        keys = {
            "op_names": world.some(OP_NAMES),
            "trace_roots_only": True,
            "trace_ids": [world.pick(world.calls).trace_id],
        }
        key = world.pick(sorted(keys))
        body["filter"] = {key: keys[key]}
    world.send("/calls/stats", without_nulls(body))


def threads(world: World) -> None:
    """List threads."""
    body: dict[str, Json] = {"project_id": "⟦project⟧"}
    chosen: dict[str, Json] = {}
    if world.chance(0.3):
        chosen["after_datetime"] = iso(world.moment())
    if world.chance(0.3):
        chosen["before_datetime"] = iso(world.moment())
    if world.chance(0.3):
        chosen["thread_ids"] = world.pick([["t1"], ["t1", "t2", "none"], []])
    if chosen or world.chance(0.2):
        body["filter"] = chosen
    fields = ["turn_count", "start_time", "last_updated", "p50_turn_duration_ms", "p99_turn_duration_ms"]
    if world.chance(0.5):
        names = [world.pick(fields), "thread_id"] if world.chance(0.95) else ["nope"]
        body["sort_by"] = [{"field": name, "direction": world.pick(["asc", "desc"])} for name in names]
        if world.chance(0.3):
            body["limit"] = world.pick([1, 2])
        if world.chance(0.2):
            body["offset"] = 1
    world.send("/threads/stream_query", body, ordered="sort_by" in body)
