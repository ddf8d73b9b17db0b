"""Stored evaluations, run for a model that is a function of the prompt."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import LOCAL, Caller, Grant
from heddle.errors import Busy, Forbidden, HeddleError, InvalidRequest, NotFound, Unavailable
from heddle.evals import predictions
from heddle.evals.service import Evaluations
from heddle.services import Services
from heddle.wire.training import Sampling, Scored
from tests.support.inprocess import Trace, running_services

PROJECT = "team/judged"
SUMS = [{"question": f"{n} + 1", "target": str(n + 1)} for n in range(4)]


class Adder:
    """A chat model: `right` adds, `wrong` does not; it refuses to add to 2, and is busy at first."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.busy = 1

    async def create(self, body: Mapping[str, Any], caller: Any, project: str) -> dict[str, Any]:
        """A completion."""
        if self.busy:
            self.busy -= 1
            raise Busy("one at a time", retry_after=0)
        self.asked.append({**body, "caller": caller, "project": project})
        if body["model"] == "judge":
            said, wanted = body["messages"][-1]["content"].split(" for ")
            is_right = int(said) == int(wanted.split()[0]) + 1 if said.isdigit() else False
            return {"choices": [{"message": {"content": json.dumps({"right": is_right, "why": "because"})}}]}
        if body["model"] == "down":
            raise Unavailable("The engine failed")
        left = int(body["messages"][-1]["content"].split()[0])
        if body["model"] == "picky" and left == 2:
            raise InvalidRequest("too long")
        text = str(left + 1) if body["model"] != "wrong" else "no idea"
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}


Test = Callable[[Services, Trace, Evaluations, Adder], Awaitable[None]]


def with_services(folder: Path, test: Test) -> None:
    """Run a test with an open services."""

    async def run() -> None:
        async with running_services(folder / "data") as (services, client):
            model = Adder()
            evaluations = Evaluations(services.store, services.records, model, services.jobs, 20)
            await test(services, Trace(client, PROJECT), evaluations, model)

    asyncio.run(run())


async def run(evaluations: Evaluations, ref: str, model: str, run_id: str = "run", **sampling: Any) -> Scored:
    """One run."""
    return await evaluations.run(
        ref, model, LOCAL, PROJECT, sampling=Sampling(**sampling), run_id=run_id, label="policy step 1"
    )


async def sums(trace: Trace, **fields: Any) -> str:
    """An evaluation of additions."""
    parts = {"dataset": await trace.dataset("sums", SUMS), "scorers": [await trace.scorer("ExactMatchScorer")]}
    return await trace.evaluation("adding", **{**parts, **fields})


def test_a_run_scores_every_row(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, model: Adder) -> None:
        ref = await sums(trace)
        assert await evaluations.check(ref, LOCAL) == ref
        scored = await run(evaluations, ref, "right", max_tokens=5)
        assert (scored.score, scored.rows, scored.failed) == (1.0, 4, 0)
        assert scored.summary["ExactMatchScorer"] == {"exact_match": {"true_count": 4, "true_fraction": 1.0}}
        assert (await run(evaluations, ref, "wrong", "other")).score == 0.0
        asked = min(model.asked, key=lambda body: str(body["messages"]))
        assert (asked["temperature"], asked["max_tokens"], asked["project"]) == (0.0, 5, PROJECT)
        assert asked["messages"] == [{"role": "user", "content": "0 + 1"}]

    with_services(tmp_path, test)


def named(calls: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The calls of an op."""
    return [call for call in calls if f"/op/{name}:" in call["op_name"]]


def test_a_run_is_shown_as_the_sdks_show_theirs(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        ref = await sums(trace)
        for _ in range(2):
            scored = await run(evaluations, ref, "right")
        calls = await trace.calls()
        (root,) = named(calls, "Evaluation.evaluate")
        assert root["id"] == scored.call_id and root["parent_id"] is None and root["display_name"] == "policy step 1"
        assert root["inputs"] == {"self": ref, "model": "right"}
        assert root["output"]["ExactMatchScorer"]["exact_match"]["true_count"] == 4
        children = named(calls, "Evaluation.predict_and_score")
        assert len(children) == 4, "the same run again is the same calls"
        for child in children:
            assert child["parent_id"] == child["trace_id"] == root["id"]
            assert child["attributes"]["_weave_eval_meta"]["declarative"] is True
            assert child["output"]["scores"] == {"ExactMatchScorer": {"exact_match": True}}
            assert isinstance(child["output"]["model_latency"], float)
            (predicted,) = [call for call in named(calls, "Model.predict") if call["parent_id"] == child["id"]]
            assert predicted["summary"]["usage"]["right"]["total_tokens"] == 4
            assert predicted["inputs"]["question"] == f"{child['inputs']['example']}/key/question"
            (scoring,) = [call for call in named(calls, "ExactMatchScorer.score") if call["parent_id"] == child["id"]]
            assert scoring["attributes"]["weave"]["kind"] == "scorer"
            assert scoring["inputs"]["target"] == f"{child['inputs']['example']}/key/target"
        rows = (await trace.post("/refs/read_batch", refs=[child["inputs"]["example"] for child in children]))["vals"]
        assert sorted(row["question"] for row in rows) == [row["question"] for row in SUMS]
        (summed,) = named(calls, "Evaluation.summarize")
        assert summed["parent_id"] == root["id"] and summed["output"] == root["output"]
        (table,) = (await trace.post("/refs/read_batch", refs=[f"{summed['inputs']['eval_table']}/attr/rows"]))["vals"]
        digest = table.rpartition("/")[2]
        stored = (await trace.post("/table/query", project_id=PROJECT, digest=digest))["rows"]
        assert [row["val"]["output"] for row in stored] == ["1", "2", "3", "4"], "in the order of the dataset"
        assert len(calls) == 1 + 4 * 3 + 1

    with_services(tmp_path, test)


def test_every_score_is_feedback_on_its_answer(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        for _ in range(2):
            await run(evaluations, await sums(trace), "right")
        found = (await trace.post("/feedback/query", project_id=PROJECT))["result"]
        calls = {call["id"]: call for call in await trace.calls()}
        assert len(found) == 4
        for row in found:
            assert row["feedback_type"] == "wandb.runnable.ExactMatchScorer"
            assert row["payload"] == {"output": {"exact_match": True}}
            predicted = calls[row["weave_ref"].rpartition("/")[2]]
            scoring = calls[row["call_ref"].rpartition("/")[2]]
            assert "Model.predict" in predicted["op_name"] and predicted["parent_id"] == scoring["parent_id"]
            assert scoring["inputs"]["self"] == row["runnable_ref"]

    with_services(tmp_path, test)


def test_an_answer_that_fails_counts_nothing(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        scored = await run(evaluations, await sums(trace, trials=2), "picky")
        assert (scored.score, scored.rows, scored.failed) == (0.75, 4, 2)
        failed = [call for call in named(await trace.calls(), "Evaluation.predict_and_score") if call["exception"]]
        assert [(call["exception"], call["output"]["scores"]) for call in failed] == [("too long", {})] * 2
        assert all(call["output"]["output"] is None for call in failed)
        assert scored.summary["ExactMatchScorer"]["exact_match"] == {"true_count": 6, "true_fraction": 0.75}

    with_services(tmp_path, test)


def test_trials_and_scorers_are_averaged(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, model: Adder) -> None:
        scorers = [await trace.scorer("ExactMatchScorer"), await trace.scorer("ValidJSONScorer")]
        scored = await run(evaluations, await sums(trace, scorers=scorers, trials=3), "right")
        assert scored.score == 1.0 and len(model.asked) == 12
        assert sorted({body["seed"] for body in model.asked}) == [0, 1, 2]
        rows = [{"prompt": "1 +", "target": "3"}, {"messages": [{"role": "user", "content": "4 +"}], "target": "5"}]
        both = await sums(trace, scorers=scorers, dataset=await trace.dataset("two", rows))
        assert (await run(evaluations, both, "right", "b")).score == 0.75

    with_services(tmp_path, test)


def test_a_model_that_is_down_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "PATIENCE_SECONDS", 0.1)

    async def test(_services: Services, trace: Trace, evaluations: Evaluations, model: Adder) -> None:
        ref = await sums(trace)
        model.busy = 0
        with pytest.raises(Unavailable, match="engine failed"):
            await run(evaluations, ref, "down")
        (root,) = named(await trace.calls(), "Evaluation.evaluate")
        assert root["exception"] == "The engine failed" and root["output"] is None

    with_services(tmp_path, test)


def test_a_model_can_be_the_judge(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        head = {"_bases": ["Model", "Object", "BaseModel"], "_class_name": "LLMStructuredCompletionModel"}
        parameters = {"response_format": "json_object"}
        judging = await trace.publish("judging", {**head, "llm_model_id": "judge", "default_params": parameters})
        scorer = await trace.scorer("LLMAsAJudgeScorer", model=judging, scoring_prompt="{output} for {question}")
        ref = await sums(trace, scorers=[scorer])
        assert (await run(evaluations, ref, "right")).score == 1.0
        scored = await run(evaluations, ref, "wrong", "b")
        assert scored.score == 0.0
        assert scored.summary["LLMAsAJudgeScorer"] == {"right": {"true_count": 0, "true_fraction": 0.0}}
        other = await trace.scorer("LLMAsAJudgeScorer", model=judging, scoring_prompt="{output} for {other}")
        with pytest.raises(InvalidRequest, match="needs the column 'other'"):
            await evaluations.check(await sums(trace, scorers=[other]), LOCAL)

    with_services(tmp_path, test)


def test_a_run_that_is_stopped_says_so(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, model: Adder) -> None:
        model.busy = 1_000_000
        task = asyncio.create_task(run(evaluations, await sums(trace), "right"))
        while model.busy == 1_000_000:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (root,) = await trace.calls()
        assert "Evaluation.evaluate" in root["op_name"] and root["exception"] == "The run was stopped"

    with_services(tmp_path, test)


def test_latest_is_pinned_to_a_digest(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        ref = await sums(trace)
        assert await evaluations.check(ref.rpartition(":")[0] + ":latest", LOCAL) == ref
        await sums(trace, trials=2)
        assert await evaluations.check(ref, LOCAL) == ref

    with_services(tmp_path, test)


def test_only_those_who_may_read_it_name_an_evaluation(tmp_path: Path) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        ref = await sums(trace)
        bound = Caller("eve", (Grant.parse("editor:team/other"),))
        writer = Caller("bob", (Grant.parse("write"),))
        for caller in (bound, writer):
            with pytest.raises(Forbidden):
                await evaluations.check(ref, caller)

    with_services(tmp_path, test)


BROKEN: list[tuple[dict[str, Any], type[HeddleError], str]] = [
    ({"scorers": []}, InvalidRequest, "no scorers"),
    ({"scorers": ["weave:///team/judged/op/mine:abc"]}, InvalidRequest, r"op/mine:abc \(a function"),
    ({"scorers": [{"_class_name": "Mine"}, 3]}, InvalidRequest, "number 0: Mine is not a built-in scorer; number 1"),
    ({"scorers": [{"_class_name": "ValidJSONScorer", "name": "a"}] * 2}, InvalidRequest, "several are named a"),
    ({"scorers": [{"_class_name": "LLMAsAJudgeScorer"}]}, InvalidRequest, "number 0: it has no model"),
    ({"preprocess_model_input": "weave:///team/judged/op/f:a"}, InvalidRequest, "preprocess_model_input"),
    ({"trials": 0}, InvalidRequest, "got 0"),
    ({"trials": True}, InvalidRequest, "got True"),
    ({"dataset": {"rows": []}}, InvalidRequest, "no rows"),
    ({"dataset": {"rows": [{"target": "1"}]}}, InvalidRequest, "Row 0 .* The row has no prompt"),
    ({"dataset": {"rows": [{"messages": [], "target": "1"}]}}, InvalidRequest, "Row 0 .* The row has no prompt"),
    ({"dataset": {"rows": ["1 + 1"]}}, InvalidRequest, "Row 0 .* is not an object"),
    ({"dataset": {"rows": [{"input": "x"}]}}, InvalidRequest, "needs the column 'target'"),
    ({"dataset": "weave:///team/judged/object/none:latest"}, NotFound, "object/none:latest was not found"),
    ({"_class_name": "Dataset", "_type": "Dataset"}, InvalidRequest, "is not an Evaluation but Dataset"),
]


@pytest.mark.parametrize(("fields", "kind", "reason"), BROKEN, ids=[reason for _, _, reason in BROKEN])
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, fields: dict[str, Any], kind: type[HeddleError], reason: str
) -> None:
    async def test(_services: Services, trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        inline = {"_class_name": "ExactMatchScorer"}
        parts = {"dataset": {"rows": SUMS}, "scorers": [inline], **fields}
        ref = await trace.evaluation("broken", **parts)
        with pytest.raises(kind, match=reason):
            await evaluations.check(ref, LOCAL)

    with_services(tmp_path, test)


@pytest.mark.parametrize(
    "ref", ["adding", "weave:///team", "weave:///team/judged/call/1", "weave:///a/b/object/x:v0/attr/y"]
)
def test_what_is_no_ref_of_an_object_is_refused(tmp_path: Path, ref: str) -> None:
    async def test(_services: Services, _trace: Trace, evaluations: Evaluations, _model: Adder) -> None:
        with pytest.raises(InvalidRequest):
            await evaluations.check(ref, LOCAL)

    with_services(tmp_path, test)
