"""Training as people follow it: the jobs of a model without their bodies, and when their phases began."""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.jobs import OPEN, train_events, train_jobs
from heddle.store.control.mapping import Mapped, Repository
from heddle.wire.batched import batched


@dataclass(slots=True)
class RunJob:
    """One job as a run shows it; instants in microseconds, None where a phase has not begun."""

    number: int
    id: str
    model_id: str
    kind: str
    state: str
    step: int | None
    parent_step: int | None
    progress: int
    cancel_asked: bool
    error: str | None
    metrics: dict[str, float]
    created_at: int
    created_by: str
    started_at: int | None
    ended_at: int | None
    prepared_at: int | None = None
    """When the first gradient step could begin."""
    trained_at: int | None = None
    """When the newest gradient step was done."""
    planned: int | None = None
    """How many gradient steps there will be."""

    @property
    def is_open(self) -> bool:
        """True while it waits or works."""
        return self.state in OPEN


_jobs = Mapped(RunJob, of=train_jobs)


class TrainRuns(Repository):
    """Reads only."""

    async def jobs(self, model_ids: Collection[str], since: int = 0) -> list[RunJob]:
        """The jobs of models in the order of the queue, those from a number on, each with its phases."""

        def work(connection: sa.Connection) -> list[RunJob]:
            found: dict[str, RunJob] = {}
            for part in batched(model_ids):
                inside = sa.and_(_jobs.c.model_id.in_(part), _jobs.c.number >= since)
                found |= {job.id: job for job in _jobs.all(connection, _jobs.select(inside))}
                _add_phases(connection, found, inside)
            return sorted(found.values(), key=lambda job: job.number)

        return await self._executor.read(work)


def _add_phases(connection: sa.Connection, found: dict[str, RunJob], inside: sa.ColumnElement[bool]) -> None:
    c = train_events.c
    columns = (c.job_id, c.type, sa.func.max(c.created_at).label("at"), sa.func.max(c.data).label("data"))
    chosen = sa.select(*columns).join(train_jobs, train_jobs.c.id == c.job_id).where(inside)
    for row in connection.execute(chosen.group_by(c.job_id, c.type)):
        job = found[row.job_id]
        if row.type == "training_started":
            job.prepared_at = row.at
            planned = row.data.get("num_sequences")
            job.planned = None if planned is None else int(planned)
        elif row.type == "gradient_step":
            job.trained_at = row.at
