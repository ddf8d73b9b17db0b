"""The way of a run: answer and score what is not stored yet, store each case in one commit, sum everything up."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.jobs.run import first_failure
from heddle.evals.running.asking import Asker, is_not_the_rows
from heddle.evals.running.calls import EVALUATE, PREDICT_AND_SCORE, SUMMARIZE, Root, Tree
from heddle.evals.running.prediction import Case, Predictor, scored
from heddle.evals.scorers.base import Scorer, number_of
from heddle.evals.summary import Summary
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

Report = Callable[[int], Awaitable[None]]
"""Told how many cases are done, now and then."""
_REPORT_SECONDS = 1.0
_PARTS = frozenset(("output", "model_latency"))
_TABLE_ROWS = 1000
_RESULTS = {"_type": "EvaluationResults", "_class_name": "EvaluationResults", "_bases": ["Object", "BaseModel"]}


class RunDeleted(InvalidRequest):
    """The root of a run was deleted while it ran."""


@dataclass(slots=True)
class Result:
    """What a run came to."""

    summary: Json
    score: float
    """The mean over cases and scorers; a case whose answer failed counts 0."""
    cases: int
    failed: int
    """Answers that failed."""


@dataclass(slots=True)
class EvaluationRun:
    """One run, which may have been begun before; the same root is the same calls."""

    records: Records
    caller: Caller
    root: Root
    predict_op: str
    predictor: Predictor
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
    _lost: int = 0
    _last_loss: str = ""
    _reported: float = 0.0

    async def execute(self) -> Result:
        """Do what is left of the run and end its root; raises HeddleError, and then the root is still open."""
        await self._begin()
        tree = Tree(self.root, self._ops, self.predict_op)
        finished = await self._finished()
        try:
            await self._insist()
            await self._work(tree, finished)
            await self._insist()
        except RunDeleted:
            await self._sweep()
            raise
        if not finished and self._lost == len(self._places):
            raise InvalidRequest(f"All {self._lost} rows failed, the last with: {self._last_loss}")
        return await self._close(tree)

    async def _begin(self) -> None:
        names = {EVALUATE, PREDICT_AND_SCORE, SUMMARIZE, self.predict_op}
        names |= {f"{scorer.class_name}.score" for scorer in self.scorers}
        for name in sorted(names):
            self._ops[name] = (await self.records.placeholder_op(self.caller, self.root.project, name)).ref
        await self.records.start_call(self.caller, self.root.project, self.root.start(self._ops[EVALUATE]))

    async def _insist(self) -> None:
        """Raise RunDeleted when nobody wants the run any more."""
        project, chosen = self.root.project, {"call_ids": [self.root.id]}
        async for calls in self.records.read_calls(self.caller, project, filter=chosen, columns=["id"]):
            if calls:
                return
        raise RunDeleted("The call of the run was deleted")

    async def _sweep(self) -> None:
        """Take away what was stored after the root had gone, also below a row that went with it."""
        # A write of a worker that was stopped may still wait to be done: this one is done after it.
        await self.records.delete_calls(self.caller, self.root.project, [self.root.id])
        chosen = {"trace_ids": [self.root.id]}
        found = self.records.read_calls(self.caller, self.root.project, filter=chosen, columns=["id"])
        left = [call["id"] async for calls in found for call in calls]
        if left:
            await self.records.delete_calls(self.caller, self.root.project, left)

    async def _finished(self) -> set[str]:
        """The ids of the cases that are stored already."""
        found = set[str]()
        async for calls in self._children("id", "ended_at"):
            found |= {call["id"] for call in calls if call.get("ended_at") is not None}
        return found

    def _children(self, *columns: str) -> AsyncIterator[list[Json]]:
        return self.records.read_calls(
            self.caller, self.root.project, filter={"parent_ids": [self.root.id]}, columns=list(columns)
        )

    async def _work(self, tree: Tree, finished: set[str]) -> None:
        cases, turn = self.cases(), asyncio.Lock()

        async def worker() -> None:
            while True:
                async with turn:
                    case = await anext(cases, None)
                    if case is None:
                        return
                    self._places[tree.row_id(case.key)] = len(self._places)
                if tree.row_id(case.key) not in finished:
                    await self._case(tree, case)
                await self._count()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.parallel):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            raise first_failure(errors) from None

    async def _case(self, tree: Tree, case: Case) -> None:
        prediction = await self.predictor.predict(case)
        if prediction.problem is None:
            prediction.scores = await scored(prediction.output, case.value, self.scorers, self.ask)
        self._mind([prediction.problem, *(score.problem for score in prediction.scores)])
        # Feedback first: a case is done when its calls are stored, and then it is not looked at again.
        feedback = tree.feedback(prediction)
        if feedback:
            await self.records.add_feedback(self.caller, self.root.project, feedback)
        await self.records.complete_calls(self.caller, self.root.project, tree.calls(prediction))

    def _mind(self, problems: Sequence[HeddleError | None]) -> None:
        problem = next((problem for problem in problems if problem is not None and is_not_the_rows(problem)), None)
        if problem is None:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self._lost += 1
        self._last_loss = problem.reason
        if self.patience == 1:
            raise problem
        if self._in_a_row >= self.patience:
            raise InvalidRequest(f"{self._in_a_row} rows in a row failed, the last with: {problem.reason}")

    async def _count(self) -> None:
        self._done += 1
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            self._reported = time.monotonic()
            await self._insist()
            if self.report is not None:
                await self.report(self._done)

    async def _close(self, tree: Tree) -> Result:
        """Sum up what is stored, and end the root in the same commit."""
        started, summary = times.now(), Summary([scorer.name for scorer in self.scorers])
        result = Result({}, 0.0, 0, 0)
        digests: dict[str, str] = {}
        async for calls in self._children("id", "output", "exception"):
            rows = [(call["id"], call["output"]) for call in calls if call["id"] in self._places and _is_result(call)]
            for _, output in rows:
                self._take(output, summary, result)
            for start in range(0, len(rows), _TABLE_ROWS):
                part = rows[start : start + _TABLE_ROWS]
                _, made = await self.records.put_table(self.caller, self.root.project, [output for _, output in part])
                digests |= zip([call_id for call_id, _ in part], made, strict=True)
        result.summary = summary.result()
        result.score /= max(1, result.cases)
        table = await self._results([digests[call_id] for call_id in sorted(digests, key=self._places.__getitem__)])
        start_half, end_half = tree.summary(table, started, result.summary)
        ends = [end_half, self.root.end(result.summary)]
        await self.records.write_calls(self.caller, self.root.project, [start_half], ends)
        return result

    def _take(self, output: Json, summary: Summary, result: Result) -> None:
        scores = output["scores"]
        summary.add(output["output"], scores, output["model_latency"])
        numbers = [
            number_of(scorer.measured(scores[scorer.name])) or 0.0 for scorer in self.scorers if scorer.name in scores
        ]
        result.cases += 1
        result.failed += output["output"] is None and not scores
        result.score += sum(numbers) / len(self.scorers)

    async def _results(self, row_digests: Sequence[str]) -> str:
        """The ref of the object that holds the results as a table."""
        table = await self.records.join_table(self.caller, self.root.project, row_digests)
        rows = f"{refs.INTERNAL}{refs.internal_project(self.root.project)}/table/{table}"
        value = {**_RESULTS, "name": None, "description": None, "rows": rows}
        made = await self.records.publish(self.caller, self.root.project, "EvaluationResults", value)
        return made.ref


def _is_result(call: Json) -> bool:
    """False for the call of a case that somebody else ended anew, with an output of another kind."""
    output = call["output"]
    return isinstance(output, dict) and isinstance(output.get("scores"), dict) and output.keys() >= _PARTS


async def fail(records: Records, caller: Caller, root: Root, problem: str) -> None:
    """Store a root that ended with an exception, whether it was begun or not."""
    op = (await records.placeholder_op(caller, root.project, EVALUATE)).ref
    await records.write_calls(caller, root.project, [root.start(op)], [root.end(None, problem)])
