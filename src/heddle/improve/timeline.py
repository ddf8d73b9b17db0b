"""The steps of an improvement as its job keeps them: what is done is not done again, and its CPU seconds are counted.

CPU seconds are those of the server and its processes while a step is at work.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict, TypeVar, cast

from heddle.auth import Caller
from heddle.evals.jobs import JobRun
from heddle.evals.scorers import Scorer
from heddle.improve.schemas import ImprovementCreateReq, StepName
from heddle.store.control.eval_jobs import JobRow
from heddle.store.control.training_models import ModelRow
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

R = TypeVar("R", bound=Mapping[str, object])


class Part(TypedDict):
    """A dataset of weak chats."""

    ref: str
    rows: int


class Selected(TypedDict):
    """What was chosen to train on and to be measured by; `evaluation` is the ref of one of the chats held out."""

    calls: int
    skipped: dict[str, int]
    train: Part
    held_out: Part
    evaluation: str


class Score(TypedDict):
    """What a step scores in an evaluation."""

    score: float
    rows: int
    call_id: str


class Measured(TypedDict):
    """What a step scores on the held-out chats and on the general set."""

    step: int
    held_out: Score
    general: NotRequired[Score]


class Verdict(TypedDict):
    """What a condition of the gate says of a candidate."""

    set: str
    condition: str
    value: float
    refuses: bool


class Judged(Measured):
    """What a candidate scores, and whether the gate lets it pass."""

    conditions: list[Verdict]
    passed: bool
    reason: str | None


class Trained(TypedDict):
    """The step that a training job made."""

    step: int
    metrics: dict[str, float]


class Promoted(TypedDict):
    """The step that the model's name means since an instant, or why not."""

    step: int
    at: NotRequired[int]
    reason: str | None


class Watched(TypedDict):
    """What became of a promotion, by the scores that the monitor gave since."""

    scores: NotRequired[int]
    mean: NotRequired[float | None]
    rolled_back: bool
    reason: str | None


class BudgetSpent(Exception):
    """The CPU seconds of the improvement are used up."""


class Meter:
    """CPU seconds, and where those of each job were read last: a job that leaves its place goes on from there."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read
        self.marks: dict[str, float] = {}


class Timeline:
    """The progress of one job, stored whenever a step begins, gets on or ends."""

    def __init__(self, job: JobRow, run: JobRun, budget_seconds: float, meter: Meter) -> None:
        self._progress: Json = {"steps": [], **job.progress}
        self._run = run
        self._budget = budget_seconds
        self._job_id, self._meter = job.id, meter
        meter.marks.setdefault(job.id, meter.read())

    @property
    def steps(self) -> list[Json]:
        """The entries, in the order in which they began."""
        steps: list[Json] = self._progress["steps"]
        return steps

    @property
    def spent(self) -> float:
        """CPU seconds so far, those since the last commit included."""
        return spent_seconds(self.steps) + self._meter.read() - self._meter.marks[self._job_id]

    @property
    def left(self) -> float:
        """CPU seconds of the budget that are left."""
        return max(0.0, self._budget - self.spent)

    def find(self, name: StepName, number: int | None = None) -> Json | None:
        """The entry of a step that was begun."""
        return next((step for step in self.steps if (step["name"], step["number"]) == (name, number)), None)

    async def do(self, name: StepName, work: Callable[[], Awaitable[R]], number: int | None = None) -> R:
        """The result of a step, which is worked on unless it is done; raises what the work does, BudgetSpent again."""
        step = self.find(name, number)
        if step is None:
            step = {
                "name": name,
                "number": number,
                "state": "running",
                "started_at": times.to_iso(times.now()),
                "ended_at": None,
                "seconds": 0.0,
                "result": {},
            }
            self.steps.append(step)
            self._meter.marks[self._job_id] = self._meter.read()
            await self._save()
        if step["state"] == "stopped":
            raise BudgetSpent
        if step["state"] == "running":
            try:
                step["result"] |= await work()
            except BudgetSpent:
                await self._end(step, "stopped")
                raise
            await self._end(step, "succeeded")
        return cast(R, step["result"])

    async def note(self, **result: object) -> None:
        """Store what the step at work came to so far."""
        self._at_work["result"] |= result
        await self._save()

    async def conclude(self, **outcome: object) -> None:
        """Store what the improvement came to, of which further steps may follow."""
        self._progress |= outcome
        await self._save()

    def check_budget(self) -> None:
        """Raise BudgetSpent where nothing is left."""
        if not self.left:
            raise BudgetSpent

    def count_seconds(self, seconds: float) -> None:
        """The step at work took at least so much elsewhere."""
        self._at_work["seconds"] = max(self._at_work["seconds"], seconds)

    @property
    def _at_work(self) -> Json:
        return next(step for step in reversed(self.steps) if step["state"] == "running")

    async def _end(self, step: Json, state: Literal["succeeded", "stopped"]) -> None:
        self._count(step)
        step["state"], step["ended_at"] = state, times.to_iso(times.now())
        await self._run.progress(self._progress)

    async def _save(self) -> None:
        for step in self.steps:
            if step["state"] == "running":
                self._count(step)
        await self._run.progress(self._progress)

    def _count(self, step: Json) -> None:
        now = self._meter.read()
        if step["name"] != "watch":
            step["seconds"] = round(step["seconds"] + now - self._meter.marks[self._job_id], 3)
        self._meter.marks[self._job_id] = now


def spent_seconds(steps: Sequence[Json]) -> float:
    """CPU seconds that steps took; watching takes none."""
    return float(sum(step["seconds"] for step in steps))


@dataclass(frozen=True, slots=True)
class Loop:
    """One improvement at work."""

    job: JobRow
    caller: Caller
    asked: ImprovementCreateReq
    model: ModelRow
    scorers: Sequence[Scorer]
    max_tokens: int
    log: Timeline

    def address(self, step: int) -> str:
        """A step of the model, as completions take it."""
        return f"{refs.ARTIFACT}{self.model.entity}/{self.model.project}/{self.model.name}:step{step}"

    def named(self, part: str) -> str:
        """The id of an object that belongs to this improvement."""
        kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.asked.name or f"improve-{self.model.name}")
        return f"{kept[:80]}-{self.job.id[-6:]}-{part}"
