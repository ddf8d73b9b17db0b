"""Runs jobs of the queue, so many at a time, until it is told to stop."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from heddle.errors import HeddleError
from heddle.evals.jobs.run import Closing, JobCancelled, JobRun, Worker, first_failure
from heddle.ipc.fair_semaphore import OWNER, owner_of
from heddle.settings import Settings
from heddle.store.control.eval_jobs import CANCELLED, FAILED, LEASE_SECONDS, SUCCEEDED, EvalJobs, JobRow
from heddle.wire import times
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontypes import Json

logger = logging.getLogger("heddle.evals")
ATTEMPTS = 5
"""Attempts without progress after which a job fails."""
CRASHES = 2
"""Ends of a server, in the middle of a job and without progress, after which it is never run again."""
_FIRST_PAUSE = 2 * times.SECOND
_KEPT = 30 * times.DAY
_TIDY_SECONDS = 3600.0
_LOOK_SECONDS = 1.0
"""How often a server looks for what others that share the queue left, ended or want to end."""
_RENEWALS_PER_LEASE = 3


class Runner:
    """One loop that takes jobs, one that keeps their leases, and one task per job at work."""

    def __init__(self, settings: Settings, rows: EvalJobs) -> None:
        self._rows = rows
        self._workers = settings.evaluation_workers
        self._kinds: dict[str, tuple[Worker, Closing | None]] = {}
        self._at_work: dict[str, _Attempt] = {}
        self._news = asyncio.Event()
        self._ended = asyncio.Condition()
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False

    def register(self, kind: str, worker: Worker, closing: Closing | None) -> None:
        """What runs the jobs of a kind."""
        assert kind not in self._kinds, f"{kind} is registered already"
        self._kinds[kind] = (worker, closing)
        self.wake()

    def wake(self) -> None:
        """Look for jobs now."""
        self._news.set()

    def cancel(self, job_id: str) -> None:
        """End a job that is at work; one that waits is taken and ended."""
        attempt = self._at_work.get(job_id)
        if attempt is not None:
            attempt.cancel()
        self.wake()

    async def start(self) -> None:
        """Queue what was at work when the last server ended, where one owns all, and begin."""
        left = await self._rows.put_back_all()
        if left:
            logger.info("%d evaluation jobs go on that an earlier server had begun", left)
        self._loops = [asyncio.create_task(self._run()), asyncio.create_task(self._hold())]

    async def stop(self) -> None:
        """Take no more jobs, interrupt those at work and queue them again."""
        self._stopping = True
        tasks = [*self._loops, *(attempt.task for attempt in self._at_work.values())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        async with self._ended:
            self._ended.notify_all()

    async def ended(self, is_open: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a job is no longer open, or the runner stops."""
        while not self._stopping and await is_open():
            async with self._ended:
                # Another server may end it, and an end between the look and this wait is not told again.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _LOOK_SECONDS)

    async def _run(self) -> None:
        tidied = -_TIDY_SECONDS
        clock = asyncio.get_running_loop()
        while True:
            self._news.clear()
            try:
                if clock.time() - tidied > _TIDY_SECONDS:
                    tidied = clock.time()
                    await self._rows.forget_older(times.now() - _KEPT)
                await self._take()
                pause = await self._pause()
            except Exception as error:  # whatever it is, the jobs that wait must not wait for ever
                is_ours = not isinstance(error, HeddleError)
                logger.warning("the queue of evaluation jobs was put off: %s", error, exc_info=is_ours)
                pause = 1.0
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _take(self) -> None:
        """Begin jobs while there is room; those that are to be cancelled need none."""
        while True:
            is_full = len(self._at_work) >= self._workers
            held = self._at_work.keys()
            job = await self._rows.take(list(self._kinds), times.now(), only_cancelled=is_full, held=held)
            if job is None:
                return
            attempt = _Attempt(job, JobRun(job, self._rows), *self._kinds[job.kind])
            self._at_work[job.id] = attempt
            attempt.task = asyncio.create_task(self._attempt(attempt))

    async def _pause(self) -> float:
        """Seconds until a waiting job may begin."""
        if self._rows.instance.is_shared:
            return _LOOK_SECONDS
        if len(self._at_work) >= self._workers:
            return _TIDY_SECONDS
        soonest = await self._rows.next_time(list(self._kinds))
        if soonest is None:
            return _TIDY_SECONDS
        return max(0.01, min(_TIDY_SECONDS, (soonest - times.now()) / times.SECOND))

    async def _hold(self) -> None:
        """Keep the leases of the jobs at work, and end those that are lost or were cancelled at another server."""
        clock = asyncio.get_running_loop().time
        until, renewed = clock() + LEASE_SECONDS, clock()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            known = dict(self._at_work)
            if not known:
                until = clock() + LEASE_SECONDS
                continue
            try:
                if clock() - renewed > LEASE_SECONDS / _RENEWALS_PER_LEASE:
                    asked = clock()
                    await self._rows.renew(known)
                    renewed, until = asked, asked + LEASE_SECONDS
                held = await self._rows.held()
            except Exception as error:  # whatever it is, a lease must not end because of it
                is_ours = not isinstance(error, HeddleError)
                logger.warning("the leases of evaluation jobs were not renewed: %s", error, exc_info=is_ours)
                held = {} if clock() > until and self._rows.instance.is_shared else dict.fromkeys(known, False)
            for job_id, attempt in known.items():
                if job_id not in held:
                    attempt.lose()
                elif held[job_id]:
                    attempt.cancel()

    async def _attempt(self, attempt: "_Attempt") -> None:
        try:
            await attempt.go(self._rows)
        except asyncio.CancelledError:
            if attempt.is_lost:
                logger.warning("job %s goes on at another server, which took it over", attempt.job.id)
                return
            # Otherwise only `stop` cancels this task itself; the queue must know it before the store closes.
            await self._rows.put_back(attempt.job.id, begun=False)
            raise
        except HeddleError as error:
            logger.warning("the end of job %s could not be stored, it begins again: %s", attempt.job.id, error)
            await self._try_to_put_back(attempt.job)
        finally:
            del self._at_work[attempt.job.id]
            self.wake()
            async with self._ended:
                self._ended.notify_all()

    async def _try_to_put_back(self, job: JobRow) -> None:
        while True:
            try:
                await self._rows.put_back(job.id, not_before=times.now() + _FIRST_PAUSE)
                return
            except HeddleError:
                await asyncio.sleep(1.0)


class _Attempt:
    """One job at work."""

    task: "asyncio.Task[None]"

    def __init__(self, job: JobRow, run: JobRun, worker: Worker, closing: Closing | None) -> None:
        self.job, self._run = job, run
        self._worker, self._closing = worker, closing
        self._work: asyncio.Task[Json] | None = None
        self.is_lost = False

    def lose(self) -> None:
        """Stop without a word to the queue: the job is another server's."""
        self.is_lost = True
        self.task.cancel()

    def cancel(self) -> None:
        """End the worker, once; it is told by an interruption."""
        if self._run.cancel_asked:
            return
        self._run.cancel_asked = True
        if self._work is not None:
            self._work.cancel()

    async def go(self, rows: EvalJobs) -> None:
        """Run the worker and store how it ended."""
        OWNER.set(owner_of(self._run.caller))
        result, problem = await self._worked()
        if problem is None:
            await rows.finish(self.job.id, SUCCEEDED, times.now(), result=result, error=None)
        elif isinstance(problem, JobCancelled):
            await self._end(rows, CANCELLED, problem.reason)
        elif _may_pass(problem) and self.job.attempts < ATTEMPTS:
            pause = _FIRST_PAUSE * 2 ** (self.job.attempts - 1)
            logger.warning("job %s (%s) is tried again: %s", self.job.id, self.job.kind, problem.reason)
            await rows.put_back(self.job.id, not_before=times.now() + pause, error=problem.reason)
        else:
            await self._end(rows, FAILED, problem.reason)

    async def _worked(self) -> tuple[Json | None, HeddleError | None]:
        if self._is_cancelled():
            return None, JobCancelled("cancelled")
        if self.job.crashes >= CRASHES:
            return None, HeddleError(f"Given up: the server ended {CRASHES} times while this job was at work")
        if self.job.attempts > ATTEMPTS:
            return None, HeddleError(f"Given up after {ATTEMPTS} attempts that got nowhere")
        self._work = asyncio.create_task(self._worker(self.job, self._run))
        try:
            return await self._work, None
        except asyncio.CancelledError:
            if not self._is_cancelled():
                raise
            return None, JobCancelled("cancelled")
        except Exception as error:  # a fault of ours: the log gets the traceback, the job a line
            failure = first_failure(error)
            if isinstance(failure, HeddleError):
                return None, failure
            logger.exception("job %s (%s) failed", self.job.id, self.job.kind)
            return None, HeddleError("Internal server error")

    def _is_cancelled(self) -> bool:
        return self._run.cancel_asked

    async def _end(self, rows: EvalJobs, state: str, problem: str) -> None:
        if self._closing is not None:
            try:
                await self._closing(self.job, self._run, problem)
            except HeddleError as error:
                if _may_pass(error) and self.job.attempts <= ATTEMPTS:
                    raise
                logger.warning("job %s could not close what it had opened: %s", self.job.id, error)
        await rows.finish(self.job.id, state, times.now(), result=None, error=problem)


def _may_pass(problem: HeddleError) -> bool:
    """True for a failure that another attempt may not meet: the server was busy, or something did not answer."""
    if isinstance(problem, ProviderFailed) and problem.answered:
        return problem.answered in (408, 425, 429) or problem.answered >= 500
    return problem.status == 429 or problem.status >= 502
