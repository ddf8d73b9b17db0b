"""Training jobs: put into the queue with all they need, found, and given up."""

import asyncio
import uuid
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from heddle.auth import Caller
from heddle.errors import Conflict, NotFound
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.jobs import EventRow, JobRow
from heddle.store.control.training import ModelRow
from heddle.training import payload
from heddle.training.bodies.data import DatasetReader, checked_rows
from heddle.training.bodies.experimental_config import resolve
from heddle.training.bodies.intake import GROUPS, Taken
from heddle.training.bodies.paging import unknown_cursor
from heddle.training.bodies.references import reference_folder
from heddle.training.bodies.requests import CreateSftJob, JobHead
from heddle.training.bodies.resources import resources
from heddle.training.bodies.source import SourceRequest
from heddle.training.bodies.source import resolve as resolve_source
from heddle.training.queue.promotion import Promotion, usual_answer
from heddle.training.queue.supervisor import Supervisor
from heddle.training.services.models import TrainableModels
from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.training import CallSource


@dataclass(frozen=True, slots=True)
class Sources:
    """Where jobs find what their bodies only name."""

    calls: CallSource
    datasets: DatasetReader
    promotion: Promotion


class TrainingQueue:
    """The jobs of this server."""

    def __init__(
        self, settings: Settings, store: Store, models: TrainableModels, supervisor: Supervisor, sources: Sources
    ) -> None:
        self._settings = settings
        self._jobs = store.train_jobs
        self._blobs = store.blobs
        self._table = store.train_models
        self._models = models
        self._supervisor = supervisor
        self._sources = sources

    async def create(self, taken: Taken, caller: Caller) -> JobRow:
        """Queue a job on trajectories; its body is durable already. Raises NotFound, InvalidRequest, Busy, ..."""
        head = JobHead.model_validate(taken.head)
        model = await self._models.find(str(head.model_id), caller)
        settings = resolve(head.experimental_config)
        reference = await reference_folder(self._table, self._jobs, model, settings, caller)
        config = await self._config(model, settings.as_json(), head, caller)
        config["kl_reference"] = reference
        key = taken.key
        if key is None:
            assert isinstance(head.source, SourceRequest)
            found = await resolve_source(
                head.source, self._sources.calls, caller, max_bytes=self._settings.max_training_body, policy=model.name
            )
            config["source"] = found.source
            key = await self._keep({GROUPS: found.groups})
        return await self._add(model, "rl", config, key, caller)

    async def create_supervised(self, wanted: CreateSftJob, caller: Caller) -> JobRow:
        """Queue a job on chat rows, which are read and kept first. Raises what `DatasetReader.read` does, ..."""
        model = await self._models.find(str(wanted.model_id), caller)
        config = await self._config(model, wanted.settings().as_json(), wanted, caller)
        limit = self._settings.max_training_body
        rows = await self._sources.datasets.read(caller, model.project_id, wanted.training_data_url, limit)
        key = await self._keep({"rows": await asyncio.to_thread(checked_rows, rows)})
        config["source"] = {"training_data_url": wanted.training_data_url, "rows": len(rows)}
        return await self._add(model, "sft", config, key, caller)

    async def _config(self, model: ModelRow, settings: Json, wanted: JobHead | CreateSftJob, caller: Caller) -> Json:
        base = await self._models.base(model.base_model)
        shape = await self._models.shape(base)
        promotion = await self._sources.promotion.check(wanted.promotion, caller)
        if promotion is not None and promotion["max_tokens"] is None:
            promotion["max_tokens"] = usual_answer(base.max_model_len)
        return {
            "settings": settings,
            "promotion": promotion,
            "source": None,
            **resources(self._settings, base, shape.parameters),
        }

    async def _keep(self, value: Json) -> str:
        return await asyncio.to_thread(lambda: self._blobs.put(BytesIO(payload.write(value))))

    async def _add(self, model: ModelRow, kind: str, config: Json, key: str, caller: Caller) -> JobRow:
        if model.id in self._models.ending:
            raise Conflict(f"The model {model.name!r} is being deleted")
        row = JobRow(
            id=str(uuid.uuid4()),
            model_id=model.id,
            kind=kind,
            config=config,
            payload=key,
            created_at=times.now(),
            created_by=caller.user,
        )
        await self._jobs.add(row, self._settings.training_queue)
        self._supervisor.wake()
        return row

    async def find(self, job_id: str, caller: Caller) -> JobRow:
        """A job of a model that the caller's key reaches; raises NotFound for any other."""
        job = await self._jobs.find(job_id.lower())
        if job is not None:
            model = await self._table.find(job.model_id)
            # Whose job it was is not known any more once its model is gone.
            reaches = caller.reaches(model.project_id) if model else caller.entity is None and caller.project is None
            if reaches:
                return job
        raise NotFound("TrainingJob not found")

    async def of_model(self, model: ModelRow) -> list[JobRow]:
        """The jobs of a model, oldest first."""
        return await self._jobs.of_model(model.id)

    async def reached(self, caller: Caller) -> list[JobRow]:
        """The jobs of every model that the caller's key reaches, oldest first."""
        models = await self._models.reached(caller)
        rows = [job for model in models for job in await self._jobs.of_model(model.id)]
        return sorted(rows, key=lambda job: job.number)

    async def cancel(self, job: JobRow) -> JobRow:
        """Give a job up; returns it as it is then. One that runs ends within seconds. Raises Conflict."""
        if not await self._supervisor.cancel(job.id):
            raise Conflict(f"The job has ended already: {(await self._jobs.find(job.id) or job).state}")
        return await self._jobs.find(job.id) or replace(job, cancel_asked=True)

    async def place(self, job: JobRow, event_id: str | None) -> int:
        """The place of the event that a client saw last, -1 for none; raises InvalidRequest for an unknown one."""
        if not event_id:
            return -1
        place = await self._jobs.event_place(job.id, event_id)
        if place is None:
            raise unknown_cursor(event_id)
        return place

    async def events(self, job: JobRow, after: int, limit: int) -> list[EventRow]:
        """The events of a job behind a place."""
        return await self._jobs.events(job.id, after, limit)

    async def wait_for_events(self, job: JobRow, after: int, seconds: float) -> list[EventRow]:
        """The same; waits for one when there is none yet, at most `seconds`."""
        return await self._supervisor.wait_for_events(job.id, after, seconds)

    def body(self, key: str) -> Path:
        """Where the body of a job or a log lies; raises NotFound when it was removed."""
        if not key:
            raise NotFound("The body was removed with its model")
        return self._blobs.path(key)
