"""The steps of an improvement as its job keeps them: what is done is not done again, and its CPU seconds are counted.

CPU seconds are those of the server and its processes while a step is at work.
"""

from collections.abc import Awaitable, Callable

from heddle.evals.jobs import JobRun
from heddle.store.control.eval_jobs import JobRow
from heddle.wire import times
from heddle.wire.jsontypes import Json


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
        self._progress: Json = {"steps": [], **(job.progress or {})}
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

    def find(self, name: str, number: int | None = None) -> Json | None:
        """The entry of a step that was begun."""
        return next((step for step in self.steps if (step["name"], step["number"]) == (name, number)), None)

    async def do(self, name: str, work: Callable[[], Awaitable[Json]], number: int | None = None) -> Json:
        """The result of a step, which is worked on unless it is done; raises what the work does, BudgetSpent again."""
        step = self.find(name, number)
        if step is None:
            began = {"state": "running", "started_at": times.to_iso(times.now()), "ended_at": None, "seconds": 0.0}
            step = {"name": name, "number": number, **began, "result": {}}
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
        result: Json = step["result"]
        return result

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

    async def _end(self, step: Json, state: str) -> None:
        self._count(step)
        step |= {"state": state, "ended_at": times.to_iso(times.now())}
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


def spent_seconds(steps: list[Json]) -> float:
    """CPU seconds that steps took; watching takes none."""
    return float(sum(step["seconds"] for step in steps))
