"""Evaluations of the unmodified Python SDKs, read back through eval_results/query and the reads of evaluation runs."""

from typing import Any

import pytest

from heddle.wire import refs
from tests.conftest import Client, Wire
from tests.support.selection import with_breadth

Json = Any
ROWS = [
    {"id": "0", "question": "1+1", "expected": 2},
    {"id": "1", "question": "2+3", "expected": 5},
    {"id": "2", "question": "2*4", "expected": 0},
    {"id": "3", "question": "?", "expected": 1},
]
QUIET = {"WEAVE_LOG_LEVEL": "CRITICAL"}
"""The SDK prints the traceback of a row that fails."""
OUTPUTS = {"sync": [2, 5, 8, None], "async": [3, 6, 9, None], "plain_model": [1, 4, 7, None]}


def results(wire: Wire, *ids: str, **more: Json) -> Json:
    """Rows with their data, and the summary."""
    body = {"evaluation_call_ids": list(ids), "include_raw_data_rows": True, "include_summary": True, **more}
    answer = wire.client.post(f"/v2/{wire.project}/eval_results/query", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run_read(wire: Wire, run_id: str) -> Json:
    """An evaluation run of the /v2 family."""
    answer = wire.client.get(f"/v2/{wire.project}/evaluation_runs/{run_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def stats(summary: Json) -> dict[tuple[str, str | None], Json]:
    """The figures of one evaluation by scorer and path."""
    return {(item["scorer_key"], item["path"]): item for item in summary["scorer_stats"]}


def expected_scores(expected: int, output: int) -> Json:
    """What the scorers of the scenario say; the weight is stored as a ref into the scorer."""
    return {"exact": {"correct": expected == output}, "far-off": abs(expected - output) * 0.5}


def op_of(wire: Wire, call_id: str) -> str:
    """The name of a call's op."""
    return str(wire.call(call_id)["op_name"]).rsplit("/", 1)[-1].split(":")[0]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", with_breadth(["true", "false"]), ids=["complete writes", "legacy writes"])
def test_evaluations_compare_row_by_row(sdk: Client, wire: Wire, mode: str) -> None:
    asks = "1" if "0.54" in sdk.command[0] and mode == "true" else "0"
    seen = sdk.run("evaluation_runs.py", WEAVE_USE_CALLS_COMPLETE=mode, SCENARIO_ASKS=asks, **QUIET)
    ids = [run["id"] for run in seen["runs"]]
    order = [{"field": "inputs.id", "direction": "asc"}]
    answer = results(wire, *ids, resolve_row_refs=True, sort_by=order)
    assert (answer["total_rows"], answer["warnings"]) == (4, [])
    assert [row["raw_data_row"] for row in answer["rows"]] == ROWS
    assert [row["row_digest"] for row in answer["rows"]] == [refs.value_digest(row) for row in ROWS]
    for place, row in enumerate(answer["rows"]):
        assert [entry["evaluation_call_id"] for entry in row["evaluations"]] == ids
        for entry, outputs in zip(row["evaluations"], OUTPUTS.values(), strict=True):
            assert len(entry["trials"]) == 2
            for trial in entry["trials"]:
                check_trial(wire, trial, ROWS[place]["expected"], outputs[place])
    if asks == "1":
        assert seen["compared"]["rows"] == answer["rows"]
        assert seen["compared"]["summary"] == answer["summary"]


def check_trial(wire: Wire, trial: Json, expected: int, output: int | None) -> None:
    """Output, scores and calls of one trial; of a row that fails only the call of the model."""
    assert trial["model_output"] == output
    predict = wire.call(trial["predict_call_id"])
    assert predict["parent_id"] == trial["predict_and_score_call_id"]
    assert predict["output"] == output
    assert trial["model_latency_seconds"] >= 0
    assert (trial["total_tokens"], trial["genai_span_ref"]) == (None, None)
    if output is None:
        assert "ValueError" in predict["exception"]
        assert (trial["scores"], trial["scorer_call_ids"]) == ({}, {})
        return
    weight = trial["scores"]["Weighted"]
    assert weight == 0.25 or weight.endswith("/attr/weight")
    assert trial["scores"] == {**expected_scores(expected, output), "Weighted": weight}
    calls = trial["scorer_call_ids"]
    assert {key: op_of(wire, call_id) for key, call_id in calls.items()} == {
        "exact": "exact",
        "far-off": "Distance.score",
        "Weighted": "Weighted.score",
    }
    assert wire.call(calls["far-off"])["output"] == trial["scores"]["far-off"]


def test_evaluations_sum_up_as_the_sdk_does(sdk: Client, wire: Wire) -> None:
    seen = sdk.run("evaluation_runs.py", **QUIET)
    ids = [run["id"] for run in seen["runs"]]
    answer = results(wire, *ids)
    assert answer["summary"]["row_count"] == 4
    assert sorted(item["evaluation_call_id"] for item in answer["summary"]["evaluations"]) == sorted(ids)
    figures = [(2, 4.0, 5.0), (0, 0.5 * 11, 6.0), (0, 0.5 * 9, 4.0)]
    for run, summary, (correct, far, mean) in zip(seen["runs"], seen["summaries"], figures, strict=True):
        (item,) = (item for item in answer["summary"]["evaluations"] if item["evaluation_call_id"] == run["id"])
        assert item["trial_count"] == 8
        assert (item["evaluation_ref"], item["model_ref"]) == (seen["ref"], run["model"])
        found = stats(item)
        right = found["exact", "correct"]
        assert (right["pass_true_count"], right["pass_known_count"], right["trial_count"]) == (2 * correct, 6, 6)
        assert right["pass_rate"] == pytest.approx(correct / 3)
        assert found["far-off", None]["numeric_mean"] == pytest.approx(far / 3)
        weighted = found["Weighted", None]
        assert (weighted["numeric_count"], weighted["numeric_mean"]) == (6, 0.25)
        assert summary["far-off"]["mean"] == pytest.approx(far / 3)
        assert summary["output"]["mean"] == pytest.approx(mean)
        read = run_read(wire, run["id"])
        assert (read["evaluation"], read["model"], read["status"]) == (seen["ref"], run["model"], "completed")
        assert wire.call(run["id"])["output"] == run["output"] == summary


@pytest.mark.thorough
def test_leaderboards_and_scores_are_read_by_the_sdk(sdk: Client, wire: Wire) -> None:
    seen = sdk.run("evaluation_runs.py", **QUIET)
    assert seen["columns"] == ["exact", "far-off"]
    prefix = f"weave:///{wire.project}/call/"
    board = {entry["model"]: entry for entry in seen["board"]}
    assert set(board) == {run["model"] for run in seen["runs"]}
    columns = [[[2 / 4], [4 / 3]], [[0.0], [5.5 / 3]], [[0.0], [4.5 / 3]]]
    for run, (fraction, far) in zip(seen["runs"], columns, strict=True):
        entry = board[run["model"]]
        assert entry["calls"] == [[prefix + run["id"]]] * 2
        assert entry["columns"][1] == pytest.approx(far)
        assert entry["columns"][0] == [run["output"]["exact"]["correct"]["true_fraction"]]
        assert entry["columns"][0][0] in (pytest.approx(fraction[0]), pytest.approx(fraction[0] * 4 / 3))
    trace = seen["functions_trace"]
    found = seen["scores"].pop(trace)["exact"]
    assert sorted(item["correct"] for item in found) == [False, True, True]
    assert (seen["scores"], list(seen["score_calls"])) == ({}, [trace])
    calls = [call for call in wire.calls(filter={"trace_ids": [trace]}) if call["op_name"].count("/op/exact:")]
    assert sorted(seen["score_calls"][trace]) == sorted([call["id"], call["parent_id"]] for call in calls)
    assert len(calls) == 3


@pytest.mark.thorough
def test_logged_evaluations_compare_too(sdk: Client, wire: Wire) -> None:
    seen = sdk.run("evaluation_loggers.py")
    plain, contexts, threads = seen["runs"]
    assert [run["name"] for run in seen["runs"]] == ["plain", "contexts", "threads"]
    answer = results(wire, plain["id"], contexts["id"], require_intersection=True)
    rows = {row["raw_data_row"]["question"]: row for row in answer["rows"]}
    assert sorted(rows) == ["a", "b"]
    assert {row["row_digest"] for row in rows.values()} == {refs.value_digest({"question": key}) for key in "ab"}
    shown = [(trial["model_output"], trial["scores"]) for trial in rows["b"]["evaluations"][0]["trials"]]
    assert shown == [("x", {"correct": False, "length": 1}), ("B", {"correct": True, "length": 1})]
    (trial,) = rows["b"]["evaluations"][1]["trials"]
    assert trial["model_output"] == "B"
    assert trial["scores"] == {"quality": 0.2, "parts": {"ok": False, "share": 0.5}, "skipped": None}
    assert op_of(wire, trial["predict_call_id"]) == "Model.predict"
    assert {op_of(wire, call_id) for call_id in trial["scorer_call_ids"].values()} == {"quality", "parts", "skipped"}
    check_logged_sums(answer["summary"], plain["id"], contexts["id"])
    check_threads(wire, threads["id"])


def check_logged_sums(summary: Json, plain: str, contexts: str) -> None:
    """The figures of both runs."""
    by_id = {item["evaluation_call_id"]: stats(item) for item in summary["evaluations"]}
    assert (by_id[plain]["correct", None]["pass_true_count"], by_id[plain]["correct", None]["trial_count"]) == (2, 3)
    assert by_id[plain]["length", None]["numeric_mean"] == 1.0
    assert by_id[contexts]["quality", None]["numeric_mean"] == pytest.approx(0.15)
    assert by_id[contexts]["parts", "ok"]["pass_rate"] == 0.5
    assert by_id[contexts]["parts", "share"]["numeric_mean"] == 0.5
    assert ("skipped", None) not in by_id[contexts]


def check_threads(wire: Wire, run_id: str) -> None:
    """Every prediction of every thread is there once."""
    answer = results(wire, run_id, sort_by=[{"field": "inputs.number", "direction": "desc"}])
    assert [row["raw_data_row"]["number"] for row in answer["rows"]] == list(range(7, -1, -1))
    trials = [row["evaluations"][0]["trials"] for row in answer["rows"]]
    assert [len(found) for found in trials] == [1] * 8
    assert [found[0]["model_output"]["square"] for found in trials] == [number * number for number in range(7, -1, -1)]
    assert [found[0]["scores"] for found in trials] == [{"even": number % 2 == 0} for number in range(7, -1, -1)]
    assert stats(answer["summary"]["evaluations"][0])["even", None]["pass_rate"] == 0.5


@pytest.mark.thorough
def test_less_usual_evaluations(sdk: Client, wire: Wire) -> None:
    seen = sdk.run("evaluation_shapes.py", **QUIET)
    ids = seen["ids"]
    check_functions(wire, ids["functions"])
    prepared = results(wire, ids["prepared"])
    assert {row["evaluations"][0]["trials"][0]["model_output"]["length"] for row in prepared["rows"]} == {1, 2}
    assert seen["refused"]
    logged = results(wire, ids["interleaved"])
    found = {row["raw_data_row"]["q"]: row["evaluations"][0]["trials"][0] for row in logged["rows"]}
    assert found[1]["scores"] == {"answer relevance (1-5)": 3, "polite": True}
    assert found[2]["scores"] == {"answer relevance (1-5)": 5}
    for trial in found.values():
        assert trial["scorer_call_ids"].keys() == trial["scores"].keys()
    assert wire.call(ids["interleaved"])["output"]["own"] == 1
    broken = results(wire, ids["broken"])
    outputs = {row["raw_data_row"]["q"]: row["evaluations"][0]["trials"][0]["model_output"] for row in broken["rows"]}
    assert outputs == {1: "fine", 2: None}
    assert run_read(wire, ids["broken"])["status"] == "failed"
    status = wire.post("/evaluations/status", call_id=ids["broken"])["status"]
    assert (status["code"], status["error"]) == ("failed", "given up")


def check_functions(wire: Wire, run_id: str) -> None:
    """Scores of every kind, the figures over three trials, and the /v2 reads of a model and scorers that are ops."""
    answer = results(wire, run_id, resolve_row_refs=True)
    trials = {row["raw_data_row"]["question"]: row["evaluations"][0]["trials"] for row in answer["rows"]}
    assert [len(found) for found in trials.values()] == [3, 3, 3]
    assert all((trial["model_output"], trial["scores"]) == (None, {}) for trial in trials["?"])
    parts = {"a": {"b": True, "c": [1, 2]}, "d": 1.5, "e": "x", "f": None}
    scores = {"nothing": None, "parts": parts, "word": "good", "mapped": True}
    for trial in trials["a"]:
        assert (trial["model_output"], trial["scores"]) == ("A", scores)
        assert trial["scorer_call_ids"].keys() == scores.keys()
    summary = answer["summary"]["evaluations"][0]
    assert (summary["display_name"], summary["trial_count"]) == ("naïve", 9)
    assert summary["model_ref"].startswith(f"weave:///{wire.project}/op/shout:")
    kinds = {key: (item["value_type"], item["trial_count"]) for key, item in stats(summary).items()}
    assert kinds == {
        ("parts", "a.b"): ("binary", 6),
        ("parts", "d"): ("continuous", 6),
        ("parts", "e"): ("text", 6),
        ("word", None): ("text", 6),
        ("mapped", None): ("binary", 6),
    }
    assert stats(summary)["mapped", None]["pass_rate"] == 0.5
    trial = trials["a"][0]
    prediction = wire.client.get(f"/v2/{wire.project}/predictions/{trial['predict_call_id']}").json()
    assert (prediction["model"], prediction["evaluation_run_id"]) == (summary["model_ref"], run_id)
    score = wire.client.get(f"/v2/{wire.project}/scores/{trial['scorer_call_ids']['word']}").json()
    assert (score["scorer"].split(":")[1], score["value"]) == (f"///{wire.project}/op/word", "good")
