"""Where a completion runs: the engine of this server, or a provider that the settings allow."""

import re
from dataclasses import dataclass, field

import orjson

from heddle.errors import InvalidRequest
from heddle.inference.providers.client import Provider, checked_headers, configured
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.runtimes import RuntimeRow
from heddle.wire import refs
from heddle.wire.jsontypes import Json

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
                    f"{name} is {wanted}, and {self.model} of this runtime gives at most {self.max_tokens}", param=name
                )


def playground_id(runtime: str, model: str) -> str:
    """What /completions/create calls a model of a runtime."""
    return f"{CUSTOM}{runtime}::{model}"


class Targets:
    """Finds targets for the models of one project (internal id)."""

    def __init__(self, settings: Settings, store: Store, project: str) -> None:
        self._providers = configured(settings)
        self._store = store
        self._project = project

    async def find(self, model: str, extra_headers: Json | None) -> Target:
        """The target of `model`, `provider/model`, `custom::provider::model` or the ref of a ProviderModel.

        Raises InvalidRequest.
        """
        if model.startswith(refs.INTERNAL):
            return await self._referred(model, checked_headers(extra_headers or {}))
        if model.startswith(CUSTOM):
            return await self._custom(model.removeprefix(CUSTOM), checked_headers(extra_headers or {}))
        name, slash, rest = model.partition("/")
        if slash and rest and name in self._providers:
            return Target(rest, self._providers[name], checked_headers(extra_headers or {}))
        return Target(model)

    async def _custom(self, name: str, extra: dict[str, str]) -> Target:
        """`provider::model`: a runtime or objects of the project, or the names of the settings."""
        provider_name, _, model_name = name.partition("::")
        runtime = await self._store.runtimes.read(self._project, provider_name) if model_name else None
        if runtime is not None:
            return self._runtime(runtime, model_name, extra)
        object_id, owner = f"{_safe(provider_name)}-{_safe(model_name)}", _safe(provider_name)
        if not model_name:
            object_id, owner = name, name.partition("-")[0]
        stored = await self._object(object_id, "latest", "ProviderModel")
        if stored is None:
            if provider_name in self._providers and model_name:
                return Target(model_name, self._providers[provider_name], extra)
            raise InvalidRequest(f"Could not find ProviderModel with object_id {object_id}", param="model")
        return await self._provided(object_id, stored, owner, model_name, extra)

    async def _referred(self, model: str, extra: dict[str, str]) -> Target:
        ref = refs.parse(model)
        named = ref.project == self._project and ref.kind == "object" and not ref.edges
        stored = await self._object(ref.name, ref.version, "ProviderModel") if named else None
        if stored is None:
            raise InvalidRequest(f"{refs.to_external(model)[:300]} is no ProviderModel of this project", param="model")
        return await self._provided(ref.name, stored, ref.name.partition("-")[0], ref.name, extra)

    async def _provided(
        self, object_id: str, stored: Json, owner: str, model_name: str, extra: dict[str, str]
    ) -> Target:
        """The target that a ProviderModel names with its Provider."""
        described = await self._object(owner, str(stored.get("provider")), "Provider")
        if described is None:
            raise InvalidRequest(f"Could not find the Provider {owner} of {object_id}", param="model")
        found = self._at(str(described.get("base_url", "")).rstrip("/"), f"provider {owner}")[0]
        headers = checked_headers(described.get("extra_headers") or {})
        return Target(str(stored.get("name") or model_name), found, {**headers, **extra})

    def _runtime(self, runtime: RuntimeRow, model: str, extra: dict[str, str]) -> Target:
        if model not in runtime.max_tokens:
            raise InvalidRequest(f"The runtime {runtime.name} has no model {model[:200]!r}", param="model")
        there = self._at(runtime.base_url, f"runtime {runtime.name}")
        secret = runtime.api_key_secret or ""
        found = next((provider for provider in there if provider.key_variable == secret), None)
        if found is None and secret:
            raise InvalidRequest(
                f"The setting 'providers' gives no key {secret[:100]!r} for the address of runtime {runtime.name}",
                param="model",
            )
        return Target(model, found or there[0], {**runtime.headers, **extra}, runtime.max_tokens[model])

    def _at(self, url: str, owner: str) -> list[Provider]:
        """The providers of the settings at an address, at least one."""
        found = [provider for provider in self._providers.values() if provider.base_url == url]
        if not found:
            # Whoever may write objects must not choose which addresses this server calls, nor with which keys.
            raise InvalidRequest(
                f"The address of {owner} is not among those of this server's setting 'providers'", param="model"
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
