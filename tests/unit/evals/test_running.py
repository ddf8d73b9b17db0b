"""Runs in the background, in the test's own process: patience with models, pages of rows, and whose rights hold."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import LOCAL, Caller, Grant
from heddle.errors import Busy, ExtraMissing, Forbidden, HeddleError, InvalidRequest, NotFound, Unavailable
from heddle.evals import objects, predictions, run
from heddle.evals.predictions import Asker, Counted, is_not_the_rows, may_pass
from heddle.services import Services
from heddle.store.control.eval_jobs import JobRow, eval_jobs
from heddle.wire import refs
from heddle.wire.inference import ProviderFailed
from tests.support.inprocess import Trace, running_services
from tests.support.selection import with_breadth

PROJECT = "team/running"
Json = dict[str, Any]
Test = Callable[[Services, Trace], Awaitable[None]]


class Echo:
    """A model that says what it is asked, after the failures that it is given."""

    def __init__(self, *failures: HeddleError) -> None:
        self.failures = list(failures)
        self.asked: list[Json] = []

    async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
        """A completion."""
        self.asked.append({**inputs, "caller": caller, "project": project})
        if inputs["model"] == "down" or self.failures:
            raise self.failures.pop(0) if self.failures else Unavailable("nobody there")
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        text = inputs["messages"][-1]["content"]
        return {"model": "echo-2", "choices": [{"message": {"content": text}}], "usage": usage}


def with_services(folder: Path, test: Test, model: Echo) -> None:
    """Run a test with an open services whose models are one."""

    async def run() -> None:
        async with running_services(folder / "data", evaluation_parallel=4) as (services, client):
            services.evaluations._completions = services.scoring._completions = model
            await test(services, Trace(client, PROJECT))

    asyncio.run(run())


async def evaluated(services: Services, ref: str, model: str, caller: Caller = LOCAL) -> JobRow:
    """The job of an evaluation at its end."""
    call_id = await services.evaluations.evaluate_model(caller, PROJECT, ref, model)
    async with asyncio.timeout(60):
        return await services.jobs.wait(PROJECT, call_id)


async def exam(trace: Trace, rows: int, **fields: Any) -> str:
    """An evaluation that every row passes."""
    values = [{"input": str(number), "target": str(number)} for number in range(rows)]
    parts = {"dataset": await trace.dataset("rows", values), "scorers": [await trace.scorer("ExactMatchScorer")]}
    return await trace.evaluation("exam", **{**parts, **fields})


@pytest.mark.parametrize(
    ("error", "passes", "everybodys"),
    [
        (Busy("full"), True, True),
        (Unavailable("gone"), True, True),
        (ProviderFailed("cannot be reached"), True, True),
        (ProviderFailed("returned 429", 429), True, True),
        (ProviderFailed("returned 500", 500), True, True),
        (ProviderFailed("returned 401", 401), False, True),
        (ProviderFailed("returned 404", 404), False, True),
        (ProviderFailed("returned 400", 400), False, False),
        (ExtraMissing("install it"), False, True),
        (NotFound("no such model"), False, True),
        (InvalidRequest("too long"), False, False),
    ],
)
def test_which_failures_may_pass_and_which_are_the_rows(error: HeddleError, passes: bool, everybodys: bool) -> None:
    assert (may_pass(error), is_not_the_rows(error)) == (passes, everybodys)


def test_what_may_pass_is_asked_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_FIRST_PAUSE", 0.001)
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}

    async def main() -> None:
        model = Echo(
            Busy("full", retry_after=0), ProviderFailed("returned 500", 500), ProviderFailed("cannot be reached")
        )
        counted = Counted(Asker(model, LOCAL, PROJECT))
        assert (await counted(body))["choices"][0]["message"]["content"] == "hi"
        assert len(model.asked) == 4
        await counted(body)
        assert counted.usage == {"echo": {"requests": 2, "prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}}
        with pytest.raises(InvalidRequest):
            await Asker(Echo(InvalidRequest("no")), LOCAL, PROJECT)(body)

    asyncio.run(main())


@pytest.mark.parametrize("said", ["3600", "3600.5", "Fri, 31 Dec 2100 23:59:59 GMT", "1e400"])
def test_a_wait_beyond_the_patience_is_not_begun(said: str) -> None:
    async def main() -> None:
        model = Echo(ProviderFailed("returned 429", 429, {"Retry-After": said}))
        with pytest.raises(ProviderFailed):
            await Asker(model, LOCAL, PROJECT)({"model": "echo", "messages": []})
        assert len(model.asked) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "said", ["", "soon", "-5", "nan", "0.001", "Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 99 Dec 1999"]
)
def test_what_says_no_time_to_wait_is_asked_again(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_FIRST_PAUSE", 0.001)

    async def main() -> None:
        model = Echo(ProviderFailed("returned 429", 429, {"Retry-After": said}))
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        assert (await Asker(model, LOCAL, PROJECT)(body))["choices"]
        assert len(model.asked) == 2

    asyncio.run(main())


def test_rows_are_read_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PAGE", 7)

    async def test(services: Services, trace: Trace) -> None:
        ref = await exam(trace, 40, trials=2)
        pages = list[tuple[int | None, int]]()
        query = services.store.tables.query

        async def watched(project: str, digest: str, **options: Any) -> Any:
            pages.append((options["limit"], options["offset"]))
            return await query(project, digest, **options)

        monkeypatch.setattr(services.store.tables, "query", watched)
        job = await evaluated(services, ref, "echo")
        assert job.result is not None and job.result["cases"] == 80 and job.result["score"] == 1.0
        assert pages == [(7, start) for start in range(0, 40, 7)] * 2

    with_services(tmp_path, test, Echo())


def test_a_chat_model_is_asked_by_its_name(tmp_path: Path) -> None:
    model = Echo()

    async def test(services: Services, trace: Trace) -> None:
        job = await evaluated(services, await exam(trace, 3), "echo")
        assert job.state == "succeeded" and {body["model"] for body in model.asked} == {"echo"}
        (root,) = [call for call in await trace.calls() if call["parent_id"] is None]
        assert root["inputs"]["model"] == "echo" and root["id"] == job.id

    with_services(tmp_path, test, model)


def test_a_model_that_is_gone_ends_the_run_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "PATIENCE_SECONDS", 0.0)

    async def test(services: Services, trace: Trace) -> None:
        job = await evaluated(services, await exam(trace, 300), "down")
        assert job.state == "failed" and "50 consecutive rows failed; the last error: nobody there" in str(job.error)
        children = await trace.calls(filter={"parent_ids": [job.id]})
        assert 49 <= len(children) < 60
        status = await trace.post("/evaluations/status", project_id=PROJECT, call_id=job.id)
        assert status["status"] == {"code": "failed", "error": job.error}

    with_services(tmp_path, test, Echo())


def test_a_run_that_was_begun_does_only_what_is_left(tmp_path: Path) -> None:
    model = Echo()

    async def test(services: Services, trace: Trace) -> None:
        job = await evaluated(services, await exam(trace, 12), "echo")
        before = await trace.calls()
        rows = [call["id"] for call in before if "predict_and_score" in call["op_name"]]
        assert len(model.asked) == 12
        # As a kill leaves it: some rows are not stored yet, and nobody ended the run.
        lost = [call["id"] for call in before if call["parent_id"] in rows[3:5] or call["id"] in rows[3:5]]
        await trace.post("/calls/delete", project_id=PROJECT, call_ids=lost)
        back = eval_jobs.update().where(eval_jobs.c.id == job.id).values(state="queued", ended_at=None)
        await services.store.eval_jobs._executor.write(lambda connection: connection.execute(back).rowcount)
        services.jobs.wake()
        async with asyncio.timeout(60):
            ended = await services.jobs.wait(PROJECT, job.id)
        assert ended.state == "succeeded" and len(model.asked) == 14
        assert (
            ended.result is not None and ended.result["summary"]["ExactMatchScorer"]["exact_match"]["true_count"] >= 10
        )

    with_services(tmp_path, test, model)


def test_a_run_keeps_its_name_when_its_job_is_faster_than_the_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route shows the run as running; where that was written last, the name of the evaluation was lost."""

    async def test(services: Services, trace: Trace) -> None:
        start_root = services.evaluations._start_root

        async def start_late(caller: Caller, root: Any) -> None:
            await services.jobs.wait(PROJECT, root.id)
            await start_root(caller, root)

        monkeypatch.setattr(services.evaluations, "_start_root", start_late)
        await evaluated(services, await exam(trace, 1, evaluation_name="my exam"), "echo")
        [call] = await trace.calls(filter={"trace_roots_only": True})
        assert (call["display_name"], call["summary"]["weave"]["status"]) == ("my exam", "success")

    with_services(tmp_path, test, Echo())


def test_a_job_reaches_as_far_as_its_key(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        ref = await exam(trace, 2)
        outside = Caller("eve", (Grant.parse("editor:team/other"),))
        with pytest.raises(Forbidden):
            await services.evaluations.evaluate_model(outside, PROJECT, ref, "echo")
        with pytest.raises(Forbidden):
            await services.scoring.submit(outside, "team/other", ["x"], [await trace.scorer("ValidJSONScorer")])
        call_id = await services.evaluations.evaluate_model(outside, "team/other", ref, "echo")
        async with asyncio.timeout(60):
            job = await services.jobs.wait("team/other", call_id)
        assert job.state == "failed" and "does not have permission to read objects of 'team/running'" in str(job.error)
        assert await services.jobs.read(PROJECT, call_id) is None
        inside = await evaluated(services, ref, "echo", Caller("ann", (Grant.parse(f"editor:{PROJECT}"),), key_id="k"))
        assert inside.state == "succeeded"
        (root,) = await trace.calls(filter={"call_ids": [inside.id]})
        assert root["wb_user_id"] == "ann"

    with_services(tmp_path, test, Echo())


def test_a_run_whose_call_is_deleted_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_REPORT_SECONDS", 0.0)

    class Deleting(Echo):
        trace: Trace

        async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
            if len(self.asked) == 20:
                roots = [call["id"] for call in await self.trace.calls() if call["parent_id"] is None]
                await self.trace.post("/calls/delete", project_id=PROJECT, call_ids=roots)
            return await super().create(inputs, caller, project)

    model = Deleting()

    async def test(services: Services, trace: Trace) -> None:
        model.trace = trace
        job = await evaluated(services, await exam(trace, 500), "echo")
        assert (job.state, job.error) == ("failed", "The call of the run was deleted")
        assert len(model.asked) < 100, "nobody pays for what nobody wants to see"
        assert await trace.calls() == []

    with_services(tmp_path, test, model)


@pytest.mark.parametrize("subject", with_breadth(["call", "object", "trace", "user"], keep=2))
def test_a_purge_ends_the_run_that_is_about_its_subject_first(tmp_path: Path, subject: str) -> None:
    class Purging(Echo):
        trace: Trace
        job_id = ""

        async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
            if len(self.asked) == 20:
                [root] = [call["id"] for call in await self.trace.calls() if call["parent_id"] is None]
                name = {"user": "ann", "object": "exam"}.get(subject, root)
                body = {"project_id": PROJECT, "subject": subject, "id": name}
                self.job_id = (await self.trace.post("/project/purge", **body))["job_id"]
            return await super().create(inputs, caller, project)

    model = Purging()

    async def test(services: Services, trace: Trace) -> None:
        model.trace = trace
        ann = Caller("ann", (Grant.parse(f"editor:{PROJECT}"),))
        run_id = await services.evaluations.evaluate_model(ann, PROJECT, await exam(trace, 500), "echo")
        async with asyncio.timeout(60):
            await services.jobs.ended(run_id, lambda: asyncio.sleep(0, not model.job_id))
            purged = await services.jobs.wait(PROJECT, model.job_id)
        assert purged.state == "succeeded" and len(model.asked) < 100
        assert await services.jobs.read(PROJECT, run_id) is None
        left = await trace.calls()
        if subject == "object":
            assert [call["exception"] for call in left if call["id"] == run_id] == ["cancelled"]
        else:
            assert left == []
            hidden = await services.store.calls.find(refs.internal_project(PROJECT), "project", "")
            assert hidden == [], "rows that the run stored meanwhile"

    with_services(tmp_path, test, model)


def test_a_run_whose_rows_are_removed_meanwhile_does_not_pass_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PAGE", 7)

    class Purging(Echo):
        services: Services
        trace: Trace

        async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
            if len(self.asked) == 3:
                body = {"project_id": PROJECT, "subject": "object", "id": "rows"}
                job_id = (await self.trace.post("/project/purge", **body))["job_id"]
                assert (await self.services.jobs.wait(PROJECT, job_id)).state == "succeeded"
            return await super().create(inputs, caller, project)

    model = Purging()

    async def test(services: Services, trace: Trace) -> None:
        model.services, model.trace = services, trace
        job = await evaluated(services, await exam(trace, 40), "echo")
        assert (job.state, job.error) == (
            "failed",
            "Rows of the dataset of exam were removed while they were being read",
        )

    with_services(tmp_path, test, model)


@pytest.mark.parametrize("is_early", [True, False])
def test_new_scores_of_a_run_that_is_deleted_meanwhile_do_not_pass_for_all(tmp_path: Path, is_early: bool) -> None:
    async def test(services: Services, trace: Trace) -> None:
        source = await evaluated(services, await exam(trace, 10), "echo")
        write, deleted = services.records.write_calls, list[bool]()

        async def delete_before(caller: Any, project: str, starts: Any, ends: Any) -> None:
            if len(starts) > is_early and not deleted:
                deleted.append(True)
                await trace.post("/calls/delete", project_id=PROJECT, call_ids=[source.id])
            await write(caller, project, starts, ends)

        scorer = await trace.scorer("ValidJSONScorer")
        run_id = await services.evaluations.rescore(LOCAL, PROJECT, source.id, [scorer])
        services.records.write_calls = delete_before  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            job = await services.jobs.wait(PROJECT, run_id)
        assert deleted and (job.state, job.error) == (
            "failed",
            f"The evaluation run {source.id!r} was deleted",
        )

    with_services(tmp_path, test, Echo())


def test_a_run_without_rows_has_nothing_to_score(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        source = await evaluated(services, await exam(trace, 2), "echo")
        below = [call["id"] for call in await trace.calls() if call["parent_id"] == source.id]
        await trace.post("/calls/delete", project_id=PROJECT, call_ids=below)
        scorer = await trace.scorer("ValidJSONScorer")
        run_id = await services.evaluations.rescore(LOCAL, PROJECT, source.id, [scorer])
        async with asyncio.timeout(60):
            job = await services.jobs.wait(PROJECT, run_id)
        assert (job.state, job.error) == ("failed", "There are no rows to score")

    with_services(tmp_path, test, Echo())


def test_a_row_that_somebody_else_ended_is_not_summed(tmp_path: Path) -> None:
    class Meddling(Echo):
        trace: Trace

        async def create(self, inputs: Mapping[str, Any], caller: Any, project: str) -> Json:
            rows = [call["id"] for call in await self.trace.calls() if "predict_and_score" in call["op_name"]]
            if len(rows) == 1:
                end = {"project_id": PROJECT, "id": rows[0], "ended_at": "2026-01-01T00:00:00Z", "summary": {}}
                await self.trace.post("/call/end", end={**end, "output": "mine"})
            return await super().create(inputs, caller, project)

    model = Meddling()

    async def test(services: Services, trace: Trace) -> None:
        model.trace = trace
        services.evaluations._parallel = 1
        job = await evaluated(services, await exam(trace, 5), "echo")
        assert job.state == "succeeded" and job.result is not None, job.error
        assert job.result["summary"]["ExactMatchScorer"]["exact_match"]["true_count"] == 4

    with_services(tmp_path, test, model)
