"""Providers of models that admins of the whole server enter: their addresses and keys, and whether they answer."""

from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from fastapi import APIRouter, Path, Response
from pydantic import Field

from heddle.errors import InvalidRequest, NotFound
from heddle.http.own_bodies import OwnBody
from heddle.http.routing import Admin, Empty, Reader, ResponseModel, SettingsDep, StoreDep, answer, group
from heddle.inference.providers import Provider, ProviderClient, find_providers, place_of
from heddle.store.control.projects import ProviderRow
from heddle.store.secrets import Secrets
from heddle.wire import times
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontypes import Json

router: APIRouter = group("Providers")

TEST_SECONDS = 20.0
_SHOWN = 4
_WITHOUT_LIST = (404, 405, 501)
"""What servers answer that speak the protocol but list no models."""
ProviderName = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class ProviderSaveBody(OwnBody):
    """Body of PUT /inference/providers/{name}."""

    base_url: str = Field(max_length=2000, pattern=r"^https?://[^\s,;?#@]+$")
    api_key: str | None = Field(default=None, max_length=4096, pattern=r"^[!-~]*$", repr=False)
    """Null keeps the key that is stored, while the address stays the same; an empty text stands for no key."""


class ProviderTestBody(OwnBody):
    """Body of POST /inference/providers/{name}/test."""

    model: str | None = Field(default=None, max_length=512)
    """Is asked for one token; without one, the provider is asked for its models."""


class ProviderSchema(ResponseModel):
    """A provider; who is no admin of the whole server sees its name alone."""

    name: str
    base_url: str | None = None
    key_variable: str | None = None
    """The environment variable of its key, of a provider of the settings."""
    has_key: bool | None = None
    key_hint: str | None = None
    """The last characters of a key that was entered."""
    is_stored: bool | None = None
    problem: str | None = None
    updated_at: str | None = None
    updated_by: str | None = None


class ProvidersRes(ResponseModel):
    """Providers by name."""

    providers: list[ProviderSchema]


class ProviderTestRes(ResponseModel):
    """What the provider answered; `models` are those that it lists."""

    ok: bool
    message: str
    models: list[str]


@router.get("/inference/providers", response_model=ProvidersRes, response_model_exclude_none=True)
async def list_providers(caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """The providers of the settings and those that were entered; no keys."""
    found = await find_providers(settings, store)
    if not caller.is_operator:
        return answer({"providers": [{"name": name} for name in sorted(found)]})
    stored = {row.name: row for row in await store.providers.all()}
    return answer({"providers": [_describe(found[name], stored.get(name)) for name in sorted(found)]})


@router.put("/inference/providers/{name}", response_model=ProviderSchema, response_model_exclude_none=True)
async def save_provider(
    name: ProviderName, body: ProviderSaveBody, caller: Admin, settings: SettingsDep, store: StoreDep
) -> Response:
    """Store a provider and its key, encrypted; it can be used at once."""
    caller.require_operator("Providers")
    before = next((row for row in await store.providers.all() if row.name == name), None)
    base_url = body.base_url.rstrip("/")
    if body.api_key is not None:
        secret = Secrets(settings).encrypt(body.api_key, place_of(name)) if body.api_key else ""
        hint = body.api_key[-_SHOWN:] if len(body.api_key) > 2 * _SHOWN else ""
    elif before is None:
        raise InvalidRequest("api_key is required; use an empty string for no key", param="api_key")
    elif before.base_url != base_url and before.secret:
        # Whoever changes the address must not send a key there that they do not know.
        raise InvalidRequest("api_key is required when base_url changes", param="api_key")
    else:
        secret, hint = before.secret, before.hint
    row = ProviderRow(name, base_url, secret, hint, times.now(), caller.user)
    await store.providers.save(row)
    return answer(_describe(Provider(name, base_url), row))


@router.delete("/inference/providers/{name}", response_model=Empty)
async def delete_provider(name: ProviderName, caller: Admin, store: StoreDep) -> Response:
    """Forget a provider that was entered, and its key; one of the settings of that name is used again."""
    caller.require_operator("Providers")
    if not await store.providers.delete(name, caller.user, times.now()):
        raise NotFound(f"Provider {name} not found among those added here")
    return answer({})


@router.post("/inference/providers/{name}/test", response_model=ProviderTestRes)
async def test_provider(
    name: ProviderName, body: ProviderTestBody, caller: Admin, settings: SettingsDep, store: StoreDep
) -> Response:
    """Ask a provider for its models, or a model for one token, with the key that there is."""
    caller.require_operator("Providers")
    provider = (await find_providers(settings, store)).get(name)
    if provider is None:
        raise NotFound(f"Provider {name} not found")
    await store.audit_log.note(caller.user, "provider.test", None, {"name": name, "model": body.model})
    return answer(await _test(provider, body.model))


async def _test(provider: Provider, model: str | None) -> Json:
    try:
        client = ProviderClient(provider, seconds=TEST_SECONDS)
        if model is not None:
            messages = [{"role": "user", "content": "Hi"}]
            await client.complete({"model": model, "messages": messages, "max_tokens": 1})
            return {"ok": True, "message": f"{model} answers", "models": []}
        models = await client.list_models()
    except ProviderFailed as error:
        if model is None and error.answered in _WITHOUT_LIST:
            return {"ok": True, "message": "It answers, and lists no models: name one to try the key", "models": []}
        return {"ok": False, "message": error.reason, "models": []}
    return {"ok": True, "message": f"It answers and lists {len(models)} models", "models": sorted(models)[:1000]}


def _describe(provider: Provider, row: ProviderRow | None) -> Json:
    parts = urlsplit(provider.base_url)
    # Addresses of the settings may name a user with a password.
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    told: Json = {"name": provider.name, "base_url": shown, "is_stored": row is not None}
    if row is None:
        return told | {"key_variable": provider.key_variable or None, "has_key": provider.has_key}
    return told | {
        "has_key": bool(row.secret),
        "key_hint": row.hint or None,
        "problem": provider.problem or None,
        "updated_at": times.to_iso(row.updated_at),
        "updated_by": row.updated_by,
    }
