"""Evaluations that the Python SDK publishes and the server runs."""

import pytest

from tests.conftest import Client, Wire

pytestmark = pytest.mark.thorough


def test_the_server_evaluates_what_the_sdk_published(sdk: Client, wire: Wire) -> None:
    """A model of settings, a judge and a built-in scorer over a dataset; then the score of a traced call."""
    seen = sdk.run("server_evaluation.py", timeout=300)
    assert seen["status"]["code"] == "complete", seen["status"]
    assert set(seen["codes"]) <= {"running", "complete"}, "never unknown once it was asked for"
    assert seen["status"]["output"]["valid"]["json_valid"]["true_fraction"] <= 1
    assert seen["status"]["output"]["model_latency"]["mean"] > 0
    assert seen["roots"] == [seen["call_id"]]
    assert sorted(row["example"] for row in seen["rows"]) == ["loom", "weft"]
    for row in seen["rows"]:
        assert isinstance(row["output"], str) and row["model"] == "heddle-tiny"
        assert row["scores"]["contains"] == {"contains": row["example"] in row["output"].lower()}
        assert set(row["scores"]) == {"judge", "valid", "contains"} and isinstance(row["scores"]["judge"], dict)
        assert row["children"] == [
            "ContainsScorer.score",
            "LLMAsAJudgeScorer.score",
            "LLMStructuredCompletionModel.predict",
            "ValidJSONScorer.score",
        ]
        assert row["feedback"] == ["wandb.runnable.contains", "wandb.runnable.judge", "wandb.runnable.valid"]
    assert sorted(map(str, seen["eval_table"])) == sorted(str(row["scores"]) for row in seen["rows"])
    ((kind, payload),) = seen["scored"]
    assert (kind, payload) == ("wandb.runnable.valid", {"output": {"json_valid": False}})
    usage = wire.calls(filter={"op_names": [f"weave:///{wire.project}/op/LLMAsAJudgeScorer.score:*"]})
    assert len(usage) == 2 and all(call["summary"]["usage"]["heddle-tiny"]["requests"] == 1 for call in usage)
