"""POST /calls/score: calls that are stored are scored in the background."""

from typing import Any

from tests.support.evaluations import Lab

Json = dict[str, Any]


def stored(lab: Lab, *calls: Json) -> list[str]:
    """The ids of ended calls with these fields."""
    batch = [
        {
            "project_id": lab.wire.project,
            "id": f"{lab.wire.project.replace('/', '-')}-{place}",
            "trace_id": f"{lab.wire.project.replace('/', '-')}-{place}",
            "op_name": "answer",
            "started_at": "2026-01-01T00:00:00Z",
            "ended_at": "2026-01-01T00:00:01Z",
            "attributes": {},
            "inputs": {},
            "summary": {},
            **call,
        }
        for place, call in enumerate(calls)
    ]
    answer = lab.wire.client.post(f"/v2/{lab.wire.project}/calls/complete", json={"batch": batch})
    assert answer.status_code == 200, answer.text
    return [call["id"] for call in batch]


def score(lab: Lab, call_ids: list[str], scorers: list[str]) -> Json:
    """The job that scored them."""
    assert lab.wire.post("/calls/score", call_ids=call_ids, scorer_refs=scorers) == {}
    return lab.jobs_done()[0]


def feedback(lab: Lab, call_id: str) -> list[Json]:
    """The feedback on a call."""
    ref = f"weave:///{lab.wire.project}/call/{call_id}"
    query = {"$expr": {"$eq": [{"$getField": "weave_ref"}, {"$literal": ref}]}}
    return list(lab.wire.post("/feedback/query", query=query)["result"])


def test_calls_are_scored(lab: Lab) -> None:
    judging = lab.model("fake/judge-model", name="judging", response_format="json_object")
    judge = lab.judge(judging, '{{"SAID": "{output}", "TO": "{question}", "IN": "{inputs[question]}"}}')
    match = lab.scorer("ExactMatchScorer")
    dataset = lab.dataset([{"question": "warp"}])
    (row,) = lab.wire.post("/table/query", digest=_table(lab, dataset))["rows"]
    in_row = f"{dataset}/attr/rows/id/{row['digest']}/key/question"
    ids = stored(
        lab,
        {"inputs": {"question": "loom", "target": "a"}, "output": "a"},
        {"inputs": {"question": in_row, "target": "b"}, "output": "c"},
        {"inputs": {"question": "x"}, "output": None, "exception": "failed"},
    )
    job = score(lab, [*ids, "unknown", ids[0]], [judge, match])
    assert (job["kind"], job["state"]) == ("score_calls", "succeeded")
    assert job["progress"] == {"calls": 4, "scored": 2, "skipped": 2, "failed": 0}
    for call_id, said, asked, matches in ((ids[0], "A", "LOOM", True), (ids[1], "C", "WARP", False)):
        by_type = {item["feedback_type"]: item for item in feedback(lab, call_id)}
        assert by_type.keys() == {"wandb.runnable.judge", "wandb.runnable.ExactMatchScorer"}
        told = by_type["wandb.runnable.judge"]
        assert told["payload"] == {"output": {"SAID": said, "TO": asked, "IN": asked}}
        assert told["runnable_ref"] == judge
        assert by_type["wandb.runnable.ExactMatchScorer"]["payload"] == {"output": {"exact_match": matches}}
        scoring = lab.wire.call(told["call_ref"].rpartition("/")[2])
        assert scoring["trace_id"] == scoring["id"] and scoring["parent_id"] is None
        assert scoring["attributes"]["weave"]["kind"] == "scorer"
        assert scoring["inputs"]["self"] == judge and "/op/LLMAsAJudgeScorer.score:" in scoring["op_name"]
        assert scoring["output"] == told["payload"]["output"]
    assert feedback(lab, ids[2]) == []
    assert lab.wire.call(feedback(lab, ids[1])[0]["call_ref"].rpartition("/")[2])["inputs"]["question"] == in_row


def _table(lab: Lab, dataset: str) -> str:
    (value,) = lab.wire.post("/refs/read_batch", refs=[f"{dataset}/attr/rows"])["vals"]
    return str(value).rpartition("/")[2]


def test_many_calls_are_scored_once_each(lab: Lab) -> None:
    ids = stored(lab, *({"inputs": {"target": str(number)}, "output": "7"} for number in range(230)))
    job = score(lab, ids, [lab.scorer("ExactMatchScorer")])
    assert job["progress"] == {"calls": 230, "scored": 230, "skipped": 0, "failed": 0}
    found = lab.wire.post("/feedback/query", limit=1000)["result"]
    assert len(found) == 230 and len({item["weave_ref"] for item in found}) == 230
    assert sum(item["payload"]["output"]["exact_match"] for item in found) == 1


def test_a_score_that_fails_is_a_call_without_feedback(lab: Lab) -> None:
    (call_id,) = stored(lab, {"inputs": {}, "output": "a"})
    job = score(lab, [call_id], [lab.scorer("ExactMatchScorer"), lab.scorer("ValidJSONScorer")])
    assert job["state"] == "succeeded" and job["progress"]["failed"] == 1
    (told,) = feedback(lab, call_id)
    assert told["feedback_type"] == "wandb.runnable.ValidJSONScorer"
    calls = [call for call in lab.wire.calls() if "ExactMatchScorer.score" in call["op_name"]]
    assert "needs the column 'target'" in calls[0]["exception"]


def test_scorers_that_do_not_run_here_are_listed(lab: Lab) -> None:
    mine, good = lab.scorer("MyScorer"), lab.scorer("ValidJSONScorer")
    function = f"weave:///{lab.wire.project}/op/f:abc"
    for scorers, reasons in (([mine, good], [mine]), ([function, mine], [function, mine]), ([], [])):
        body = {"project_id": lab.wire.project, "call_ids": ["x"], "scorer_refs": scorers}
        answer = lab.wire.client.post("/calls/score", json=body)
        assert answer.status_code == 400, answer.text
        assert all(ref in answer.json()["reason"] for ref in reasons) and good not in answer.json()["reason"]
    assert lab.jobs() == []


def test_a_preview_says_why_a_call_has_no_score(lab: Lab) -> None:
    ids = stored(lab, {"inputs": {"target": "a"}, "output": "a"}, {"inputs": {}, "output": "a"})
    scorer = {"_type": "ExactMatchScorer", "_class_name": "ExactMatchScorer", "name": "match"}
    results = lab.wire.post("/calls/score/preview", call_ids=[*ids, "unknown"], scorer=scorer)["results"]
    assert [result["call_id"] for result in results] == [*ids, "unknown"]
    assert [result["score"] for result in results] == [{"exact_match": True}, None, None]
    missing = "The scorer match needs the column 'target', which is missing in the row"
    assert [result["problem"] for result in results] == [None, missing, "No ended call with this id"]
    assert feedback(lab, ids[0]) == []
