"""Random payloads: scalars that are easy to confuse, nested containers, refs."""

from tests.conformance.differential.operations import Json, World

INTEGERS: list[Json] = [0, 1, 2, 5, 7, -3, 10, 255, 256, 10**10, 2**53, 2**53 + 1]
FLOATS: list[Json] = [0.0, 0.5, 1.0, 1.5, 5.0, 5.7, -2.25, 0.1, 0.0001, 1e16, 123456.789]
NUMBER_TEXTS: list[Json] = ["0", "1", "5", "5.0", "5.7", " 5", "05", "-2", "1e3", "0.5"]
TEXTS: list[Json] = [
    "",
    "a",
    "A",
    "abc",
    "ABC",
    "b",
    "é",
    "É",
    "null",
    "true",
    "false",
    "zebra",
    'q"q',
    "a.b",
    "🙂",
    "～",
]
SCALARS: list[Json] = [*INTEGERS, *FLOATS, *NUMBER_TEXTS, *TEXTS, True, False, None]
LLMS: list[Json] = ["llm-alpha", "llm-beta", "llm/γ"]


def scalar(world: World) -> Json:
    """Any scalar."""
    return world.pick(SCALARS)


def payload(world: World) -> dict[str, Json]:
    """A dictionary with one key per kind of value, each there or not."""
    full: dict[str, Json] = {
        "i": world.pick(INTEGERS),
        "f": world.pick(FLOATS),
        "n": world.pick(NUMBER_TEXTS),
        "s": world.pick(TEXTS),
        "b": world.chance(0.5),
        "z": None,
        "m": scalar(world),
        "d": {"x": scalar(world), "y": {"z": scalar(world)}, "0": scalar(world)},
        "l": [scalar(world), {"k": scalar(world)}, [1, 2.0, "é"]],
        "k.dot": scalar(world),
    }
    if world.versions:
        full["r"] = world.any_ref()
        full["h"] = {"r": world.any_ref(), "list": [world.pick(world.versions).ref, 1]}
    return {key: value for key, value in full.items() if world.chance(0.65)}


def usage(world: World) -> dict[str, Json]:
    """Usage by model in both spellings, with and without cached tokens and totals."""
    entries: dict[str, Json] = {}
    for llm in world.rng.sample(LLMS, world.rng.randint(0, 2)):
        names = world.pick([["prompt_tokens", "completion_tokens"], ["input_tokens", "output_tokens"]])
        entry: dict[str, Json] = {name: world.rng.randint(0, 900) for name in names}
        entry["requests"] = world.rng.randint(0, 3)
        if world.chance(0.5):
            entry["total_tokens"] = sum(entry[name] for name in names)
        if world.chance(0.4):
            entry["cache_read_input_tokens"] = world.rng.randint(0, entry[names[0]])
        if world.chance(0.2):
            entry["cache_creation_input_tokens"] = None
        entries[llm] = entry
    return entries


def summary(world: World) -> dict[str, Json]:
    """A client's summary, sometimes with `weave` keys that the server must discard or keep."""
    result: dict[str, Json] = {}
    if world.chance(0.6):
        result["usage"] = usage(world)
    if world.chance(0.6):
        result["status_counts"] = {"success": world.rng.randint(0, 3), "error": world.pick([0, 0, 1, 2])}
    if world.chance(0.4):
        result["score"] = scalar(world)
    if world.chance(0.2):
        result["weave"] = {"status": "success", "latency_ms": 1, "extra": world.rng.randint(0, 9)}
    return result


# Paths into the payload that may or may not lead somewhere.
PAYLOAD_PATHS: list[str] = [
    *("i", "f", "n", "s", "b", "z", "m", "d", "l", "d.x", "d.y.z", "d.0", "l.0", "l.1.k", "l.2", "l.2.1", "l.9"),
    *("k\\.dot", "missing", "i.deeper", "d.missing.x", "m", "m", "n", "f"),
]
