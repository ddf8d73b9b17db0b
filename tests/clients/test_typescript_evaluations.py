"""Evaluations of the unmodified npm `weave`, read back alone and beside those of the Python SDK."""

from pathlib import Path
from typing import Any

import pytest

from heddle.wire import refs
from tests.clients.test_python_evaluations import QUIET, ROWS, op_of, results, run_read, stats
from tests.conftest import Client, Wire, python_client
from tests.support.server import HeddleProcess

Json = Any
IN_ORDER = [{"field": "inputs.id", "direction": "asc"}]


def trials(answer: Json, run_id: str) -> list[list[Json]]:
    """The trials of one evaluation, row by row."""
    entries = [{entry["evaluation_call_id"]: entry["trials"] for entry in row["evaluations"]} for row in answer["rows"]]
    return [found.get(run_id, []) for found in entries]


def test_evaluations_compare_row_by_row(node: Client, wire: Wire) -> None:
    seen = node.run("evaluation_runs.js")
    first, second, logged = seen["runs"]
    answer = results(wire, *seen["runs"], resolve_row_refs=True, sort_by=IN_ORDER)
    assert (answer["total_rows"], answer["warnings"]) == (4, [])
    assert [row["raw_data_row"] for row in answer["rows"]] == ROWS
    assert [row["row_digest"] for row in answer["rows"]] == [refs.value_digest(row) for row in ROWS]
    for run_id, outputs in ((first, [2, 5, 8, None]), (second, [3, 6, 9, None])):
        for found, output, row in zip(trials(answer, run_id), outputs, ROWS, strict=True):
            assert len(found) == 2
            for trial in found:
                check_trial(wire, trial, output, row["expected"])
    by_hand = [[(trial["model_output"], trial["scores"]) for trial in found] for found in trials(answer, logged)]
    parts = {"share": 0.25, "label": "x"}
    right, wrong = {"correct": True, "parts": parts}, {"correct": False, "parts": parts}
    assert by_hand == [[(2, right)], [(6, wrong), (5, right)], [], []]
    check_logged_calls(wire, trials(answer, logged)[0][0])


def check_trial(wire: Wire, trial: Json, output: int | None, expected: int) -> None:
    """Output, scores and calls of one trial; of a row that fails only the call of the model."""
    predict = wire.call(trial["predict_call_id"])
    assert predict["parent_id"] == trial["predict_and_score_call_id"]
    assert (op_of(wire, predict["id"]), predict["output"], trial["model_output"]) == ("calculator", output, output)
    assert trial["model_latency_seconds"] >= 0
    if output is None:
        assert predict["exception"] == "no expression"
        assert (trial["scores"], trial["scorer_call_ids"]) == ({}, {})
        return
    assert trial["scores"] == {"exact": {"correct": output == expected}, "distance": abs(expected - output) / 2}
    assert {key: op_of(wire, call_id) for key, call_id in trial["scorer_call_ids"].items()} == {
        "exact": "exact",
        "distance": "distance",
    }
    assert wire.call(trial["scorer_call_ids"]["distance"])["output"] == trial["scores"]["distance"]


def check_logged_calls(wire: Wire, trial: Json) -> None:
    """The calls of a prediction that was logged by hand."""
    assert op_of(wire, trial["predict_call_id"]) == "Model.predict"
    found = {key: op_of(wire, call_id) for key, call_id in trial["scorer_call_ids"].items()}
    assert found == {"correct": "correct.score", "parts": "parts.score"}


@pytest.mark.thorough
def test_evaluations_sum_up_as_the_sdk_does(node: Client, wire: Wire) -> None:
    seen = node.run("evaluation_runs.js")
    summary = results(wire, *seen["runs"])["summary"]
    by_id = {item["evaluation_call_id"]: item for item in summary["evaluations"]}
    assert summary["row_count"] == 4
    assert [by_id[run_id]["trial_count"] for run_id in seen["runs"]] == [8, 8, 3]
    for run_id, theirs, right, distance in zip(seen["runs"], seen["summaries"], (4, 0), (8 / 6, 11 / 6), strict=False):
        found = stats(by_id[run_id])
        assert (found["exact", "correct"]["pass_true_count"], found["exact", "correct"]["pass_known_count"]) == (
            right,
            6,
        )
        assert found["distance", None]["numeric_mean"] == pytest.approx(distance)
        # The SDK divides by all trials, also by those that failed.
        assert theirs["exact"]["correct"] == {"true_count": right, "true_fraction": right / 8}
        assert theirs["distance"]["mean"] == pytest.approx(distance * 6 / 8)
        read = run_read(wire, run_id)
        assert read["evaluation"] == by_id[run_id]["evaluation_ref"]
        assert (read["model"], read["status"]) == (by_id[run_id]["model_ref"], "completed")
    logged = stats(by_id[seen["runs"][2]])
    assert logged["correct", None]["pass_rate"] == pytest.approx(2 / 3)
    assert (logged["parts", "share"]["numeric_mean"], logged["parts", "label"]["value_type"]) == (0.25, "text")


@pytest.mark.thorough
def test_three_sdk_shapes_stand_side_by_side(
    node: Client, wire: Wire, server: HeddleProcess, project: str, tmp_path: Path
) -> None:
    python = python_client("0.54.0", server, project, tmp_path / "python").run("evaluation_runs.py", **QUIET)
    first, second, logged = node.run("evaluation_runs.js")["runs"][-3:]
    ids = [python["runs"][0]["id"], first, logged]
    answer = results(wire, *ids, sort_by=IN_ORDER, require_intersection=True, summary_require_intersection=False)
    assert [row["row_digest"] for row in answer["rows"]] == [refs.value_digest(row) for row in ROWS[:2]]
    assert [[entry["evaluation_call_id"] for entry in row["evaluations"]] for row in answer["rows"]] == [ids, ids]
    outputs = [[[trial["model_output"] for trial in found] for found in trials(answer, run_id)] for run_id in ids]
    assert outputs == [[[2, 2], [5, 5]], [[2, 2], [5, 5]], [[2], [6, 5]]]
    assert [item["trial_count"] for item in answer["summary"]["evaluations"]] == [8, 8, 3]
    apart = [{"field": "scores.exact.correct", "direction": "desc", "mode": "difference"}]
    compared = results(wire, ids[0], second, sort_by=[*apart, *IN_ORDER])
    assert [row["row_digest"] for row in compared["rows"]] == [refs.value_digest(row) for row in ROWS]
