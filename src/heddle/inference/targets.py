"""Where a completion runs: the engine of this server, or a provider that the settings allow."""

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.inference.providers import Provider, checked_headers, configured
from heddle.settings import Settings
from heddle.store.base import Store

CUSTOM = "custom::"
_UNSAFE = re.compile(r"[^\w.-]")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A provider, or (None) the engine here; `model` is the model's name there."""

    model: str
    provider: Provider | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Targets:
    """Finds targets for the models of one project (internal id)."""

    def __init__(self, settings: Settings, store: Store, project: str) -> None:
        self._providers = configured(settings)
        self._store = store
        self._project = project

    async def find(self, model: str, extra_headers: Json | None) -> Target:
        """The target of `model`, `provider/model` or `custom::provider::model`; raises InvalidRequest."""
        if model.startswith(CUSTOM):
            return await self._custom(model.removeprefix(CUSTOM), checked_headers(extra_headers or {}))
        name, slash, rest = model.partition("/")
        if slash and rest and name in self._providers:
            return Target(rest, self._providers[name], checked_headers(extra_headers or {}))
        return Target(model)

    async def _custom(self, name: str, extra: dict[str, str]) -> Target:
        """`provider::model`: objects of the project, or the names of the settings."""
        provider_name, _, model_name = name.partition("::")
        object_id, owner = f"{_safe(provider_name)}-{_safe(model_name)}", _safe(provider_name)
        if not model_name:
            object_id, owner = name, name.partition("-")[0]
        stored = await self._object(object_id, "latest", "ProviderModel")
        if stored is None:
            if provider_name in self._providers and model_name:
                return Target(model_name, self._providers[provider_name], extra)
            raise InvalidRequest(f"Could not find ProviderModel with object_id {object_id}", param="model")
        described = await self._object(owner, str(stored.get("provider")), "Provider")
        if described is None:
            raise InvalidRequest(f"Could not find the Provider {owner} of {object_id}", param="model")
        url = str(described.get("base_url", "")).rstrip("/")
        found = next((provider for provider in self._providers.values() if provider.base_url == url), None)
        if found is None:
            # Whoever may write objects must not choose which addresses this server calls, nor with which keys.
            raise InvalidRequest(
                f"The address of provider {owner} is not among those of this server's setting 'providers'",
                param="model",
            )
        headers = checked_headers(described.get("extra_headers") or {})
        return Target(str(stored.get("name") or model_name), found, {**headers, **extra})

    async def _object(self, object_id: str, version: str, wanted: str) -> Json | None:
        found = await self._store.objects.read(self._project, object_id, version)
        if found is None or found.deleted_at is not None or found.base_object_class != wanted or found.val is None:
            return None
        value = orjson.loads(found.val)
        return value if isinstance(value, dict) else None


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)
