"""One attempt at a job, as its worker sees it."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from heddle.auth import Caller, Scope
from heddle.errors import HeddleError
from heddle.jobs.runner import Attempt
from heddle.store.control.eval_jobs import EvalJobs, JobRow
from heddle.wire.jsontypes import Json


class JobCancelled(HeddleError):
    """Somebody asked for the end of the job."""

    status = 409


class JobRun:
    """What a worker is given beside its job."""

    def __init__(self, attempt: Attempt[JobRow], rows: EvalJobs) -> None:
        self.job = attempt.job
        self.caller = caller_of(self.job.caller)
        self._cancelled = attempt.cancelled
        self._rows = rows

    async def progress(self, progress: Json) -> None:
        """Store how far it is; it counts as progress, so that attempts begin anew."""
        await self._rows.note(self.job.id, progress)

    def cancelled(self) -> None:
        """Raise JobCancelled when somebody asked for the end; between two steps that belong together, say."""
        if self._cancelled.is_set():
            raise JobCancelled("cancelled")


class Worker(Protocol):
    """Does the jobs of one kind; the same job may be begun again, so what is stored already is not done twice."""

    def __call__(self, job: JobRow, run: JobRun) -> Coroutine[Any, Any, Json]:
        """Do it and return its result; raises HeddleError (429 and 5xx are tried again later)."""
        ...


Closing = Callable[[JobRow, JobRun, str], Awaitable[None]]


def first_failure(error: Exception) -> Exception:
    """The failure itself, or the first one of a group of tasks."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def as_json(caller: Caller) -> Json:
    """What a job keeps of its caller; `caller_of` reads it."""
    return {
        "user": caller.user,
        "scopes": sorted(caller.scopes),
        "entity": caller.entity,
        "project": caller.project,
        "key_id": caller.key_id,
    }


def caller_of(stored: Json) -> Caller:
    """The caller that a job was submitted by; what the key allowed then still holds, and reaches no further."""
    scopes = frozenset(Scope(word) for word in stored["scopes"])
    return Caller(stored["user"], scopes, stored["entity"], stored["project"], stored["key_id"])
