"""Trainable models and their checkpoints: made, found, rolled back and deleted."""

import asyncio
import logging
import os
import re
import secrets
import uuid
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from heddle.auth import Caller
from heddle.errors import Conflict, HeddleError, InvalidRequest, NotFound, Unavailable
from heddle.paths import model_folder
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.training import OPEN, TINKER, EventRow, JobRow, Resources
from heddle.store.control.training_models import CheckpointRow, LogRow, ModelRow
from heddle.training import files, initial_adapter
from heddle.training.intake import Taken
from heddle.training.queue.publish import policy_name
from heddle.training.queue.supervisor import Supervisor
from heddle.training.schemas.requests import CreateModel
from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.training import BaseModel, PolicyHost

ONE_THREAD_BELOW = 50_000_000
FLOAT32_BELOW = 100_000_000
"""Parameters; as the engine decides, so that both compute alike."""


def resources(settings: Settings, base: BaseModel, parameters: int) -> Resources:
    """Threads, precision, device and the most tokens of a sequence."""
    threads = settings.training_threads
    if threads == 0:
        threads = 1 if parameters < ONE_THREAD_BELOW else max(1, len(os.sched_getaffinity(0)) - 1)
    dtype = settings.training_dtype if settings.training_dtype != "auto" else settings.engine_dtype
    if dtype in ("auto", "int8"):
        dtype = "float32" if parameters < FLOAT32_BELOW else "bfloat16"
    sequence = base.max_model_len if settings.training_sequence == 0 else settings.training_sequence
    return {
        "threads": threads,
        "dtype": dtype,
        "device": settings.training_device,
        "sequence": min(sequence, base.max_model_len),
    }


logger = logging.getLogger("heddle.training")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
_PLACE = re.compile(r"[^/:@\s][^/:@]{0,127}")
TINY = "heddle-tiny"
TINY_SPELLINGS = ("tiny/chat", "heddle/heddle-tiny")
"""What recorded clients call the shipped model."""
_MOST_SECONDS_TO_END = 60.0
_BEING_MADE = 60 * times.SECOND


Need = Callable[[ModelRow], Awaitable[dict[int, str]]]
"""Steps of a model that must stay, each with the reason."""


class TrainableModels:
    """The models of this server, with their checkpoints and logs; made and changed one at a time."""

    def __init__(self, settings: Settings, store: Store, policies: PolicyHost, supervisor: Supervisor) -> None:
        self._settings = settings
        self._data = Path(settings.data)
        self._table = store.train_models
        self._jobs = store.train_jobs
        self._policies = policies
        self._supervisor = supervisor
        self._changing = asyncio.Lock()
        """Held while steps are chosen and deleted, or a name is pointed elsewhere by hand."""
        self._shapes: dict[tuple[str, str], initial_adapter.BaseShape] = {}
        self.ending: set[str] = set()
        """Models that are being deleted: they take no more jobs."""
        self.needs: list[Need] = []
        """Who else says which steps must stay."""
        supervisor.publisher.retain = self.retain

    async def base(self, name: str) -> BaseModel:
        """The base model that a client names; raises InvalidRequest naming those that can be trained."""
        bases = await self._policies.base_models()
        if not bases:
            raise Unavailable("This server has no model to train; start it with --model", 60)
        wanted = TINY if name in TINY_SPELLINGS else name
        for base in bases:
            if base.id == wanted:
                return base
        known = ", ".join(sorted(base.id for base in bases))
        raise InvalidRequest(
            f"base_model {name[:200]!r} cannot be trained on this server; available: {known}", param="base_model"
        )

    async def shape(self, base: BaseModel) -> initial_adapter.BaseShape:
        """What the files of a base model say; read once."""
        key = (base.id, base.digest)
        if key not in self._shapes:
            self._shapes[key] = await asyncio.to_thread(initial_adapter.base_shape, base.folder, base.config)
        return self._shapes[key]

    async def find(self, model_id: str, caller: Caller) -> ModelRow:
        """A model that the caller's key reaches; raises NotFound for any other."""
        row = await self._table.find(str(model_id).lower())
        if row is None or not caller.reaches(row.project_id):
            raise NotFound("Model not found")
        caller.open(row.project_id)
        return row

    async def find_row(self, model_id: str) -> ModelRow | None:
        """A model, whoever asks."""
        return await self._table.find(model_id)

    async def list_reached(self, caller: Caller) -> list[ModelRow]:
        """Every model that the caller's key reaches, oldest first."""
        return [row for row in await self._table.all() if caller.reaches(row.project_id)]

    async def latest(self, row: ModelRow) -> int | None:
        """The step that the bare name means; None while its base model is not served."""
        return await self._policies.latest(policy_name(row))

    async def create(self, wanted: CreateModel, caller: Caller) -> ModelRow:
        """A new model, served under its name already; or the one of that name where the request allows it.

        Raises InvalidRequest, Forbidden, Conflict, StorageFull.
        """
        entity = caller.default_entity if wanted.entity is None else wanted.entity
        caller.open(f"{entity}/{wanted.project}")
        names = (("entity", entity, _PLACE), ("project", wanted.project, _PLACE), ("name", wanted.name, _NAME))
        for param, text, form in names:
            if not form.fullmatch(text):
                what = "letters, digits, '_', '-', '.' and spaces" if form is _NAME else "no '/', ':' and '@'"
                reason = f"{param} {text[:200]!r} cannot be addressed: it is up to 128 of {what}"
                raise InvalidRequest(reason, param=param)
        base = await self.base(wanted.base_model)
        async with self._changing:
            row = await self._table.find_named(entity, wanted.project, wanted.name)
            if row is None:
                row = await self._make(entity, wanted, base, caller.user)
            elif not caller.may_read(row.project_id):
                raise Conflict(f"The model {row.name!r} already exists in {row.project_id}")
            elif row.base_model != base.id:
                raise Conflict(f"The model {row.name!r} already exists with the base model {row.base_model!r}")
            elif wanted.lora_rank not in (None, row.lora["rank"]):
                raise Conflict(f"The model {row.name!r} already exists with the LoRA rank {row.lora['rank']}")
            elif await self._ensure_served(row) or wanted.return_existing:
                pass  # what was not served had never been acknowledged
            else:
                raise Conflict(f"The model {row.name!r} already exists in {row.project_id}")
        with_what = resources(self._settings, base, (await self.shape(base)).parameters)
        self._supervisor.warm(base.folder, with_what["device"], with_what["dtype"])
        return row

    async def _make(self, entity: str, wanted: CreateModel, base: BaseModel, user: str) -> ModelRow:
        settings, shape, model_id, at = self._settings, await self.shape(base), str(uuid.uuid4()), times.now()
        size = (settings.training_lora_rank, settings.training_lora_alpha)
        if wanted.lora_rank is not None:
            size = (wanted.lora_rank, initial_adapter.LORA_ALPHA)
        lora = initial_adapter.lora_of(shape, base.id, *size)
        row = ModelRow(model_id, entity, wanted.project, wanted.name, base.id, secrets.token_hex(4), lora, at, user)
        await self.add(row, lambda folder: initial_adapter.make_adapter(folder, shape, base.id, lora, model_id))
        return row

    async def add(self, row: ModelRow, make: Callable[[Path], None]) -> None:
        """Make a model known and served; `make` makes the folder of its step 0. Raises Conflict, StorageFull, ..."""
        folder, user = files.checkpoint_folder(row.id, 0), row.created_by
        try:
            await asyncio.to_thread(make, self._data / folder)
            digest, size = await asyncio.to_thread(files.measure, self._data / folder)
            first = CheckpointRow(str(uuid.uuid4()), row.id, 0, None, None, folder, digest, size, {}, row.created_at)
            await self._table.create(row, first)
        except BaseException:
            # Not the addresses: they are of a model of this name that was there before.
            await asyncio.shield(self._remove(row, user))
            raise
        try:
            await self._serve(row, [first])
        except Conflict:  # the name serves an adapter that was loaded by hand, which stays
            await self._remove(row, user)
            raise
        except BaseException:
            await asyncio.shield(self._forget(row, user))
            raise

    async def save(self, row: ModelRow, step: int, is_served: bool, made_by: EventRow | None) -> CheckpointRow:
        """List a step whose folder is made, and let the name mean it where it is served; may be done twice.

        `made_by` is the gradient step that it comes from.
        """
        folder = files.checkpoint_folder(row.id, step)
        digest, size = await asyncio.to_thread(files.measure, self._data / folder)
        listed = CheckpointRow(
            id=str(uuid.uuid4()),
            model_id=row.id,
            step=step,
            parent_step=None,
            job_id=None if made_by is None else made_by.job_id,
            folder=folder,
            digest=digest,
            bytes=size,
            metrics={} if made_by is None else {n: v for n, v in made_by.data.items() if n != "settings"},
            created_at=times.now(),
        )
        listed = await self._table.add_checkpoint(listed)
        if is_served:
            await self._serve(row, [listed])
        return listed

    async def recipe(self, row: ModelRow, checkpoint: CheckpointRow) -> Json:
        """How a step was made: base model, LoRA, the kind and the settings of its job (of the last gradient step)."""
        job = None if checkpoint.job_id is None else await self._jobs.find(checkpoint.job_id)
        settings = None if job is None else job.config["settings"]
        if job is not None and job.kind == TINKER:
            last = await self._jobs.last_step(job.id, checkpoint.step)
            settings = None if last is None else last.data["settings"]
        kind = None if job is None else job.kind
        return {"base_model": row.base_model, "lora": row.lora, "kind": kind, "settings": settings}

    async def offer(self, row: ModelRow, step: int) -> None:
        """Make a step addressable that is listed and was not served; raises InvalidRequest."""
        folder = files.checkpoint_folder(row.id, step)
        await self._policies.offer(policy_name(row), step, row.base_model, folder, row.created_by)

    async def drop(self, row: ModelRow, step: int, user: str) -> None:
        """Take a step away that its client gave up; the name then means the newest that is left."""
        async with self._changing:
            if await self.latest(row) == step:
                for left in reversed(await self._table.checkpoints(row.id)):
                    if left.step != step:
                        await self.offer(row, left.step)
                        await self._policies.point(policy_name(row), left.step)
                        break
            await self._delete_steps(row, [step], user)

    async def _serve(self, row: ModelRow, checkpoints: list[CheckpointRow]) -> None:
        """Offer checkpoints and let the name mean the newest."""
        for checkpoint in checkpoints:
            await self._policies.offer(
                policy_name(row), checkpoint.step, row.base_model, checkpoint.folder, row.created_by
            )
        await self._policies.point(policy_name(row), checkpoints[-1].step)

    async def finish(self) -> None:
        """What a crash left half made is served after all; for the start of the server."""
        # What is younger may be in the making at another server.
        age = _BEING_MADE if self._jobs.instance.is_shared else 0
        made = [row for row in await self._table.all() if row.created_at <= times.now() - age]
        for row in made:
            try:
                await self._ensure_served(row)
            except HeddleError as error:
                logger.warning("the model %s is not served: %s", row.name, error)

    async def _ensure_served(self, row: ModelRow) -> bool:
        """Finish what a crash or a full disk cut, a creation or a deletion; False for a model that is whole."""
        if await self.latest(row) is not None:
            return False
        await self._serve(row, await self._table.checkpoints(row.id))
        return True

    async def _forget(self, row: ModelRow, user: str) -> list[CheckpointRow]:
        """Take a model away: its addresses, its rows, its files."""
        await self._policies.forget(policy_name(row), user)
        return await self._remove(row, user)

    async def _remove(self, row: ModelRow, user: str) -> list[CheckpointRow]:
        gone = await self._table.delete(row, times.now(), user)
        await asyncio.to_thread(files.remove_deleted, self._data / model_folder(row.id))
        return gone

    async def delete(self, row: ModelRow, user: str) -> int:
        """Cancel its jobs and take it away with all it has; returns how many checkpoints it had."""
        self.ending.add(row.id)
        try:
            await self._end_jobs(row)
            async with self._changing:
                gone = await self._forget(row, user)
        finally:
            self.ending.discard(row.id)
        return len(gone)

    async def _end_jobs(self, row: ModelRow) -> None:
        open_jobs = [job for job in await self._jobs.of_model(row.id) if job.state in OPEN and job.kind != TINKER]
        # Last first, so that none of them begins while the others are ended.
        for job in reversed(open_jobs):
            await self._supervisor.cancel(job.id)
        try:
            async with asyncio.timeout(_MOST_SECONDS_TO_END):
                for job in open_jobs:
                    await self._supervisor.wait_until_ended(job.id)
        except TimeoutError:
            raise Conflict(f"A job of the model {row.name!r} is still running; try again when it has ended") from None

    async def delete_checkpoints(self, row: ModelRow, steps: list[int], user: str) -> tuple[int, list[int]]:
        """Take steps away; returns how many there were, and which were not there.

        Raises Conflict, with nothing deleted, when one of them is still needed.
        """
        async with self._changing:
            rows = await self._table.checkpoints(row.id)
            there = {checkpoint.step for checkpoint in rows}
            needed = await self._needed_steps(row, rows)
            if kept := sorted(there.intersection(steps, needed)):
                reasons = "; ".join(f"step {step} cannot be deleted: {needed[step]}" for step in kept)
                raise Conflict(f"Nothing was deleted: {reasons}")
            gone = await self._delete_steps(row, there.intersection(steps), user)
        return len(gone), [step for step in dict.fromkeys(steps) if step not in there]

    async def roll_back(self, row: ModelRow, step: int, instead_of: int | None = None) -> None:
        """Let the bare name mean a step; raises NotFound for one that is not listed.

        Raises Conflict where the name does not mean the step `instead_of`.
        """
        async with self._changing:
            if all(checkpoint.step != step for checkpoint in await self._table.checkpoints(row.id)):
                raise NotFound(f"The model {row.name!r} has no step {step}", param="step")
            await self._policies.point(policy_name(row), step, instead_of)

    async def retain(self, model: ModelRow) -> None:
        """Delete what is older than the newest steps that the settings keep, and needed by nobody."""
        async with self._changing:
            rows, keep = await self._table.checkpoints(model.id), self._settings.training_keep
            if keep == 0 or len(rows) <= keep:
                return
            needed = await self._needed_steps(model, rows)
            if old := [row.step for row in rows[:-keep] if row.step not in needed]:
                await self._delete_steps(model, old, "heddle")

    async def _needed_steps(self, model: ModelRow, rows: list[CheckpointRow]) -> dict[int, str]:
        """The steps that must stay, and why."""
        reasons: dict[int, str] = {}
        steps = {row.folder: row.step for row in rows}
        for job in await self._jobs.open():
            named = _steps_of(job) if job.model_id == model.id else []
            if (elsewhere := steps.get(job.config.get("kl_reference") or "")) is not None:
                named.append(elsewhere)
            reasons |= dict.fromkeys(named, f"the job {job.id} needs it")
        for need in self.needs:
            reasons |= await need(model)
        if rows:
            reasons[rows[-1].step] = "it is the newest step, and step numbers are not reused"
        latest = await self._policies.latest(policy_name(model))
        if latest is not None:
            reasons[latest] = "the model currently serves it; roll back first"
        return reasons

    async def _delete_steps(self, model: ModelRow, steps: Collection[int], user: str) -> list[CheckpointRow]:
        """Take steps away from addresses, list and disk; returns those that were there."""
        await self._policies.withdraw(policy_name(model), list(steps), user)
        rows = await self._table.delete_checkpoints(model.id, steps, times.now(), user)
        for row in rows:
            await asyncio.to_thread(files.remove_below, self._data, row.folder)
        return rows

    async def add_log(self, model: ModelRow, taken: Taken, caller: Caller) -> LogRow:
        """Keep a log whose body is durable already; its metrics join those of the newest checkpoint."""
        assert taken.key is not None
        row = LogRow(
            id=times.uuid7(),
            model_id=model.id,
            step=0,
            split=taken.head["split"],
            metrics=taken.metrics,
            payload=taken.key,
            groups=taken.groups,
            trajectories=taken.trajectories,
            created_at=times.now(),
            created_by=caller.user,
        )
        return await self._table.add_log(row)

    async def find_log(self, model: ModelRow, log_id: str) -> LogRow:
        """One log of a model; raises NotFound."""
        for row in await self._table.logs(model.id):
            if row.id == log_id.lower():
                return row
        raise NotFound("Log not found")


def _steps_of(job: JobRow) -> list[int]:
    """The steps that an open job starts from, makes, or compares with."""
    settings = job.config.get("settings") or {}
    named = [job.step, job.parent_step, job.config.get("candidate_from"), settings.get("kl_penalty_reference_step")]
    lag = settings.get("kl_penalty_step_lag")
    if lag is not None and job.parent_step is not None:
        named.append(max(0, job.parent_step - lag))
    return [step for step in named if step is not None]
