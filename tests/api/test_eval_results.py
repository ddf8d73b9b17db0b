"""eval_results/query over plain HTTP: grouping, order, filters, sums, costs, and what it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest

from heddle.wire import refs
from tests.conftest import Wire
from tests.support.trials import LOGGER, PYTHON, TYPESCRIPT, Run

ON_BOTH_STORES = True

Json = Any


def query(wire: Wire, **body: Json) -> Json:
    """The answer to a query that must succeed."""
    answer = wire.client.post(f"/v2/{wire.project}/eval_results/query", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(wire: Wire, **body: Json) -> tuple[int, Json]:
    """Status and body of a query that must fail."""
    answer = wire.client.post(f"/v2/{wire.project}/eval_results/query", json=body)
    return answer.status_code, answer.json()


def send(wire: Wire, *runs: Run) -> list[str]:
    """Store the runs; returns their call ids."""
    for run in runs:
        wire.post(f"/v2/{wire.project}/calls/complete", batch=run.calls)
    return [run.id for run in runs]


def dataset(wire: Wire, rows: Sequence[Json]) -> list[str]:
    """Publish a dataset; returns the refs of its rows."""
    table = wire.post("/table/create", table={"project_id": wire.project, "rows": list(rows)})
    value = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "name": "d"}
    value["rows"] = f"weave:///{wire.project}/table/{table['digest']}"
    made = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "d", "val": value})
    prefix = f"weave:///{wire.project}/object/d:{made['digest']}/attr/rows/id/"
    return [prefix + digest for digest in table["row_digests"]]


def labels(answer: Json) -> list[Json]:
    """The inline data `{"n": ...}` of the rows, by which these tests know them."""
    return [row["raw_data_row"]["n"] for row in answer["rows"]]


def numbered(wire: Wire, scores: Sequence[Json], run: int = 0, outputs: Sequence[Json] | None = None) -> Run:
    """A run whose row number n has the n-th score `s` (no score for `...`) and output."""
    made = Run(wire.project, run)
    for number, score in enumerate(scores):
        output = outputs[number] if outputs is not None else f"answer {number}"
        made.trial({"n": number}, output, {} if score is ... else {"s": score})
    return made


def condition(field: str, op: str, literal: Json) -> Json:
    """The query `field op literal`."""
    return {"$expr": {op: [{"$getField": field}, {"$literal": literal}]}}


def test_three_shapes_meet_on_one_row(wire: Wire) -> None:
    row = {"question": "1+1", "expected": 2}
    (ref,) = dataset(wire, [row])
    runs = [Run(wire.project, number, shape) for number, shape in enumerate((PYTHON, LOGGER, TYPESCRIPT))]
    trials = [
        runs[0].trial(ref, "two", {"exact": True}, tokens=12),
        runs[1].trial(row, "2", {"exact": False, "length": 1}),
        runs[2].trial(ref, 2, {"exact": True}, seconds=0.5),
    ]
    ids = send(wire, *runs)
    answer = query(wire, evaluation_call_ids=ids[:2], evaluation_run_ids=[*ids[1:]], include_raw_data_rows=True)
    assert (answer["total_rows"], answer["summary"], answer["warnings"]) == (1, None, [])
    (shown,) = answer["rows"]
    assert shown["row_digest"] == refs.value_digest(row)
    assert shown["raw_data_row"] == ref
    assert [item["evaluation_call_id"] for item in shown["evaluations"]] == ids
    assert [item["trials"] for item in shown["evaluations"]] == [
        [
            {
                "predict_and_score_call_id": trials[0]["id"],
                "predict_call_id": f"{trials[0]['id']}-p",
                "model_output": "two",
                "scores": {"exact": True},
                "model_latency_seconds": 0.25,
                "total_tokens": 12,
                "total_cost": None,
                "scorer_call_ids": {"exact": f"{trials[0]['id']}-exact"},
                "genai_span_ref": None,
            }
        ],
        [
            {
                "predict_and_score_call_id": trials[1]["id"],
                "predict_call_id": f"{trials[1]['id']}-p",
                "model_output": "2",
                "scores": {"exact": False, "length": 1},
                "model_latency_seconds": 0.25,
                "total_tokens": None,
                "total_cost": None,
                "scorer_call_ids": {"exact": f"{trials[1]['id']}-exact", "length": f"{trials[1]['id']}-length"},
                "genai_span_ref": None,
            }
        ],
        [
            {
                "predict_and_score_call_id": trials[2]["id"],
                "predict_call_id": f"{trials[2]['id']}-p",
                "model_output": 2,
                "scores": {"exact": True},
                "model_latency_seconds": 0.5,
                "total_tokens": None,
                "total_cost": None,
                "scorer_call_ids": {"exact": f"{trials[2]['id']}-exact"},
                "genai_span_ref": None,
            }
        ],
    ]


def test_without_children_the_trial_speaks_for_itself(wire: Wire) -> None:
    run = Run(wire.project)
    run.trial({"n": 0}, "a", {"s": 1.0}, tokens=7, seconds=0.25)
    send(wire, run)
    answer = query(wire, evaluation_call_ids=[run.id], include_predict_and_score_children=False, include_summary=True)
    (trial,) = answer["rows"][0]["evaluations"][0]["trials"]
    assert (trial["predict_call_id"], trial["scorer_call_ids"]) == (None, {})
    assert (trial["model_latency_seconds"], trial["total_tokens"]) == (0.75, 7)
    assert answer["summary"]["evaluations"][0]["predict_total_tokens"] == 7


def test_trials_come_in_the_order_of_their_start(wire: Wire) -> None:
    run = Run(wire.project)
    made = [run.trial({"n": 0}, f"try {number}", {})["id"] for number in range(3)]
    run.calls.reverse()
    send(wire, run)
    (row,) = query(wire, evaluation_call_ids=[run.id])["rows"]
    assert [trial["predict_and_score_call_id"] for trial in row["evaluations"][0]["trials"]] == made


def test_rows_of_datasets_are_resolved_where_asked_for(wire: Wire) -> None:
    rows = [{"n": 0, "text": "é"}, {"n": 1}]
    examples = dataset(wire, rows)
    gone = examples[0][:-43] + "x" * 43
    run = Run(wire.project)
    for example in (*examples, gone, {"n": 2}):
        run.trial(example, "a", {})
    send(wire, run)
    asked = {"evaluation_call_ids": [run.id], "include_raw_data_rows": True}
    answer = query(wire, **asked, resolve_row_refs=True)
    shown = {row["row_digest"]: row["raw_data_row"] for row in answer["rows"]}
    assert shown == {refs.value_digest(row): row for row in (*rows, {"n": 2})} | {"x" * 43: gone}
    assert answer["warnings"] == ["Failed to resolve dataset row refs; raw_data_row may contain refs"]
    assert query(wire, **asked)["warnings"] == []
    assert {row["raw_data_row"] for row in query(wire, evaluation_call_ids=[run.id])["rows"]} == {None}
    known = condition("row_digest", "$in", None)
    known["$expr"]["$in"][1] = [{"$literal": refs.value_digest(row)} for row in rows]
    answer = query(wire, **asked, resolve_row_refs=True, filters=[{"query": known}])
    assert (answer["total_rows"], answer["warnings"]) == (2, [])


def test_rows_named_by_their_table_are_known(wire: Wire) -> None:
    rows = [{"n": 0}, {"n": 1}]
    table = wire.post("/table/create", table={"project_id": wire.project, "rows": rows})
    run = Run(wire.project, shape=TYPESCRIPT)
    for digest in table["row_digests"]:
        run.trial(run.ref(f"table/{table['digest']}/id/{digest}"), "a", {})
    send(wire, run)
    answer = query(wire, evaluation_call_ids=[run.id], include_raw_data_rows=True, resolve_row_refs=True)
    assert {row["row_digest"]: row["raw_data_row"] for row in answer["rows"]} == dict(
        zip(table["row_digests"], rows, strict=True)
    )
    assert answer["warnings"] == []


def test_intersection_counts_only_rows_of_all(wire: Wire) -> None:
    one, two = numbered(wire, [1, 2, 3]), numbered(wire, [1, 2], run=1)
    two.trial({"n": 9}, "a", {})
    ids = send(wire, one, two)
    asked = {"evaluation_call_ids": [*ids, "unknown"], "include_raw_data_rows": True, "include_summary": True}
    assert query(wire, **asked)["total_rows"] == 4
    assert query(wire, **asked, require_intersection=True)["total_rows"] == 0
    asked["evaluation_call_ids"] = ids
    answer = query(wire, **asked, require_intersection=True)
    assert sorted(labels(answer)) == [0, 1]
    assert answer["summary"]["row_count"] == 2
    answer = query(wire, **asked, require_intersection=True, summary_require_intersection=False)
    assert (answer["total_rows"], answer["summary"]["row_count"]) == (2, 4)
    assert [item["trial_count"] for item in answer["summary"]["evaluations"]] == [3, 3]
    answer = query(wire, **asked, summary_require_intersection=True, include_rows=False)
    assert (answer["rows"], answer["total_rows"], answer["summary"]["row_count"]) == ([], 0, 2)
    assert query(wire, evaluation_call_ids=["unknown"], include_summary=True) == {
        "rows": [],
        "total_rows": 0,
        "summary": {"row_count": 0, "evaluations": []},
        "warnings": [],
    }


def test_pages_cover_all_rows_in_order_of_digest(wire: Wire) -> None:
    run = numbered(wire, [None] * 7)
    send(wire, run)
    asked = {"evaluation_call_ids": [run.id]}
    whole = [row["row_digest"] for row in query(wire, **asked)["rows"]]
    assert whole == sorted(refs.value_digest({"n": number}) for number in range(7))
    pages = [query(wire, **asked, limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [[row["row_digest"] for row in page["rows"]] for page in pages] == [whole[:3], whole[3:6], whole[6:], []]
    assert {page["total_rows"] for page in pages} == {7}
    assert query(wire, **asked, limit=0)["total_rows"] == 7


def test_long_answers_come_whole(wire: Wire) -> None:
    run = numbered(wire, [number / 4 for number in range(320)])
    send(wire, run)
    answer = query(wire, evaluation_call_ids=[run.id], include_raw_data_rows=True, include_summary=True)
    assert (sorted(labels(answer)), answer["total_rows"]) == (list(range(320)), 320)
    assert answer["summary"]["evaluations"][0]["scorer_stats"][0]["numeric_mean"] == pytest.approx(319 / 8)


SORTED = [
    ("asc", [3, 1, 0, 4, 2, 5]),
    ("desc", [2, 4, 0, 1, 3, 5]),
]


@pytest.mark.parametrize(("direction", "order"), SORTED)
def test_scores_sort_as_numbers_with_nothing_last(wire: Wire, direction: str, order: list[int]) -> None:
    run = numbered(wire, [True, 0.5, "10", False, 2, ...])
    send(wire, run)
    sort = [{"field": "scores.s", "direction": direction}]
    answer = query(wire, evaluation_call_ids=[run.id], include_raw_data_rows=True, sort_by=sort)
    assert labels(answer) == order


def test_sorts_take_means_scopes_and_differences(wire: Wire) -> None:
    one, two = numbered(wire, [1, 2, 3]), numbered(wire, [10, 5, 3], run=1)
    one.trial({"n": 2}, "again", {"s": 5})
    ids = send(wire, one, two)

    def order(**term: Json) -> list[int]:
        sort = [{"field": "scores.s", "direction": "asc", **term}]
        return labels(query(wire, evaluation_call_ids=ids, include_raw_data_rows=True, sort_by=sort))

    assert order() == [1, 2, 0]  # 3.5, 11/3, 5.5
    assert order(evaluation_call_id=ids[0]) == [0, 1, 2]  # 1, 2, 4
    assert order(evaluation_call_id=ids[1]) == [2, 1, 0]  # 3, 5, 10
    assert order(mode="difference") == [2, 1, 0]  # 1, 3, 9
    assert order(mode="difference", direction="desc") == [0, 1, 2]


def test_outputs_and_inputs_sort_numbers_before_texts(wire: Wire) -> None:
    outputs = [{"k": "b"}, {"k": 10}, {"k": "9"}, {"k": "a"}, {"k": None}, {"k": -1}]
    run = numbered(wire, [None] * 6, outputs=outputs)
    send(wire, run)
    asked = {"evaluation_call_ids": [run.id], "include_raw_data_rows": True}
    for direction, order in (("asc", [5, 2, 1, 3, 0, 4]), ("desc", [1, 2, 5, 0, 3, 4])):
        assert labels(query(wire, **asked, sort_by=[{"field": "output.k", "direction": direction}])) == order
        assert labels(query(wire, **asked, sort_by=[{"field": "output.output.k", "direction": direction}])) == order
    by_input = [{"field": "inputs.n", "direction": "desc"}]
    assert labels(query(wire, **asked, sort_by=by_input)) == [5, 4, 3, 2, 1, 0]
    refs = dataset(wire, [{"n": number} for number in range(3)])
    other = Run(wire.project, 1)
    for ref in refs:
        other.trial(ref, "a", {})
    send(wire, other)
    answer = query(
        wire, evaluation_call_ids=[other.id], include_raw_data_rows=True, resolve_row_refs=True, sort_by=by_input
    )
    assert labels(answer) == [2, 1, 0]


FILTERS = [
    ("scores.s", "$gt", 0.5, [0, 2, 4]),
    ("scores.s", "$gte", 1, [0, 2, 4]),
    ("scores.s", "$eq", True, [0]),
    ("scores.s", "$eq", "true", [0]),
    ("scores.s", "$eq", "1", [0]),
    ("scores.s", "$eq", 1, [0]),
    ("scores.s", "$eq", "0", [3]),
    ("scores.s", "$eq", 2, [4]),
    ("scores.s", "$eq", "", [5]),
    ("scores.none", "$gt", 0, []),
    ("inputs.n", "$lt", 2, [0, 1]),
    ("output.k", "$eq", "v3", [3]),
    ("output.output.k", "$eq", "v3", [3]),
    ("row_digest", "$eq", refs.value_digest({"n": 4}), [4]),
]


@pytest.mark.parametrize(("field", "op", "literal", "expected"), FILTERS)
def test_filters_choose_rows(wire: Wire, field: str, op: str, literal: Json, expected: list[int]) -> None:
    outputs = [{"k": f"v{number}"} for number in range(6)]
    run = numbered(wire, [True, 0.5, "10", False, 2, ...], outputs=outputs)
    send(wire, run)
    filters = [{"query": condition(field, op, literal)}]
    answer = query(
        wire, evaluation_call_ids=[run.id], include_raw_data_rows=True, include_summary=True, filters=filters
    )
    assert sorted(labels(answer)) == expected
    assert (answer["total_rows"], answer["summary"]["row_count"]) == (len(expected), len(expected))


def test_filters_of_evaluations_hold_together_or_apart(wire: Wire) -> None:
    ids = send(wire, numbered(wire, [1, 2, 3, 4]), numbered(wire, [4, 3, 2, 1], run=1))

    def rows(logic: str, *filters: Json) -> list[int]:
        asked = {"evaluation_call_ids": ids, "include_raw_data_rows": True, "filter_logic_operator": logic}
        return sorted(labels(query(wire, **asked, filters=list(filters))))

    first, again, second = (
        {"query": condition("scores.s", "$gte", 3), "evaluation_call_id": ids[0]},
        {"query": condition("scores.s", "$lt", 4), "evaluation_call_id": ids[0]},
        {"query": condition("scores.s", "$gte", 4), "evaluation_call_id": ids[1]},
    )
    assert rows("or", first) == [2, 3]
    assert rows("or", first, again) == [2]
    assert rows("or", first, again, second) == [0, 2]
    assert rows("and", first, second) == []
    assert rows("and", first, {**second, "evaluation_call_id": None}) == [3]
    assert rows("or", {**first, "evaluation_call_id": "unknown"}) == []


def test_summary_counts_each_dimension(wire: Wire) -> None:
    run = Run(wire.project, 3, name="by name")
    run.trial({"n": 0}, "a", {"s": True, "d": {"x": 1, "y": "t", "z": {"w": 0.5}}, "list": [1], "none": None}, tokens=5)
    run.trial({"n": 0}, "b", {"s": False, "d": {"x": 2, "z": {"w": 1.0}}}, tokens=6)
    run.trial({"n": 0}, "c", {"s": True})
    send(wire, run)
    answer = query(wire, evaluation_call_ids=[run.id], include_rows=False, include_summary=True)
    blank = {"numeric_count": 0, "numeric_mean": None, "pass_true_count": 0, "pass_known_count": 0, "pass_rate": None}
    number = {"value_type": "continuous", "trial_count": 2, "numeric_count": 2, "pass_signal_coverage": 0.0}
    assert answer["summary"] == {
        "row_count": 1,
        "evaluations": [
            {
                "evaluation_call_id": run.id,
                "trial_count": 3,
                "scorer_stats": [
                    {
                        **blank,
                        "scorer_key": "s",
                        "path": None,
                        "value_type": "binary",
                        "trial_count": 3,
                        "pass_true_count": 2,
                        "pass_known_count": 3,
                        "pass_rate": 2 / 3,
                        "pass_signal_coverage": 1.0,
                    },
                    {**blank, **number, "scorer_key": "d", "path": "x", "numeric_mean": 1.5},
                    {
                        **blank,
                        "scorer_key": "d",
                        "path": "y",
                        "value_type": "text",
                        "trial_count": 1,
                        "pass_signal_coverage": 0.0,
                    },
                    {**blank, **number, "scorer_key": "d", "path": "z.w", "numeric_mean": 0.75},
                ],
                "predict_total_tokens": 11,
                "predict_total_cost": None,
                "evaluation_ref": run.evaluation,
                "model_ref": run.model,
                "display_name": "by name",
                "trace_id": run.id,
                "started_at": "2026-02-03T07:05:06.789000+00:00",
            }
        ],
    }


def test_scores_behind_refs_count_as_numbers(wire: Wire) -> None:
    made = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "sc", "val": {"w": 0.25, "ok": True}})
    scorer = f"weave:///{wire.project}/object/sc:{made['digest']}"
    (row,) = dataset(wire, [{"score": 8}])
    run = numbered(wire, [f"{scorer}/attr/w", 1, f"{row}/key/score", f"{scorer}/attr/none"])
    send(wire, run)
    asked = {"evaluation_call_ids": [run.id], "include_raw_data_rows": True, "include_summary": True}
    answer = query(wire, **asked, sort_by=[{"field": "scores.s", "direction": "asc"}])
    assert labels(answer) == [0, 1, 2, 3]
    assert answer["rows"][0]["evaluations"][0]["trials"][0]["scores"] == {"s": f"{scorer}/attr/w"}
    (stats,) = answer["summary"]["evaluations"][0]["scorer_stats"]
    assert (stats["trial_count"], stats["numeric_count"], stats["numeric_mean"]) == (4, 3, pytest.approx(9.25 / 3))


def test_costs_follow_the_price_of_the_time(wire: Wire) -> None:
    price = {"prompt_token_cost": 0.5, "completion_token_cost": 2, "effective_date": "2026-01-01T00:00:00Z"}
    later = {**price, "prompt_token_cost": 4, "effective_date": "2026-02-03T04:50:00Z"}
    wire.post("/cost/create", costs={"gpt-4o": price})
    wire.post("/cost/create", costs={"gpt-4o": later})
    runs = [Run(wire.project, 0), Run(wire.project, 1)]
    for run in runs:
        run.trial({"n": 0}, "a", {"s": 1}, tokens=3)
        run.trial({"n": 1}, "a", {"s": 1})
    ids = send(wire, *runs)
    asked = {"evaluation_call_ids": ids, "include_summary": True, "include_raw_data_rows": True}
    asked["sort_by"] = [{"field": "inputs.n", "direction": "asc"}]
    answer = query(wire, **asked, include_costs=True)
    shown = [[entry["trials"][0]["total_cost"] for entry in row["evaluations"]] for row in answer["rows"]]
    assert shown == [[1.5, 12.0], [None, None]]
    assert [item["predict_total_cost"] for item in answer["summary"]["evaluations"]] == [1.5, 12.0]
    without = query(wire, **asked)
    assert without["rows"][0]["evaluations"][0]["trials"][0]["total_cost"] is None
    assert [item["predict_total_cost"] for item in without["summary"]["evaluations"]] == [None, None]


def test_scorer_calls_are_found_by_feedback_and_likeness(wire: Wire) -> None:
    run = Run(wire.project)
    trial = run.trial({"n": 0}, "a", {"told": 1, "Like": 2, "lost": 3})
    score = run.calls[2]
    assert score["id"].endswith("-told")
    score["op_name"] = score["op_name"].replace("told.score", "Judge.score")
    score["inputs"] = {}
    run.calls[3]["op_name"] = run.calls[3]["op_name"].replace("Like.score", "like_scorer")
    run.calls[3]["inputs"] = {}
    run.calls[4]["op_name"] = run.calls[4]["op_name"].replace("lost.score", "other")
    run.calls[4] |= {"inputs": {}, "attributes": {}}
    send(wire, run)
    wire.post(
        "/feedback/create",
        weave_ref=run.ref(f"call/{trial['id']}-p"),
        feedback_type="wandb.runnable.told",
        payload={"output": 1},
        runnable_ref=run.ref("object/told:" + "S" * 43),
        call_ref=run.ref(f"call/{score['id']}"),
    )
    (row,) = query(wire, evaluation_call_ids=[run.id])["rows"]
    found = row["evaluations"][0]["trials"][0]["scorer_call_ids"]
    assert found == {"told": f"{trial['id']}-told", "Like": f"{trial['id']}-Like"}


def test_scorer_calls_are_found_by_the_name_that_sdks_make_of_a_text(wire: Wire) -> None:
    run = Run(wire.project, shape=LOGGER)
    trial = run.trial({"n": 0}, "a", {"answer relevance (1-5)": 1})
    run.calls[2]["op_name"] = run.ref("op/answer-relevance-1-5:" + "O" * 43)
    run.calls[2]["inputs"] = {"self": run.ref("object/answer-relevance-1-5:" + "S" * 43)}
    send(wire, run)
    (row,) = query(wire, evaluation_call_ids=[run.id])["rows"]
    found = row["evaluations"][0]["trials"][0]["scorer_call_ids"]
    assert found == {"answer relevance (1-5)": f"{trial['id']}-answer relevance (1-5)"}


def test_spans_of_agents_are_named(wire: Wire) -> None:
    run = Run(wire.project)
    spans = [{"trace_id": "a" * 32, "span_id": letter * 16} for letter in "bcd"]
    trial = run.trial({"n": 0}, "a", {})
    trial["attributes"] = {"weave": {"genai_span_ref": [*spans[:2], "none", {"trace_id": 1}]}}
    run.calls[1]["summary"] = {"weave": {"genai_span_ref": [spans[2], spans[0]]}}
    send(wire, run)
    (row,) = query(wire, evaluation_call_ids=[run.id])["rows"]
    assert row["evaluations"][0]["trials"][0]["genai_span_ref"] == [spans[2], spans[0], spans[1]]


REFUSED = [
    ({}, 422, "Value error, At least one of evaluation_call_ids or evaluation_run_ids must be provided"),
    (
        {"evaluation_call_ids": [], "evaluation_run_ids": []},
        422,
        "Value error, At least one of evaluation_call_ids or evaluation_run_ids must be provided",
    ),
    ({"evaluation_call_ids": "x"}, 422, "Input should be a valid list"),
    ({"evaluation_call_ids": ["x"], "filter_logic_operator": "xor"}, 422, "Input should be 'and' or 'or'"),
    ({"evaluation_call_ids": ["x"], "filters": [{}]}, 422, "Field required"),
    (
        {"evaluation_call_ids": ["x"], "sort_by": [{"field": "op_name", "direction": "asc"}]},
        400,
        "Unsupported sort field: 'op_name'. Supported: scores.*, inputs.*, output.*.",
    ),
    (
        {"evaluation_call_ids": ["x"], "sort_by": [{"field": "inputs.a", "direction": "asc", "mode": "difference"}]},
        400,
        "mode='difference' only supports numeric fields (scores.*), got 'inputs.a'.",
    ),
    (
        {"evaluation_call_ids": ["x"], "filters": [{"query": condition("outputs.a", "$eq", 1)}]},
        400,
        "Unsupported eval results field: 'outputs.a'. Supported prefixes: scores.*, inputs.*, output.*, row_digest.",
    ),
    ({"evaluation_call_ids": ["x"], "limit": -1}, 400, "limit must not be negative"),
    ({"evaluation_call_ids": ["x"], "offset": -1}, 400, "offset must not be negative"),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED)
def test_bad_requests_say_what_is_wrong(wire: Wire, body: Json, status: int, message: str) -> None:
    found, answer = refused(wire, **body)
    text = answer["reason"] if "reason" in answer else answer["detail"][0]["msg"]
    assert (found, text) == (status, message)


def test_a_bad_filter_is_named_by_its_place(wire: Wire) -> None:
    good = {"query": condition("scores.s", "$eq", 1)}
    bad = {"query": {"$expr": {"$eq": [{"$getField": 5}, {"$literal": 1}]}}}
    status, answer = refused(wire, evaluation_call_ids=["x"], filters=[good, bad])
    assert status == 422
    assert answer["detail"][0]["loc"] == ["body", "filters", 1, "query", "$expr", "$eq", 0, "$getField"]


def test_strange_paths_match_nothing(wire: Wire) -> None:
    run = numbered(wire, [1])
    send(wire, run)
    for path in ("scores.", "scores.a'b", 'scores.a"b', "scores.a\\.b", "output.0.[1]", "inputs.n.'); DROP"):
        sort = [{"field": path, "direction": "asc"}]
        filters = [{"query": condition(path, "$eq", "x"), "evaluation_call_id": "it's"}]
        assert query(wire, evaluation_call_ids=[run.id], sort_by=sort)["total_rows"] == 1
        assert query(wire, evaluation_call_ids=[run.id], filters=filters)["total_rows"] == 0
    status, _ = refused(wire, evaluation_call_ids=["x"], filters=[{"query": condition("scores.\x00", "$eq", "x")}])
    assert status == 400


def test_more_differences_than_the_store_can_join_are_refused(wire: Wire) -> None:
    ids = send(wire, numbered(wire, [1]), numbered(wire, [2], 1))
    terms = [{"field": f"scores.s{number}", "direction": "asc", "mode": "difference"} for number in range(100)]
    status, body = refused(wire, evaluation_call_ids=ids, sort_by=terms)
    assert (status, body["reason"].split(":")[0]) == (400, "The query is too complex")
