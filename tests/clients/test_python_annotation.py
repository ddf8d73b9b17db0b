"""Annotation, the registry, custom runtimes and dataset sources through the Python SDK."""

from pathlib import Path

import pytest

from tests.conftest import SDK_VERSIONS, Client, Wire, python_client
from tests.support.provider import PICTURE, FakeProvider
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess


@pytest.mark.thorough
def test_annotation(sdk: Client, wire: Wire) -> None:
    """A queue from its making to its deletion, with a label that names it and one that its spec refuses."""
    seen = sdk.run("annotation.py")
    assert seen["added"] == [3, 0, 0, 1]
    assert [item["call_id"] for item in seen["before"]] == seen["calls"]
    assert [item["position_in_queue"] for item in seen["before"]] == [1, 2, 3]
    assert seen["before"][0]["display_fields"] == ["inputs.question", "output"]
    assert seen["steps"][:2] == ["in_progress", "completed"]
    assert "Cannot transition to 'in_progress' when a record already exists" in seen["steps"][2]
    assert seen["steps"][3] == "skipped"
    assert [item["annotation_state"] for item in seen["after"]] == ["completed", "skipped", "unstarted"]
    assert seen["unstarted"] == seen["calls"][2:]
    assert seen["stats"] == [[seen["queue"], 3, 2]]
    assert seen["names"] == ["Checked", "Checked", "Checked"]
    assert (seen["description"], seen["scorer_refs"]) == ("All of them", [seen["spec"]])
    assert (seen["deleted"], seen["left"]) == (True, 0)
    rows = wire.post("/feedback/query", sort_by=[{"field": "created_at", "direction": "asc"}])["result"]
    assert [(row["payload"], row["queue_id"]) for row in rows] == [
        ({"value": 4}, seen["queue"]),
        ({"value": 2}, None),
    ]
    assert rows[0]["id"] == seen["label"]
    assert {row["annotation_ref"] for row in rows} == {seen["spec"]}


@pytest.mark.thorough
@pytest.mark.parametrize("version", with_breadth(SDK_VERSIONS))
def test_links(version: str, tmp_path: Path, project: str) -> None:
    """What is linked is read back under its new name; a runtime's model answers; an image is stored."""
    with FakeProvider() as provider, HeddleProcess(tmp_path / "data", providers=f"box={provider.url}") as server:
        client = python_client(version, server, project, tmp_path)
        seen = client.run("links.py", RUNTIME_URL=provider.url)
        wire = Wire(server.url, project)
        assert seen["indexes"] == [0, 1, 0]
        assert seen["content"] == "Answer shortly"
        query = {"project_id": f"{project.partition('/')[0]}/wandb-registry-prompts", "portfolio_name": "answers"}
        versions = wire.client.get("/registry/versions", params=query).json()["versions"]
        assert [entry["source_refs"] for entry in versions] == [[ref] for ref in seen["refs"]]
        assert versions[0]["aliases"] == ["prod"]
        assert seen["runtime"] == ["box", provider.url, 4096, "custom::box::org/model-a"]
        assert seen["said"] == "HELLO"
        asked = provider.requests[0]
        assert (asked["body"]["model"], asked["headers"]["x-team"]) == ("org/model-a", "blue")
        assert (seen["created"], seen["deleted"]) == (True, [True])
        assert seen["rows"] == [["r1", "c1", {"a": 1}]]
        assert seen["datasets"] == [["rows", ["r1"]]]
        assert wire.file(seen["image"]["data"][0]["b64_json"]["files"]["content"]) == PICTURE
        wire.client.close()
