"""Work beside the requests: what is done again and again, and the jobs of a queue, so many at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, ClassVar, Generic, TypeVar, TypeVarTuple

from heddle import aio
from heddle.errors import HeddleError, QuotaReached
from heddle.store.control.coordination import JobQueue
from heddle.store.data_folder import explain_disk
from heddle.wire import times
from heddle.wire.keys import Authority

LOOK_SECONDS = 1.0
"""How often a server looks for what others that share the queue left, ended or want to end."""
RENEWALS_PER_LEASE = 3
J = TypeVar("J", bound=Any)
FindProblems = Callable[[Collection[Authority]], Awaitable[dict[Authority, str]]]
"""Says why work must not go on, by what it was started with."""
Ts = TypeVarTuple("Ts")


class TaskGroup(asyncio.TaskGroup):
    """A group of tasks, of which so many are at work at the same time; it raises the first failure of a task itself.

    Where a quota refuses one, the others come to their ends, and then QuotaReached is raised.
    """

    def __init__(self, parallel: int) -> None:
        super().__init__()
        self._free = asyncio.Semaphore(parallel)
        self._refusal: QuotaReached | None = None

    def add(self, work: Callable[[*Ts], Coroutine[Any, Any, None]], *given: *Ts) -> None:
        """Do some work in a task."""
        self.create_task(self._finish(work, *given))

    async def __aexit__(self, *error: Any) -> None:
        """Wait for all tasks."""
        try:
            await super().__aexit__(*error)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if self._refusal is not None:
            raise self._refusal

    async def _finish(self, work: Callable[[*Ts], Coroutine[Any, Any, None]], *given: *Ts) -> None:
        async with self._free:
            try:
                await work(*given)
            except QuotaReached as refusal:
                self._refusal = refusal


class Loop:
    """Does its work again and again, at once when it is woken; after an error it goes on after a pause.

    The work returns the seconds until the next time (None: until it is woken); `problem` is logged with an error.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[float | None]],
        logger: logging.Logger,
        problem: str,
        pause: float,
        news: asyncio.Event | None = None,
    ) -> None:
        self._work = work
        self._logger = logger
        self._problem = problem
        self._pause = pause
        self._news = news or asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.was_woken = False
        """The work that runs was asked for."""

    @property
    def is_running(self) -> bool:
        """True between start and stop."""
        return self._task is not None and not self._task.done()

    def wake(self) -> None:
        """Do the work now."""
        self._news.set()

    def start(self) -> None:
        """Begin in a task of its own."""
        self._task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            self.was_woken = self._news.is_set()
            self._news.clear()
            try:
                pause = await self._work()
            except Exception as failure:  # whatever it is, the next time may go well
                error = explain_disk(failure) or failure
                is_ours = not isinstance(error, HeddleError)
                self._logger.warning("%s: %s", self._problem, error, exc_info=is_ours)
                pause = self._pause
            await aio.wait_at_most(pause, self._news.wait())


class Cancellation(asyncio.Event):
    """Set when somebody wants the end of a job; `reason` is what the job says then."""

    reason = "cancelled"


class Attempt(Generic[J]):
    """One job at work at this server."""

    task: "asyncio.Task[None]"

    def __init__(self, job: J) -> None:
        self.job = job
        self.cancelled = Cancellation()
        self.worker: asyncio.Task[Any] | None = None
        """What a cancellation interrupts."""
        self.is_lost = False
        """Another server works on it."""
        if job.cancel_asked:
            self.cancelled.set()

    def cancel(self, reason: str = Cancellation.reason) -> None:
        """Ask for its end, once."""
        if not self.cancelled.is_set():
            self.cancelled.reason = reason
            self.cancelled.set()
            if self.worker is not None:
                self.worker.cancel()

    def lose(self) -> None:
        """Stop without a word to the queue: the job is another server's."""
        self.is_lost = True
        self.task.cancel()


class Runner(Generic[J]):
    """One loop that takes jobs, one that keeps their leases, and one task per job at work; subclasses do the work."""

    logger: ClassVar[logging.Logger]
    name: ClassVar[str]

    def __init__(self, queue: JobQueue[J], places: int, lease_seconds: float) -> None:
        self._queue = queue
        self._places = places
        self._lease_seconds = lease_seconds
        self._at_work: dict[str, Attempt[J]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        problems = f"the queue of {self.name} jobs was put off", f"the leases of {self.name} jobs were not renewed"
        self._taker = Loop(self._look, self.logger, problems[0], LOOK_SECONDS)
        self._holder = Loop(self._hold, self.logger, problems[1], self._hold_seconds())
        self._renewed = self._held_until = 0.0
        self._may_have_taken = False
        self._taking = asyncio.Lock()
        """Held while a job is taken, so that whoever cancels finds it in the table or at work."""
        self._ended = asyncio.Condition()
        self._stopping = False
        self.find_problems: FindProblems | None = None

    @property
    def _is_shared(self) -> bool:
        """Other servers take from the queue, too: each looks every LOOK_SECONDS."""
        return self._queue.instance.is_shared

    async def _next(self, is_full: bool) -> J | None:
        """Take the next job."""
        raise NotImplementedError

    async def _work(self, attempt: Attempt[J]) -> None:
        """Bring a job to its end."""
        raise NotImplementedError

    async def _give_back(self, attempt: Attempt[J]) -> None:
        """Let the job be taken again, as the server stops."""

    async def _failed(self, attempt: Attempt[J], error: Exception) -> float:
        """Let the job be taken again, as its end could not be stored; how many seconds its place stays empty."""
        raise NotImplementedError

    async def _rest(self) -> float:
        """There is nothing more to take: seconds until there may be, if that is sooner than the next look."""
        raise NotImplementedError

    def wake(self) -> None:
        """Look for jobs now."""
        self._taker.wake()

    async def start(self) -> None:
        """Begin to take jobs."""
        self._stopping = False
        self._taker.start()
        self._holder.start()

    async def stop(self) -> None:
        """Take no more jobs, interrupt those at work and give them back."""
        self._stopping = True
        await self._taker.stop()
        await self._holder.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._notify()

    async def ended(self, job_id: str, is_open: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a job is no longer open and nothing works on it, or the runner stops."""
        while not self._stopping and (await is_open() or job_id in self._at_work):
            async with self._ended:
                # Another server may end it, and an end between the look and this wait is not told again.
                await aio.wait_at_most(LOOK_SECONDS, self._ended.wait())

    async def _notify(self) -> None:
        async with self._ended:
            self._ended.notify_all()

    async def _look(self) -> float:
        """Take what there is; seconds until the next look."""
        if self._may_have_taken and self._is_shared:
            # The answer to the last look was lost, and perhaps it took something.
            async with self._taking:
                await self._queue.put_back_unknown(self._at_work)
            self._may_have_taken = False
        if not self._is_shared or self._taker.was_woken or await self._queue.is_any_free(times.now()):
            self._may_have_taken = True
            while await self._take():
                pass
            self._may_have_taken = False
        pause = await self._rest()
        return min(pause, self._queue.instance.looks.seconds_to_next(LOOK_SECONDS)) if self._is_shared else pause

    async def _take(self) -> bool:
        """Begin one job; False when there is none, or no room."""
        async with self._taking:
            asked = asyncio.get_running_loop().time()
            job = await self._next(len(self._tasks) >= self._places)
            if job is None or self._has_ended(asked):
                return False
            until = asked + self._lease_seconds
            self._held_until = min(self._held_until, until) if self._at_work else until
            if not self._at_work:
                self._holder.wake()
            attempt = self._at_work[job.id] = Attempt(job)
        attempt.task = asyncio.create_task(self._attempt(attempt))
        self._tasks.add(attempt.task)
        return True

    async def _attempt(self, attempt: Attempt[J]) -> None:
        pause = 0.0
        try:
            await self._check_keys([attempt])
            await self._work(attempt)
        except asyncio.CancelledError:
            if attempt.is_lost:
                self.logger.warning("job %s was taken over by another server and continues there", attempt.job.id)
                return
            # Otherwise only `stop` cancels this task itself; the queue must know it before the store closes.
            await self._give_back(attempt)
            raise
        except Exception as error:
            pause = await self._failed(attempt, explain_disk(error) or error)
        finally:
            del self._at_work[attempt.job.id]
            if not pause:
                self._leave(attempt)
            await self._notify()
        if pause:
            try:
                await asyncio.sleep(pause)
            finally:
                self._leave(attempt)

    def _has_ended(self, asked: float) -> bool:
        """True for a lease whose taking took so long to be answered that it has ended: the job is anybody's again."""
        return self._is_shared and asyncio.get_running_loop().time() >= asked + self._lease_seconds

    def _leave(self, attempt: Attempt[J]) -> None:
        """The place of an attempt is free."""
        self._tasks.discard(attempt.task)
        self.wake()

    async def _hold(self) -> float | None:
        """Keep the leases of the jobs at work, and end those that are lost or were cancelled at another server."""
        if not self._at_work:
            return None  # until a job is taken
        if self._holder.was_woken:
            return self._hold_seconds()
        clock, seconds = asyncio.get_running_loop().time, self._lease_seconds
        known, held, lost = dict(self._at_work), dict[str, bool](), set[str]()
        # Not an answer that takes longer than the leases last, either.
        limit = asyncio.timeout_at(self._held_until if self._is_shared else None)
        try:
            async with limit:
                asked = clock() if clock() - self._renewed > seconds / RENEWALS_PER_LEASE else None
                # Where fewer were renewed, some ended or are another server's: which, only the reading says.
                if asked is not None and await self._queue.renew(known, seconds) == len(known):
                    self._held_until = asked + seconds
                    if limit.when() is not None:
                        limit.reschedule(self._held_until)
                held = await self._queue.read_held()
                lost = await self._queue.find_unended(known.keys() - held.keys())
                if asked is not None:
                    self._renewed, self._held_until = asked, asked + seconds
        except Exception:  # whatever it is, a lease must not end because of it
            if not limit.expired() and (clock() <= self._held_until or not self._is_shared):
                raise
            lost = set(known)
        await self._check_keys(known.values())
        for job_id, attempt in known.items():
            if job_id in lost:
                attempt.lose()
            elif held.get(job_id):
                attempt.cancel()
        return self._hold_seconds()

    async def _check_keys(self, attempts: Collection[Attempt[J]]) -> None:
        """End the jobs whose keys cannot be used any more, or allow less than when they were started."""
        if self.find_problems is None:
            return
        started_with = {attempt.job.authority for attempt in attempts} - {None}
        problems = await self.find_problems(started_with) if started_with else {}
        for attempt in attempts:
            if problem := problems.get(attempt.job.authority):
                attempt.cancel(problem)

    def _hold_seconds(self) -> float:
        return min(LOOK_SECONDS, self._lease_seconds / RENEWALS_PER_LEASE)
