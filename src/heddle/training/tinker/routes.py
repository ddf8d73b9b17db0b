"""The routes of Tinker's protocol (tinker 0.38), below /api/v1."""

import asyncio
from typing import Annotated, TypeVar

import orjson
from fastapi import Header, Query, Request, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound, ValidationFailed
from heddle.http.description import body_schema
from heddle.http.routing import BearerDeleter, BearerReader, BearerWriter, answer, group, off_loop, validate_body
from heddle.http.signing import Download, Signer, check_address
from heddle.store.control.coordination import QUEUED, RUNNING
from heddle.store.control.tinker import RequestRow, RunRow, SavedRow
from heddle.store.control.training_models import ModelRow
from heddle.training.tinker.checks import check_data, refuse_token
from heddle.training.tinker.listing import find_sessions, sum_storage
from heddle.training.tinker.schemas import (
    Body,
    ChangeProject,
    ChangeTtl,
    ClientConfig,
    CopyWeights,
    CreateRun,
    CreateSampler,
    CreateSession,
    FinishSession,
    LoadWeights,
    OptimStep,
    RetrieveFuture,
    RunId,
    Sample,
    SamplerId,
    SaveExternal,
    SaveForSampler,
    SaveWeights,
    SearchSessions,
    SessionId,
    TinkerPath,
)
from heddle.training.tinker.service import SCHEME, UNNAMED, Tinker, TinkerDep, names_of, step_folder
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json
from heddle.wire.otlp import PROTOBUF, Malformed

router = group("Tinker")
ROUTERS = (router,)
B = TypeVar("B", bound=Body)
PREFIX = "/api/v1"
DOWNLOAD = "api/v1/external_weights"
Limit = Annotated[int, Query(ge=0, le=1000)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
IN_PROTOBUF = {
    "requestBody": {"required": True, "content": {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get(f"{PREFIX}/healthz", response_model=None)
async def read_health(_: BearerReader) -> Response:
    """Whether the server answers."""
    return answer({"status": "ok"})


@router.post(f"{PREFIX}/client/config", response_model=None, openapi_extra=body_schema(ClientConfig))
async def read_config(request: Request, _: BearerReader) -> Response:
    """How the client is to speak: with its API key, losses of its own computed on its side."""
    await validate_body(ClientConfig, request)
    return answer({"pjwt_auth_enabled": False, "parallel_fwdbwd_chunks": True, "use_pyqwest_transport": False})


@router.post(f"{PREFIX}/client/dynamic_config", response_model=None, openapi_extra=body_schema(ClientConfig))
async def read_dynamic_config(request: Request, _: BearerReader) -> Response:
    """What the client asks for again and again: nothing here changes."""
    await validate_body(ClientConfig, request)
    return answer({"refresh_interval_sec": 3600})


@router.get(f"{PREFIX}/get_server_capabilities", response_model=None)
async def read_capabilities(_: BearerReader, tinker: TinkerDep) -> Response:
    """The models that can be trained and sampled."""
    models = [
        {
            "model_name": base.id,
            "max_context_length": base.max_model_len,
            "trainable": tinker.settings.training == "on",
            "sampleable": True,
        }
        for base in await tinker.policies.base_models()
    ]
    return answer({"supported_models": models})


@router.post(f"{PREFIX}/telemetry", response_model=None)
async def take_telemetry(_: BearerWriter) -> Response:
    """What clients tell of themselves; nobody reads it."""
    return answer({"status": "accepted"})


@router.post(f"{PREFIX}/create_session", response_model=None, openapi_extra=body_schema(CreateSession))
async def create_session(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Begin a session."""
    wanted = await validate_body(CreateSession, request)
    return answer({"type": "create_session", "session_id": (await tinker.sessions.create(wanted, caller)).id})


@router.post(f"{PREFIX}/session_heartbeat", response_model=None, openapi_extra=body_schema(SessionId))
async def beat_session(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """The client lives."""
    wanted = await validate_body(SessionId, request)
    await tinker.sessions.see(wanted.session_id, caller)
    return answer({"type": "session_heartbeat"})


@router.post(f"{PREFIX}/sessions/{{session_id}}/finish", response_model=None, openapi_extra=body_schema(FinishSession))
async def finish_session(session_id: str, request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """End a session; how it ended first stays."""
    wanted = await validate_body(FinishSession, request)
    await tinker.sessions.finish(session_id, wanted.model_dump(include={"reason", "detail"}), caller)
    return answer({})


@router.put(f"{PREFIX}/sessions/{{session_id}}/project", response_model=None, openapi_extra=body_schema(ChangeProject))
async def move_session(session_id: str, request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Put a session that has no models into another project."""
    wanted = await validate_body(ChangeProject, request)
    await tinker.sessions.move(session_id, wanted.project_id, caller)
    return answer({})


@router.post(f"{PREFIX}/sessions/search", response_model=None, openapi_extra=body_schema(SearchSessions))
async def search_sessions(request: Request, caller: BearerReader, tinker: TinkerDep) -> Response:
    """Sessions that the caller's key reaches and that a filter leaves, newest first."""
    return answer(await find_sessions(tinker, await validate_body(SearchSessions, request), caller))


@router.get(f"{PREFIX}/billing/usage/checkpoints/current", response_model=None)
async def read_storage(caller: BearerReader, tinker: TinkerDep, project_id: str | None = None) -> Response:
    """What the checkpoints take that the caller's key reaches, by project and user."""
    return answer({"data": await sum_storage(tinker, project_id, caller)})


@router.get(f"{PREFIX}/sessions", response_model=None)
async def list_sessions(caller: BearerReader, tinker: TinkerDep, limit: Limit = 20, offset: Offset = 0) -> Response:
    """The sessions that the caller's key reaches, newest first."""
    rows = await tinker.sessions.list_reached(caller)
    return answer({"sessions": [row.id for row in rows[offset : offset + limit]]})


@router.get(f"{PREFIX}/sessions/{{session_id}}", response_model=None)
async def read_session(session_id: str, caller: BearerReader, tinker: TinkerDep) -> Response:
    """One session, with its models and samplers."""
    row = await tinker.sessions.find(session_id, caller)
    return answer(
        {
            "training_run_ids": [run.id for run in await tinker.rows.runs([row.id])],
            "sampler_ids": [sampler.id for sampler in await tinker.rows.samplers(row.id)],
            "user_metadata": row.about.get("user_metadata"),
            "display_name": row.about.get("display_name"),
        }
    )


def _promise(row: RequestRow, samples: int | None = None) -> Response:
    """The id of a result; `samples` names that many sequences, too."""
    told: Json = {"request_id": row.id}
    if samples is not None:
        told["sample_sequence_ids"] = [f"{row.id}:{place}" for place in range(samples)]
    elif ":train:" in row.target:
        told["model_id"] = row.target
    return answer(told)


@router.post(f"{PREFIX}/create_model", response_model=None, openapi_extra=body_schema(CreateRun))
async def create_run(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Make a model to train."""
    return _promise(await tinker.create_run(await validate_body(CreateRun, request), caller))


@router.post(f"{PREFIX}/get_info", response_model=None, openapi_extra=body_schema(RunId))
async def read_run_info(request: Request, caller: BearerReader, tinker: TinkerDep) -> Response:
    """What a model is."""
    wanted = await validate_body(RunId, request)
    run, model = await tinker.run(wanted.model_id, caller)
    data = {"arch": "lora", "model_name": model.base_model, "tokenizer_id": model.base_model}
    told = {"type": "get_info", "model_data": data, "model_id": run.id, "model_name": model.base_model}
    return answer(told | {"is_lora": True, "lora_rank": run.lora["rank"], "optimizer_config": {"type": "adamw"}})


@router.post(f"{PREFIX}/unload_model", response_model=None, openapi_extra=body_schema(RunId))
async def unload_run(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Train a model no further; its checkpoints stay."""
    wanted = await validate_body(RunId, request)
    return _promise(await tinker.end_run(wanted.model_id, caller))


async def _read(kind: type[B], request: Request, caller: Caller, tinker: Tinker) -> B:
    """The body of a request of a run, which has its turn also where it is refused; raises ValidationFailed."""
    try:
        return await validate_body(kind, request)
    except ValidationFailed as error:
        body = jsontext.loads(await request.body())
        if isinstance(body, dict):
            await tinker.refuse(body.get("model_id"), body.get("seq_id"), error, caller)
        raise


@router.post(f"{PREFIX}/forward_backward", response_model=None, openapi_extra=IN_PROTOBUF)
async def compute_gradient(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Compute a loss on data, and add up its gradient."""
    tinker.require()
    body = await request.body()
    from heddle.training.tinker.messages import read_data_request

    try:
        wanted = await off_loop(len(body), lambda: read_data_request(body))
    except Malformed as error:
        raise InvalidRequest(f"The body is not a ForwardBackwardRequest: {error}") from None
    _, model = await tinker.run(wanted.model_id, caller)
    base = await tinker.models.base(model.base_model)
    try:
        await off_loop(len(body), lambda: check_data(wanted, base))
    except InvalidRequest as error:
        await tinker.refuse(wanted.model_id, wanted.seq_id, error, caller)
        raise
    kind = "forward" if wanted.forward_only else "forward_backward"
    return _promise(await tinker.accept(wanted.model_id, wanted.seq_id, kind, body, caller))


@router.post(f"{PREFIX}/optim_step", response_model=None, openapi_extra=body_schema(OptimStep))
async def take_step(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Take an optimizer step along the gradient."""
    wanted = await _read(OptimStep, request, caller, tinker)
    values = orjson.dumps(wanted.adam_params.model_dump())
    return _promise(await tinker.accept(wanted.model_id, wanted.seq_id, wanted.kind, values, caller))


@router.post(f"{PREFIX}/save_weights", response_model=None, openapi_extra=body_schema(SaveWeights))
async def save_state(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Keep a model's weights and optimizer."""
    return _promise(await tinker.accept_json(await _read(SaveWeights, request, caller, tinker), caller))


@router.post(f"{PREFIX}/save_weights_for_sampler", response_model=None, openapi_extra=body_schema(SaveForSampler))
async def save_for_sampler(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Keep a model's weights to sample from."""
    wanted = await _read(SaveForSampler, request, caller, tinker)
    if (wanted.path is None) == (wanted.sampling_session_seq_id is None):
        refusal = InvalidRequest("path or sampling_session_seq_id: one of them says what is made", param="path")
        await tinker.refuse(wanted.model_id, wanted.seq_id, refusal, caller)
        raise refusal
    return _promise(await tinker.accept_sampler(wanted, caller))


@router.post(f"{PREFIX}/save_weights_external", response_model=None, openapi_extra=body_schema(SaveExternal))
async def save_external(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Keep a model's weights as a PEFT folder to download."""
    return _promise(await tinker.accept_json(await _read(SaveExternal, request, caller, tinker), caller))


@router.post(f"{PREFIX}/copy_weights", response_model=None, openapi_extra=body_schema(CopyWeights))
async def copy_weights(
    request: Request,
    caller: BearerWriter,
    tinker: TinkerDep,
    x_idempotency_key: Annotated[str | None, Header()] = None,
    x_tinker_weights_access_token: Annotated[str | None, Header()] = None,
) -> Response:
    """Put a checkpoint into another project; both share the bytes where the disk allows it."""
    wanted = await validate_body(CopyWeights, request)
    refuse_token(x_tinker_weights_access_token)
    return answer({"tinker_path": await tinker.copy_saved(wanted, x_idempotency_key, caller)})


@router.post(f"{PREFIX}/load_weights", response_model=None, openapi_extra=body_schema(LoadWeights))
async def load_state(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Go on from a checkpoint, with a model that is there or a new one."""
    return _promise(await tinker.accept_load(await _read(LoadWeights, request, caller, tinker), caller))


@router.post(f"{PREFIX}/create_sampling_session", response_model=None, openapi_extra=body_schema(CreateSampler))
async def create_sampler(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Make a sampler of a checkpoint or a base model."""
    wanted = await validate_body(CreateSampler, request)
    sampler = await tinker.create_sampler(wanted, caller)
    return answer({"type": "create_sampling_session", "sampling_session_id": sampler.id})


@router.post(f"{PREFIX}/join_sampling_session", response_model=None, openapi_extra=body_schema(SamplerId))
async def join_sampler(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Give one more client of a sampler a number."""
    wanted = await validate_body(SamplerId, request)
    sampler, _ = await tinker.sampler(wanted.sampling_session_id, caller)
    number = await tinker.rows.join_sampler(sampler.id)
    return answer({"type": "join_sampling_session", "client_counter": number})


@router.get(f"{PREFIX}/samplers/{{sampler_id}}", response_model=None)
async def read_sampler(sampler_id: str, caller: BearerReader, tinker: TinkerDep) -> Response:
    """What a sampler draws from."""
    row, _ = await tinker.sampler(sampler_id, caller)
    return answer({"sampler_id": row.id, "base_model": row.base_model, "model_path": row.path})


@router.post(f"{PREFIX}/asample", response_model=None, openapi_extra=body_schema(Sample))
async def sample(request: Request, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Draw sequences behind a prompt of tokens."""
    wanted = await validate_body(Sample, request)
    return _promise(await tinker.accept_sample(wanted, caller), wanted.num_samples)


@router.post(f"{PREFIX}/retrieve_future", response_model=None, openapi_extra=body_schema(RetrieveFuture))
async def retrieve_future(request: Request, caller: BearerReader, tinker: TinkerDep) -> Response:
    """The result of a request; 408 when there is none within twenty seconds, and the client asks again."""
    wanted = await validate_body(RetrieveFuture, request)
    row = await tinker.wait(wanted.request_id, caller)
    if row.state in (QUEUED, RUNNING):
        body = {"type": "try_again", "request_id": row.id, "queue_state": "active"}
        return Response(orjson.dumps(body), 408, media_type="application/json")
    if row.error is not None:
        return answer({"error": row.error, "category": "user" if row.is_users_fault else "server"})
    kind = PROTOBUF if row.kind in ("forward", "forward_backward", "sample") else "application/json"
    return Response(row.result or b"{}", media_type=kind)


def show_saved(row: SavedRow) -> Json:
    """A checkpoint as clients see it."""
    return {
        "checkpoint_id": row.path.removeprefix(f"{SCHEME}{row.run_id}/"),
        "checkpoint_type": "sampler" if row.kind in UNNAMED else row.kind,
        "time": times.to_iso(row.created_at),
        "tinker_path": row.path,
        "size_bytes": row.bytes,
        "public": row.is_public,
        "user_metadata": row.user_metadata,
        "expires_at": times.optional_iso(row.expires_at),
    }


def _show_run(run: RunRow, model: ModelRow, saved: list[SavedRow]) -> Json:
    newest = {row.kind: show_saved(row) for row in saved if row.run_id == run.id}
    return {
        "training_run_id": run.id,
        "base_model": model.base_model,
        "model_owner": model.created_by,
        "is_lora": True,
        "lora_rank": run.lora["rank"],
        "last_request_time": times.to_iso(run.seen_at),
        "last_checkpoint": newest.get("training"),
        "last_sampler_checkpoint": newest.get("sampler"),
        "user_metadata": run.user_metadata,
    }


def _cursor(offset: int, limit: int, count: int) -> Json:
    return {"offset": offset, "limit": limit, "total_count": count}


@router.get(f"{PREFIX}/training_runs", response_model=None)
async def list_runs(
    caller: BearerReader,
    tinker: TinkerDep,
    limit: Limit = 20,
    offset: Offset = 0,
    project_id: str | None = None,
) -> Response:
    """The models that the caller's key reaches, newest first."""
    found = await tinker.list_runs(caller, project_id)
    chosen = found[offset : offset + limit]
    saved = await tinker.rows.saved_of([run.id for run, _ in chosen])
    runs = [_show_run(run, model, saved) for run, model in chosen]
    return answer({"training_runs": runs, "cursor": _cursor(offset, limit, len(found))})


@router.get(f"{PREFIX}/training_runs/{{run_id}}", response_model=None)
async def read_run(run_id: str, caller: BearerReader, tinker: TinkerDep) -> Response:
    """One model."""
    run, model = await tinker.run(run_id, caller)
    return answer(_show_run(run, model, await tinker.rows.saved_of([run.id])))


@router.get(f"{PREFIX}/training_runs/{{run_id}}/checkpoints", response_model=None)
async def list_checkpoints(run_id: str, caller: BearerReader, tinker: TinkerDep) -> Response:
    """The checkpoints of a model, oldest first."""
    run, _ = await tinker.run(run_id, caller)
    return answer({"checkpoints": [show_saved(row) for row in await tinker.rows.saved_of([run.id])], "cursor": None})


@router.get(f"{PREFIX}/checkpoints", response_model=None)
async def list_all_checkpoints(
    caller: BearerReader, tinker: TinkerDep, limit: Limit = 100, offset: Offset = 0, project_id: str | None = None
) -> Response:
    """The checkpoints of all models that the caller's key reaches, newest first."""
    rows = await tinker.rows.saved_of([run.id for run, _ in await tinker.list_runs(caller, project_id)])
    chosen = list(reversed(rows))[offset : offset + limit]
    return answer({"checkpoints": [show_saved(row) for row in chosen], "cursor": _cursor(offset, limit, len(rows))})


SAVED = f"{PREFIX}/training_runs/{{run_id}}/checkpoints/{{segment}}/{{name}}"


@router.delete(SAVED, response_model=None)
async def delete_checkpoint(run_id: str, segment: str, name: str, caller: BearerDeleter, tinker: TinkerDep) -> Response:
    """Take a checkpoint away, with its files."""
    await tinker.delete_saved(await tinker.change_saved(run_id, segment, name, caller), caller.user)
    return answer({})


@router.get(f"{SAVED}/external_weights_urls", response_model=None)
async def read_external_urls(
    run_id: str, segment: str, name: str, request: Request, caller: BearerReader, tinker: TinkerDep
) -> Response:
    """Addresses of the files of a checkpoint that need no key, and when they end."""
    row, _, model = await tinker.find_saved(f"{SCHEME}{run_id}/{segment}/{name}", caller)
    if row.kind != "external":
        raise NotFound("Only checkpoints made by save_weights_external have download URLs", param="checkpoint_id")
    sign = await Signer.make(tinker.settings, str(request.base_url))
    folder = tinker.data / step_folder(model, row)
    made = {one: sign.address(DOWNLOAD, path=row.path, file=one) for one in await asyncio.to_thread(names_of, folder)}
    return answer({"urls": made, "expires": times.to_iso(sign.expires)})


@router.get(f"/{DOWNLOAD}", response_class=Download)
async def download_external(path: str, file: str, expires: int, signature: str, tinker: TinkerDep) -> Response:
    """A file of a checkpoint, by an address of external_weights_urls; 403 for one that has ended or is made up."""
    await check_address(tinker.settings, signature, expires, DOWNLOAD, path, file)
    row = await tinker.rows.saved(path)
    model = None if row is None else await tinker.model_of(row)
    if row is None or model is None or not (found := tinker.data / step_folder(model, row) / file).is_file():
        raise NotFound("The checkpoint was deleted")
    return Download(found, media_type="application/octet-stream", filename=file)


async def _publish(tinker: Tinker, run_id: str, segment: str, name: str, caller: Caller, is_public: bool) -> Response:
    await tinker.publish_saved(run_id, segment, name, caller, is_public)
    return answer({})


@router.post(f"{SAVED}/publish", response_model=None)
async def publish_checkpoint(run_id: str, segment: str, name: str, caller: BearerWriter, tinker: TinkerDep) -> Response:
    """Let every key of this server read a checkpoint."""
    return await _publish(tinker, run_id, segment, name, caller, True)


@router.delete(f"{SAVED}/publish", response_model=None)
async def unpublish_checkpoint(
    run_id: str, segment: str, name: str, caller: BearerDeleter, tinker: TinkerDep
) -> Response:
    """Let only keys of its project read a checkpoint."""
    return await _publish(tinker, run_id, segment, name, caller, False)


@router.put(f"{SAVED}/ttl", response_model=None, openapi_extra=body_schema(ChangeTtl))
async def change_ttl(
    run_id: str, segment: str, name: str, request: Request, caller: BearerWriter, tinker: TinkerDep
) -> Response:
    """Keep a checkpoint for so long from now, or for ever."""
    wanted = await validate_body(ChangeTtl, request)
    row = await tinker.change_saved(run_id, segment, name, caller)
    until = None if wanted.ttl_seconds is None else times.now() + wanted.ttl_seconds * times.SECOND
    await tinker.rows.change_saved(row.path, expires_at=until)
    return answer({})


@router.post(f"{PREFIX}/weights_info", response_model=None, openapi_extra=body_schema(TinkerPath))
async def read_weights_info(request: Request, caller: BearerReader, tinker: TinkerDep) -> Response:
    """What a checkpoint is one of."""
    wanted = await validate_body(TinkerPath, request)
    _, run, model = await tinker.find_saved(wanted.tinker_path, caller)
    trained = {"train_unembed": False, "train_mlp": run.lora["train_mlp"], "train_attn": run.lora["train_attn"]}
    told = {"base_model": model.base_model, "is_lora": True, "lora_rank": run.lora["rank"]}
    return answer(told | trained | {"optimizer_config": {"type": "adamw"}})
