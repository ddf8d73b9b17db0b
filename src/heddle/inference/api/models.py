"""The models that can be asked: GET and POST /v1/models, and adapters coming and going while the server runs."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response
from pydantic import ConfigDict

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound
from heddle.http.description import body_schema
from heddle.http.routing import BearerAdmin, BearerReader, SettingsDep, StoreDep, answer, group, validate_body
from heddle.inference.adapters import AdapterRoots, Address, Version, check_reach
from heddle.inference.chat.plan import Arrival
from heddle.inference.served_model import ServedModel
from heddle.inference.service import Inference, InferenceDep
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel

router = group("Inference")

OWNER = "heddle"


class LoadAdapter(LazyModel):
    """Which PEFT folder to offer under which name."""

    model_config = ConfigDict(strict=True)

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapter(LazyModel):
    """Which adapter to take away: one version, or all of a name."""

    model_config = ConfigDict(strict=True)

    lora_name: str


@router.get("/v1/models")
async def list_models(request: Request, caller: BearerReader, inference: InferenceDep) -> Response:
    """The models that the caller can use; clients of Anthropic get them in pages, as their header tells."""
    entries = await _list_entries(inference, caller)
    if ANTHROPIC in request.headers:
        return answer(page_of(entries, request.query_params))
    return answer({"object": "list", "data": entries})


@router.post("/v1/models")
async def list_models_by_post(caller: BearerReader, inference: InferenceDep) -> Response:
    """The models that the caller can use; the same as GET."""
    return answer({"object": "list", "data": await _list_entries(inference, caller)})


@router.get("/v1/models/{model:path}")
async def read_model(request: Request, model: str, caller: BearerReader, inference: InferenceDep) -> Response:
    """One model, under any of its addresses; without a name all that the caller can use."""
    if not model:
        return answer({"object": "list", "data": await _list_entries(inference, caller)})
    if inference.is_off:
        raise NotFound(f"The model `{model[:200]}` does not exist.", param="model")
    served, shown, version = await inference.resolve(model, Arrival(caller))
    entry = _base_entry(served) if version is None else {**_adapter_entry(served, version), "id": shown}
    return answer(describe_model(entry) if ANTHROPIC in request.headers else entry)


@router.get("/v1/engine")
async def read_engine(caller: BearerReader, inference: InferenceDep) -> Response:  # noqa: ARG001
    """What the engine does now, and did since it started."""
    if not inference.is_off:
        await inference.model()
    return answer(await inference.accounts.metrics.report())


@router.post("/v1/load_lora_adapter", response_model=None, openapi_extra=body_schema(LoadAdapter))
async def load_lora_adapter(
    request: Request, caller: BearerAdmin, settings: SettingsDep, store: StoreDep, inference: InferenceDep
) -> Response:
    """Offer a LoRA adapter from a PEFT folder of this machine; what is kept is a copy."""
    wanted = await validate_body(LoadAdapter, request)
    address = _parse_address(wanted.lora_name, caller)
    folder = await AdapterRoots(settings, store).find(wanted.lora_path, address)
    version = await inference.add_adapter(address, folder, caller.user, wanted.load_inplace)
    return Response(f"Success: LoRA adapter '{version.policy}' added successfully.", media_type="text/plain")


@router.post("/v1/unload_lora_adapter", response_model=None, openapi_extra=body_schema(UnloadAdapter))
async def unload_lora_adapter(request: Request, caller: BearerAdmin, inference: InferenceDep) -> Response:
    """Take a LoRA adapter away; requests that run with it end with it."""
    wanted = await validate_body(UnloadAdapter, request)
    removed = await inference.remove_adapter(_parse_address(wanted.lora_name, caller), caller.user)
    names = ", ".join(version.policy for version in removed)
    return Response(f"Success: LoRA adapter '{names}' removed successfully.", media_type="text/plain")


def _parse_address(name: str, caller: Caller) -> Address:
    address = Address.parse(name)
    if address is None:
        raise InvalidRequest(f"{name[:200]!r} is not a valid adapter name", param="lora_name")
    check_reach(address, caller)
    return address


async def _list_entries(inference: Inference, caller: Caller) -> list[dict[str, Any]]:
    if inference.is_off:
        return []
    model = await inference.model()
    await inference.follow()
    return [_base_entry(model), *(_adapter_entry(model, version) for version in inference.adapters.latest(caller))]


def _base_entry(model: ServedModel) -> dict[str, Any]:
    name = model.source.name
    return _entry(model, name, model.source.created, OWNER, name, None)


def _adapter_entry(model: ServedModel, version: Version) -> dict[str, Any]:
    row = version.row
    created = row.created_at // 1_000_000
    return _entry(model, version.name, created, row.entity or OWNER, version.policy, model.source.name)


def _entry(model: ServedModel, name: str, created: int, owner: str, root: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": owner,
        "root": root,
        "parent": parent,
        "max_model_len": model.info.max_model_len,
    }


ANTHROPIC = "anthropic-version"
"""The header by which such clients are known."""
MOST_MODELS = 1000
_USUAL = 20


def describe_model(entry: Json) -> Json:
    """One entry of `/v1/models` in their shape."""
    created = datetime.fromtimestamp(entry["created"], UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": entry["max_model_len"],
        "max_tokens": entry["max_model_len"],
    }


def page_of(entries: Sequence[Json], query: Mapping[str, str]) -> Json:
    """The page that `limit`, `after_id` and `before_id` ask for; raises InvalidRequest for what they cannot be."""
    given = query.get("limit", str(_USUAL))
    if not (given.isascii() and given.isdigit() and len(given) <= 4 and 1 <= int(given) <= MOST_MODELS):
        raise InvalidRequest(f"limit must be a whole number from 1 to {MOST_MODELS}", param="limit")
    limit = int(given)
    ids = [entry["id"] for entry in entries]
    after, before = (_find(ids, query.get(name), name) for name in ("after_id", "before_id"))
    begin = 0 if after is None else after + 1
    rest = entries[begin:before]
    shown = rest[-limit:] if before is not None and after is None else rest[:limit]
    return {
        "data": [describe_model(entry) for entry in shown],
        "has_more": len(rest) > len(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def _find(ids: Sequence[str], given: str | None, name: str) -> int | None:
    if given is None:
        return None
    if given not in ids:
        raise InvalidRequest(f"{name}: model {given[:200]!r} is not in the list", param=name)
    return ids.index(given)
