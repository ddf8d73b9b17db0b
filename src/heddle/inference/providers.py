"""Other servers of models, of the settings or entered on the settings page, and which of them a model name means."""

import asyncio
import os
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from heddle.certificates import ssl_context
from heddle.errors import HeddleError, InvalidRequest
from heddle.http.routing import off_loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.projects import RuntimeRow
from heddle.store.secrets import Secrets
from heddle.wire import jsontext, refs
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontext import split_lines
from heddle.wire.jsontypes import Json

if TYPE_CHECKING:
    import httpx

LONGEST_SECONDS = 600.0
_CHAT = "chat/completions"
_CONNECT_SECONDS = 10.0
_ERROR_BYTES = 64 * 1024
MOST_BYTES = 128 * 1024 * 1024
"""Of one answer, unpacked."""
_OWN_HEADERS = frozenset(
    ("authorization", "host", "content-length", "content-type", "connection", "transfer-encoding", "accept", "te")
)
_TELLING = ("error", "errors", "message", "detail", "msg")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider; its key is in an environment variable (`key_variable`, empty for none), or was entered."""

    name: str
    base_url: str
    key_variable: str = ""
    key: str = field(default="", repr=False)
    problem: str = ""
    """Why the key that was entered cannot be read."""

    @property
    def has_key(self) -> bool | None:
        """Whether there is a key now; None for a provider that has none."""
        if self.key or not self.key_variable:
            return True if self.key else None
        return bool(os.environ.get(self.key_variable, "").strip())


def read_providers(settings: Settings) -> dict[str, Provider]:
    """The providers of the setting `providers`, by name."""
    found: dict[str, Provider] = {}
    for entry in settings.providers.split(";") if settings.providers != "none" else ():
        name, _, rest = entry.strip().partition("=")
        url, _, variable = rest.partition(",")
        found[name] = Provider(name, url.rstrip("/"), variable)
    return found


def place_of(name: str) -> str:
    """What the key of a provider is encrypted for."""
    return f"provider {name}"


async def find_providers(settings: Settings, store: Store) -> dict[str, Provider]:
    """The providers of the settings and those that were entered, which come first; they may change at any time."""
    found = read_providers(settings)
    for row in await store.providers.all():
        key = problem = ""
        try:
            key = Secrets(settings).decrypt(row.secret, place_of(row.name))
        except HeddleError as error:
            problem = error.reason
        found[row.name] = Provider(row.name, row.base_url, key=key, problem=problem)
    return found


def check_headers(headers: Mapping[str, Any], field: str = "extra_headers") -> dict[str, str]:
    """Further headers for a provider; raises InvalidRequest for one that is no header or not the client's to set."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(f"{field}: {name[:100]!r} must be a header with a string value", param=field)
        if name.lower() in _OWN_HEADERS:
            raise InvalidRequest(f"{field}: {name} cannot be set", param=field)
    return dict(headers)


class ProviderClient:
    """Sends requests to one provider, chat completions and others."""

    def __init__(
        self,
        provider: Provider,
        headers: Mapping[str, str] | None = None,
        seconds: float = LONGEST_SECONDS,
        api_version: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._provider = provider
        self._headers = {**(headers or {}), **_authorization(provider, environment)}
        self._seconds = min(seconds, LONGEST_SECONDS)
        self._parameters = {"api-version": api_version} if api_version else {}

    async def complete(self, body: Json) -> Json:
        """The answer to one request; raises ProviderFailed, also for an answer that says with 200 that it failed."""
        found = await self.ask(_CHAT, {**body, "stream": False})
        self._check(found)
        if not isinstance(found.get("choices"), list):
            raise ProviderFailed(f"{self._provider.name} did not return a completion")
        return found

    async def ask(self, path: str, body: Json | None) -> Json:
        """The answer to a request (a GET without a body) at a path under its address; raises ProviderFailed."""
        async with self._send(path, body) as response:
            return await self._object(b"".join([part async for part in self._parts(response)]))

    async def list_models(self) -> list[str]:
        """The names of the models there; raises ProviderFailed."""
        listed = (await self.ask("models", None)).get("data")
        return [str(item.get("id")) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []

    async def stream(self, body: Json) -> AsyncGenerator[Json]:
        """The chunks of the answer; raises ProviderFailed, also where it says so or breaks off in the middle."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with self._send(_CHAT, {**body, **options}) as response:
            is_error, ends = False, dict[str, bool]()
            async for line in split_lines(self._parts(response)):
                name, _, data = line.removeprefix(BOM_UTF8).partition(b":")
                data = data.strip()
                if name == b"event":
                    is_error = data == b"error"
                if name != b"data" or not data:
                    continue
                if data == b"[DONE]":
                    return
                chunk = await self._object(data)
                self._check(chunk, is_error)
                for choice in _choices(chunk):
                    index = str(choice.get("index"))
                    ends[index] = ends.get(index, False) or choice.get("finish_reason") is not None
                yield chunk
            if not ends:
                raise ProviderFailed(f"{self._provider.name} did not return a stream of chunks")
            if not all(ends.values()):
                raise ProviderFailed(f"{self._provider.name} closed the connection before the end of its answer")

    def _check(self, answer: Json, is_error: bool = False) -> None:
        """Raise ProviderFailed for an answer, or a part of one, that tells a failure."""
        told = (part["error"] for part in (answer, *_choices(answer)) if part.get("error"))
        error = next(told, answer if is_error else None)
        if error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) and 400 <= code <= 599 else 0
            raise ProviderFailed(f"{self._provider.name}: {read_message(error)}", status)

    async def _parts(self, response: "httpx.Response") -> AsyncGenerator[bytes]:
        size = 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > MOST_BYTES:
                raise ProviderFailed(f"{self._provider.name} returned more than {MOST_BYTES} bytes")
            yield part

    async def _object(self, text: bytes) -> Json:
        """What it says, as forgivingly read, and as bounded, as what clients say."""
        try:
            value = await off_loop(len(text), lambda: jsontext.loads(text))
        except HeddleError as error:
            is_deep = isinstance(error, InvalidRequest)
            problem = "returned JSON that is nested too deeply" if is_deep else "did not return valid JSON"
            raise ProviderFailed(f"{self._provider.name} {problem}") from None
        if not isinstance(value, dict):
            raise ProviderFailed(f"{self._provider.name} did not return a JSON object")
        return value

    @asynccontextmanager
    async def _send(self, path: str, body: Json | None) -> AsyncIterator["httpx.Response"]:
        context = await ssl_context()  # imports httpx beside the event loop, the first time
        import httpx

        timeout = httpx.Timeout(self._seconds, connect=min(_CONNECT_SECONDS, self._seconds))
        problem = "cannot be reached"
        url = f"{self._provider.base_url}/{path}"
        try:
            # Redirects could lead to an address that nobody configured.
            async with (
                asyncio.timeout(self._seconds),
                httpx.AsyncClient(timeout=timeout, follow_redirects=False, verify=context) as client,
                client.stream(
                    "GET" if body is None else "POST", url, json=body, headers=self._headers, params=self._parameters
                ) as response,
            ):
                problem = "closed the connection before the end of its answer"
                if response.status_code != 200:
                    raise await self._refusal(response)
                yield response
        except (httpx.TimeoutException, TimeoutError):
            raise ProviderFailed(f"{self._provider.name} did not answer within {self._seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderFailed(f"{self._provider.name} {problem}: {type(error).__name__}") from None

    async def _refusal(self, response: "httpx.Response") -> ProviderFailed:
        text = b""
        async for part in response.aiter_bytes():
            text += part
            if len(text) > _ERROR_BYTES:
                break
        try:
            told = read_message(jsontext.loads(text))
        except HeddleError:
            told = text[:500].decode("utf-8", "replace")
        said = response.headers.get("retry-after", "")
        wait = {"Retry-After": said} if said and said.isascii() else None
        reason = f"{self._provider.name} returned {response.status_code}: {told}"
        return ProviderFailed(reason, response.status_code, wait)


def _authorization(provider: Provider, environment: Mapping[str, str]) -> dict[str, str]:
    if provider.problem:
        raise ProviderFailed(provider.problem)
    if not provider.key_variable and not provider.key:
        return {}
    key = provider.key or environment.get(provider.key_variable, "").strip()
    if not key:
        raise ProviderFailed(
            f"The key of {provider.name} is missing: set the environment variable {provider.key_variable}"
        )
    return {"Authorization": f"Bearer {key}"}


def _choices(answer: Json) -> list[Json]:
    found = answer.get("choices")
    return [choice for choice in found if isinstance(choice, dict)] if isinstance(found, list) else []


def read_message(body: Any) -> str:
    """What a failure says; each provider has a form of its own."""
    said = body
    while isinstance(said, dict | list):
        inner = next(filter(None, map(said.get, _TELLING)), None) if isinstance(said, dict) else (said or [None])[0]
        if inner is None:
            return jsontext.dumps(body)[:2000]
        said = inner
    return str(said)[:2000]


CUSTOM = "custom::"
_UNSAFE = re.compile(r"[^\w.-]")


@dataclass(frozen=True, slots=True)
class Target:
    """A provider, or (None) the engine here; `model` is the model's name there, `max_tokens` the most of an answer."""

    model: str
    provider: Provider | None = None
    headers: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None

    def check(self, **asked: int | None) -> None:
        """Raise InvalidRequest when a field (`max_tokens=...`) wants a longer answer than the model gives."""
        for name, wanted in asked.items():
            if self.max_tokens is not None and wanted is not None and wanted > self.max_tokens:
                raise InvalidRequest(
                    f"{name} is {wanted}, but {self.model} of this runtime allows at most {self.max_tokens}", param=name
                )


def playground_id(runtime: str, model: str) -> str:
    """What /completions/create calls a model of a runtime."""
    return f"{CUSTOM}{runtime}::{model}"


class Targets:
    """Finds targets for the models of one project (internal id)."""

    def __init__(self, settings: Settings, store: Store, project: str) -> None:
        self._settings = settings
        self._providers: dict[str, Provider] = {}
        self._store = store
        self._project = project

    async def find(self, model: str, extra_headers: Json | None) -> Target:
        """The target of `model`, `provider/model`, `custom::provider::model` or the ref of a ProviderModel.

        Raises InvalidRequest.
        """
        self._providers = await find_providers(self._settings, self._store)
        if model.startswith(refs.INTERNAL):
            ref = refs.parse(model)
            named = ref.project == self._project and ref.kind == "object" and not ref.edges
            stored = await self._object(ref.name, ref.version, "ProviderModel") if named else None
            if stored is None:
                raise InvalidRequest(
                    f"{refs.to_external(model)[:300]} is not a ProviderModel of this project", param="model"
                )
            return await self._find_provided(
                ref.name, stored, ref.name.partition("-")[0], ref.name, check_headers(extra_headers or {})
            )
        if model.startswith(CUSTOM):
            return await self._find_custom(model.removeprefix(CUSTOM), check_headers(extra_headers or {}))
        name, slash, rest = model.partition("/")
        if slash and rest and name in self._providers:
            return Target(rest, self._providers[name], check_headers(extra_headers or {}))
        return Target(model)

    async def _find_custom(self, name: str, extra: dict[str, str]) -> Target:
        """`provider::model`: a runtime or objects of the project, or the names of the settings."""
        provider_name, _, model_name = name.partition("::")
        runtime = await self._store.runtimes.read(self._project, provider_name) if model_name else None
        if runtime is not None:
            return self._find_runtime(runtime, model_name, extra)
        object_id, owner = f"{_safe(provider_name)}-{_safe(model_name)}", _safe(provider_name)
        if not model_name:
            object_id, owner = name, name.partition("-")[0]
        stored = await self._object(object_id, "latest", "ProviderModel")
        if stored is None:
            if provider_name in self._providers and model_name:
                return Target(model_name, self._providers[provider_name], extra)
            raise InvalidRequest(f"Could not find ProviderModel with object_id {object_id}", param="model")
        return await self._find_provided(object_id, stored, owner, model_name, extra)

    async def _find_provided(
        self, object_id: str, stored: Json, owner: str, model_name: str, extra: dict[str, str]
    ) -> Target:
        """The target that a ProviderModel names with its Provider."""
        described = await self._object(owner, str(stored.get("provider")), "Provider")
        if described is None:
            raise InvalidRequest(f"Could not find the Provider {owner} of {object_id}", param="model")
        there = self._providers_at(str(described.get("base_url", "")).rstrip("/"), f"provider {owner}")
        # Several may share an address and differ in their keys.
        found = next((provider for provider in there if provider.name == owner), there[0])
        headers = check_headers(described.get("extra_headers") or {})
        return Target(str(stored.get("name") or model_name), found, {**headers, **extra})

    def _find_runtime(self, runtime: RuntimeRow, model: str, extra: dict[str, str]) -> Target:
        if model not in runtime.max_tokens:
            raise InvalidRequest(f"The runtime {runtime.name} has no model {model[:200]!r}", param="model")
        there = self._providers_at(runtime.base_url, f"runtime {runtime.name}")
        secret = runtime.api_key_secret or ""
        found = next((provider for provider in there if provider.key_variable == secret), None)
        if found is None and secret:
            raise InvalidRequest(
                f"The setting 'providers' has no key {secret[:100]!r} for the URL of runtime {runtime.name}",
                param="model",
            )
        return Target(model, found or there[0], {**runtime.headers, **extra}, runtime.max_tokens[model])

    def _providers_at(self, url: str, owner: str) -> list[Provider]:
        """The providers of the settings at an address, at least one."""
        found = [provider for provider in self._providers.values() if provider.base_url == url]
        if not found:
            # Whoever may write objects must not choose which addresses this server calls, nor with which keys.
            raise InvalidRequest(
                f"The URL of {owner} is neither in the setting 'providers' nor on the settings page of this server",
                param="model",
            )
        return found

    async def _object(self, object_id: str, version: str, wanted: str) -> Json | None:
        found = await self._store.objects.read(self._project, object_id, version)
        if found is None or found.deleted_at is not None or found.base_object_class != wanted or found.val is None:
            return None
        value = orjson.loads(found.val)
        return value if isinstance(value, dict) else None


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)
