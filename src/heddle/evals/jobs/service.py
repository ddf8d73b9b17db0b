"""Jobs as the rest of the server uses them: submit, read, query, cancel, and register what runs them."""

from collections.abc import Sequence
from typing import Any

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.evals.jobs.run import Closing, Worker, as_json
from heddle.evals.jobs.runner import Runner
from heddle.settings import Settings
from heddle.store.control.eval_jobs import STATES, EvalJobs, JobRow
from heddle.wire import ids, times

Json = dict[str, Any]


class Jobs:
    """The durable queue and the one runner of this server."""

    def __init__(self, settings: Settings, rows: EvalJobs) -> None:
        self._settings = settings
        self._rows = rows
        self._runner = Runner(settings, rows)

    def register(self, kind: str, worker: Worker, closing: Closing | None = None) -> None:
        """Say what runs the jobs of a kind; those of a kind that nobody registered wait.

        `closing` is awaited with a text when a job ends otherwise than by its worker (failed, or `cancelled`): it
        closes what the worker had opened.
        """
        self._runner.register(kind, worker, closing)

    async def start(self) -> None:
        """Go on with what an earlier server left, and take new jobs."""
        await self._runner.start()

    async def stop(self) -> None:
        """Stop at once; what runs is queued again and goes on with the next server."""
        await self._runner.stop()

    async def submit(
        self, kind: str, caller: Caller, project_id: str, body: Json, *, job_id: str | None = None
    ) -> JobRow:
        """Queue a job and return after its commit; the same id again is the same job.

        Raises Forbidden outside the caller's reach and Busy when too many of the project wait.
        """
        caller.require(Scope.WRITE)
        caller.open(project_id)
        row = JobRow(
            id=job_id or ids.uuid7(),
            kind=kind,
            project_id=project_id,
            body=body,
            caller=as_json(caller),
            created_at=times.now(),
        )
        stored = await self._rows.add(row, self._settings.evaluation_queue)
        if (stored.kind, stored.project_id) != (kind, project_id):
            raise InvalidRequest(f"The id {stored.id} is that of another job")
        self._runner.wake()
        return stored

    async def read(self, project_id: str, job_id: str) -> JobRow | None:
        """A job of a project; the route has checked that the caller may read it."""
        return await self._rows.find(project_id, job_id)

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
                raise InvalidRequest(f"{state[:100]!r} is no state of a job: {', '.join(STATES)}")
        return await self._rows.query(project_id, kinds, states, limit, offset)

    async def cancel(self, project_id: str, job_id: str) -> JobRow:
        """Ask for the end of a job; one that is done stays as it is. Raises NotFound."""
        found = await self._rows.ask_to_cancel(project_id, job_id)
        if found is None:
            raise NotFound(f"No job {job_id[:100]!r} in {project_id}")
        self._runner.cancel(job_id)
        return found

    async def wait(self, project_id: str, job_id: str) -> JobRow:
        """The job when it is done (or the server stops); raises NotFound."""
        await self._runner.ended(lambda: self._is_open(project_id, job_id))
        found = await self._rows.find(project_id, job_id)
        if found is None:
            raise NotFound(f"No job {job_id[:100]!r} in {project_id}")
        return found

    async def _is_open(self, project_id: str, job_id: str) -> bool:
        found = await self._rows.find(project_id, job_id)
        return found is not None and found.ended_at is None
