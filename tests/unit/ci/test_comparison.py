"""Runs paired row by row: trials, failures, and rows that only one run has."""

from typing import Any

import pytest

from heddle.ci.comparison import compare_rows, parse_condition, read_row
from heddle.errors import InvalidRequest


def trial(output: Any = "x", scores: Any = None, **fields: Any) -> dict[str, Any]:
    """One trial as eval_results shows it."""
    return {"model_output": output, "scores": scores or {}, **fields}


def row(digest: str, *trials: dict[str, Any]) -> Any:
    """A row of one run."""
    return read_row({"row_digest": digest}, trials)


def test_a_row_is_the_mean_of_its_trials() -> None:
    found = row(
        "r",
        trial(scores={"exact": {"ok": True, "why": "text"}, "judge": 3}, model_latency_seconds=1.0, total_tokens=10),
        trial(scores={"exact": {"ok": False}, "judge": 5}, model_latency_seconds=2.0, total_cost=0.5),
    )
    assert found.values == {
        "exact.ok": 0.5,
        "judge": 4.0,
        "latency": 1.5,
        "tokens": 10.0,
        "cost": 0.5,
        "error_share": 0.0,
    }


def test_a_failed_answer_has_no_score_and_counts_as_an_error() -> None:
    found = row("r", trial(scores={"exact": True, "stars": 4}), trial(None))
    assert found.values == {"exact": 1.0, "stars": 4.0, "error_share": 0.5}
    base = {"r": row("r", trial(scores={"exact": True}))}
    failed = {"r": row("r", trial(None, model_latency_seconds=0.1))}
    found_whole = compare_rows("run", failed, "base", base)
    assert found_whole.measures["exact"].difference is None and found_whole.measures["exact"].rows == 0
    assert found_whole.measures["error_share"].difference == 1.0
    assert found_whole.measures["latency"].difference is None


def test_a_distance_stands_for_itself_and_enters_no_mean() -> None:
    scores = {
        "levenshtein": {"levenshtein_distance": 4, "levenshtein_similarity": 0.5},
        "edit_distance": 7,
        "exact": True,
    }
    found = row("r", trial(scores=scores), trial(None))
    assert found.values == {
        "levenshtein.levenshtein_distance": 4.0,
        "levenshtein.levenshtein_similarity": 0.5,
        "edit_distance": 7.0,
        "exact": 1.0,
        "error_share": 0.5,
    }
    means = compare_rows("run", {"r": found}, "base", {"r": found}).measures
    assert means["levenshtein"].run == 0.5 and means["score"].run == 0.75
    alone = row("r", trial(scores={"levenshtein": {"levenshtein_distance": 4}}))
    assert alone.values == {"levenshtein.levenshtein_distance": 4.0, "error_share": 0.0}


def test_a_path_that_repeats_its_scorer_is_not_shown() -> None:
    scores = {"exact": {"exact_match": True}, "two": {"a": 1, "b": 0}, "edits": {"edit_distance": 3}}
    rows = {"r": row("r", trial(scores=scores))}
    found = compare_rows("run", rows, "base", rows)
    shown = [measured.name for measured in found.distinct]
    assert shown == ["score", "edits.edit_distance", "exact", "two", "two.a", "two.b", "error_share"]
    assert found.measures["exact.exact_match"].difference == 0.0


def test_scores_of_unlike_scales_have_no_mean() -> None:
    rows = {"r": row("r", trial(scores={"exact": True, "judge": {"stars": 4, "ok": True}}))}
    found = compare_rows("run", rows, "base", rows)
    assert list(found.measures) == ["exact", "judge.ok", "judge.stars", "error_share"]
    with pytest.raises(InvalidRequest, match="`score` is the mean over scorers whose values are all between 0 and 1"):
        parse_condition("score < 0").check(found)


def test_an_empty_output_that_was_scored_is_no_failure() -> None:
    assert row("r", trial(None, scores={"exact": False})).values["error_share"] == 0.0


def test_only_rows_of_both_runs_are_paired() -> None:
    run = {name: row(name, trial(scores={"exact": value})) for name, value in (("a", 1), ("b", 0), ("c", 1))}
    base = {name: row(name, trial(scores={"exact": 1})) for name in ("b", "c", "d", "e")}
    found = compare_rows("run", run, "base", base)
    assert (found.common, found.only_run, found.only_baseline) == (2, 1, 2)
    exact = found.measures["exact"]
    assert (exact.baseline, exact.run, exact.difference, exact.rows) == (1.0, 0.5, -0.5, 2)


def test_a_scorer_of_one_run_only_has_no_difference() -> None:
    run = {"a": row("a", trial(scores={"new": 1, "old": 1}))}
    base = {"a": row("a", trial(scores={"old": 0}))}
    found = compare_rows("run", run, "base", base)
    assert found.measures["new"].difference is None and found.measures["new"].rows == 0
    assert found.measures["old"].difference == 1.0


def test_measures_come_in_a_fixed_order() -> None:
    made = trial(scores={"b": 1, "a": {"z": 1}}, model_latency_seconds=1, total_cost=1, total_tokens=1)
    found = compare_rows("run", {"r": row("r", made)}, "base", {"r": row("r", made)})
    assert list(found.measures) == ["score", "a", "a.z", "b", "latency", "cost", "tokens", "error_share"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "text", [1, 2]])
def test_what_is_no_number_is_no_score(value: Any) -> None:
    assert row("r", trial(scores={"odd": value})).values == {"error_share": 0.0}
