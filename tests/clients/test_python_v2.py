"""The /v2 families beside the SDKs: what one side publishes the other reads."""

from typing import Any

import pytest

from tests.conftest import Client, Wire
from tests.support.v2 import V2Api

NDJSON = "application/x-ndjson"


def digest_of(ref: str) -> str:
    """The version that a ref names."""
    return ref.rpartition(":")[2]


def only(records: list[dict[str, Any]], ref: str) -> dict[str, Any]:
    """The one record of a version."""
    [found] = [record for record in records if record["digest"] == digest_of(ref)]
    return found


def test_what_the_sdk_publishes_is_read_here(sdk: Client, wire: Wire) -> None:
    """Model, dataset, scorer, evaluation and op of the Python SDK, each in its list and by its version."""
    seen, v2 = sdk.run("v2_published.py"), V2Api(wire)
    for kind, ref in seen.items():
        path = f"{kind}s"
        record = only(v2.list(path, NDJSON), ref)
        assert v2.get(f"{path}/{record['object_id']}/versions/{record['digest']}") == record
        assert ref == v2.ref("op" if kind == "op" else "object", record["object_id"], record["digest"])
    dataset = only(v2.list("datasets", NDJSON), seen["dataset"])
    assert (dataset["name"], dataset["description"]) == ("doubles", "numbers")
    rows = wire.post("/table/query", digest=dataset["rows"].rpartition("/")[2])["rows"]
    assert [row["val"] for row in rows] == [{"n": n, "expected": 2 * n} for n in range(3)]
    model = only(v2.list("models", NDJSON), seen["model"])
    assert (model["name"], model["attributes"]["factor"]) == ("doubler", 2)
    scorer = only(v2.list("scorers", NDJSON), seen["scorer"])
    assert scorer["name"] == scorer["object_id"] == "Close"
    score = v2.get(f"ops/Close.score/versions/{digest_of(scorer['score_op'])}")
    assert "within" in score["code"]
    evaluation = only(v2.list("evaluations", NDJSON), seen["evaluation"])
    assert (evaluation["name"], evaluation["trials"]) == ("doubling", 2)
    assert evaluation["dataset"] == seen["dataset"] and evaluation["scorers"] == [seen["scorer"], seen["op"]]
    for key, name in (("evaluate_op", "evaluate"), ("summarize_op", "summarize")):
        assert f"/op/Evaluation.{name}:" in evaluation[key]
    assert "output == expected" in only(v2.list("ops", NDJSON), seen["op"])["code"]


@pytest.mark.thorough
def test_the_sdks_runs_are_read_here(sdk: Client, wire: Wire) -> None:
    """Both kinds of evaluation: the run, its predictions and its scores by their ids."""
    seen, v2 = sdk.run("v2_published.py"), V2Api(wire)
    runs = wire.calls(filter={"op_names": [f"weave:///{wire.project}/op/Evaluation.evaluate:*"]})
    assert len(runs) == 2
    for run in runs:
        read = v2.get(f"evaluation_runs/{run['id']}")
        assert (read["status"], read["summary"]) == ("completed", run["summary"])
        assert (read["evaluation"], read["model"]) == (run["inputs"]["self"], run["inputs"]["model"])
        [row, *_] = wire.calls(filter={"parent_ids": [run["id"]]})
        predict, *scores = wire.calls(filter={"parent_ids": [row["id"]]})
        prediction = v2.get(f"predictions/{predict['id']}")
        assert (prediction["output"], prediction["evaluation_run_id"]) == (predict["output"], run["id"])
        assert prediction["model"] == read["model"] and prediction["inputs"]
        for score in scores:
            record = v2.get(f"scores/{score['id']}")
            assert (record["value"], record["evaluation_run_id"]) == (score["output"], run["id"])
            assert record["value"] is True
    assert v2.get(f"evaluation_runs/{runs[0]['id']}")["evaluation"] == seen["evaluation"]


def test_what_is_made_here_is_loaded_by_the_sdk(sdk: Client, wire: Wire) -> None:
    v2 = V2Api(wire)
    rows = [{"n": n, "expected": 2 * n} for n in range(250)]
    made = v2.post("datasets", name="Made Here", rows=rows)
    dataset = v2.ref("object", made["object_id"], made["digest"])
    source = "import weave\n\n@weave.op\ndef score(output, expected):\n    return output == expected\n"
    scorer = v2.post("scorers", name="Right", op_source_code=source)["scorer"]
    body = {"dataset": dataset, "scorers": [scorer], "trials": 2, "evaluation_name": "shown"}
    evaluation = v2.post("evaluations", name="Exam", **body)["evaluation_ref"]
    op = v2.post("ops", name="twice", source_code="import weave\n\n@weave.op\ndef twice(x):\n    return 2 * x\n")
    refs = {"DATASET": dataset, "EVALUATION": evaluation, "SCORER": scorer}
    seen = sdk.run("v2_loaded.py", **refs, OP=v2.ref("op", "twice", op["digest"]))
    assert (seen["dataset_class"], seen["dataset_name"], seen["rows"]) == ("Dataset", "Made Here", rows)
    assert (seen["evaluation_class"], seen["evaluation_name"], seen["trials"]) == ("Evaluation", "Exam", 2)
    assert seen["evaluation_rows"] == rows and seen["scorers"] == ["Right"]
    assert (seen["scorer_name"], seen["answer"]) == ("Right", 40)


@pytest.mark.parametrize("script", ["evaluations.js"])
def test_what_the_typescript_sdk_publishes_is_read_here(node: Client, wire: Wire, script: str) -> None:
    node.run(script)
    v2 = V2Api(wire)
    [dataset] = [item for item in v2.list("datasets", NDJSON) if item["name"] == "sums"]
    assert wire.post("/table/query_stats", digest=dataset["rows"].rpartition("/")[2])["count"] == 3
    [evaluation] = [item for item in v2.list("evaluations", NDJSON) if item["name"] == "arithmetic"]
    assert evaluation["dataset"].endswith(dataset["digest"]) and len(evaluation["scorers"]) == 1
    assert v2.get(f"evaluations/{evaluation['object_id']}/versions/latest") == evaluation
    names = {item["object_id"] for item in v2.list("ops", NDJSON)}
    assert {"exact", "calculator"} <= names
    runs = [call for call in wire.calls() if "/op/Evaluation.evaluate:" in call["op_name"]]
    assert runs
    for run in runs:
        read = v2.get(f"evaluation_runs/{run['id']}")
        assert read["status"] == "completed" and read["evaluation"]
