"""Where rows of datasets came from, over HTTP."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import Wire

Json = dict[str, Any]


@pytest.fixture
def dataset(wire: Wire) -> Json:
    """A dataset version, as links name it."""
    value = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "rows": []}
    obj = {"project_id": wire.project, "object_id": "data", "val": value}
    digest = wire.client.post("/obj/create", json={"obj": obj}).json()["digest"]
    return {"dataset_object_id": "data", "dataset_digest": digest}


def source(kind: str, name: str, trace: str = "t") -> Json:
    """What a row came from."""
    return {"source_kind": kind, "source_id": name, "source_trace_id": trace}


def row(digest: str, *sources: Json, **more: Any) -> Json:
    """A row with its sources."""
    return {"row_digest": digest, "sources": list(sources), **more}


def link(wire: Wire, dataset: Json, *rows: Json) -> list[Json]:
    """The entries of new links."""
    body = {**dataset, "links": list(rows), "include_created_status": True}
    return list(wire.post("/dataset_sources/link", **body)["entries"])


def links(wire: Wire, **body: Any) -> list[Json]:
    """The links of the dataset."""
    return list(wire.post("/dataset_sources/query", dataset_object_id="data", **body)["links"])


def members(wire: Wire, *sources: Json, **body: Any) -> list[Json]:
    """The datasets of sources."""
    return list(wire.post("/dataset_sources/source_datasets_query", sources=list(sources), **body)["memberships"])


def refused(wire: Wire, path: str, **body: Any) -> httpx.Response:
    """The answer to a request that is refused."""
    answer = wire.client.post(f"/dataset_sources/{path}", json={"project_id": wire.project, **body})
    assert answer.status_code >= 400, answer.text
    return answer


def test_a_link_is_made_once(wire: Wire, dataset: Json) -> None:
    call, talk = source("call", "c1"), source("conversation", "talk")
    first = link(wire, dataset, row("r1", call, talk, link_metadata={"a": 1}), row("r2", call))
    assert [entry["created"] for entry in first] == [True, True, True]
    again = link(wire, dataset, row("r2", call, link_metadata={"b": 2}), row("r3", call))
    assert again[0] == {"link_id": first[2]["link_id"], "created": False}
    assert again[1]["created"] is True
    plain = wire.post("/dataset_sources/link", **dataset, links=[row("r1", call)])
    assert plain == {"entries": [{"link_id": first[0]["link_id"]}]}
    found = links(wire)
    assert [(item["row_digest"], item["source_id"]) for item in found] == [
        ("r1", "c1"), ("r1", "talk"), ("r2", "c1"), ("r3", "c1"),
    ]  # fmt: skip
    assert [item["link_metadata"] for item in found] == [{"a": 1}, {"a": 1}, {"b": 2}, None]
    assert {item["added_by"] for item in found} == {"local"}


def test_links_are_filtered_paged_and_deleted(wire: Wire, dataset: Json) -> None:
    made = link(wire, dataset, row("r1", source("call", "c1"), source("span", "s1")), row("r2", source("call", "c1")))
    assert [item["source_id"] for item in links(wire, source_kinds=["span"])] == ["s1"]
    assert [item["source_id"] for item in links(wire, row_digests=["r2", "r9"])] == ["c1"]
    assert [item["row_digest"] for item in links(wire, limit=1, offset=2)] == ["r2"]
    assert links(wire, row_digests=[]) == []
    ids = [made[0]["link_id"], str(uuid.uuid4())]
    gone = wire.post("/dataset_sources/link_delete", link_ids=ids)["entries"]
    assert gone == [{"link_id": ids[0], "deleted": True}, {"link_id": ids[1], "deleted": False}]
    assert wire.post("/dataset_sources/link_delete", link_ids=ids[:1])["entries"][0]["deleted"] is False
    assert [item["source_id"] for item in links(wire)] == ["s1", "c1"]
    everything = links(wire, include_deleted=True)
    assert [item["deleted_at"] is not None for item in everything] == [True, False, False]
    revived = link(wire, dataset, row("r1", source("call", "c1")))
    assert revived == [{"link_id": ids[0], "created": True}]
    assert len(links(wire)) == 3


def test_a_link_shows_its_source_as_it_is(wire: Wire, dataset: Json) -> None:
    call, trace = str(uuid.uuid4()), str(uuid.uuid4())
    link(wire, dataset, row("r1", source("call", call, trace), source("conversation", "talk", trace)))
    before = links(wire)
    assert [item["source_display_name"] for item in before] == ["", ""]
    assert before[0]["source_started_at"] == before[0]["created_at"]
    start = {
        "project_id": wire.project, "id": call, "trace_id": trace, "op_name": f"weave:///{wire.project}/op/ask:x",
        "started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": {},
    }  # fmt: skip
    wire.client.post("/call/start", json={"start": start})
    assert [item["source_display_name"] for item in links(wire)] == ["ask", "ask"]
    assert {item["source_started_at"] for item in links(wire)} == {"2026-01-01T00:00:00.000000Z"}
    wire.post("/call/update", call_id=call, display_name="shown")
    assert links(wire)[0]["source_display_name"] == "shown"


def test_the_datasets_of_a_source(wire: Wire, dataset: Json) -> None:
    call, other = source("call", "c1"), source("call", "c1", "another-trace")
    link(wire, dataset, *(row(f"r{number:03d}", call) for number in range(150)), row("x", other))
    (found,) = members(wire, call)
    assert (found["dataset_object_id"], found["source_id"], found["source_trace_id"]) == ("data", "c1", "t")
    assert found["row_digests"] == [f"r{number:03d}" for number in range(100)]
    assert (found["row_digests_truncated"], found["row_digests_total_count"]) == (True, 150)
    assert [entry["row_digests_total_count"] for entry in members(wire, call, other)] == [150, 1]
    assert members(wire, source("span", "c1")) == []
    wire.post("/dataset_sources/link_delete", link_ids=[item["id"] for item in links(wire, row_digests=["x"])])
    assert members(wire, other) == []
    assert len(members(wire, other, include_deleted=True)) == 1


def test_what_cannot_be_linked(wire: Wire, dataset: Json) -> None:
    many = [row(f"r{number}", source("call", "c")) for number in range(1001)]
    answer = refused(wire, "link", **dataset, links=many)
    assert (answer.status_code, answer.json()["reason"]) == (
        413, "links has 1001 entries, at most 1000 are allowed in one request",
    )  # fmt: skip
    unknown = refused(wire, "link", dataset_object_id="data", dataset_digest="nobody", links=[])
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "Dataset data:nobody not found")
    assert refused(wire, "link", **dataset, links=[row("r", source("file", "c"))]).status_code == 422
    assert refused(wire, "link", **dataset, links=[row("r", source("span", "s", ""))]).status_code == 400
    assert refused(wire, "link_delete", link_ids=["x"] * 1001).status_code == 413
    assert refused(wire, "query", dataset_object_id="data", limit=-1).status_code == 400
    assert refused(wire, "source_datasets_query", sources=[source("call", "c")] * 1001).status_code == 413
    assert links(wire) == []


def test_the_same_link_made_by_many_at_once_is_one(wire: Wire, dataset: Json) -> None:
    rows = [row(f"r{number}", source("call", "c")) for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: link(wire, dataset, *rows), range(8)))
    assert sum(entry["created"] for entries in answers for entry in entries) == 20
    assert len({tuple(entry["link_id"] for entry in entries) for entries in answers}) == 1
