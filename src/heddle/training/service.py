"""Training as one service of the server: its models, its jobs, and whether it is possible here."""

import asyncio
import importlib.util
import re
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

from fastapi import Depends

from heddle.auth import Caller
from heddle.errors import Conflict, ExtraMissing, InvalidRequest, NotFound, Unavailable
from heddle.extras import install_command
from heddle.http.routing import Service
from heddle.paths import TRAINING
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.training import OPEN, TINKER, JobConfig, JobRow, TrainJobs
from heddle.store.control.training_models import ModelRow, TrainModels
from heddle.training import files
from heddle.training.config import RlConfig
from heddle.training.intake import GROUPS, Intake, Taken
from heddle.training.models import TrainableModels, resources
from heddle.training.queue.publish import Promotion
from heddle.training.queue.supervisor import Supervisor
from heddle.training.rollouts import LoadRenderer, Rollouts
from heddle.training.ruler import Ruler
from heddle.training.schemas.requests import (
    CreateDpoJob,
    CreateSftJob,
    JobHead,
    SourceRequest,
    default_max_tokens,
    resolve_config,
)
from heddle.training.schemas.trajectories import check_pairs, check_rows
from heddle.training.source import resolve_source
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.training import CallSource, PolicyHost

_NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2")


def unknown_cursor(after: str) -> InvalidRequest:
    """The answer to an `after` that is no item of the list; to begin again silently would repeat items."""
    return InvalidRequest(f"after: there is no item {after[:100]!r} in this list", param="after")


class DatasetReader(Protocol):
    """Reads training data with somebody's rights."""

    async def read(self, caller: Caller, project_id: str, url: str, max_bytes: int) -> list[Json]:
        """The rows of a JSONL file or a dataset, in order; a bare file digest lies in `project_id` (`entity/project`).

        Raises ValidationFailed at `training_data_url` for an address that is not allowed, NotFound, Forbidden, TooLarge
        beyond `max_bytes`, and InvalidRequest for content that cannot be read (with its line).
        """
        ...


_ADDRESS = re.compile(r"wandb-artifact:/{2,3}([^/:@]+)/([^/:@]+)/([^/:@]+)(?::step|@)(\d{1,15})")
_STEP, _PATH = "kl_penalty_reference_step", "kl_ref_adapter_path"


async def reference_folder(
    models: TrainModels, jobs: TrainJobs, model: ModelRow, settings: RlConfig, caller: Caller
) -> str | None:
    """The checkpoint folder of `kl_ref_adapter_path`, relative to the data folder; None where a job names none.

    Raises InvalidRequest for a reference that is not there and will not be.
    """
    if settings.kl_penalty_reference_step is not None:
        await _check_step(models, jobs, model, settings.kl_penalty_reference_step)
    if settings.kl_ref_adapter_path is None:
        return None
    found = _ADDRESS.fullmatch(settings.kl_ref_adapter_path)
    if found is None:
        raise _bad_reference(
            _PATH, "it must be the address of a step, such as wandb-artifact:///entity/project/name:step3"
        )
    entity, project, name, step = found.groups()
    other = await models.find_named(entity, project, name)
    if other is None or not caller.reaches(other.project_id):
        raise _bad_reference(_PATH, f"model {name!r} not found in {entity}/{project}")
    if (other.base_model, other.lora) != (model.base_model, model.lora):
        raise _bad_reference(_PATH, f"the model {name!r} has another base model or LoRA shape")
    for row in await models.checkpoints(other.id):
        if row.step == int(step):
            return row.folder
    raise _bad_reference(_PATH, f"the model {name!r} has no step {step}")


async def _check_step(models: TrainModels, jobs: TrainJobs, model: ModelRow, step: int) -> None:
    steps = [row.step for row in await models.checkpoints(model.id)]
    to_come = sum(job.state in OPEN for job in await jobs.of_model(model.id))
    newest = max(steps, default=0)
    if step not in steps and not newest < step <= newest + to_come:
        raise _bad_reference(_STEP, f"the model has no step {step}")


def _bad_reference(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}", param=field)


class Training:
    """The models and jobs of this server. The supervisor is started and stopped with it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        policies: PolicyHost,
        supervisor: Supervisor,
        *,
        calls: CallSource,
        datasets: DatasetReader,
        promotion: Promotion,
        ruler: Ruler,
        count_refusal: Callable[[str], None],
        load_renderer: LoadRenderer | None = None,
    ) -> None:
        self.settings = settings
        self.policies = policies
        self.supervisor = supervisor
        self.models = TrainableModels(settings, store, policies, supervisor)
        self.rollouts = Rollouts(self.body_path, load_renderer)
        self.intake = Intake(store.blobs, Path(settings.data) / TRAINING, count_refusal)
        self._table = store.train_models
        self._jobs = store.train_jobs
        self._tinker = store.tinker
        self._blobs = store.blobs
        self._redaction = store.redaction
        self._calls = calls
        self._datasets = datasets
        self._promotion = promotion
        self._ruler = ruler

    async def start(self) -> None:
        """Begin to work on what waits, where the settings let this server train."""
        if self.settings.training == "on" and not self.missing:
            await self.models.finish()
            await self.supervisor.start()

    async def stop(self) -> None:
        """End the training processes; the next server goes on with their jobs."""
        await self.supervisor.stop()

    @property
    def missing(self) -> list[str]:
        """The packages that training needs and that are not installed."""
        return [name for name in _NEEDED if importlib.util.find_spec(name) is None]

    def require(self) -> None:
        """Raise ExtraMissing or Unavailable where this server trains nothing."""
        if self.settings.training == "off":
            raise Unavailable("Training is off on this server; start it with --training on", retry_after=60)
        if self.missing:
            raise ExtraMissing(f"Training requires an extra that is not installed: {install_command('training')}")

    async def take(self, kind: str, body: AsyncIterator[bytes], caller: Caller, model_id: str | None = None) -> Taken:
        """Check and keep the body of a `job` or a `log` as `Intake.take` does, without what its project redacts.

        Raises NotFound for a model beyond the caller's reach where anything is redacted.
        """

        async def redact(head: Json, groups: list[Any]) -> list[Any]:
            model = await self.models.find(model_id or str(head["model_id"]), caller)
            found: list[Any] = await self._redaction.value(refs.internal_project(model.project_id), groups)
            return found

        return await self.intake.take(kind, body, redact if await self._redaction.is_on() else None)

    async def create_job(
        self, taken: Taken, caller: Caller, *, job_id: str | None = None, candidate_from: int | None = None
    ) -> JobRow:
        """Queue a job on trajectories; its body is durable already. Raises NotFound, InvalidRequest, Busy, ...

        The same `job_id` again is the same job. With `candidate_from` it starts from that step and makes a step that
        the model's name does not mean.
        """
        if job_id is not None and (known := await self._jobs.find(job_id)) is not None:
            return known
        head = JobHead.model_validate(taken.head)
        model = await self.models.find(str(head.model_id), caller)
        settings = resolve_config(head.experimental_config)
        reference = await reference_folder(self._table, self._jobs, model, settings, caller)
        config = await self._make_config(model, settings.as_json(), head, caller)
        config["kl_reference"] = reference
        if candidate_from is not None:
            config["candidate_from"] = candidate_from
        if head.reward_from is not None:
            config["ruler"] = await self._ruler.prepare(head.ruler, model, caller)
        key = taken.key
        if key is None:
            assert isinstance(head.source, SourceRequest)
            found = await resolve_source(
                head.source, self._calls, caller, max_bytes=self.settings.max_training_body, policy=model.name
            )
            config["source"] = {**head.source.model_dump(exclude_none=True), "counts": found.counts}
            key = await self._keep_payload(model, {GROUPS: found.groups})
        return await self._add_job(model, "rl", config, key, caller, job_id)

    async def create_job_on_rows(self, wanted: CreateSftJob | CreateDpoJob, caller: Caller) -> JobRow:
        """Queue a job on chats or pairs of answers, which are read and kept first.

        Raises what `DatasetReader.read` does, ...
        """
        kind, check = ("sft", check_rows) if isinstance(wanted, CreateSftJob) else ("dpo", check_pairs)
        model = await self.models.find(str(wanted.model_id), caller)
        config = await self._make_config(model, wanted.settings().as_json(), wanted, caller)
        limit = self.settings.max_training_body
        rows = await self._datasets.read(caller, model.project_id, wanted.training_data_url, limit)
        key = await self._keep_payload(model, {"rows": await asyncio.to_thread(check, rows)})
        config["source"] = {"training_data_url": wanted.training_data_url, "rows": len(rows)}
        return await self._add_job(model, kind, config, key, caller)

    async def _make_config(
        self, model: ModelRow, settings: Json, wanted: JobHead | CreateSftJob | CreateDpoJob, caller: Caller
    ) -> JobConfig:
        base = await self.models.base(model.base_model)
        shape = await self.models.shape(base)
        promotion = await self._promotion.check(wanted.promotion, caller)
        if promotion is not None and promotion["max_tokens"] is None:
            promotion["max_tokens"] = default_max_tokens(base.max_model_len)
        held = resources(self.settings, base, shape.parameters)
        return cast(JobConfig, {"settings": settings, "promotion": promotion, "source": None, **held})

    async def _keep_payload(self, model: ModelRow, value: Json) -> str:
        kept = await self._redaction.value(refs.internal_project(model.project_id), value)
        return await asyncio.to_thread(lambda: self._blobs.put(BytesIO(files.write_payload(kept))))

    async def _add_job(
        self, model: ModelRow, kind: str, config: JobConfig, key: str, caller: Caller, job_id: str | None = None
    ) -> JobRow:
        if model.id in self.models.ending:
            raise Conflict(f"The model {model.name!r} is being deleted")
        if await self._tinker.is_run(model.id):
            raise Conflict(f"The model {model.name!r} is being trained through the Tinker protocol")
        row = JobRow(
            id=job_id or str(uuid.uuid4()),
            model_id=model.id,
            kind=kind,
            config={**config, "grants": caller.to_json()["grants"]},
            payload=key,
            created_at=times.now(),
            created_by=caller.user,
            key_id=caller.key_id,
        )
        await self._jobs.add(row, self.settings.training_queue)
        self.supervisor.wake()
        return row

    async def find_job(self, job_id: str, caller: Caller) -> JobRow:
        """A job of a model that the caller's key reaches; raises NotFound for any other."""
        job = await self._jobs.find(job_id.lower())
        if job is not None:
            model = await self._table.find(job.model_id)
            project = refs.external_project(job.former_project or "") if model is None else model.project_id
            if caller.reaches(project) if project else not caller.is_bound:
                return job
        raise NotFound("TrainingJob not found")

    async def cancel_job(self, job: JobRow) -> JobRow:
        """Give a job up; returns it as it is then. One that runs ends within seconds. Raises Conflict."""
        if job.kind == TINKER:
            raise Conflict("The job is a run of the Tinker protocol; only its client can end it (unload_model)")
        if not await self.supervisor.cancel(job.id):
            raise Conflict(f"The job has already ended: {(await self._jobs.find(job.id) or job).state}")
        return await self._jobs.find(job.id) or replace(job, cancel_asked=True)

    async def find_event_place(self, job: JobRow, event_id: str | None) -> int:
        """The place of the event that a client saw last, -1 for none; raises InvalidRequest for an unknown one."""
        if not event_id:
            return -1
        place = await self._jobs.event_place(job.id, event_id)
        if place is None:
            raise unknown_cursor(event_id)
        return place

    def body_path(self, key: str) -> Path:
        """Where the body of a job or a log lies; raises NotFound when it was removed."""
        if not key:
            raise NotFound(
                "The job has no body: it was removed with its model, or the job came through the Tinker protocol"
            )
        return self._blobs.path(key)


TrainingDep = Annotated[Training, Depends(Service("training"))]
