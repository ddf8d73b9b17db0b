"""Other servers of models, as the settings name them: whatever speaks OpenAI's chat completions."""

import json
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from heddle.errors import InvalidRequest
from heddle.settings import Settings
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontypes import Json
from heddle.wire.lines import split_lines

LONGEST_SECONDS = 600.0
_CHAT = "chat/completions"
_CONNECT_SECONDS = 10.0
_ERROR_BYTES = 64 * 1024
_OWN_HEADERS = frozenset(
    ("authorization", "host", "content-length", "content-type", "connection", "transfer-encoding", "accept", "te")
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider of the settings; `key_variable` names the environment variable with its key, empty for none."""

    name: str
    base_url: str
    key_variable: str = ""


def configured(settings: Settings) -> dict[str, Provider]:
    """The providers of the setting `providers`, by name."""
    found: dict[str, Provider] = {}
    for entry in settings.providers.split(";") if settings.providers != "none" else ():
        name, _, rest = entry.strip().partition("=")
        url, _, variable = rest.partition(",")
        found[name] = Provider(name, url.rstrip("/"), variable)
    return found


def checked_headers(headers: Mapping[str, Any], field: str = "extra_headers") -> dict[str, str]:
    """Further headers for a provider; raises InvalidRequest for one that is no header or not the client's to set."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(f"{field}: {name[:100]!r} is no header with a text value", param=field)
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
        """The answer to one request; raises ProviderFailed."""
        return await self.ask(_CHAT, {**body, "stream": False})

    async def ask(self, path: str, body: Json) -> Json:
        """The answer to a request at a path under the provider's address; raises ProviderFailed."""
        async with self._sent(path, body) as response:
            return self._object(await response.aread())

    async def stream(self, body: Json) -> AsyncGenerator[Json]:
        """The chunks of the answer; raises ProviderFailed."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with self._sent(_CHAT, {**body, **options}) as response:
            is_empty = True
            async for line in split_lines(response.aiter_bytes()):
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    return
                if data:
                    is_empty = False
                    yield self._chunk(data)
            if is_empty:
                raise ProviderFailed(f"{self._provider.name} answered no stream of chunks")

    def _chunk(self, data: bytes) -> Json:
        chunk = self._object(data)
        if "error" in chunk and "choices" not in chunk:
            raise ProviderFailed(f"{self._provider.name}: {_message(chunk)}")
        return chunk

    def _object(self, text: bytes) -> Json:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ProviderFailed(f"{self._provider.name} answered no JSON object")
        return value

    @asynccontextmanager
    async def _sent(self, path: str, body: Json) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(self._seconds, connect=min(_CONNECT_SECONDS, self._seconds))
        url = f"{self._provider.base_url}/{path}"
        try:
            # Redirects could lead to an address that nobody configured.
            async with (
                httpx.AsyncClient(timeout=timeout, follow_redirects=False, verify=_trusted()) as client,
                client.stream("POST", url, json=body, headers=self._headers, params=self._parameters) as response,
            ):
                if response.status_code != 200:
                    raise await self._refusal(response)
                yield response
        except httpx.TimeoutException:
            raise ProviderFailed(f"{self._provider.name} did not answer within {self._seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderFailed(f"{self._provider.name} cannot be reached: {type(error).__name__}") from None

    async def _refusal(self, response: httpx.Response) -> ProviderFailed:
        text = b""
        async for part in response.aiter_bytes():
            text += part
            if len(text) > _ERROR_BYTES:
                break
        try:
            told = _message(json.loads(text))
        except (ValueError, RecursionError):
            told = text[:500].decode("utf-8", "replace")
        wait = {"Retry-After": response.headers["retry-after"]} if "retry-after" in response.headers else None
        reason = f"{self._provider.name} answered {response.status_code}: {told}"
        return ProviderFailed(reason, response.status_code, wait)


def _authorization(provider: Provider, environment: Mapping[str, str]) -> dict[str, str]:
    if not provider.key_variable:
        return {}
    key = environment.get(provider.key_variable, "").strip()
    if not key:
        raise ProviderFailed(f"The key of {provider.name} is missing: set the variable {provider.key_variable}")
    return {"Authorization": f"Bearer {key}"}


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return str(error if error is not None else body)[:2000]


@cache
def _trusted() -> ssl.SSLContext:
    """What servers are recognised by; made once, as reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()
