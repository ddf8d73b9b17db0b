"""Jobs of evaluation: a durable queue, and the one runner of this server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Depends

from heddle.auth import Caller, Scope
from heddle.errors import HeddleError, InvalidRequest, NotFound, QuotaReached
from heddle.http.routing import Service
from heddle.ipc.bounded import OWNER
from heddle.jobs.metrics import JobMetrics
from heddle.jobs.runner import Attempt, Runner
from heddle.settings import Settings
from heddle.store.control.coordination import CANCELLED, FAILED, SUCCEEDED
from heddle.store.control.eval_jobs import LEASE_SECONDS, STATES, EvalJobs, JobRow
from heddle.store.data_folder import explain_disk
from heddle.wire import times
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontypes import Json


class JobCancelled(HeddleError):
    """Somebody asked for the end of the job."""

    status = 409


class Later(Exception):
    """Raised by a worker that waits for something else: its job leaves its place and goes on after so many seconds."""

    def __init__(self, seconds: float, reason: str | None = None) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        self.reason = reason


CheckRoom = Callable[[str], None]
"""Raises StorageFull where a project stores as much as it may."""


class JobRun:
    """What a worker is given beside its job."""

    def __init__(self, attempt: Attempt[JobRow], rows: EvalJobs, check_room: CheckRoom | None = None) -> None:
        self.job = attempt.job
        self.caller = Caller.from_json(self.job.caller)
        self._rows = rows
        self._check_room = check_room

    async def progress(self, progress: Json) -> None:
        """Store how far it is; it counts as progress, so that attempts begin anew. Raises StorageFull."""
        await self._rows.note(self.job.id, progress)
        self.check_room()

    def check_room(self) -> None:
        """Raise StorageFull where its project stores as much as it may."""
        if self._check_room is not None:
            self._check_room(self.job.project_id)


Worker = Callable[[JobRow, JobRun], Coroutine[Any, Any, Json]]
"""Does a job and returns its result; raises HeddleError, of which 429 and 5xx are tried again later.

The same job may be begun again, so what is stored already is not done twice.
"""
Closing = Callable[[JobRow, JobRun, str], Awaitable[None]]
Removal = Callable[[JobRow], Awaitable[None]]


class JobKind(NamedTuple):
    """What `Jobs.register` says of the jobs of a kind."""

    worker: Worker
    closing: Closing | None
    removal: Removal | None
    is_storing: bool


ATTEMPTS = 5
"""Attempts without progress after which a job fails."""
CRASHES = 2
"""Ends of a server, in the middle of a job and without progress, after which it is never run again."""
FIRST_PAUSE = 2 * times.SECOND
QUOTA_SECONDS = 60
"""A job that a quota refused tries again after at most so many seconds: the quota may have been raised."""
_KEPT = 30 * times.DAY
_TIDY_SECONDS = 3600.0


class Jobs(Runner[JobRow]):
    """The durable queue and the one runner of this server."""

    logger = logging.getLogger("heddle.evals")
    name = "evaluation"

    def __init__(self, settings: Settings, rows: EvalJobs, metrics: JobMetrics) -> None:
        super().__init__(rows, settings.evaluation_workers, LEASE_SECONDS)
        self._metrics = metrics
        self._rows = rows
        self._most_open = settings.evaluation_queue
        self._kinds: dict[str, JobKind] = {}
        self.check_room: CheckRoom | None = None
        self._tidied = -_TIDY_SECONDS

    def register(
        self,
        kind: str,
        worker: Worker,
        closing: Closing | None = None,
        removal: Removal | None = None,
        *,
        is_storing: bool = True,
    ) -> None:
        """Say what runs the jobs of a kind; those of a kind that nobody registered wait.

        `closing` is awaited with a text when a job ends otherwise than by its worker (failed, or cancelled): it
        closes what the worker had opened. `removal` is awaited once the end is stored, whichever it is, and removes
        what another attempt would have needed. Those that store end where their project is full.
        """
        assert kind not in self._kinds, f"{kind} is registered already"
        self._kinds[kind] = JobKind(worker, closing, removal, is_storing)
        self.wake()

    async def start(self) -> None:
        """Queue what was at work when the last server ended, where one owns all, and take jobs."""
        left = await self._rows.put_back_all()
        if left:
            self.logger.info("%d evaluation jobs that an earlier server started will continue", left)
        await super().start()

    async def submit(
        self,
        kind: str,
        caller: Caller,
        project_id: str,
        body: Json,
        *,
        job_id: str | None = None,
        check: Callable[[Sequence[JobRow]], None] | None = None,
    ) -> JobRow:
        """Queue a job and return after its commit; the same id again is the same job.

        `check` is told the open jobs of the kind in the project, and raises what forbids one more.
        Raises Forbidden outside the caller's reach and Busy when too many of the project wait.
        """
        caller.require(Scope.WRITE).open(project_id)
        row = JobRow(
            id=job_id or times.uuid7(),
            kind=kind,
            project_id=project_id,
            body=body,
            caller=caller.to_json(),
            created_at=times.now(),
        )
        stored = await self._rows.add(row, self._most_open, check)
        if (stored.kind, stored.project_id) != (kind, project_id):
            raise InvalidRequest(f"The id {stored.id} is already used by another job")
        self.wake()
        return stored

    async def read(self, project_id: str, job_id: str) -> JobRow | None:
        """A job of a project; the route has checked that the caller may read it."""
        return await self._rows.find(project_id, job_id)

    async def find(self, caller: Caller, project_id: str, job_id: str, kind: str, what: str) -> JobRow:
        """The job of a kind in a project of the caller's; raises NotFound, which calls it `what`."""
        caller.open(project_id)
        found = await self._rows.find(project_id, job_id)
        if found is None or found.kind != kind:
            raise NotFound(f"{what.capitalize()} {job_id[:100]!r} not found in {project_id}")
        return found

    async def query(
        self,
        project_id: str,
        kinds: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[JobRow]:
        """The jobs of a project, newest first; raises InvalidRequest for a state that there is not."""
        for state in states or ():
            if state not in STATES:
                raise InvalidRequest(f"Unknown state {state[:100]!r}; expected one of {', '.join(STATES)}")
        return await self._rows.query(project_id, kinds, states, limit, offset)

    async def cancel(self, project_id: str, job_id: str) -> JobRow:
        """Ask for the end of a job; one that is done stays as it is. Raises NotFound."""
        found = await self._rows.ask_to_cancel(project_id, job_id)
        if found is None:
            raise NotFound(f"Job {job_id[:100]!r} not found in {project_id}")
        if job_id in self._at_work:
            self._at_work[job_id].cancel()
        self.wake()
        return found

    async def wait(self, project_id: str, job_id: str) -> JobRow:
        """The job when it is done (or the server stops); raises NotFound."""

        async def is_open() -> bool:
            found = await self._rows.find(project_id, job_id)
            return found is not None and found.ended_at is None

        await self.ended(job_id, is_open)
        found = await self._rows.find(project_id, job_id)
        if found is None:
            raise NotFound(f"Job {job_id[:100]!r} not found in {project_id}")
        return found

    async def _next(self, is_full: bool) -> JobRow | None:
        """A job to be cancelled needs no free place."""
        return await self._rows.take(list(self._kinds), times.now(), only_cancelled=is_full, held=self._at_work)

    async def _rest(self) -> float:
        """Tidy up now and then; a waiting job may begin at its time."""
        clock = asyncio.get_running_loop().time
        if clock() - self._tidied > _TIDY_SECONDS:
            self._tidied = clock()
            await self._rows.forget_older(times.now() - _KEPT)
        soonest = None
        if len(self._tasks) < self._places and not self._is_shared:
            soonest = await self._rows.next_time(list(self._kinds))
        if soonest is None:
            return _TIDY_SECONDS
        return max(0.01, min(_TIDY_SECONDS, (soonest - times.now()) / times.SECOND))

    async def _give_back(self, attempt: Attempt[JobRow]) -> None:
        await self._rows.put_back(attempt.job.id, begun=False)

    async def _failed(self, attempt: Attempt[JobRow], error: Exception) -> float:
        is_ours = not isinstance(error, HeddleError)
        self.logger.warning("the end of job %s could not be stored: %s", attempt.job.id, error, exc_info=is_ours)
        while True:
            try:
                await self._rows.put_back(attempt.job.id, not_before=times.now() + FIRST_PAUSE)
                return 0.0
            except HeddleError:
                await asyncio.sleep(1.0)

    async def _work(self, attempt: Attempt[JobRow]) -> None:
        """Run the worker and store how it ended."""
        job = attempt.job
        run = JobRun(attempt, self._rows, self.check_room if self._kinds[job.kind].is_storing else None)
        OWNER.set(run.caller.owner)
        if not await self._rows.begin(job.id):
            self.logger.warning("job %s has been taken over by another server", job.id)
            return
        result, problem = None, self._find_problem(attempt)
        try:
            if problem is None:
                result, problem = await self._result(attempt, run)
        except Later as later:
            begins = times.now() + int(later.seconds * times.SECOND)
            await self._rows.put_back(job.id, not_before=begins, error=later.reason, begun=False)
            return
        if problem is None:
            await self._finish(job, SUCCEEDED, result=result)
        elif isinstance(problem, JobCancelled):
            await self._end(run, CANCELLED, problem.reason)
        elif _may_pass(problem) and job.attempts < ATTEMPTS:
            pause = FIRST_PAUSE * 2 ** (job.attempts - 1)
            self.logger.warning("job %s (%s) will be retried: %s", job.id, job.kind, problem.reason)
            await self._rows.put_back(job.id, not_before=times.now() + pause, error=problem.reason)
        else:
            await self._end(run, FAILED, problem.reason)

    def _find_problem(self, attempt: Attempt[JobRow]) -> HeddleError | None:
        """Why a job that was taken is not worked on."""
        job = attempt.job
        if attempt.cancelled.is_set():
            return JobCancelled(attempt.cancelled.reason)
        if job.crashes >= CRASHES:
            how = "the server ended, or lost its database," if self._rows.instance.is_shared else "the server ended"
            return HeddleError(f"Gave up: {how} {CRASHES} times while this job was running")
        if job.attempts > ATTEMPTS:
            return HeddleError(f"Gave up after {ATTEMPTS} attempts without progress")
        return None

    async def _result(self, attempt: Attempt[JobRow], run: JobRun) -> tuple[Json | None, HeddleError | None]:
        job = attempt.job
        try:
            run.check_room()
            attempt.worker = asyncio.create_task(self._kinds[job.kind].worker(job, run))
            return await attempt.worker, None
        except asyncio.CancelledError:
            if not attempt.cancelled.is_set():
                raise
            return None, JobCancelled(attempt.cancelled.reason)
        except Later:
            raise
        except QuotaReached as refusal:
            raise Later(min(refusal.retry_after, QUOTA_SECONDS), refusal.reason) from None
        except HeddleError as failure:
            return None, failure
        except Exception as failure:  # a fault of ours: the log gets the traceback, the job a line
            if known := explain_disk(failure):
                return None, known
            self.logger.exception("job %s (%s) failed", job.id, job.kind)
            return None, HeddleError("Internal server error")

    async def _end(self, run: JobRun, state: str, problem: str) -> None:
        job, closing = run.job, self._kinds[run.job.kind].closing
        if closing is not None:
            try:
                await closing(job, run, problem)
            except HeddleError as error:
                if _may_pass(error) and job.attempts <= ATTEMPTS:
                    raise
                self.logger.warning("job %s could not close its resources: %s", job.id, error)
        await self._finish(job, state, error=problem)

    async def _finish(self, job: JobRow, state: str, result: Json | None = None, error: str | None = None) -> None:
        at = times.now()
        if await self._rows.finish(job.id, state, at, result=result, error=error):
            self._metrics.count_ended(job.kind, state, job.started_at, at)
            if removal := self._kinds[job.kind].removal:
                try:
                    await removal(job)
                except OSError as error:
                    self.logger.warning("job %s could not remove its files: %s", job.id, error)


JobsDep = Annotated[Jobs, Depends(Service("jobs"))]


def _may_pass(problem: HeddleError) -> bool:
    """True for a failure that another attempt may not meet: the server was busy, or something did not answer."""
    if isinstance(problem, ProviderFailed) and problem.answered:
        return problem.answered in (408, 425, 429) or problem.answered >= 500
    return problem.status == 429 or problem.status >= 502
