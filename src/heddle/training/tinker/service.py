"""Tinker's protocol as a service: sessions, runs, samplers and checkpoints, and the queue that does their requests.

A run is a trainable model whose steps are what its client saved. A request is accepted when it is stored; its id names
the result, which waits there for a day.
"""

import asyncio
import contextlib
import hashlib
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakValueDictionary

import orjson
from fastapi import Depends

from heddle import aio
from heddle.auth import Caller
from heddle.errors import Conflict, HeddleError, InvalidRequest, NotFound, Unavailable
from heddle.http.routing import Service
from heddle.paths import model_folder
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import QUEUED, RUNNING, SUCCEEDED
from heddle.store.control.tinker import REFUSED, SAMPLE, TRAINING, RequestRow, RunRow, SamplerRow, SavedRow, SessionRow
from heddle.store.control.training_models import LoraShape, ModelRow
from heddle.training import files, initial_adapter
from heddle.training.models import TrainableModels
from heddle.training.service import Training
from heddle.training.tinker.checks import check_optimizer, check_tokens, choose_projections, refuse_token
from heddle.training.tinker.schemas import (
    CopyWeights,
    CreateRun,
    CreateSampler,
    CreateSession,
    LoadWeights,
    RunRequest,
    Sample,
    SaveForSampler,
)
from heddle.training.tinker.sessions import Sessions, name_project
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.training import PolicyHost

SCHEME = "tinker://"
KINDS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
"""The second part of a checkpoint's path, and what clients call its kind."""
UNNAMED = ("ephemeral", "inflight")
WORK = "run"
"""Of a model's folder: the snapshots of its run."""
_Making = CreateRun | LoadWeights | CopyWeights
WAIT_SECONDS = 20.0
_LOOK_SECONDS = 1.0


class Tinker:
    """What clients of the protocol ask for."""

    def __init__(self, settings: Settings, store: Store, training: Training, policies: PolicyHost) -> None:
        self.settings = settings
        self.data = Path(settings.data).resolve()
        self.rows = store.tinker
        self.requests = store.tinker_requests
        self.models: TrainableModels = training.models
        self.policies = policies
        self._training = training
        self._table = store.train_models
        self.sessions = Sessions(store.tinker, store.redaction, store.keys)
        self.jobs = store.train_jobs
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        """For each request that somebody waits for: set when it has ended."""
        self.wake: dict[str, Callable[[], None]] = {}
        """Has requests looked for, by the kind of work."""
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """For each run that is being made."""

    @property
    def is_possible(self) -> bool:
        """Whether this server trains by this protocol."""
        return self.settings.training == "on" and self.settings.trainer == "local" and not self._training.missing

    def require(self) -> None:
        """Raise ExtraMissing or Unavailable where this server does not train by this protocol."""
        self._training.require()
        if self.settings.trainer != "local":
            raise Unavailable("The Tinker protocol requires --trainer local", retry_after=60)

    async def run(self, run_id: str, caller: Caller) -> tuple[RunRow, ModelRow]:
        """A run that the caller's key reaches, and its model; raises NotFound for any other."""
        row = await self.rows.run(run_id)
        model = None if row is None else await self._table.find(row.model_id)
        if row is None or model is None or not caller.reaches(model.project_id):
            raise NotFound(f"Model {run_id!r} not found", param="model_id")
        caller.open(model.project_id)
        return row, model

    async def list_runs(self, caller: Caller, project_id: str | None) -> list[tuple[RunRow, ModelRow]]:
        """The runs that the caller's key reaches (of one project), newest first; raises Forbidden."""
        models = {model.id: model for model in await self.models.list_reached(caller)}
        if project_id is not None:
            wanted = name_project(project_id, caller)
            models = {model.id: model for model in models.values() if model.project_id == wanted}
        return [(row, models[row.model_id]) for row in await self.rows.runs() if row.model_id in models]

    async def create_run(self, wanted: CreateRun, caller: Caller) -> RequestRow:
        """Make a run; the same again is the one that is there. Raises InvalidRequest, NotFound, Gone, ..."""
        self.require()
        session = await self.sessions.open(wanted.session_id, caller)
        base = await self.models.base(wanted.base_model)
        shape = choose_projections(await self.models.shape(base), wanted.lora_config)
        lora = initial_adapter.lora_of(shape, base.id, wanted.lora_config.rank, initial_adapter.LORA_ALPHA)
        about = wanted.lora_config.model_dump(include={"rank", "train_mlp", "train_attn"})

        def make(folder: Path, model_id: str) -> None:
            seed = wanted.lora_config.seed
            initial_adapter.make_adapter(
                folder, shape, base.id, lora, model_id if seed is None else str(uuid.UUID(int=seed))
            )

        return await self._add_run(session, wanted.model_seq_id, base.id, lora, about, wanted, make)

    async def create_run_from(self, wanted: LoadWeights, caller: Caller) -> RequestRow:
        """Make a run that begins with a checkpoint; raises as `create_run`."""
        self.require()
        if wanted.session_id is None or wanted.model_seq_id is None:
            raise InvalidRequest("session_id and model_seq_id are both required to create a model")
        if wanted.seq_id is not None:
            raise InvalidRequest("seq_id can be used only with model_id, not with session_id", param="seq_id")
        session = await self.sessions.open(wanted.session_id, caller)
        source, run, model = await self.find_saved(wanted.path, caller)
        refuse_token(wanted.weights_access_token)
        if wanted.base_model is not None and (await self.models.base(wanted.base_model)).id != model.base_model:
            raise InvalidRequest(f"base_model: the checkpoint belongs to {model.base_model}", param="base_model")
        check_optimizer(wanted, source)
        make = _copier(self.data / step_folder(model, source), source, with_optimizer=wanted.optimizer)
        return await self._add_run(session, wanted.model_seq_id, model.base_model, model.lora, run.lora, wanted, make)

    async def copy_saved(self, wanted: CopyWeights, key: str | None, caller: Caller) -> str:
        """The path of a copy, in a run that is not trained; one `key` makes one copy. Raises as `create_run`."""
        refuse_token(wanted.weights_access_token)
        source, run, model = await self.find_saved(wanted.source_path, caller)
        seq = wanted.model_seq_id
        if wanted.destination_project_id is not None and (wanted.session_id, seq) == (None, None):
            told = f"{caller.key_id} {caller.user} {wanted.model_dump_json()} {key or secrets.token_hex(12)}"
            session_id, seq = hashlib.sha256(told.encode()).hexdigest()[:24], 0
            project_id = wanted.destination_project_id
            session = await self.sessions.create(
                CreateSession(sdk_version="", project_id=project_id), caller, session_id
            )
        elif wanted.destination_project_id is None and wanted.session_id is not None and seq is not None:
            session = await self.sessions.open(wanted.session_id, caller)
        else:
            raise InvalidRequest("destination_project_id, or session_id with model_seq_id, is required")
        name = wanted.source_path.removeprefix(f"{SCHEME}{run.id}")
        path = f"{SCHEME}{session.id}:train:{seq}{name}"
        if await self.rows.saved(path) is None:
            is_training = source.kind == "training"
            make = _copier(self.data / step_folder(model, source), source, is_training)
            request = await self._add_run(session, seq, model.base_model, model.lora, run.lora, wanted, make)
            new, copy = await self.run(request.target, caller)
            # The source may be deleted by now.
            again = _copier(self.data / files.checkpoint_folder(copy.id, 0), source, is_training)
            await asyncio.to_thread(again, self.data / files.checkpoint_folder(copy.id, 1), copy.id)
            kind = "sampler" if source.kind in UNNAMED else source.kind
            listed = saved_row(new, 1, path, kind, times.now(), wanted.ttl_seconds, source.user_metadata)
            await self.add_saved(copy, listed)
            await self.rows.end_run(new.id)
        return path

    async def add_saved(self, model: ModelRow, row: SavedRow) -> None:
        """List a checkpoint whose folder is made, and serve it where it is one to sample from."""
        made_by = await self.jobs.last_step(job_id(model.id), row.step)
        listed = await self.models.save(model, row.step, row.kind in ("sampler", *UNNAMED), made_by)
        await self.rows.add_saved(replace(row, bytes=listed.bytes))

    async def _add_run(
        self,
        session: SessionRow,
        seq: int,
        base_model: str,
        lora: LoraShape,
        about: Json,
        wanted: _Making,
        make: Callable[[Path, str], None],
    ) -> RequestRow:
        run_id = f"{session.id}:train:{seq}"
        request_id, now = f"{run_id}:0", times.now()
        body = wanted.model_dump_json().encode()
        async with self._making.setdefault(run_id, asyncio.Lock()):
            if (found := await self.requests.find(request_id)) is None:
                model = await self._make_model(session, seq, base_model, lora, now, make)
                found = await self._know_run(session, seq, model, about, wanted, now)
        if found.body != body:
            raise InvalidRequest(f"model_seq_id {seq} is already used by another request", param="model_seq_id")
        return found

    async def _make_model(
        self,
        session: SessionRow,
        seq: int,
        base_model: str,
        lora: LoraShape,
        at: int,
        make: Callable[[Path, str], None],
    ) -> ModelRow:
        """The model of a run, which another server may be making, too: the first of them is the one."""
        named = session.entity, session.project, f"tinker-{session.id}-{seq}"
        found = await self._table.find_named(*named)
        if found is not None:
            return found
        model_id = str(uuid.uuid4())
        row = ModelRow(model_id, *named, base_model, secrets.token_hex(4), lora, at, session.created_by)
        try:
            await self.models.add(row, lambda folder: make(folder, model_id))
        except Conflict:
            found = await self._table.find_named(*named)
            if found is None:
                raise
        return found or row

    async def _know_run(
        self, session: SessionRow, seq: int, model: ModelRow, about: Json, wanted: _Making, at: int
    ) -> RequestRow:
        """Make a run known; returns the request that it was made by."""
        run_id = f"{session.id}:train:{seq}"
        run = RunRow(
            id=run_id,
            model_id=model.id,
            session_id=session.id,
            lora=about,
            user_metadata=None if isinstance(wanted, CopyWeights) else wanted.user_metadata,
            created_at=at,
            seen_at=at,
        )
        answer: Json = {"model_id": run_id, "type": "create_model" if isinstance(wanted, CreateRun) else "load_weights"}
        if isinstance(wanted, LoadWeights):
            answer["path"] = wanted.path
        request = RequestRow(
            id=f"{run_id}:0",
            target=run_id,
            seq=0,
            kind="create_model",
            state=SUCCEEDED,
            body=wanted.model_dump_json().encode(),
            result=orjson.dumps(answer),
            created_at=at,
            ended_at=at,
        )
        await self.rows.add_run(run, request)
        return await self.requests.find(request.id) or request

    async def accept(self, run_id: str, seq: int, kind: str, body: bytes, caller: Caller) -> RequestRow:
        """Store a request of a run, to be done in its turn; raises NotFound, InvalidRequest, Gone, Busy."""
        self.require()
        run, _ = await self.run(run_id, caller)
        await self.sessions.open(run.session_id, caller)
        return await self._queue(run_id, seq, kind, body)

    async def refuse(self, run_id: Any, seq: Any, error: HeddleError, caller: Caller) -> None:
        """Note that a request was refused: clients count it, and those behind it would wait for it for ever."""
        if isinstance(run_id, str) and isinstance(seq, int) and 1 <= seq < 2**31:
            with contextlib.suppress(HeddleError):
                await self.accept(run_id, seq, REFUSED, error.reason.encode(), caller)

    async def accept_json(self, wanted: RunRequest, caller: Caller) -> RequestRow:
        """The same for a body that is JSON."""
        return await self.accept(
            wanted.model_id, wanted.seq_id, wanted.kind, wanted.model_dump_json(by_alias=True).encode(), caller
        )

    async def accept_sampler(self, wanted: SaveForSampler, caller: Caller) -> RequestRow:
        """The same for weights to sample from; a repetition brings another number for the sampler: the first stays."""
        found = await self.requests.find(f"{wanted.model_id}:{wanted.seq_id}")
        if (
            found is not None
            and found.kind == wanted.kind
            and found.body
            and wanted.sampling_session_seq_id is not None
        ):
            number = orjson.loads(found.body)["sampling_session_seq_id"]
            wanted = wanted.model_copy(update={"sampling_session_seq_id": number})
        return await self.accept_json(wanted, caller)

    async def _queue(self, target: str, seq: int, kind: str, body: bytes) -> RequestRow:
        row = RequestRow(id=f"{target}:{seq}", target=target, seq=seq, kind=kind, body=body, created_at=times.now())
        stored = await self.requests.add(row)
        self.wake[SAMPLE if kind == SAMPLE else TRAINING]()
        return stored

    async def accept_load(self, wanted: LoadWeights, caller: Caller) -> RequestRow:
        """Store a request to go on from a checkpoint; raises as `accept`, and for the checkpoint."""
        if wanted.model_id is None or wanted.seq_id is None:
            return await self.create_run_from(wanted, caller)
        _, model = await self.run(wanted.model_id, caller)
        try:
            source, _, other = await self.find_saved(wanted.path, caller)
            refuse_token(wanted.weights_access_token)
            check_optimizer(wanted, source)
            if (other.base_model, other.lora) != (model.base_model, model.lora):
                raise InvalidRequest("path: the checkpoint has another base model or LoRA shape", param="path")
        except HeddleError as error:
            await self.refuse(wanted.model_id, wanted.seq_id, error, caller)
            raise
        body = wanted.model_dump(mode="json") | {"folder": step_folder(other, source)}
        return await self.accept(wanted.model_id, wanted.seq_id, wanted.kind, orjson.dumps(body), caller)

    async def end_run(self, run_id: str, caller: Caller) -> RequestRow:
        """Take no more requests for a run; its checkpoints stay. Raises NotFound."""
        _, model = await self.run(run_id, caller)
        await self.rows.end_run(run_id)
        await self.rows.end_jobs(times.now(), 0)
        await asyncio.to_thread(files.remove, self.data / model_folder(model.id) / WORK)
        row = RequestRow(
            id=f"{run_id}:unload",
            target=run_id,
            seq=-1,
            kind="unload_model",
            state=SUCCEEDED,
            body=b"{}",
            result=orjson.dumps({"model_id": run_id, "type": "unload_model"}),
            created_at=times.now(),
            ended_at=times.now(),
        )
        return await self.requests.keep(row)

    async def find_saved(self, path: str, caller: Caller) -> tuple[SavedRow, RunRow, ModelRow]:
        """A checkpoint that the caller may read, by its path; raises InvalidRequest, NotFound."""
        run_id, _, rest = path.removeprefix(SCHEME).partition("/")
        if not path.startswith(SCHEME) or rest.partition("/")[0] not in KINDS:
            raise InvalidRequest(f"{path[:300]!r} is not a path of a checkpoint, such as {SCHEME}RUN/weights/NAME")
        row = await self.rows.saved(path)
        run = None if row is None else await self.rows.run(run_id)
        model = None if run is None else await self._table.find(run.model_id)
        if row is None or run is None or model is None or not (row.is_public or caller.reaches(model.project_id)):
            raise NotFound(f"Checkpoint {path[:300]!r} not found", param="path")
        if not row.is_public:
            caller.open(model.project_id)
        return row, run, model

    async def change_saved(self, run_id: str, segment: str, name: str, caller: Caller) -> SavedRow:
        """A checkpoint that the caller may change; raises NotFound."""
        await self.run(run_id, caller)
        return (await self.find_saved(f"{SCHEME}{run_id}/{segment}/{name}", caller))[0]

    async def publish_saved(self, run_id: str, segment: str, name: str, caller: Caller, is_public: bool) -> None:
        """Let every key of this server read a checkpoint, or only those of its project; raises NotFound."""
        row = await self.change_saved(run_id, segment, name, caller)
        model = (await self.find_saved(row.path, caller))[2]
        await self.rows.publish_saved(row.path, is_public, caller.user, refs.internal_project(model.project_id))

    async def model_of(self, row: SavedRow) -> ModelRow | None:
        """The model that a checkpoint is a step of."""
        run = await self.rows.run(row.run_id)
        return None if run is None else await self._table.find(run.model_id)

    async def delete_saved(self, row: SavedRow, user: str) -> None:
        """Take a checkpoint away, with its files."""
        model = await self.model_of(row)
        await self.rows.remove_saved(row.path)
        if model is not None:
            await self.models.drop(model, row.step, user)

    async def create_sampler(self, wanted: CreateSampler, caller: Caller) -> SamplerRow:
        """What samples are drawn from: a checkpoint or the base model; raises InvalidRequest, NotFound, Gone."""
        session = await self.sessions.open(wanted.session_id, caller)
        if wanted.model_path is None:
            if wanted.base_model is None:
                raise InvalidRequest("base_model or model_path is required", param="model_path")
            base_model = (await self.models.base(wanted.base_model)).id
        else:
            saved, _, model = await self.find_saved(wanted.model_path, caller)
            base_model = model.base_model
            if wanted.base_model not in (None, base_model):
                raise InvalidRequest(f"base_model: the checkpoint belongs to {base_model}", param="base_model")
            await self.models.offer(model, saved.step)
        row = SamplerRow(
            id=f"{session.id}:sample:{wanted.sampling_session_seq_id}",
            session_id=session.id,
            base_model=base_model,
            path=wanted.model_path,
        )
        await self.rows.add_sampler(row)
        return row

    async def sampler(self, sampler_id: str, caller: Caller) -> tuple[SamplerRow, SessionRow]:
        """A sampler of a session that the caller's key reaches; raises NotFound for any other."""
        row = await self.rows.sampler(sampler_id)
        session = None if row is None else await self.rows.session(row.session_id)
        if row is None or session is None or not caller.reaches(session.project_id):
            raise NotFound(f"Sampler {sampler_id!r} not found")
        caller.open(session.project_id)
        return row, session

    async def accept_sample(self, wanted: Sample, caller: Caller) -> RequestRow:
        """Store a request for samples; raises InvalidRequest, NotFound, Gone, Busy."""
        sampler, session = await self.sampler(wanted.sampling_session_id, caller)
        await self.sessions.open(session.id, caller)
        base, ids = await self.models.base(sampler.base_model), wanted.prompt.ids()
        check_tokens(ids, base, "prompt")
        last = wanted.prompt_logprobs_last_n
        if last is not None and (not wanted.prompt_logprobs or last >= len(ids)):
            raise InvalidRequest(
                "prompt_logprobs_last_n requires prompt_logprobs and must be less than the number of prompt tokens",
                param="prompt_logprobs_last_n",
            )
        target = wanted.target_prompt_logprobs
        if target is not None and (target.shape[0] != len(ids) - 1 or max(target.data) >= base.vocab_size):
            raise InvalidRequest(
                f"target_prompt_logprobs: must have {len(ids) - 1} rows of tokens below {base.vocab_size}",
                param="target_prompt_logprobs",
            )
        if wanted.prompt_alt_tokens_k and len(ids) < 2:
            raise InvalidRequest(
                "prompt_alt_tokens_k: requires a prompt of at least two tokens", param="prompt_alt_tokens_k"
            )
        return await self._queue(sampler.id, wanted.seq_id, SAMPLE, wanted.model_dump_json().encode())

    async def wait(self, request_id: str, caller: Caller) -> RequestRow:
        """A request once it has ended, or as it is after a while; raises NotFound for one of others."""
        await self._check_reach(request_id, caller)
        clock = asyncio.get_running_loop().time
        until = clock() + WAIT_SECONDS
        while True:
            news = self._news.setdefault(request_id, asyncio.Event())
            row = await self.requests.find(request_id)
            if row is None:
                raise NotFound(f"Request {request_id!r} not found; results are kept for a day")
            if row.state not in (QUEUED, RUNNING) or clock() >= until:
                return row
            # Another server may do it.
            left = until - clock()
            await aio.wait_at_most(min(left, _LOOK_SECONDS) if self._is_shared else left, news.wait())

    async def _check_reach(self, request_id: str, caller: Caller) -> None:
        target, _, _ = request_id.rpartition(":")
        try:
            await (self.run(target, caller) if ":train:" in target else self.sampler(target, caller))
        except NotFound:
            raise NotFound(f"Request {request_id!r} not found; results are kept for a day") from None

    @property
    def _is_shared(self) -> bool:
        return self.requests.instance.is_shared

    def tell(self, request_id: str) -> None:
        """Say that a request has ended."""
        if (news := self._news.pop(request_id, None)) is not None:
            news.set()


def job_id(model_id: str) -> str:
    """The job that a run is among the training jobs."""
    return str(uuid.uuid5(uuid.UUID(model_id), "run"))


def saved_row(
    run: RunRow, step: int, path: str, kind: str, made_at: int, ttl_seconds: int | None, user_metadata: Json | None
) -> SavedRow:
    """A checkpoint to list, whose size is not known yet."""
    return SavedRow(
        path=path,
        run_id=run.id,
        kind=kind,
        step=step,
        bytes=0,
        user_metadata=user_metadata,
        expires_at=None if ttl_seconds is None else made_at + ttl_seconds * times.SECOND,
        created_at=made_at,
    )


def step_folder(model: ModelRow, saved: SavedRow) -> str:
    """The folder of a checkpoint, relative to the data folder."""
    return files.checkpoint_folder(model.id, saved.step)


def names_of(folder: Path) -> list[str]:
    """The files of a checkpoint; none of one that was deleted meanwhile."""
    return sorted(one.name for one in folder.glob("*") if one.is_file())


def _copier(place: Path, source: SavedRow, with_optimizer: bool) -> Callable[[Path, str], None]:
    """Makes the folder of a step from that of a checkpoint, whose bytes both share where the disk allows it."""
    names = files.FULL_STATE if with_optimizer else files.FULL_STATE[:2]

    def make(folder: Path, _: str) -> None:
        try:
            files.make_whole(folder, lambda made: files.copy(place, made, names))
        except FileNotFoundError:
            raise NotFound(f"The checkpoint {source.path!r} was deleted", param="path") from None

    return make


TinkerDep = Annotated[Tinker, Depends(Service("tinker"))]
