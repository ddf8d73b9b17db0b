"""Objects over HTTP: versions, latest, aliases, tags, filters, deletion."""

import base64
import json
from typing import Any

import httpx
import pytest

from tests.conftest import Wire

ON_BOTH_STORES = True

CLASSED = {"_type": "Thing", "_class_name": "Thing", "_bases": ["Model", "Object", "BaseModel"], "v": 1}
OP = {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {"obj.py": "x"}}


def create(wire: Wire, name: str, value: Any, **more: Any) -> str:
    """The digest of a new version."""
    answer = wire.client.post("/obj/create", json={"obj": body(wire, name, value, **more)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["object_id"] == name
    return str(answer.json()["digest"])


def body(wire: Wire, name: str, value: Any, **more: Any) -> dict[str, Any]:
    """What /obj/create wants."""
    return {"project_id": wire.project, "object_id": name, "val": value, **more}


def read(wire: Wire, name: str, digest: str, **more: Any) -> dict[str, Any]:
    """One version."""
    return dict(wire.post("/obj/read", object_id=name, digest=digest, **more)["obj"])


def refused(wire: Wire, verb: str, path: str, status: int, **sent: Any) -> dict[str, Any]:
    """The body of a refusal."""
    answer = wire.client.request(verb, path, json={"project_id": wire.project, **sent})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def summary(wire: Wire, **query: Any) -> list[tuple[str, int, int]]:
    """Name, index and latest mark of what a query finds."""
    return [(item["object_id"], item["version_index"], item["is_latest"]) for item in wire.objects(**query)]


def test_versions_are_numbered_in_order_of_their_first_creation(wire: Wire) -> None:
    digests = [create(wire, "o", value) for value in (1, 2, 1, 3)]
    assert digests[0] == digests[2]
    assert summary(wire) == [("o", 0, 0), ("o", 1, 0), ("o", 2, 1)]
    create(wire, "o", 1)
    assert summary(wire) == [("o", 0, 1), ("o", 1, 0), ("o", 2, 0)], "the latest is what was published last"
    assert [read(wire, "o", name)["val"] for name in ("v0", "v2", "latest", digests[1])] == [1, 3, 1, 2]


def test_both_kinds_of_a_name_are_numbered_on_their_own(wire: Wire) -> None:
    create(wire, "o", {"a": 1})
    create(wire, "o", OP)
    create(wire, "o", {"a": 2})
    found = [(item["kind"], item["version_index"]) for item in wire.objects()]
    assert found == [("object", 0), ("op", 0), ("object", 1)]
    assert [item["kind"] for item in wire.objects(filter={"is_op": True})] == ["op"]
    assert [item["kind"] for item in wire.objects(filter={"is_op": False})] == ["object", "object"]


def test_a_version_has_every_field(wire: Wire) -> None:
    value = {**CLASSED, "ref": f"weave:///{wire.project}/object/other:abc", "z": [1.0, "é", None], "big": 10**30}
    digest = create(wire, "thing", value)
    found = read(wire, "thing", "latest", include_tags_and_aliases=True)
    at = found.pop("created_at")
    assert at.endswith("Z") and len(at) == len("2026-01-01T00:00:00.000000Z")
    assert found == {
        "project_id": wire.project,
        "object_id": "thing",
        "deleted_at": None,
        "digest": digest,
        "version_index": 0,
        "is_latest": 1,
        "kind": "object",
        "base_object_class": "Model",
        "leaf_object_class": "Thing",
        "val": value,
        "wb_user_id": "local",
        "size_bytes": None,
        "tags": [],
        "aliases": ["latest"],
    }
    assert list(found["val"]) == sorted(value)
    short = read(wire, "thing", digest, metadata_only=True)
    assert (short["val"], short["tags"], short["aliases"]) == ({}, None, None)


def test_values_that_json_has_no_word_for_read_as_null_and_keep_their_digest(wire: Wire) -> None:
    text = json.dumps({"obj": body(wire, "nan", {"x": float("nan")})})
    answer = wire.client.post("/obj/create", content=text.encode())
    assert answer.json()["digest"] == "uqsGi7XF3fYucFBi68rCK1uOWLdjSlYEislB05aDScI"
    assert read(wire, "nan", "latest")["val"] == {"x": None}


def test_the_expected_digest_must_be_the_one(wire: Wire) -> None:
    answer = wire.client.post("/obj/create", json={"obj": body(wire, "o", 1, expected_digest="A" * 43)})
    assert answer.status_code == 409 and "mismatch" in answer.json()["reason"]
    assert answer.headers["x-should-retry"] == "false"
    assert wire.objects() == [], "nothing was stored"
    assert create(wire, "o", {}, expected_digest="RBNvo1WzZ4oRRq0W9XhknpT7T8If536DEMBg9hyqY4o")


@pytest.mark.parametrize(("name", "status"), [("", 422), ("a/b", 422), ("ü b", 422), ("x" * 129, 400)])
def test_names_that_no_object_has(wire: Wire, name: str, status: int) -> None:
    answer = wire.client.post("/obj/create", json={"obj": body(wire, name, 1)})
    assert answer.status_code == status and "name" in answer.json()["reason"]


def test_known_classes_are_completed(wire: Wire) -> None:
    value = {"columns": []}
    create(wire, "board", value, builtin_object_class="Leaderboard")
    found = read(wire, "board", "latest")
    assert (found["base_object_class"], found["leaf_object_class"]) == ("Leaderboard", "Leaderboard")
    expected = {"_type": "Leaderboard", "_class_name": "Leaderboard", "_bases": ["BaseObject", "BaseModel"]}
    assert found["val"] == {**expected, "name": None, "description": None, "columns": []}
    assert create(wire, "board", value, set_base_object_class="Leaderboard") == found["digest"]
    for wrong in ({"builtin_object_class": "Nothing"}, {"builtin_object_class": "ProviderModel"}):
        answer = wire.client.post("/obj/create", json={"obj": body(wire, "o", value, **wrong)})
        assert answer.status_code == 400, answer.text


def test_a_name_belongs_to_one_class_while_versions_live(wire: Wire) -> None:
    create(wire, "o", CLASSED)
    answer = wire.client.post("/obj/create", json={"obj": body(wire, "o", {"plain": 1})})
    assert answer.status_code == 400 and "already used by another type" in answer.json()["reason"]
    assert "its versions are Model, the new one is without a class" in answer.json()["reason"]
    create(wire, "o", {**CLASSED, "v": 2})
    create(wire, "o", OP)
    wire.post("/obj/delete", object_id="o")
    create(wire, "o", {"plain": 1})
    answer = wire.client.post("/obj/create", json={"obj": body(wire, "o", CLASSED)})
    assert answer.status_code == 400, "reviving a version of another class is refused as well"
    assert "its versions are without a class, the new one is Model" in answer.json()["reason"]


def test_monitors_with_unknown_fields_are_refused(wire: Wire) -> None:
    bases = {"_class_name": "Monitor", "_bases": ["Object", "BaseModel"]}
    query = {"$expr": {"$eq": [{"$getField": "nonsense"}, {"$literal": 1}]}}
    answer = wire.client.post("/obj/create", json={"obj": body(wire, "m", {**bases, "query": query})})
    assert answer.status_code == 422 and "nonsense" in answer.json()["reason"]
    query["$expr"]["$eq"][0]["$getField"] = "inputs.x"
    create(wire, "m", {**bases, "query": query})


def test_deletion_hides_and_the_latest_falls_back(wire: Wire) -> None:
    digests = [create(wire, "o", value) for value in range(4)]
    wire.client.put(f"/objs/o/versions/{digests[3]}/tags", json={"project_id": wire.project, "tags": ["t"]})
    done = wire.post("/obj/delete", object_id="o", digests=["latest", "v1"])
    assert done["num_deleted"] == 2
    assert {item["digest"] for item in done["deleted_versions"]} == {digests[3], digests[1]}
    assert summary(wire) == [("o", 0, 0), ("o", 2, 1)]
    gone = refused(wire, "POST", "/obj/read", 404, object_id="o", digest="v3")
    assert gone["deleted_at"].endswith("Z") and "was deleted" in gone["reason"]
    assert read(wire, "o", "latest", include_tags_and_aliases=True)["aliases"] == ["latest"], "derived"
    assert wire.client.get("/tags", params={"project_id": wire.project}).json() == {"tags": []}
    create(wire, "o", 3)
    assert read(wire, "o", "latest")["version_index"] == 3, "a revived version keeps its number"
    assert read(wire, "o", "latest", include_tags_and_aliases=True)["tags"] == []


def test_sizes_are_those_of_the_text_that_is_digested(wire: Wire) -> None:
    """As Weave counts: default separators, ASCII escapes, refs in internal form."""
    create(wire, "leaf", 1)
    ref = f"weave:///{wire.project}/object/leaf:{read(wire, 'leaf', 'latest')['digest']}"
    create(wire, "o", {"rows": ref, "name": "ä", "n": [1, 2]})
    found = wire.post("/objs/query", filter={"object_ids": ["o"]}, include_storage_size=True)["objs"]
    internal = base64.b64encode(wire.project.encode()).decode().rstrip("=")
    stored = {"rows": ref.replace(f"weave:///{wire.project}", f"weave-trace-internal:///{internal}"), "name": "ä"}
    assert [item["size_bytes"] for item in found] == [len(json.dumps({**stored, "n": [1, 2]}))]


def test_deletion_is_all_or_nothing(wire: Wire) -> None:
    digest = create(wire, "o", 1)
    for names in ([digest, "v7"], [digest, "latest"], ["v7"], ["A" * 43]):
        refused(wire, "POST", "/obj/delete", 404, object_id="o", digests=names)
    refused(wire, "POST", "/obj/delete", 404, object_id="unknown")
    refused(wire, "POST", "/obj/delete", 400, object_id="o", digests=["v1"] * 101)
    assert summary(wire) == [("o", 0, 1)]
    told = refused(wire, "POST", "/obj/delete", 404, object_id="o", digests=["v7", "v0", "A" * 43])["reason"]
    counted, _, named = told.partition(". ")
    assert counted == "Delete request contains 3 digests, but found 1 objects to delete"
    assert named == f"Diff digests: {{'{'A' * 43}', 'v0', 'v7'}}"
    assert wire.post("/obj/delete", object_id="o", digests=[])["num_deleted"] == 1
    assert "deleted_at" not in refused(wire, "POST", "/obj/read", 404, object_id="o", digest="latest")


def test_a_version_that_another_has_overtaken_is_refused(wire: Wire) -> None:
    def send(value: Any, after: str | None) -> httpx.Response:
        body = {"project_id": wire.project, "object_id": "o", "val": value, "after": after}
        return wire.client.post("/obj/create", json={"obj": body})

    assert send(0, "no such version").status_code == 409
    first = send(1, "").json()["digest"]
    second = send(2, first).json()["digest"]
    for after, reason in ((first, "o has been changed or deleted since"), ("", "o already exists")):
        answer = send(3, after)
        assert (answer.status_code, answer.json()["reason"]) == (409, reason)
    assert read(wire, "o", "latest")["digest"] == second
    wire.post("/obj/delete", object_id="o")
    assert send(3, second).status_code == 409
    assert send(3, None).status_code == 200


def test_aliases_move_and_resolve(wire: Wire) -> None:
    first, second = create(wire, "o", 1), create(wire, "o", 2)
    for digest in (first, second):
        sent = {"project_id": wire.project, "digest": digest, "aliases": ["best", "Älias", "best"]}
        assert wire.client.put("/objs/o/aliases", json=sent).json() == {}
    assert read(wire, "o", "best", include_tags_and_aliases=True)["aliases"] == ["latest", "best", "Älias"]
    assert read(wire, "o", first, include_tags_and_aliases=True)["aliases"] == []
    names = {"aliases": ["best", "latest", "Älias"]}
    assert wire.client.get("/aliases", params={"project_id": wire.project}).json() == names
    for _ in range(2):
        assert wire.post("/objs/o/aliases/remove", aliases=["best"]) == {}
    refused(wire, "POST", "/obj/read", 404, object_id="o", digest="best")
    refused(wire, "PUT", "/objs/o/aliases", 404, digest="latest", aliases=["x"])
    for alias in ("latest", "v1", "a/b", "a:b", " ", "", "x" * 129, "X" * 43, "ab" * 32):
        detail = refused(wire, "PUT", "/objs/o/aliases", 422, digest=first, aliases=[alias])["detail"]
        assert detail[0]["loc"] == ["body", "aliases"]
        refused(wire, "POST", "/objs/o/aliases/remove", 422, aliases=[alias])


def test_tags_add_up(wire: Wire) -> None:
    digest = create(wire, "o", 1)
    path = f"/objs/o/versions/{digest}/tags"
    for tags in (["b", "two words"], ["a", "b"]):
        assert wire.client.put(path, json={"project_id": wire.project, "tags": tags}).json() == {}
    assert read(wire, "o", digest, include_tags_and_aliases=True)["tags"] == ["a", "b", "two words"]
    assert wire.client.get("/tags", params={"project_id": wire.project}).json() == {"tags": ["a", "b", "two words"]}
    assert wire.post(f"{path}/remove", tags=["b", "never there", "  "]) == {}
    assert wire.post("/objs/o/versions/unknown/tags/remove", tags=["a"]) == {}
    assert read(wire, "o", digest, include_tags_and_aliases=True)["tags"] == ["a", "two words"]
    refused(wire, "PUT", "/objs/o/versions/latest/tags", 404, tags=["a"])
    for tag in ("", "a  b", "a,b", "x" * 257):
        refused(wire, "PUT", path, 422, tags=[tag])
    many = [str(number) for number in range(1001)]
    refused(wire, "PUT", path, 422, tags=many)
    refused(wire, "POST", f"{path}/remove", 422, tags=many)


def test_filters_are_joined(wire: Wire) -> None:
    first = create(wire, "a", {**CLASSED, "v": 1})
    create(wire, "a", {**CLASSED, "v": 2})
    create(wire, "b", {"plain": 1})
    create(wire, "c", OP)
    wire.client.put(f"/objs/a/versions/{first}/tags", json={"project_id": wire.project, "tags": ["t"]})
    wire.client.put("/objs/a/aliases", json={"project_id": wire.project, "digest": first, "aliases": ["best"]})

    def found(**conditions: Any) -> list[tuple[str, int]]:
        return [item[:2] for item in summary(wire, filter=conditions)]

    assert found() == [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    assert found(object_ids=["a", "c"], latest_only=True) == [("a", 1), ("c", 0)]
    assert found(base_object_classes=["Model"]) == [("a", 0), ("a", 1)]
    assert found(exclude_base_object_classes=["Model"]) == [("b", 0), ("c", 0)]
    assert found(leaf_object_classes=["Thing"], tags=["t", "u"]) == [("a", 0)]
    assert found(aliases=["best"]) == [("a", 0)]
    assert found(aliases=["best", "latest"]) == [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    assert found(tags=[], aliases=[], object_ids=[]) == found()
    assert found(tags=["t"], aliases=["latest"]) == []
    refused(wire, "POST", "/objs/query", 400, filter={"object_ids": ["x"] * 5001})


def test_order_and_pages(wire: Wire) -> None:
    for name, value in (("b", 1), ("a", 1), ("b", 2), ("a", 2)):
        create(wire, name, value)
    assert [item[:2] for item in summary(wire)] == [("b", 0), ("a", 0), ("b", 1), ("a", 1)]
    by_name = [{"field": "object_id", "direction": "asc"}, {"field": "created_at", "direction": "desc"}]
    assert [item[:2] for item in summary(wire, sort_by=by_name)] == [("a", 1), ("a", 0), ("b", 1), ("b", 0)]
    unknown = [{"field": "digest", "direction": "desc"}]
    assert summary(wire, sort_by=unknown) == summary(wire)
    assert [item[:2] for item in summary(wire, limit=2, offset=1)] == [("a", 0), ("b", 1)]
    assert [item[:2] for item in summary(wire, offset=3)] == [("a", 1)]
    assert summary(wire, limit=0) == []
    refused(wire, "POST", "/objs/query", 400, limit=-1)
    refused(wire, "POST", "/objs/query", 400, offset=-1)
    assert "max_page_rows" in refused(wire, "POST", "/objs/query", 413, limit=10_001)["reason"]


def test_sizes_only_on_request(wire: Wire) -> None:
    create(wire, "o", {"a": "é"})
    assert wire.objects()[0]["size_bytes"] is None
    assert wire.objects(include_storage_size=True, metadata_only=True)[0]["size_bytes"] == len(r'{"a": "\u00e9"}')


def test_projects_see_their_own_objects_only(wire: Wire) -> None:
    digest = create(wire, "o", 1)
    other = {"project_id": "another/project"}
    answer = wire.client.post("/obj/read", json={**other, "object_id": "o", "digest": digest})
    assert answer.status_code == 404
    assert wire.client.post("/objs/query", json=other).json() == {"objs": []}
    assert wire.client.get("/aliases", params=other).json() == {"aliases": []}


def test_a_large_value_comes_back_whole(wire: Wire) -> None:
    value = {"text": "é" * 3_000_000, "ref": f"weave:///{wire.project}/object/x:y"}
    create(wire, "large", value)
    assert read(wire, "large", "latest")["val"] == value


@pytest.mark.parametrize(
    ("sent", "place"),
    [
        ({}, ["body", "obj"]),
        ({"obj": {"project_id": "e/p", "object_id": "o"}}, ["body", "obj", "val"]),
        ({"obj": {"project_id": 1, "object_id": "o", "val": 1}}, ["body", "obj", "project_id"]),
    ],
)
def test_what_is_missing_is_named(wire: Wire, sent: Any, place: list[str]) -> None:
    answer = wire.client.post("/obj/create", json=sent)
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == place
