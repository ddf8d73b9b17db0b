"""The job of an improvement. Its ids follow from the job's, so that what is begun again does nothing twice."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from heddle import aio
from heddle.auth import Caller, Scope
from heddle.ci.comparison import Comparison, Row, compare_rows, parse_condition, read_row
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.evals.jobs import JobRun, Jobs, Later
from heddle.evals.objects import ObjectReader, find_calls
from heddle.evals.run import derived_id
from heddle.evals.scorers import Scorer, number_of, read_scorers
from heddle.evals.service import Evaluations
from heddle.improve.dataset import FEWEST, WeakRows, collect_rows, split_rows
from heddle.improve.rollouts import Rollouts
from heddle.improve.schemas import ImprovementCreateReq
from heddle.improve.timeline import (
    BudgetSpent,
    Judged,
    Loop,
    Measured,
    Meter,
    Part,
    Promoted,
    Score,
    Selected,
    Timeline,
    Trained,
    Verdict,
    Watched,
)
from heddle.ipc.usage import CpuMeter
from heddle.store.base import Store
from heddle.store.control.coordination import SUCCEEDED
from heddle.store.control.eval_jobs import OPEN, JobRow
from heddle.store.control.feedback import Window
from heddle.store.control.links import SourceRow
from heddle.store.control.training import OPEN as TRAINING_OPEN
from heddle.store.control.training_models import ModelRow
from heddle.training.intake import Taken
from heddle.training.schemas.requests import default_max_tokens
from heddle.training.service import Training
from heddle.wire import refs, times
from heddle.wire.batched import batched
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.means import mean
from heddle.wire.records import Records, object_value, publish_dataset
from heddle.wire.training import Sampling
from heddle.wire.trials import PREDICT_AND_SCORE

KIND = "improve"
MOST_IDLE = 3
"""Steps in a row in which no answer was better than another; then there is nothing to learn from."""
LEARNING_RATE = 1e-5
"""Of training jobs that name none: ten times that of full training (LoRA without regret)."""
_HERE_SECONDS, _LOOK_SECONDS = 20.0, 2.0
"""A training job is waited for in place so long; then the improvement leaves its place and looks again."""
_WATCH_SECONDS = 5.0
_LINKS_AT_ONCE = 500


class Improvements:
    """Submits and does the jobs of kind `improve`; `parallel` answers are sampled at the same time."""

    def __init__(
        self,
        store: Store,
        records: Records,
        completions: Completions,
        jobs: Jobs,
        evaluations: Evaluations,
        training: Training,
        parallel: int,
    ) -> None:
        self._store, self._records = store, records
        self._jobs, self._evaluations, self._training = jobs, evaluations, training
        self._rollouts = Rollouts(store, records, completions, parallel)
        self._meter = Meter(CpuMeter().read)

    def register(self) -> None:
        """Offer the jobs, and keep the steps that they need."""
        self._jobs.register(KIND, self._run, self._close)
        self._training.models.needs.append(self._needed_steps)

    async def submit(self, asked: ImprovementCreateReq, caller: Caller) -> JobRow:
        """Queue an improvement; raises HeddleError for what it names and is not there, Conflict beside another one."""
        caller = caller.require(Scope.READ)
        caller.open(asked.project_id)
        self._training.require()
        entity, _, project = asked.project_id.partition("/")
        model = await self._store.train_models.find_named(entity, project, asked.model)
        if model is None or not caller.reaches(model.project_id):
            raise NotFound(
                f"Trainable model {asked.model!r} not found in {asked.project_id}; create it with "
                "POST /v1/preview/models",
                param="model",
            )
        reader = ObjectReader(self._store, caller)
        scorers = await read_scorers(reader, asked.scorers, "The improvement has")
        for scorer in scorers:
            if not scorer.is_numeric:
                raise InvalidRequest(f"The scorer {scorer.name} returns text, which cannot be a reward")
            missing = sorted(set(scorer.needs) - asked.columns.keys() - {"messages", "tools"})
            if missing:
                raise InvalidRequest(
                    f"The scorer {scorer.name} needs the column {missing[0]!r}; set its path in `columns`"
                )
        monitors = (asked.weak.monitor, asked.watch.monitor if asked.watch else None)
        for name in filter(None, monitors):
            found = await reader.read(
                refs.object_ref(caller.open(asked.project_id), "object", name, "latest"), "The monitor"
            )
            if not found.is_a("Monitor"):
                raise InvalidRequest(f"{name} is not a Monitor but {found.class_name or 'a plain value'}")
        body = asked.model_dump(exclude_none=True) | {"scorers": [scorer.ref for scorer in scorers]}
        if asked.general is not None:
            body["general"] = await self._evaluations.check(asked.general, caller)
        # One call is read as the job will, so that a field that cannot be used is refused now.
        weak = asked.weak
        chosen = {"filter": weak.filter and weak.filter.model_dump(exclude_none=True), "query": weak.query}
        async for _ in self._records.read_calls(caller, asked.project_id, **chosen, limit=1, columns=["id"]):
            break

        def check(open_jobs: Sequence[JobRow]) -> None:
            for other in open_jobs:
                if other.body["model_id"] == model.id and "outcome" not in other.progress:
                    raise Conflict(
                        f"The improvement {other.id} of {model.name!r} is still running; stop it or wait until it ends"
                    )

        return await self._jobs.submit(KIND, caller, asked.project_id, {**body, "model_id": model.id}, check=check)

    async def _run(self, job: JobRow, run: JobRun) -> Json:
        """Every step that is not done yet; returns the outcome."""
        loop = await self._open(job, run)
        log = loop.log
        data = await log.do("select", partial(self._select, loop))
        before = await log.do("baseline", partial(self._measure_baseline, loop, data))
        if before["held_out"]["score"] >= loop.asked.rollouts.target_reward:
            raise InvalidRequest(
                f"The policy scores {before['held_out']['score']:.3g} on the held-out chats already: nothing to "
                "improve. Perhaps another model answered the weak calls, or the scorer asks for less than they missed"
            )
        candidate = await self._improve(loop, data, before["step"])
        gate = await log.do("gate", partial(self._judge, loop, data, before, candidate))
        if not gate["passed"]:
            return await self._conclude(log, "refused", gate["reason"])
        promoted = await log.do("promotion", partial(self._promote, loop, before["step"], candidate))
        if promoted["reason"]:
            return await self._conclude(log, "refused", promoted["reason"])
        outcome = await self._conclude(log, "promoted", None)
        if loop.asked.watch is None:
            return outcome
        seen = await log.do("watch", partial(self._watch, loop, before["step"], candidate, promoted["at"]))
        return await self._conclude(log, "rolled_back", seen["reason"]) if seen["rolled_back"] else outcome

    async def _close(self, job: JobRow, run: JobRun, problem: str) -> None:  # noqa: ARG002
        """Give up the training job of an improvement that failed or was stopped."""
        now = await self._jobs.read(job.project_id, job.id) or job
        for step in now.progress.get("steps", ()):
            if step["name"] == "training" and step["state"] == "running":
                await self._training.supervisor.cancel(derived_id(f"{job.id}/training/{step['number']}"))

    async def _conclude(self, log: Timeline, outcome: str, reason: str | None) -> Json:
        result: Json = {"outcome": outcome, "reason": reason}
        await log.conclude(**result)
        return result

    async def _open(self, job: JobRow, run: JobRun) -> Loop:
        body = dict(job.body)
        model = await self._store.train_models.find(body.pop("model_id"))
        if model is None:
            raise InvalidRequest("The model was deleted")
        asked = ImprovementCreateReq.model_validate(body)
        log = Timeline(job, run, asked.budget_seconds, self._meter)
        scorers, longest = list[Scorer](), 0
        # A watch goes on, whatever becomes of what the promotion took.
        if log.find("promotion") is None:
            scorers = await read_scorers(ObjectReader(self._store, run.caller), asked.scorers, "The improvement has")
            base = await self._training.models.base(model.base_model)
            longest = asked.rollouts.max_tokens or default_max_tokens(base.max_model_len)
        return Loop(job, run.caller, asked, model, scorers, longest, log)

    async def _select(self, loop: Loop) -> Selected:
        """Publish the weak chats in two datasets, linked to their calls, and an evaluation of those held out."""
        asked, caller = loop.asked, loop.caller
        found = await collect_rows(self._records, caller, asked.project_id, asked.weak, asked.columns)
        if len(found.rows) < FEWEST:
            raise InvalidRequest(_too_few(found))
        parts = dict(zip(("train", "held-out"), split_rows(found.keys, asked.held_out, asked.seed), strict=True))
        made: dict[str, Part] = {}
        for part, places in parts.items():
            rows, name = [found.rows[place] for place in places], loop.named(part)
            about = {"name": name, "description": f"Weak chats of {loop.model.name}: {part}"}
            dataset, digests = await publish_dataset(self._records, caller, asked.project_id, name, rows, **about)
            await self._link(loop, found, places, name, dataset.digest, digests)
            made[part] = {"ref": refs.to_external(dataset.ref), "rows": len(rows)}
        told = {"dataset": made["held-out"]["ref"], "scorers": asked.scorers, "trials": 1}
        evaluation = object_value("Evaluation", name=loop.named("evaluation"), **told)
        stored = await self._records.publish(caller, asked.project_id, loop.named("evaluation"), evaluation)
        return {
            "calls": found.calls,
            "skipped": dict(found.skipped),
            "train": made["train"],
            "held_out": made["held-out"],
            "evaluation": await self._evaluations.check(stored.ref, caller),
        }

    async def _link(
        self, loop: Loop, found: WeakRows, places: list[int], name: str, digest: str, row_digests: list[str]
    ) -> None:
        """Say of each row which calls it came from."""
        at, project = times.now(), loop.caller.open(loop.asked.project_id)
        links = [
            SourceRow(
                id=times.uuid7(),
                project=project,
                dataset_object_id=name,
                dataset_digest=digest,
                row_digest=row_digest,
                source_kind="call",
                source_id=call.id,
                source_trace_id=call.trace_id,
                link_metadata=None,
                added_by=loop.caller.user,
                created_at=at,
                updated_at=at,
            )
            for place, row_digest in zip(places, row_digests, strict=True)
            for call in found.sources[place]
        ]
        for part in batched(links, _LINKS_AT_ONCE):
            await self._store.dataset_sources.link(list(part))

    async def _measure_baseline(self, loop: Loop, data: Selected) -> Measured:
        """What the policy scores; raises InvalidRequest for conditions on what its runs do not measure."""
        measured, gate = await self._measure(loop, data, None), loop.asked.gate
        sets = [(gate.held_out, measured["held_out"])]
        sets += [(gate.general, measured["general"])] if "general" in measured else []
        for conditions, score in sets:
            run_id = score["call_id"]
            rows = await self._read_run(loop, run_id)
            unchanged = await asyncio.to_thread(compare_rows, run_id, rows, run_id, rows)
            for text in conditions:
                parse_condition(text).check(unchanged)
        return measured

    async def _measure(self, loop: Loop, data: Selected, step: int | None) -> Measured:
        """What a step (None: the one that the name means) scores on the held-out chats and the general set."""
        if step is None:
            known = loop.log.find("baseline")
            step = known["result"].get("step") if known else None
        if step is None:
            step = await self._training.models.latest(loop.model)
            if step is None:
                raise InvalidRequest(f"The base model {loop.model.base_model} is not served by this server")
            await loop.log.note(step=step)
        measured: Measured = {"step": step, "held_out": await self._score(loop, "held_out", data["evaluation"], step)}
        if loop.asked.general is not None:
            measured["general"] = await self._score(loop, "general", loop.asked.general, step)
        return measured

    async def _score(self, loop: Loop, name: str, evaluation: str, step: int) -> Score:
        scored = await self._evaluations.run(
            evaluation,
            loop.address(step),
            loop.caller,
            loop.asked.project_id,
            sampling=Sampling(0.0, loop.max_tokens),
            run_id=f"{loop.job.id}/{name}/{step}",
            label=f"{loop.model.name} step {step}, {name.replace('_', '-')}",
        )
        return {"score": scored.score, "rows": scored.rows, "call_id": scored.call_id}

    async def _improve(self, loop: Loop, data: Selected, start: int) -> int:
        """Roll out and train, step by step; returns the last step that was trained."""
        rollouts, log, step, idle = loop.asked.rollouts, loop.log, start, 0
        reward, dataset = 0.0, data["train"]["ref"]
        try:
            for number in range(1, rollouts.steps + 1):
                sampled = await log.do("rollouts", partial(self._rollouts.sample, loop, dataset, number, step), number)
                reward = sampled["reward"]
                # A judge tells apart what scorers cannot.
                is_telling = bool(sampled["uneven"] or loop.asked.ruler)
                idle = 0 if is_telling else idle + 1
                if reward >= rollouts.target_reward or idle == MOST_IDLE:
                    break
                if is_telling:
                    work = partial(self._train, loop, number, step, sampled["call_id"])
                    step = (await log.do("training", work, number))["step"]
        except BudgetSpent:
            if step == start:
                raise InvalidRequest(
                    f"The budget of {loop.asked.budget_seconds:g} CPU seconds was spent before a step was trained; "
                    "increase budget_seconds, or use fewer rollouts.chats and rollouts.answers"
                ) from None
        if step == start:
            raise InvalidRequest(
                f"No answer of the policy scored better than another on the same chat (mean reward {reward:.3g}), so "
                "reinforcement has nothing to learn from: fine-tune on right answers first, raise the temperature or "
                "rollouts.answers, or use a scorer with more than two values"
            )
        return step

    async def _train(self, loop: Loop, number: int, parent: int, rollouts: str) -> Trained:
        """The training job of a step, from the calls of its rollouts; raises Later while it takes long."""
        job_id, jobs = derived_id(f"{loop.job.id}/training/{number}"), self._store.train_jobs
        settings, ruler = loop.asked.experimental_config, loop.asked.ruler
        source: Json = {"project_id": loop.asked.project_id, "filter": {"parent_ids": [rollouts]}, "limit": 10_000}
        rewarded: Json = {"source": source | {"reward": {"path": "summary.reward"}}}
        if ruler is not None:
            rewarded = {"source": source, "reward_from": "ruler", "ruler": ruler.model_dump(exclude_none=True)}
        head = {
            "model_id": loop.model.id,
            "experimental_config": {"learning_rate": LEARNING_RATE}
            | ({} if settings is None else settings.model_dump(exclude_none=True)),
            **rewarded,
        }
        taken = Taken(head, 0, 0, {})
        # A job that were stored after `_close` had looked for it would train on.
        creating = self._training.create_job(taken, loop.caller, job_id=job_id, candidate_from=parent)
        job = await aio.finish(creating)
        await loop.log.note(job_id=job_id)
        try:
            async with asyncio.timeout(min(_HERE_SECONDS, loop.log.left)):
                await self._training.supervisor.wait_until_ended(job_id)
        except TimeoutError:
            pass
        job = await jobs.find(job_id) or job
        if job.started_at is not None and self._training.supervisor.hands_over:
            loop.log.count_seconds(((job.ended_at or times.now()) - job.started_at) / times.SECOND)
        if job.state in TRAINING_OPEN:
            if not loop.log.left:
                await self._training.supervisor.cancel(job_id)
                raise BudgetSpent
            raise Later(_LOOK_SECONDS)
        if job.state != SUCCEEDED:
            raise InvalidRequest(f"The training job {job_id} {job.state}: {job.error}")
        assert job.step is not None, "only jobs that made a step succeed"
        return {
            "step": job.step,
            "metrics": {name: job.metrics[name] for name in ("loss/train",) if name in job.metrics},
        }

    async def _judge(self, loop: Loop, data: Selected, before: Measured, candidate: int) -> Judged:
        """What the candidate scores, and which conditions of the gate refuse it."""
        after = await self._measure(loop, data, candidate)
        gate, verdicts = loop.asked.gate, list[Verdict]()
        sets = [("held_out", gate.held_out, after["held_out"], before["held_out"])]
        if "general" in after:
            sets.append(("general", gate.general, after["general"], before["general"]))
        for name, conditions, score, earlier in sets:
            comparison = await self._compare(loop, score["call_id"], earlier["call_id"])
            for text in conditions:
                verdict = parse_condition(text).check(comparison)
                verdicts.append({"set": name, "condition": text, "value": verdict.value, "refuses": verdict.has_failed})
        held = [f"{one['condition']} on {one['set']}: it is {one['value']:.6g}" for one in verdicts if one["refuses"]]
        kept = f"step {before['step']} stays; step {candidate} can be asked by its number"
        reason = f"The gate refused step {candidate} ({'; '.join(held)}); {kept}" if held else None
        return {**after, "conditions": verdicts, "passed": not held, "reason": reason}

    async def _compare(self, loop: Loop, run_id: str, baseline_id: str) -> Comparison:
        if run_id == baseline_id:
            raise InvalidRequest("The candidate is the current policy")
        rows = [await self._read_run(loop, one) for one in (run_id, baseline_id)]
        return await asyncio.to_thread(compare_rows, run_id, rows[0], baseline_id, rows[1])

    async def _read_run(self, loop: Loop, run_id: str) -> dict[str, Row]:
        """The rows of a run of an evaluation by their content."""
        trials: dict[str, list[Json]] = {}
        slices = self._records.read_calls(
            loop.caller, loop.asked.project_id, filter={"parent_ids": [run_id]}, columns=["op_name", "inputs", "output"]
        )
        async for calls in slices:
            for call in calls:
                if call.operation == PREDICT_AND_SCORE and isinstance(call.output, dict):
                    key = orjson.dumps(call.inputs.get("example"), option=orjson.OPT_SORT_KEYS).decode()
                    found = {"model_output": call.output.get("output"), "scores": call.output.get("scores")}
                    found["model_latency_seconds"] = call.output.get("model_latency")
                    trials.setdefault(key, []).append(found)
        return {key: read_row({"row_digest": key}, found) for key, found in trials.items()}

    async def _promote(self, loop: Loop, old: int, new: int) -> Promoted:
        """Let the model's name mean the candidate, unless it means something else by now."""
        # What was scored before the promotion says nothing about it.
        at, models = times.now(), self._training.models
        if await models.latest(loop.model) == old:
            with contextlib.suppress(Conflict):  # another step was published since; told below
                await models.roll_back(loop.model, new, instead_of=old)
        latest = await models.latest(loop.model)
        if latest != new:
            reason = (
                f"The model's name means step {latest} by now, with which step {new} was not compared; improve again"
            )
            return {"step": new, "reason": reason}
        return {"step": new, "at": at, "reason": None}

    async def _watch(self, loop: Loop, old: int, new: int, since: int) -> Watched:
        """Whether the promotion was taken back; raises Later as long as it is watched."""
        watch = loop.asked.watch
        assert watch is not None
        latest = await self._training.models.latest(loop.model)
        if latest is None:
            raise Later(_WATCH_SECONDS)  # its base model is not served at the moment
        if latest == old:
            # A server that ended in the middle of it had pointed the name back already.
            return {"rolled_back": True, "reason": f"The model's name means step {old} again"}
        if latest != new:
            return {"rolled_back": False, "reason": f"The model's name means step {latest}, which is watched elsewhere"}
        scores = await self._read_scores(loop, since)
        average = mean(scores) if scores else None
        if average is not None and len(scores) >= watch.calls and average < watch.below:
            reason = (
                f"The newest {len(scores)} scores of {watch.monitor} have a mean of {average:.3g}, below "
                f"{watch.below:g}: the name points to step {old} again"
            )
            try:
                await self._training.models.roll_back(loop.model, old, instead_of=new)
            except Conflict:  # the next look tells what it means by now
                raise Later(_WATCH_SECONDS) from None
            return {"scores": len(scores), "mean": average, "rolled_back": True, "reason": reason}
        if times.now() >= since + int(watch.hours * 3600 * times.SECOND):
            return {"scores": len(scores), "mean": average, "rolled_back": False, "reason": None}
        step = loop.log.find("watch")
        if step is None or step["result"] != {"scores": len(scores), "mean": average}:
            await loop.log.note(scores=len(scores), mean=average)
        raise Later(_WATCH_SECONDS)

    async def _read_scores(self, loop: Loop, since: int) -> list[float]:
        """The newest scores that the monitor gave calls which began after an instant, as many as decide."""
        watch, project = loop.asked.watch, loop.caller.open(loop.asked.project_id)
        assert watch is not None
        window = Window(since, times.now() + 1, None, refs.object_ref(project, "object", watch.monitor, "*"))
        # Scores of calls that began earlier may come later: a few more are read than decide.
        rows: deque[Sequence[Any]] = deque(maxlen=4 * watch.calls)
        await self._store.feedback.scan(project, window, ("weave_ref", "payload"), rows.append)
        ids = [refs.parse(ref).name for ref, _ in rows]
        calls = await find_calls(self._records, loop.caller, loop.asked.project_id, ids, ["id", "started_at"])
        began = {call.id: times.parse(call.started_at) or 0 for call in calls.values()}
        found = [
            number_of(orjson.loads(payload).get("output"))
            for (_, payload), call_id in zip(rows, ids, strict=True)
            if began.get(call_id, 0) >= since
        ]
        return [number for number in found if number is not None][-watch.calls :]

    async def _needed_steps(self, model: ModelRow) -> dict[int, str]:
        """The steps that open improvements of a model start from, judge or may go back to."""
        needed: dict[int, str] = {}
        for job in await self._jobs.query(model.project_id, [KIND], OPEN):
            if job.body["model_id"] == model.id:
                steps = [step["result"].get("step") for step in job.progress.get("steps", ())]
                known = [step for step in steps if step is not None]
                needed |= dict.fromkeys({*known[:1], *known[-2:]}, f"the improvement {job.id} needs it")
        return needed


def _too_few(found: WeakRows) -> str:
    """Why there is nothing to train on, and what to do."""
    if not found.calls:
        return (
            "No call is weak by these conditions. See the calls that they choose on the page Traces; raise `below`, "
            "widen the filter, or let a monitor score more of them"
        )
    skipped = "; ".join(f"{count} calls: {reason}" for reason, count in found.skipped.most_common(3))
    left_out = f" ({skipped})" if skipped else ""
    return (
        f"{found.calls} weak calls hold {len(found.rows)} different chats{left_out}; {FEWEST} are needed, as a part "
        "is held out. Widen the conditions, or correct `columns`"
    )
