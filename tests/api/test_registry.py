"""The registry over HTTP: linking, listing, and reading what was linked."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.server import HeddleProcess

Json = dict[str, Any]


def publish(wire: Wire, name: str, value: Any) -> str:
    """The external ref of a new version."""
    obj = {"project_id": wire.project, "object_id": name, "val": value}
    answer = wire.client.post("/obj/create", json={"obj": obj})
    assert answer.status_code == 200, answer.text
    return f"weave:///{wire.project}/object/{name}:{answer.json()['digest']}"


def prompt(text: str) -> Json:
    """A prompt as SDKs publish it."""
    bases = ["Prompt", "Object", "BaseModel"]
    return {"_type": "StringPrompt", "_class_name": "StringPrompt", "_bases": bases, "content": text}


def body(wire: Wire, ref: str, portfolio: str = "coll", **more: Any) -> Json:
    """What /link_to_registry wants."""
    entity = wire.project.partition("/")[0]
    target = {"portfolio_name": portfolio, "entity_name": entity, "project_name": "wandb-registry-prompts"}
    return {"ref": ref, "target": target, **more}


def link(wire: Wire, ref: str, portfolio: str = "coll", **more: Any) -> httpx.Response:
    """The answer to a link."""
    return wire.client.post("/link_to_registry", json=body(wire, ref, portfolio, **more))


@pytest.fixture
def registry(wire: Wire) -> Wire:
    """The wire to the registry project."""
    return Wire(wire.url, wire.project.partition("/")[0] + "/wandb-registry-prompts")


def listed(registry: Wire, portfolio: str = "coll") -> list[Json]:
    """The versions of a portfolio."""
    query = {"project_id": registry.project, "portfolio_name": portfolio}
    answer = registry.client.get("/registry/versions", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["versions"])


def test_versions_count_per_portfolio_and_the_same_one_keeps_its_index(wire: Wire, registry: Wire) -> None:
    first, second = publish(wire, "p", prompt("one")), publish(wire, "p", prompt("two"))
    assert link(wire, first).json() == {"version_index": 0}
    assert link(wire, second).json() == {"version_index": 1}
    assert link(wire, first, aliases=["prod"]).json() == {"version_index": 0}
    assert link(wire, second, "other").json() == {"version_index": 0}
    old, new = listed(registry)
    assert [old["version_index"], new["version_index"]] == [0, 1]
    assert (old["source_refs"], new["source_refs"]) == ([first], [second])
    assert (old["aliases"], new["aliases"]) == (["prod"], ["latest"])
    assert old["created_by"] == "local"
    answer = registry.client.get("/registry/portfolios", params={"project_id": registry.project})
    portfolios = {entry["portfolio_name"]: entry for entry in answer.json()["portfolios"]}
    assert list(portfolios) == ["coll", "other"]
    assert (portfolios["coll"]["version_count"], portfolios["coll"]["latest_version_index"]) == (2, 1)
    assert portfolios["coll"]["base_object_class"] == "Prompt"


def test_a_linked_version_is_read_in_the_registry(wire: Wire, registry: Wire) -> None:
    inner = publish(wire, "inner", {"a": 1})
    file = wire.client.post("/file/create", data={"project_id": wire.project}, files={"file": ("f.txt", b"text")})
    value = {**prompt("three"), "other": inner, "deep": [{"files": {"f.txt": file.json()["digest"]}}]}
    assert link(wire, publish(wire, "p", value), aliases=["prod"]).status_code == 200
    for name in ("v0", "latest", "prod"):
        read = registry.post("/obj/read", object_id="coll", digest=name, include_tags_and_aliases=True)["obj"]
        assert read["val"] == value
        assert read["aliases"] == ["latest", "prod"]
    (version,) = listed(registry)
    assert version["ref"] == f"weave:///{registry.project}/object/coll:{version['digest']}"
    found = wire.client.post("/refs/read_batch", json={"refs": [version["ref"] + "/attr/content"]})
    assert found.json() == {"vals": ["three"]}
    assert registry.file(file.json()["digest"]) == b"text"


def test_an_address_by_name_is_linked_as_its_version(wire: Wire, registry: Wire) -> None:
    ref = publish(wire, "p", prompt("one"))
    assert link(wire, f"weave:///{wire.project}/object/p:latest").json() == {"version_index": 0}
    assert listed(registry)[0]["source_refs"] == [ref]
    deleted = registry.post("/obj/delete", object_id="coll")
    assert deleted["num_deleted"] == 1
    assert listed(registry) == []
    answer = registry.client.get("/registry/portfolios", params={"project_id": registry.project})
    assert answer.json() == {"portfolios": []}
    assert link(wire, ref).json() == {"version_index": 0}
    assert [version["version_index"] for version in listed(registry)] == [0]


def test_what_cannot_be_linked(wire: Wire, registry: Wire) -> None:
    ref = publish(wire, "p", prompt("one"))
    gone = publish(wire, "gone", prompt("x"))
    wire.post("/obj/delete", object_id="gone")
    unknown = f"weave:///{wire.project}/object/nobody:{'x' * 43}"
    refusals = [
        (unknown, "coll", {}, 404),
        (gone, "coll", {}, 404),
        (f"weave:///{wire.project}/call/{'0' * 8}", "coll", {}, 400),
        (ref + "/attr/content", "coll", {}, 400),
        ("no ref", "coll", {}, 400),
        ("", "coll", {}, 422),
        (ref, "", {}, 422),
        (ref, "a/b", {}, 422),
        (ref, "coll", {"aliases": ["latest"]}, 422),
    ]
    for given, portfolio, more, status in refusals:
        answer = link(wire, given, portfolio, **more)
        assert answer.status_code == status, (given, answer.text)
        assert answer.json().keys() & {"reason", "detail"}
    dataset = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "rows": []}
    assert link(wire, ref).status_code == 200
    answer = link(wire, publish(wire, "d", dataset))
    assert answer.status_code == 400
    assert "another type" in answer.json()["reason"]
    assert len(listed(registry)) == 1
    query = {"project_id": registry.project, "portfolio_name": "nobody"}
    assert registry.client.get("/registry/versions", params=query).status_code == 404


def test_keys_reach_as_far_as_their_projects(tmp_path: Path) -> None:
    data = tmp_path / "data"
    keys = {
        "team": make_key(data, "team", "--entity", "team"),
        "registry": make_key(data, "registry", "--project", "team/wandb-registry-prompts"),
        "writer": make_key(data, "writer", "--entity", "team", "--scope", "write"),
    }
    with HeddleProcess(data, auth="on") as server:
        wires = {name: Wire(server.url, "team/source") for name in keys}
        for name, wire in wires.items():
            wire.client.auth = httpx.BasicAuth("api", keys[name])
        ref = publish(wires["team"], "p", prompt("one"))
        assert link(wires["registry"], ref).status_code == 403
        assert link(wires["writer"], ref).status_code == 403
        assert link(wires["team"], ref).status_code == 200
        reader = Wire(server.url, "team/wandb-registry-prompts")
        reader.client.auth = httpx.BasicAuth("api", keys["registry"])
        assert reader.post("/obj/read", object_id="coll", digest="v0")["obj"]["val"]["content"] == "one"
