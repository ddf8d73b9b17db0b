"""One run of an evaluation: answer and score what is not stored yet, store each case in one commit, sum everything up.

The ids of its calls follow from the id of the run, so that what is begun again stores nothing twice.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.objects import is_ref
from heddle.evals.predictions import Asker, Case, Predict, Prediction, Score, TokenCounts, is_not_the_rows, score_output
from heddle.evals.scorers import Scorer, is_number, number_of
from heddle.jobs.runner import TaskGroup
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.means import Mean, mean, with_one_more
from heddle.wire.records import Call, CallEnd, CallStart, NewFeedback, Records, object_value
from heddle.wire.trials import EVALUATE, PREDICT_AND_SCORE, SUMMARIZE

_NAMES = uuid.UUID("5b1f4a50-6a0e-5f0b-8d6c-2e1d4c7b9a63")
"""What the ids of the calls of a run are derived under."""
META = "_weave_eval_meta"
UNSCORED = "unscored"
"""What the summary of a run's call has beside its status where answers have no score."""
WORKER: Json = {"evaluate_model_worker": True}
SCORER: Json = {"weave": {"kind": "scorer"}}


def derived_id(name: str) -> str:
    """An id that follows from a name."""
    return str(uuid.uuid5(_NAMES, name))


@dataclass(frozen=True, slots=True)
class Root:
    """The call of a whole run."""

    id: str
    project: str
    """`entity/project`."""
    started_at: int
    evaluation: str
    """Internal ref."""
    model: str
    """Internal ref, or the name of a chat model."""
    label: str | None = None
    attributes: Json = field(default_factory=lambda: {META: WORKER})

    def start(self, op: str) -> CallStart:
        """The first half; `op` is the ref of its op."""
        day = times.to_iso(self.started_at)[:10]
        return CallStart(
            id=self.id,
            trace_id=self.id,
            op_name=op,
            display_name=self.label or f"eval-{day}-{self.id[-6:]}",
            started_at=self.started_at,
            attributes=self.attributes,
            inputs={"self": self.evaluation, "model": self.model},
        )

    def end(self, output: Any, problem: str | None = None, summary: Json | None = None) -> CallEnd:
        """The second half."""
        ended_at = max(times.now(), self.started_at)
        return CallEnd(id=self.id, ended_at=ended_at, output=output, exception=problem, summary=summary or {})


class Tree:
    """The calls below a root; `ops` are the refs of ops by name."""

    def __init__(self, root: Root, ops: Mapping[str, str], predict_op: str) -> None:
        self.root = root
        self._ops = ops
        self._predict_op = predict_op
        self._project = refs.internal_project(root.project)
        self._meta: Json = {META: {**WORKER, "declarative": True}}

    def row_id(self, key: str) -> str:
        """The id of the call of a case."""
        return derived_id(f"{self.root.id}/{key}")

    def calls(self, prediction: Prediction) -> tuple[list[CallStart], list[CallEnd]]:
        """The calls of a case: the answer, its scores, and what holds them together."""
        case, root, scores = prediction.case, self.root, prediction.scores
        row_id, columns = self.row_id(case.key), _columns_of(case.example, case.value)
        inputs = {**columns, "self": root.model}
        predict = self._start(self._predict_id(case.key), row_id, self._predict_op, prediction.started_at, inputs)
        starts = [predict]
        ends = [end_of(predict.id, prediction.ended_at, prediction.output, prediction.problem, prediction.usage)]
        for score in scores:
            inputs = {**score.scorer.arguments(columns), "output": prediction.output}
            inputs |= {"self": score.scorer.ref} if score.scorer.ref else {}
            score_id = self._score_id(case.key, score)
            starts.append(self._start(score_id, row_id, score.scorer.op_name, score.started_at, inputs, SCORER))
            ends.append(end_of(score_id, score.ended_at, score.value, score.problem, score.usage))
        inputs = {"self": root.evaluation, "model": root.model, "example": case.example}
        starts.append(self._start(row_id, root.id, PREDICT_AND_SCORE, prediction.started_at, inputs))
        output = {
            "output": prediction.output,
            "scores": {score.scorer.name: score.value for score in scores if score.problem is None},
            "model_latency": prediction.seconds,
        }
        problems = [prediction.problem, *(score.problem for score in scores)]
        problem = next((problem for problem in problems if problem is not None), None)
        ends.append(end_of(row_id, max(end.ended_at for end in ends), output, problem, {}))
        return starts, ends

    def feedback(self, prediction: Prediction) -> list[NewFeedback]:
        """The feedback on the answer of a case: one row per score of a stored scorer."""
        key = prediction.case.key
        return [
            score_feedback(score, self._project, self._predict_id(key), score_id, score_id)
            for score in prediction.scores
            if score.problem is None and score.scorer.ref and (score_id := self._score_id(key, score))
        ]

    def summary(self, table: str, started_at: int, output: Json) -> tuple[CallStart, CallEnd]:
        """The halves of the call that sums the run up; `table` is the ref of an EvaluationResults object."""
        inputs = {"self": self.root.evaluation, "eval_table": table}
        start = self._start(derived_id(f"{self.root.id}/summarize"), self.root.id, SUMMARIZE, started_at, inputs)
        return start, CallEnd(id=start.id, ended_at=times.now(), output=output)

    def _start(
        self, call_id: str, parent: str, op: str, started_at: int, inputs: Json, attributes: Json | None = None
    ) -> CallStart:
        return CallStart(
            id=call_id,
            trace_id=self.root.id,
            parent_id=parent,
            op_name=self._ops[op],
            started_at=started_at,
            attributes={**self._meta, **(attributes or {})},
            inputs=inputs,
        )

    def _predict_id(self, key: str) -> str:
        return derived_id(f"{self.root.id}/{key}/predict")

    def _score_id(self, key: str, score: Score) -> str:
        return derived_id(f"{self.root.id}/{key}/score/{score.scorer.name}")


def _columns_of(example: Any, value: Json) -> Json:
    """The columns of a row as a call shows them: refs into the row where it is stored, else their values."""
    if not is_ref(example):
        return dict(value)
    return {column: f"{example}/key/{refs.quote_part(column)}" for column in value}


def end_of(call_id: str, ended_at: int, output: Any, problem: Exception | None, usage: TokenCounts) -> CallEnd:
    """The second half of a call that answered or failed."""
    return CallEnd(
        id=call_id,
        ended_at=ended_at,
        output=output,
        exception=None if problem is None else str(problem) or "failed",
        summary={"usage": usage} if usage else {},
    )


def score_feedback(
    score: Score, project: str, scored_id: str, score_id: str | None, seed: str, trigger: str | None = None
) -> NewFeedback:
    """The feedback of a score on a call (internal project id); its id follows from `seed`."""
    return NewFeedback(
        id=derived_id(f"{seed}/feedback"),
        weave_ref=refs.call_ref(project, scored_id),
        feedback_type=f"wandb.runnable.{score.scorer.name}",
        payload={"output": score.value},
        runnable_ref=score.scorer.ref,
        call_ref=None if score_id is None else refs.call_ref(project, score_id),
        trigger_ref=trigger,
    )


class Column:
    """One column of values: truths as count and fraction, numbers as their mean, objects key by key.

    The first value that is not null says which of these it is. An empty object stands for a row without a score: it
    counts in the fractions of truths, and in nothing else.
    """

    def __init__(self) -> None:
        self._kind: type | None = None
        self._count = self._true = 0
        self._mean = Mean()
        self._parts: dict[str, Column] = {}

    def add(self, value: Any) -> None:
        """Take one value."""
        if value is None or value == {}:
            return
        kind = bool if isinstance(value, bool) else float if is_number(value) else type(value)
        self._kind = self._kind or kind
        if kind is not self._kind:
            return
        self._count += 1
        if kind is bool:
            self._true += value
        elif kind is float:
            self._mean.add(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._parts.setdefault(key, Column()).add(item)

    def result(self, unscored: int = 0) -> Json | None:
        """What it comes to with so many rows without a score; None where there is nothing to sum."""
        if self._kind is bool:
            return {"true_count": self._true, "true_fraction": self._true / (self._count + unscored)}
        if self._kind is float:
            return {"mean": self._mean.value}
        made: Json = {}
        for key, column in self._parts.items():
            part = column.result(unscored)
            if part is not None:
                # As the SDK has it: a part that is named as one of its own keys is not nested once more.
                made.update(part if key in part else {key: part})
        return made or None


class Summary:
    """The summary of an evaluation."""

    def __init__(self, scorers: Sequence[str]) -> None:
        self.rows = 0
        self._scored = dict.fromkeys(scorers, 0)
        self._scores = {name: Column() for name in scorers}
        self._output, self._latency = Column(), Column()

    def add(self, output: Any, scores: Json, latency: float | None) -> None:
        """Take one row and trial; a scorer that is not in its scores gave none."""
        self.rows += 1
        self._output.add(output)
        self._latency.add(latency)
        for name, value in scores.items():
            self._scores.setdefault(name, Column()).add(value)
            self._scored[name] = self._scored.get(name, 0) + (value != {})

    def result(self) -> Json:
        """Per scorer the summary of its values; the mean latency in seconds; that of the answers where it has one."""
        made: Json = {"output": self._output.result()}
        made |= {name: column.result(self.rows - self._scored[name]) for name, column in self._scores.items()}
        made["model_latency"] = self._latency.result()
        return {name: value for name, value in made.items() if value is not None}


Report = Callable[[int], Awaitable[None]]
"""Hears how many cases are done, now and then."""
_REPORT_SECONDS = 1.0
_PARTS = frozenset(("output", "model_latency"))
_TABLE_ROWS = 1000
_RESULTS = object_value("EvaluationResults")


class RunDeleted(InvalidRequest):
    """The root of a run was deleted while it ran."""


@dataclass(slots=True)
class RunResult:
    """What a run came to."""

    summary: Json
    score: float
    """The mean over cases and scorers; a case whose answer failed counts 0."""
    cases: int
    failed: int
    """Answers that failed."""
    unscored: dict[str, Json] = field(default_factory=dict)
    """By scorer how many `answers` have no score of it that counts, and the `reason` of the first."""

    def add_unscored(self, scorer: str, reason: str) -> None:
        """Count an answer that a scorer gave no score that counts."""
        self.unscored.setdefault(scorer, {"answers": 0, "reason": reason})["answers"] += 1


@dataclass(slots=True)
class EvaluationRun:
    """One run, which may have been begun before; the same root is the same calls."""

    records: Records
    caller: Caller
    root: Root
    predict_op: str
    predict: Predict
    scorers: Sequence[Scorer]
    ask: Asker
    cases: Callable[[], AsyncIterator[Case]]
    parallel: int
    patience: int
    """So many rows in a row may fail for reasons that are not their own; then the run fails. 1: at once, as it did."""
    report: Report | None = None
    _ops: dict[str, str] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)
    _done: int = 0
    _in_a_row: int = 0
    _failures: int = 0
    _last_failure: str = ""
    _reported: float = 0.0

    async def execute(self) -> RunResult:
        """Do what is left of the run and end its root; raises HeddleError, and then the root is still open."""
        await self._begin()
        tree = Tree(self.root, self._ops, self.predict_op)
        found = set[str]()
        async for calls in self._children("id", "ended_at"):
            found |= {call.id for call in calls if call.ended_at is not None}
        finished = found
        try:
            await self._check_root()
            await self._run_cases(tree, finished)
            await self._check_root()
        except RunDeleted:
            await self._delete_rest()
            raise
        if not self._places:
            raise InvalidRequest("There are no rows to score")
        if not finished and self._failures == len(self._places):
            raise InvalidRequest(f"All {self._failures} rows failed; the last error: {self._last_failure}")
        return await self._close(tree)

    async def _begin(self) -> None:
        names = {EVALUATE, PREDICT_AND_SCORE, SUMMARIZE, self.predict_op}
        names |= {scorer.op_name for scorer in self.scorers}
        for name in sorted(names):
            self._ops[name] = (await self.records.placeholder_op(self.caller, self.root.project, name)).ref
        await self.records.write_calls(self.caller, self.root.project, [self.root.start(self._ops[EVALUATE])], [])

    async def _check_root(self) -> None:
        """Raise RunDeleted when nobody wants the run any more."""
        project, chosen = self.root.project, {"call_ids": [self.root.id]}
        async for calls in self.records.read_calls(self.caller, project, filter=chosen, columns=["id"]):
            if calls:
                return
        raise RunDeleted("The call of the run was deleted")

    async def _delete_rest(self) -> None:
        """Take away what was stored after the root had gone, also below a row that went with it."""
        # A write of a worker that was stopped may still wait to be done: this one is done after it.
        await self.records.delete_calls(self.caller, self.root.project, [self.root.id])
        chosen = {"trace_ids": [self.root.id]}
        found = self.records.read_calls(self.caller, self.root.project, filter=chosen, columns=["id"])
        left = [call.id async for calls in found for call in calls]
        if left:
            await self.records.delete_calls(self.caller, self.root.project, left)

    def _children(self, *columns: str) -> AsyncIterator[list[Call]]:
        return self.records.read_calls(
            self.caller, self.root.project, filter={"parent_ids": [self.root.id]}, columns=list(columns)
        )

    async def _run_cases(self, tree: Tree, finished: set[str]) -> None:
        cases, turn = self.cases(), asyncio.Lock()

        async def worker() -> None:
            while True:
                async with turn:
                    case = await anext(cases, None)
                    if case is None:
                        return
                    self._places[tree.row_id(case.key)] = len(self._places)
                if tree.row_id(case.key) not in finished:
                    await self._run_case(tree, case)
                await self._report_progress()

        async with TaskGroup(self.parallel) as group:
            for _ in range(self.parallel):
                group.add(worker)

    async def _run_case(self, tree: Tree, case: Case) -> None:
        prediction = await self.predict(case)
        if prediction.problem is None:
            prediction.scores = await score_output(prediction.output, case.value, self.scorers, self.ask)
        self._count_failures([prediction.problem, *(score.problem for score in prediction.scores)])
        # Feedback first: a case is done when its calls are stored, and then it is not looked at again.
        feedback = tree.feedback(prediction)
        if feedback:
            await self.records.add_feedback(self.caller, self.root.project, feedback)
        await self.records.write_calls(self.caller, self.root.project, *tree.calls(prediction))

    def _count_failures(self, problems: Sequence[HeddleError | None]) -> None:
        problem = next((problem for problem in problems if problem is not None and is_not_the_rows(problem)), None)
        if problem is None:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self._failures += 1
        self._last_failure = problem.reason
        if self.patience == 1:
            raise problem
        if self._in_a_row >= self.patience:
            raise InvalidRequest(f"{self._in_a_row} consecutive rows failed; the last error: {problem.reason}")

    async def _report_progress(self) -> None:
        self._done += 1
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            self._reported = time.monotonic()
            await self._check_root()
            if self.report is not None:
                await self.report(self._done)

    async def _close(self, tree: Tree) -> RunResult:
        """Sum up what is stored, and end the root in the same commit."""
        started, summary = times.now(), Summary([scorer.name for scorer in self.scorers])
        result = RunResult({}, 0.0, 0, 0)
        digests: dict[str, str] = {}
        async for calls in self._children("id", "output", "exception"):
            done = [call for call in calls if call.id in self._places and _is_result(call.output)]
            for call in done:
                self._add_case(call, summary, result)
            rows = [(call.id, call.output) for call in done]
            for start in range(0, len(rows), _TABLE_ROWS):
                part = rows[start : start + _TABLE_ROWS]
                _, made = await self.records.put_table(self.caller, self.root.project, [output for _, output in part])
                digests |= zip([call_id for call_id, _ in part], made, strict=True)
        result.summary = summary.result()
        table = await self._publish_results(
            [digests[call_id] for call_id in sorted(digests, key=self._places.__getitem__)]
        )
        start_half, end_half = tree.summary(table, started, result.summary)
        ends = [
            end_half,
            self.root.end(result.summary, summary={UNSCORED: result.unscored} if result.unscored else None),
        ]
        await self.records.write_calls(self.caller, self.root.project, [start_half], ends)
        return result

    def _add_case(self, call: Call, summary: Summary, result: RunResult) -> None:
        output: Json = call.output
        scores = output["scores"]
        summary.add(output["output"], scores, output["model_latency"])
        has_failed = output["output"] is None and not scores
        numbers = []
        for scorer in self.scorers:
            number = number_of(scorer.measured(scores[scorer.name])) if scorer.name in scores else None
            numbers.append(number or 0.0)
            if scorer.name not in scores and not has_failed:
                result.add_unscored(scorer.name, call.exception or "The scorer failed")
            elif scorer.name in scores and number is None and scorer.is_numeric:
                result.add_unscored(scorer.name, "Its result has no number or boolean")
        result.score = with_one_more(result.score, result.cases, mean(numbers))
        result.cases += 1
        result.failed += has_failed

    async def _publish_results(self, row_digests: Sequence[str]) -> str:
        """The ref of the object that holds the results as a table."""
        table = await self.records.join_table(self.caller, self.root.project, row_digests)
        rows = f"{refs.INTERNAL}{refs.internal_project(self.root.project)}/table/{table}"
        value = {**_RESULTS, "name": None, "description": None, "rows": rows}
        made = await self.records.publish(self.caller, self.root.project, "EvaluationResults", value)
        return made.ref


def _is_result(output: Any) -> bool:
    """False for the output of a case that somebody else ended anew."""
    return isinstance(output, dict) and isinstance(output.get("scores"), dict) and output.keys() >= _PARTS


async def fail_run(records: Records, caller: Caller, root: Root, problem: str) -> None:
    """Store a root that ended with an exception, whether it was begun or not."""
    op = (await records.placeholder_op(caller, root.project, EVALUATE)).ref
    await records.write_calls(caller, root.project, [root.start(op)], [root.end(None, problem)])
