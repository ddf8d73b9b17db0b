"""The API of Langfuse over HTTP: datasets and their items, which are rows of heddle's datasets."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import API_KEY, Wire

Json = dict[str, Any]
DATASETS, ITEMS = "v2/datasets", "dataset-items"


@pytest.fixture
def langfuse(wire: Wire) -> httpx.Client:
    """A client whose public key is the project."""
    return httpx.Client(base_url=f"{wire.url}/api/public/", auth=(wire.project, API_KEY), timeout=60)


def ask(client: httpx.Client, method: str, path: str, status: int = 200, **sent: Any) -> Any:
    """The answer, which must have that status."""
    answer = client.request(method, path, **sent)
    assert answer.status_code == status, answer.text
    return answer.json()


def add(client: httpx.Client, name: str, **item: Any) -> Json:
    """A new item."""
    return dict(ask(client, "POST", ITEMS, json={"datasetName": name, **item}))


def items(client: httpx.Client, name: str, **query: Any) -> list[Json]:
    """The items of a dataset."""
    return list(ask(client, "GET", ITEMS, params={"datasetName": name, **query})["data"])


def test_datasets(langfuse: httpx.Client) -> None:
    made = ask(langfuse, "POST", DATASETS, json={"name": "cap/itals", "description": "d", "metadata": {"a": 1}})
    assert (made["name"], made["description"], made["metadata"]) == ("cap/itals", "d", {"a": 1})
    assert ask(langfuse, "GET", f"{DATASETS}/cap%2Fitals") == made
    add(langfuse, "cap/itals", input=1)
    again = ask(langfuse, "POST", DATASETS, json={"name": "cap/itals", "description": "e"})
    assert (again["description"], again["createdAt"]) == ("e", made["createdAt"])
    assert len(items(langfuse, "cap/itals")) == 1, "it keeps its items"
    ask(langfuse, "POST", DATASETS, json={"name": "other"})
    listed = ask(langfuse, "GET", DATASETS, params={"limit": 1, "page": 2})
    assert [one["name"] for one in listed["data"]] == ["other"] and listed["meta"]["totalItems"] == 2


def test_items_are_rows_that_evaluations_read(wire: Wire, langfuse: httpx.Client) -> None:
    ask(langfuse, "POST", DATASETS, json={"name": "words"})
    first = add(langfuse, "words", input={"q": 1}, expectedOutput="a", metadata={"m": 1}, sourceTraceId="t")
    assert (first["input"], first["expectedOutput"], first["status"]) == ({"q": 1}, "a", "ACTIVE")
    assert (first["sourceTraceId"], first["datasetName"], first["mediaReferences"]) == ("t", "words", [])
    add(langfuse, "words", id="own", input="x", expectedOutput="y")
    add(langfuse, "words", input="last")
    changed = add(langfuse, "words", id="own", input="z", status="ARCHIVED")
    assert (changed["input"], changed["expectedOutput"], changed["status"]) == ("z", "y", "ARCHIVED")
    found = items(langfuse, "words")
    assert [one["input"] for one in found] == [{"q": 1}, "z", "last"]
    assert [one["input"] for one in items(langfuse, "words", limit=1, page=2)] == ["z"]
    assert ask(langfuse, "GET", f"{ITEMS}/own") == changed
    newest = max(wire.objects(filter={"object_ids": ["words"]}), key=lambda item: item["version_index"])
    assert (newest["base_object_class"], newest["version_index"]) == ("Dataset", 4)
    table = newest["val"]["rows"].rpartition("/")[2]
    rows = [row["val"] for row in wire.post("/table/query", digest=table)["rows"]]
    assert [(row["input"], row["expected_output"]) for row in rows] == [({"q": 1}, "a"), ("z", "y"), ("last", None)]
    ask(langfuse, "DELETE", f"{ITEMS}/own")
    assert [one["input"] for one in items(langfuse, "words")] == [{"q": 1}, "last"]
    ask(langfuse, "GET", f"{ITEMS}/own", 404)
    assert [one["input"] for one in items(langfuse, "words", version=changed["updatedAt"])] == [{"q": 1}, "x", "last"]


def test_datasets_of_weave_are_read(wire: Wire, langfuse: httpx.Client) -> None:
    rows = [{"input": 1, "expected": 2}, {"question": "why"}]
    made = wire.client.post("/table/create", json={"table": {"project_id": wire.project, "rows": rows}}).json()
    value = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "name": None}
    value["rows"] = f"weave:///{wire.project}/table/{made['digest']}"
    wire.client.post("/obj/create", json={"obj": {"project_id": wire.project, "object_id": "theirs", "val": value}})
    found = items(langfuse, "theirs")
    assert [(one["input"], one["expectedOutput"]) for one in found] == [(1, 2), ({"question": "why"}, None)]
    assert [one["id"] for one in found] == made["row_digests"]
    add(langfuse, "theirs", input=3)
    assert [one["input"] for one in items(langfuse, "theirs")] == [1, {"question": "why"}, 3]


def test_items_that_come_at_once_are_all_kept(langfuse: httpx.Client) -> None:
    ask(langfuse, "POST", DATASETS, json={"name": "many"})
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: add(langfuse, "many", input=number), range(20)))
    assert {one["input"] for one in made} == {one["input"] for one in items(langfuse, "many")} == set(range(20))


def test_runs_of_older_sdks(wire: Wire, langfuse: httpx.Client) -> None:
    ask(langfuse, "POST", DATASETS, json={"name": "a/b"})
    first, second = (add(langfuse, "a/b", input=number)["id"] for number in range(2))

    def run(name: str, item: str, trace: str, **more: Any) -> Json:
        body = {"runName": name, "datasetItemId": item, "traceId": trace, "metadata": {"k": 1}, **more}
        return dict(ask(langfuse, "POST", "dataset-run-items", json=body))

    made = run("one", first, "t1", runDescription="d")
    assert (made["datasetRunName"], made["datasetItemId"], made["traceId"]) == ("one", first, "t1")
    assert run("one", first, "t1")["id"] == made["id"], "sent again"
    other = run("one", second, "t2", observationId="o2")
    run("two", first, "t3")
    found = ask(langfuse, "GET", "datasets/a%2Fb/runs/one")
    assert (found["id"], found["name"], found["datasetName"]) == (made["datasetRunId"], "one", "a/b")
    assert [one["id"] for one in found["datasetRunItems"]] == [made["id"], other["id"]]
    assert [one["name"] for one in ask(langfuse, "GET", "datasets/a%2Fb/runs")["data"]] == ["two", "one"]
    ask(langfuse, "GET", "datasets/a%2Fb/runs/three", 404)
    about = [row["weave_ref"].partition(wire.project)[2] for row in wire.post("/feedback/query")["result"]]
    assert sorted(about) == ["/agent_turn/t1", "/agent_turn/t3", "/call/o2"]
    assert ask(langfuse, "GET", "v3/scores")["data"] == [], "no scores"
    assert add(langfuse, "a/b", id="i/1")["id"] == ask(langfuse, "GET", "dataset-items/i%2F1")["id"] == "i/1"


@pytest.mark.thorough
def test_the_newest_of_many_runs_is_listed(wire: Wire, langfuse: httpx.Client) -> None:
    """Behind 10,000 items of runs before it."""
    ask(langfuse, "POST", DATASETS, json={"name": "d"})
    item = add(langfuse, "d", input=1)["id"]
    body = {"runName": "old", "datasetItemId": item, "traceId": "t"}
    ask(langfuse, "POST", "dataset-run-items", json=body)
    [row] = wire.post("/feedback/query")["result"]
    same = {name: row[name] for name in ("project_id", "weave_ref", "feedback_type", "creator", "payload")}
    for _ in range(10):
        made = wire.client.post("/feedback/batch/create", json={"batch": [same] * 1000})
        assert made.status_code == 200, made.text
    ask(langfuse, "POST", "dataset-run-items", json={**body, "runName": "new"})
    assert [one["name"] for one in ask(langfuse, "GET", "datasets/d/runs")["data"]] == ["new", "old"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (DATASETS, {"name": ""}, 400),
        (DATASETS, {"name": "taken"}, 400),
        (DATASETS, {"name": "d", "inputSchema": {}}, 400),
        (ITEMS, {"datasetName": "none", "input": 1}, 404),
        (ITEMS, {"datasetName": "taken", "input": 1}, 404),
        (ITEMS, {"input": 1}, 400),
        (ITEMS, {"datasetName": "d", "status": "GONE"}, 400),
        ("dataset-run-items", {"runName": "r", "datasetItemId": "none", "traceId": "t"}, 404),
        ("dataset-run-items", {"runName": "r", "datasetItemId": "none"}, 400),
        ("dataset-run-items", {}, 400),
    ],
)
def test_what_is_refused_stores_nothing(wire: Wire, langfuse: httpx.Client, path: str, body: Json, status: int) -> None:
    ask(langfuse, "POST", DATASETS, json={"name": "d"})
    value = {"_type": "Model", "_class_name": "M", "_bases": ["Model", "Object", "BaseModel"]}
    wire.client.post("/obj/create", json={"obj": {"project_id": wire.project, "object_id": "taken", "val": value}})
    before = wire.objects()
    assert ask(langfuse, "POST", path, status, json=body)["message"]
    assert wire.objects() == before


def test_refused_questions(langfuse: httpx.Client) -> None:
    for path, status in (
        (ITEMS, 400), (f"{ITEMS}?datasetName=none", 404), (f"{ITEMS}?datasetName=x&version=soon", 400),
        (f"{ITEMS}?datasetName=x&sourceTraceId=t", 400), (f"{DATASETS}?limit=0", 400), (f"{DATASETS}/none", 404),
        ("datasets/none/runs", 404),
    ):  # fmt: skip
        assert ask(langfuse, "GET", path, status)["message"], path
