"""Ops, datasets, scorers, evaluations and models under /v2, over HTTP."""

import json
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.v2 import V2Api

NDJSON = "application/x-ndjson"
OBJECTS = ("ops", "datasets", "scorers", "evaluations", "models")
SOURCE = "def f(x):\n    return x\n"
OP_DIGEST = "GAZOoH6BhpQV6jS6IjXJSd58rGrlNaBzkoKqlrpRYQs"
"""Of an op with SOURCE, as the reference computes it (recorded)."""


@pytest.fixture
def v2(wire: Wire) -> V2Api:
    """The /v2 routes of the test's project."""
    return V2Api(wire)


def made(v2: V2Api, path: str, name: str, number: int = 0) -> dict[str, Any]:
    """A new version of any kind of object."""
    dataset = v2.ref("object", "d", "v0")
    bodies: dict[str, dict[str, Any]] = {
        "ops": {"source_code": f"def f(): return {number}\n"},
        "datasets": {"rows": [{"n": number}]},
        "scorers": {"op_source_code": f"def score(output): return {number}\n"},
        "evaluations": {"dataset": dataset, "trials": number + 1},
        "models": {"source_code": f"class M: n = {number}\n"},
    }
    return v2.post(path, name=name, **bodies[path])


def test_an_op_is_a_stored_file(v2: V2Api) -> None:
    op = v2.post("ops", name="V2 Op/1!", source_code=SOURCE)
    assert op == {"digest": OP_DIGEST, "object_id": "v2_op_1", "version_index": 0}
    read = v2.get(f"ops/v2_op_1/versions/{OP_DIGEST}", eager=True)
    assert read.pop("created_at").endswith("Z")
    assert read == {**op, "code": SOURCE}
    value = v2.stored("v2_op_1")
    assert value["weave_type"] == {"type": "Op"} and v2.wire.file(value["files"]["obj.py"]).decode() == SOURCE
    assert v2.post("ops", name="V2 Op/1!", source_code=SOURCE) == op


def test_an_op_without_a_source_gets_a_placeholder(v2: V2Api) -> None:
    op = v2.post("ops")
    assert op["object_id"] == "Op"
    assert v2.get("ops/Op/versions/latest")["code"].startswith("def func(*args, **kwargs):\n    ...")
    assert v2.post("ops", name=None, source_code="")["digest"] == op["digest"]


def test_a_dataset_is_a_table_and_an_object(v2: V2Api) -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "é"}]
    dataset = v2.post("datasets", name="V2 data/set", description="de", rows=rows)
    assert (dataset["object_id"], dataset["version_index"]) == ("v2_data_set", 0)
    read = v2.get(f"datasets/v2_data_set/versions/{dataset['digest']}")
    assert (read["name"], read["description"]) == ("V2 data/set", "de")
    table = read["rows"].rpartition("/")[2]
    assert read["rows"] == f"weave:///{v2.wire.project}/table/{table}"
    assert [row["val"] for row in v2.wire.post("/table/query", digest=table)["rows"]] == rows
    assert v2.stored("v2_data_set")["_bases"] == ["Object", "BaseModel"]
    assert v2.post("datasets", rows=[])["object_id"] == "Dataset"
    assert v2.get("datasets/Dataset/versions/v0")["name"] == "Dataset"


def test_a_scorer_points_to_its_ops(v2: V2Api) -> None:
    source = "import weave\n@weave.op\ndef score(output):\n    return 1.0\n"
    scorer = v2.post("scorers", name="V2 scorer", op_source_code=source)
    assert scorer["scorer"] == v2.ref("object", "v2_scorer", scorer["digest"])
    read = v2.get(f"scorers/v2_scorer/versions/{scorer['digest']}")
    score = v2.get("ops/v2_scorer_score/versions/latest")
    assert read["score_op"] == v2.ref("op", "v2_scorer_score", score["digest"]) and score["code"] == source
    value = v2.stored("v2_scorer")
    assert value["summarize"].startswith(v2.ref("op", "v2_scorer_summarize", "")) and value["column_map"] is None


def test_an_evaluation_names_its_parts(v2: V2Api) -> None:
    dataset = v2.ref("object", "d", made(v2, "datasets", "d")["digest"])
    scorer = made(v2, "scorers", "s")["scorer"]
    body = {"dataset": dataset, "scorers": [scorer], "trials": 3, "evaluation_name": "en", "eval_attributes": {"k": 1}}
    evaluation = v2.post("evaluations", name="V2 eval", description="what", **body)
    assert evaluation["evaluation_ref"] == v2.ref("object", "v2_eval", evaluation["digest"])
    read = v2.get(f"evaluations/v2_eval/versions/{evaluation['digest']}")
    assert [read[key] for key in ("dataset", "scorers", "trials", "evaluation_name")] == [dataset, [scorer], 3, "en"]
    for key in ("evaluate", "predict_and_score", "summarize"):
        name, _, digest = read[f"{key}_op"].rpartition("/")[2].partition(":")
        assert name == f"v2_eval.{key}" and v2.get(f"ops/{name}/versions/{digest}")["code"]
    value = v2.stored("v2_eval")
    assert (value["k"], value["metadata"], value["preprocess_model_input"]) == (1, None, None)
    plain = v2.post("evaluations", name="plain", dataset=dataset)
    read = v2.get(f"evaluations/plain/versions/{plain['digest']}")
    assert (read["scorers"], read["trials"], read["evaluation_name"]) == ([], 1, None)


def test_a_model_keeps_source_and_attributes(v2: V2Api) -> None:
    model = v2.post("models", name="V2 model", source_code="class M: pass\n", attributes={"temp": 0.2, "l": [1]})
    assert model["model_ref"] == v2.ref("object", "v2_model", model["digest"])
    read = v2.get(f"models/v2_model/versions/{model['digest']}")
    assert (read["source_code"], read["attributes"]) == ("class M: pass\n", {"temp": 0.2, "l": [1]})
    v2.post("models", name="bare", source_code="x = 1\n")
    assert v2.get("models/bare/versions/latest")["attributes"] is None


@pytest.mark.parametrize("path", OBJECTS)
def test_versions_are_listed_and_deleted(v2: V2Api, path: str) -> None:
    """Indexes count up; a page is by name and newest first; what is deleted says when."""
    other = made(v2, path, "a")
    versions = [made(v2, path, "b", number) for number in range(3)]
    assert [version["version_index"] for version in versions] == [0, 1, 2]
    named = {"a", "b"}
    listed = [item for item in v2.list(path, NDJSON) if item["object_id"] in named]
    assert [item["digest"] for item in listed] == [other["digest"], *(version["digest"] for version in versions)]
    every = [item["digest"] for item in v2.list(path, NDJSON, limit=1000) if item["object_id"] in named]
    assert every == [other["digest"], *(version["digest"] for version in reversed(versions))]
    page = [item["digest"] for item in v2.list(path, NDJSON, limit=2, offset=1)]
    assert page == [item["digest"] for item in v2.list(path, NDJSON, limit=1000)][1:3]
    assert v2.list(path, NDJSON, limit=0) == []

    chosen = [versions[0]["digest"], versions[2]["digest"]]
    assert v2.delete(f"{path}/b", digests=chosen) == 2
    gone = v2.ask("GET", f"{path}/b/versions/{chosen[0]}")
    assert gone.status_code == 404 and gone.json()["deleted_at"]
    half = v2.ask("DELETE", f"{path}/b", params={"digests": [versions[1]["digest"], "nope"]})
    assert half.status_code == 404
    assert v2.get(f"{path}/b/versions/latest")["digest"] == versions[1]["digest"]
    assert v2.delete(f"{path}/b") == 1
    assert v2.ask("DELETE", f"{path}/b").status_code == 404
    assert v2.delete(f"{path}/a", digests=other["digest"]) == 1
    assert [item for item in v2.list(path, NDJSON) if item["object_id"] in named] == []


@pytest.mark.parametrize("path", OBJECTS)
def test_what_is_not_there_is_404(v2: V2Api, path: str) -> None:
    missing = v2.ask("GET", f"{path}/nope/versions/x")
    assert (missing.status_code, missing.json()) == (404, {"reason": "Obj nope:x not found"})
    deleted = v2.ask("DELETE", f"{path}/nope")
    assert (deleted.status_code, deleted.json()) == (404, {"reason": "Object nope (None) not found when deleting."})
    for query in ({"limit": -1}, {"offset": -1}):
        assert v2.ask("GET", path, params=query).status_code == 400
    assert v2.ask("GET", path, params={"limit": "x"}).json()["detail"][0]["loc"] == ["query", "limit"]


def test_an_object_of_another_kind_is_not_there(v2: V2Api) -> None:
    """A kind neither shows nor deletes what belongs to another."""
    made(v2, "datasets", "thing")
    v2.wire.post("/obj/create", obj={"project_id": v2.wire.project, "object_id": "plain", "val": {"a": 1}})
    for path in ("ops", "scorers", "evaluations", "models"):
        assert v2.ask("GET", f"{path}/thing/versions/latest").status_code == 404
        assert v2.ask("DELETE", f"{path}/thing").status_code == 404
        assert v2.ask("GET", f"{path}/plain/versions/v0").status_code == 404
    assert v2.get("datasets/thing/versions/latest")["object_id"] == "thing"


def test_deleting_an_op_leaves_the_object_of_its_name(v2: V2Api) -> None:
    made(v2, "models", "twin")
    made(v2, "ops", "twin")
    assert v2.delete("ops/twin") == 1
    assert v2.get("models/twin/versions/v0")["object_id"] == "twin"


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("datasets", {}, ["body", "rows"]),
        ("datasets", {"rows": [1]}, ["body", "rows", 0]),
        ("datasets", {"rows": [], "name": 1}, ["body", "name"]),
        ("ops", {"source_code": 1}, ["body", "source_code"]),
        ("scorers", {"name": "n"}, ["body", "op_source_code"]),
        ("scorers", {"op_source_code": "x"}, ["body", "name"]),
        ("models", {"name": "n"}, ["body", "source_code"]),
        ("models", {"name": "n", "source_code": "", "attributes": []}, ["body", "attributes"]),
        ("evaluations", {"name": "n"}, ["body", "dataset"]),
        ("evaluations", {"name": "n", "dataset": "d", "trials": "many"}, ["body", "trials"]),
    ],
)
def test_bad_bodies_are_refused_at_their_place(v2: V2Api, path: str, body: dict[str, Any], place: list[Any]) -> None:
    answer = v2.ask("POST", path, json=body)
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == place
    assert v2.wire.objects() == []


@pytest.mark.parametrize(
    "body",
    [
        {"dataset": "bad"},
        {"dataset": "weave:///a/b"},
        {"dataset": "weave:///a/b/table/x"},
        {"dataset": "weave:///a/b/object/x:y", "scorers": ["weave:///a/b/call/x"]},
        {"dataset": "weave:///a/b/object/x:y", "trials": 0},
    ],
)
def test_evaluations_need_refs(v2: V2Api, body: dict[str, Any]) -> None:
    answer = v2.ask("POST", "evaluations", json={"name": "n", **body})
    assert answer.status_code == 400 and answer.json()["reason"]
    assert v2.wire.objects() == []


def test_names_that_leave_nothing_are_refused(v2: V2Api) -> None:
    assert v2.ask("POST", "ops", json={"name": "!?"}).status_code == 422
    assert v2.ask("POST", "ops", json={"name": "x" * 200}).status_code == 400
    assert v2.ask("POST", "ops", content=b"{").status_code == 422
    assert v2.ask("POST", "ops", content=b"[]").status_code == 422


def test_the_project_is_decoded(server: Any, wire: Wire) -> None:
    spaced = V2Api(Wire(server.url, f"{wire.project} é"))
    made(spaced, "datasets", "d")
    [record] = spaced.list("datasets", NDJSON)
    assert record["rows"].startswith(f"weave:///{spaced.wire.project}/table/")
    assert V2Api(wire).list("datasets", NDJSON) == []


def test_objects_of_other_shapes_are_listed(v2: V2Api) -> None:
    """Names, sources and rows that SDKs leave away or keep in another form never fail a list."""
    bases = ["Object", "BaseModel"]
    for kind, fields in (
        ("Dataset", {"name": None, "rows": [{"a": 1}]}),
        ("Scorer", {"name": None}),
        ("Model", {"name": None, "x": 1}),
        ("Evaluation", {"name": None, "scorers": [{"_type": "S"}], "predictAndScore": v2.ref("op", "p", "d")}),
    ):
        value = {"_type": kind, "_class_name": kind, "_bases": bases, **fields}
        v2.wire.post("/obj/create", obj={"project_id": v2.wire.project, "object_id": f"my-{kind}", "val": value})
    [dataset], [scorer], [evaluation], [model] = (v2.list(path, NDJSON) for path in OBJECTS[1:])
    assert [item["name"] for item in (dataset, scorer, model, evaluation)] == [
        "my-Dataset",
        "my-Scorer",
        "my-Model",
        "my-Evaluation",
    ]
    ref = v2.ref("object", "my-Dataset", dataset["digest"])
    assert dataset["rows"] == f"{ref}/attr/rows"
    assert v2.wire.client.post("/refs/read_batch", json={"refs": [dataset["rows"]]}).json()["vals"] == [[{"a": 1}]]
    assert (scorer["score_op"], model["source_code"], model["attributes"]) == ("", "", {"x": 1})
    assert (evaluation["dataset"], evaluation["trials"]) == ("", 1)
    assert evaluation["predict_and_score_op"] == v2.ref("op", "p", "d")
    assert evaluation["scorers"][0].endswith("/attr/scorers/index/0")


def test_a_long_list_is_whole(v2: V2Api) -> None:
    """More versions than are read at a time."""
    for number in range(250):
        v2.wire.post(
            "/obj/create",
            obj={
                "project_id": v2.wire.project,
                "object_id": "many",
                "val": {
                    "_type": "Model",
                    "_class_name": "Model",
                    "_bases": ["Object", "BaseModel"],
                    "name": f"m{number}",
                },
            },
        )
    assert [item["name"] for item in v2.list("models", NDJSON)] == [f"m{number}" for number in range(250)]
    assert [item["version_index"] for item in v2.list("models", NDJSON, limit=120, offset=5)] == list(
        range(244, 124, -1)
    )


def test_refs_in_rows_are_converted(v2: V2Api) -> None:
    """Rows are stored as /table/create stores them: refs of this server, and numbers that JSON has not."""
    rows = [{"r": v2.ref("object", "o", "d"), "x": float("inf"), "n": 10**25}]
    answer = v2.ask("POST", "datasets", content=json.dumps({"name": "d", "rows": rows}))
    assert answer.status_code == 200, answer.text
    sent = json.dumps({"table": {"project_id": v2.wire.project, "rows": rows}})
    table = v2.wire.client.post("/table/create", content=sent).json()["digest"]
    assert v2.get("datasets/d/versions/latest")["rows"] == f"weave:///{v2.wire.project}/table/{table}"
    [row] = v2.wire.post("/table/query", digest=table)["rows"]
    assert row["val"]["r"] == rows[0]["r"]
