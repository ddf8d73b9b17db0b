"""Random objects, tags, aliases, tables and refs."""

from tests.conformance.differential.operations import Json, Table, Version, World, without_nulls
from tests.conformance.differential.values import scalar

NAMES = ["model", "data", "prompt-1", "a.b"]
OP_NAMES = ["predict", "judge"]
TAGS = ["prod", "two words", "x-1"]
ALIASES = ["best", "candidate", "Älias"]
BAD_NAMES = ["", "a/b", "ü b", "x" * 129]


def value(world: World, name: str, rows: Table | None) -> Json:
    """The value of a new version; many of them repeat, so that digests meet again."""
    if rows is None and world.chance(0.5):
        return {"name": name, "score": world.pick([0, 1])}
    result: dict[str, Json] = {
        "name": world.pick(["a", "b", name]),
        "score": scalar(world),
        "deep": {"x": scalar(world)},
    }
    if world.versions and world.chance(0.5):
        result["next"] = world.pick(world.versions).ref
    if rows is not None:
        result["rows"] = f"weave:///⟦project⟧/table/{rows.digest}"
    if world.chance(0.2):
        result["list"] = [scalar(world), {"k": 1.0, "é": "ü"}]
    return result


SPECS: list[Json] = [
    {"name": "quality", "field_schema": {"type": "number", "minimum": 0, "maximum": 1}},
    {"name": "quality", "field_schema": {"type": "string", "enum": ["good", "bad"]}, "op_scope": ["x"]},
]
BUILTIN: list[Json] = [
    {"builtin_object_class": "AnnotationSpec"},
    {"set_base_object_class": "AnnotationSpec"},
    {"builtin_object_class": "NoSuchClass"},
]


def content(world: World) -> tuple[str, str, Json, dict[str, Json], Table | None]:
    """Name, kind, value, further keys and table of a new version."""
    roll = world.rng.random()
    if roll < 0.25:
        code = {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {"obj.py": scalar(world)}}
        return world.pick(OP_NAMES), "op", code, {}, None
    if roll < 0.35:
        bases = world.pick([["Model", "Object", "BaseModel"], ["Object", "BaseModel"]])
        return (
            "typed",
            "object",
            {"_type": "Thing", "_class_name": "Thing", "_bases": bases, "v": scalar(world)},
            {},
            None,
        )
    if roll < 0.42:
        return "spec", "object", world.pick(SPECS), world.pick(BUILTIN), None
    if roll < 0.47:
        return world.pick(NAMES), "object", world.pick([scalar(world), [1, 2.5, "x"], {}]), {}, None
    name, rows = world.pick(NAMES), world.maybe(world.pick(world.tables), 0.35) if world.tables else None
    return name, "object", value(world, name, rows), {}, rows


def create(world: World) -> None:
    """Publish a version of an object, an op, or of a typed object."""
    name, kind, val, further, rows = content(world)
    if world.chance(0.03):
        name = world.pick(BAD_NAMES)
    body = {"project_id": "⟦project⟧", "object_id": name, "val": val} | further
    if world.chance(0.03):
        body["expected_digest"] = "A" * 43
    step = world.send("/obj/create", {"obj": body})
    if name not in BAD_NAMES and "expected_digest" not in body and "NoSuchClass" not in further.values():
        world.versions.append(Version(name, kind, step, rows))


def name_and_digest(world: World) -> tuple[str, str]:
    """A name with a digest, `latest`, `v<N>`, an alias, or something unknown."""
    if not world.versions or world.chance(0.05):
        return world.pick([*NAMES, "unknown"]), world.pick(["latest", "v0", "A" * 43])
    version = world.pick(world.versions)
    digest = world.pick([version.digest] * 4 + ["latest", "v0", "v1", "v9", "best", "candidate"])
    return version.name, digest


def read(world: World) -> None:
    """Read one version."""
    name, digest = name_and_digest(world)
    body = {"project_id": "⟦project⟧", "object_id": name, "digest": digest}
    body["metadata_only"] = world.chance(0.2)
    body["include_tags_and_aliases"] = world.chance(0.4)
    world.send("/obj/read", body)


def query(world: World) -> None:
    """List versions."""
    choices: dict[str, Json] = {
        "object_ids": world.some([*NAMES, *OP_NAMES, "typed"]),
        "is_op": world.chance(0.5),
        "latest_only": True,
        "tags": world.some(TAGS),
        "aliases": world.some([*ALIASES, "latest"]),
        "base_object_classes": world.some(["Model", "Thing", "Dataset"]),
        "exclude_base_object_classes": ["Model"],
        "leaf_object_classes": ["Thing"],
    }
    keys = world.rng.sample(sorted(choices), world.rng.randint(0, 2))
    body: dict[str, Json] = {"project_id": "⟦project⟧", "filter": {key: choices[key] for key in keys}}
    body["metadata_only"] = world.chance(0.2)
    body["include_tags_and_aliases"] = world.chance(0.4)
    body["include_storage_size"] = world.chance(0.2)
    if world.chance(0.4):
        body["sort_by"] = [
            {"field": world.pick(["object_id", "created_at", "digest"]), "direction": world.pick(["asc", "desc"])},
            {"field": "created_at", "direction": world.pick(["asc", "desc"])},
        ]
    body["limit"] = world.maybe(world.pick([0, 1, 3]), 0.3)
    body["offset"] = world.maybe(world.pick([0, 1, 2]), 0.2)
    world.send("/objs/query", without_nulls(body))


def delete(world: World) -> None:
    """Delete some versions, all versions, or something that is not there."""
    name, digest = name_and_digest(world)
    digests = world.pick([[digest], [digest], [digest, "latest"], [digest, digest], None])
    if world.chance(0.02):
        digests = ["A" * 43] * 101
    world.send("/obj/delete", without_nulls({"project_id": "⟦project⟧", "object_id": name, "digests": digests}))


def tags(world: World) -> None:
    """Add or remove tags of a version."""
    name, digest = name_and_digest(world)
    names = world.some([*TAGS, *TAGS, "bad  tag", ""], 2)
    body = {"project_id": "⟦project⟧", "tags": names}
    if world.chance(0.7):
        world.send(f"/objs/{name}/versions/{digest}/tags", body, verb="PUT")
    else:
        world.send(f"/objs/{name}/versions/{digest}/tags/remove", body)


def aliases(world: World) -> None:
    """Set or remove aliases of an object."""
    name, digest = name_and_digest(world)
    names = world.some([*ALIASES, *ALIASES, *ALIASES, "latest", "v3", "a/b"], 2)
    if world.chance(0.7):
        body = {"project_id": "⟦project⟧", "digest": digest, "aliases": names}
        world.send(f"/objs/{name}/aliases", body, verb="PUT")
    else:
        world.send(f"/objs/{name}/aliases/remove", {"project_id": "⟦project⟧", "aliases": names})


def lists(world: World) -> None:
    """All tags or all aliases of the project."""
    world.send(world.pick(["/tags", "/aliases"]), {"project_id": "⟦project⟧"}, verb="GET")


REF_TAILS = [
    "",
    "",
    "/key/name",
    "/attr/name",
    "/key/deep/key/x",
    "/key/missing",
    "/key/list/index/0",
    "/key/list/index/9",
]
REF_TAILS += ["/key/next", "/key/next/key/name", "/key/missing/key/more", "/key/list/index/1/key/%C3%A9"]


def refs(world: World) -> None:
    """Read refs, with paths that lead somewhere or nowhere."""
    known = [version.ref + world.pick(REF_TAILS) for version in world.some(world.versions, 4)] if world.versions else []
    odd = [
        "weave:///⟦project⟧/object/none:" + "A" * 43,
        "weave:///⟦project⟧/call/x",
        "weave:///⟦project⟧/object/model:latest",
    ]
    if world.tables:
        odd.append(f"weave:///⟦project⟧/table/{world.pick(world.tables).digest}")
    if world.versions and world.chance(0.4):
        known.append(
            world.any_ref() + world.pick(["", "", "/key/a", "/key/b/key/c", "/key/missing", "/key/ref/key/name"])
        )
    if world.chance(0.15) or not known:
        known.append(world.pick(odd))
    if world.chance(0.02):
        known *= 600
    world.send("/refs/read_batch", {"refs": known})


def row(world: World) -> dict[str, Json]:
    """One table row with few distinct values."""
    result: dict[str, Json] = {
        "a": scalar(world),
        "b": {"c": world.pick([1, 2, "x", None])},
        "q": world.pick(["x", "y"]),
    }
    if world.versions and world.chance(0.2):
        result["ref"] = world.pick(world.versions).ref
    return {key: item for key, item in result.items() if world.chance(0.8)}


def table(world: World) -> None:
    """Create a table from rows or from digests, or change one."""
    roll = world.rng.random()
    if roll < 0.5 or not world.tables:
        size = world.rng.randint(0, 6)
        body: dict[str, Json] = {"project_id": "⟦project⟧", "rows": [row(world) for _ in range(size)]}
        if world.chance(0.05):
            body["expected_digest"] = "0" * 64
        step = world.send("/table/create", {"table": body})
        if "expected_digest" not in body:
            world.tables.append(Table(step, size))
        return
    base = world.pick(world.tables)
    if roll < 0.7:
        digests = [base.row_digest(world.rng.randrange(base.size)) for _ in range(3)] if base.size else []
        if world.chance(0.1):
            digests.append("A" * 43)
        world.send("/table/create_from_digests", {"project_id": "⟦project⟧", "row_digests": digests})
        return
    updates = [update(world, base.size) for _ in range(world.rng.randint(0, 3))]
    digest = base.digest if world.chance(0.95) else "0" * 64
    world.send("/table/update", {"project_id": "⟦project⟧", "base_digest": digest, "updates": updates})


def update(world: World, size: int) -> Json:
    """One change of a table."""
    index = world.pick([0, 1, max(size - 1, 0), size, 99, -1] if world.chance(0.2) else [0, 1])
    kinds: list[Json] = [{"append": {"row": row(world)}}, {"pop": {"index": index}}]
    return world.pick([*kinds, {"insert": {"index": index, "row": row(world)}}])


def table_query(world: World) -> None:
    """Rows of a table, sorted and cut, or its counts."""
    known = world.pick(world.tables) if world.tables else Table(0, 0)
    digest = known.digest if world.tables and world.chance(0.95) else "0" * 64
    roll = world.rng.random()
    body: dict[str, Json] = {"project_id": "⟦project⟧", "digest": digest}
    if roll < 0.15:
        world.send("/table/query_stats", body)
        return
    if roll < 0.3:
        batch = {"project_id": "⟦project⟧", "digests": [digest, "0" * 64], "include_storage_size": world.chance(0.5)}
        world.send("/table/query_stats_batch", batch)
        return
    if known.size and world.chance(0.2):
        body["filter"] = {"row_digests": [known.row_digest(world.rng.randrange(known.size))]}
    if world.chance(0.6):
        fields = world.some(
            ["a", "a", "b", "b.c", "q", "missing", "b.c.d"] if world.chance(0.95) else [".a", "", "a..b"]
        )
        body["sort_by"] = [{"field": name, "direction": world.pick(["asc", "desc"])} for name in fields]
    body["limit"] = world.maybe(world.pick([0, 1, 3, 100]), 0.3)
    body["offset"] = world.maybe(world.pick([0, 1, 4]), 0.3)
    world.send("/table/query", without_nulls(body))
