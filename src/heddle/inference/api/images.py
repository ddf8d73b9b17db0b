"""POST /image/create: images from a provider of the settings, kept as files; what fails is an answer with `error`."""

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
from urllib.parse import SplitResult, urlsplit, urlunsplit

from fastapi import APIRouter, Request, Response

from heddle.auth import Caller
from heddle.certificates import ssl_context
from heddle.errors import InvalidRequest
from heddle.http.routing import RecordsDep, RequestModel, ResponseModel, SettingsDep, StoreDep, Writer, answer, group
from heddle.inference.accounts import ProviderAccount
from heddle.inference.api.respond import run_while_connected
from heddle.inference.api.traced_request import TracedBody, TracedRequest
from heddle.inference.providers import Provider, ProviderClient, Target, Targets, find_providers
from heddle.inference.service import Inference, InferenceDep
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire.content import ContentObject, sniff
from heddle.wire.inference import ProviderFailed
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

MOST_BYTES = 64 << 20
_SECONDS = 60.0
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_PORTS = {"http": 80, "https": 443}
_INNER = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "fec0::/10", "192.0.0.0/24")))
"""Called global by the standard library, and yet the way to an inner address: NAT64, IPv4-compatible, site-local."""


async def fetch_image(url: str, provider_url: str) -> bytes:
    """The bytes behind an address; raises ProviderFailed.

    Only public addresses are loaded, and those at the provider's own origin, which the settings name; the connection
    goes to the address that was checked, and redirects are not followed.
    """
    if match := _DATA_URL.match(url, 0, 300):
        return decode_base64(url[match.end() :])
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
        allowed = origin == _origin(urlsplit(provider_url))
    except ValueError:
        raise ProviderFailed(f"The provider returned an invalid image URL: {url[:200]}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ProviderFailed(f"The provider returned an image URL that is not http or https: {url[:200]}")
    address = parts.hostname if allowed else await _public_address(parts.hostname, origin[2])
    return await _load(parts, address)


def decode_base64(text: str) -> bytes:
    """The bytes of base64 text; raises ProviderFailed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProviderFailed("The provider returned an image that is not base64") from None


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


async def _public_address(host: str, port: int) -> str:
    """An address of the host; raises ProviderFailed unless all of them are public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ProviderFailed(f"The host of the image URL cannot be resolved: {host[:200]}") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(_is_public, addresses)):
        raise ProviderFailed(f"The image URL resolves to a non-public address and is not loaded: {host[:200]}")
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None and not inner.is_global:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _INNER)


async def _load(parts: SplitResult, address: str) -> bytes:
    import httpx

    shown = f"[{address}]" if ":" in address else address
    place = urlunsplit((parts.scheme, f"{shown}:{_origin(parts)[2]}", parts.path or "/", parts.query, ""))
    headers = {"host": parts.netloc.rpartition("@")[2], "accept": "image/*"}
    extensions = {"sni_hostname": parts.hostname} if parts.scheme == "https" else {}
    content = bytearray()
    try:
        # No proxy of the environment: it would resolve the name anew.
        async with (
            asyncio.timeout(_SECONDS),
            httpx.AsyncClient(
                timeout=_SECONDS, follow_redirects=False, trust_env=False, verify=await ssl_context()
            ) as client,
            client.stream("GET", place, headers=headers, extensions=extensions) as response,
        ):
            if response.status_code != 200:
                raise ProviderFailed(f"The image URL returned {response.status_code}")
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MOST_BYTES:
                    raise ProviderFailed(f"The image has more than {MOST_BYTES >> 20} MiB")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise ProviderFailed(f"The image could not be loaded: {type(error).__name__}") from None
    return bytes(content)


router: APIRouter = group("Images")

MOST_IMAGES = 10
_PATH = "images/generations"
_UNSET = (
    "no image model configured: name a provider of this server's setting 'providers' before the model "
    "(provider/model), or set 'image_provider'"
)
_USAGE = (
    ("prompt_tokens", "input_tokens"),
    ("completion_tokens", "output_tokens"),
)


class ImageGenerationRequestInputs(RequestModel):
    """What to draw."""

    model: str
    prompt: str
    n: int | None = None


class ImageGenerationCreateReq(TracedBody):
    """Body of /image/create; the call is stored under the caller's own name."""

    inputs: ImageGenerationRequestInputs


class ImageGenerationCreateRes(ResponseModel):
    """The provider's answer with its images as stored content, or `{"error": text}`; the call when it was tracked."""

    response: Json
    weave_call_id: str | None = None


@router.post("/image/create", response_model=ImageGenerationCreateRes)
async def image_create(
    request: Request,
    body: ImageGenerationCreateReq,
    caller: Writer,
    settings: SettingsDep,
    store: StoreDep,
    records: RecordsDep,
    inference: InferenceDep,
) -> Response:
    """Let a provider make images, keep them as files, and store a call."""
    wanted = ImageRequest(settings, store, inference, records, caller, body)
    response = await run_while_connected(request.receive, wanted.respond())
    return answer({"response": response, "weave_call_id": wanted.call_id if wanted.tracked else None})


class ImageRequest(TracedRequest):
    """One request, from its model to its stored call."""

    op_name = "weave.image_generation_create"
    kind = "image"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        inference: Inference,
        records: Records,
        caller: Caller,
        body: ImageGenerationCreateReq,
    ) -> None:
        super().__init__(settings, store, inference, caller, body)
        self._records = records
        self._inputs = body.inputs

    def inputs(self) -> Json:
        return self._inputs.model_dump(exclude_none=True)

    async def run(self) -> Json:
        for name in ("model", "prompt"):
            if not getattr(self._inputs, name).strip():
                raise InvalidRequest(f"no {name} specified", param=name)
        count = self._inputs.n
        if count is not None and not 1 <= count <= MOST_IMAGES:
            raise InvalidRequest(f"n must be from 1 to {MOST_IMAGES}, got {count}", param="n")
        target = await Targets(self.settings, self.tables, self.internal_project).find(self.model, None)
        known = await find_providers(self.settings, self.tables)
        provider = target.provider or known.get(self.settings.image_provider)
        if provider is None:
            raise InvalidRequest(_UNSET, param="model")
        self.target = target if target.provider is not None else Target(self.model, provider)
        request: Json = {"model": self.target.model, "prompt": self._inputs.prompt}
        if count is not None:
            request["n"] = count
        async with ProviderAccount(self.accounts, self.completion(provider, request, traced=True)) as account:
            made = await ProviderClient(provider, self.target.headers).ask(_PATH, request)
            response = _normalise_usage(made, self.target.model)
            account.response = {"usage": response.get("usage")}
            data = made.get("data")
            items = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
            if not items:
                raise ProviderFailed("The provider returned no images")
            response["data"] = [await self._store_image(item, provider) for item in items[:MOST_IMAGES]]
            return response

    async def _store_image(self, item: Json, provider: Provider) -> Json:
        """One image with its bytes in the project's files."""
        stored = dict(item)
        for name, form in (("b64_json", "base64"), ("url", "url")):
            value = stored.get(name)
            if not isinstance(value, str):
                continue
            content = decode_base64(value) if name == "b64_json" else await fetch_image(value, provider.base_url)
            mimetype = sniff(content)
            if not mimetype.startswith("image/"):
                raise ProviderFailed("The provider returned something other than an image")
            made = ContentObject(content, mimetype, form)
            for _, file, part in made.files:
                await self._records.put_file(self.caller, self.project, file, part)
            stored[name] = made.value
        return stored


def _normalise_usage(made: Json, model: str) -> Json:
    """The answer with the model, and its usage under the names of chat completions."""
    response = {**made, "model": model}
    usage = made.get("usage")
    if isinstance(usage, dict):
        counts = {name: _count(usage, name, other) for name, other in _USAGE}
        total = _count(usage, "total_tokens", "")
        response["usage"] = {**counts, "total_tokens": total or sum(counts.values())}
    else:
        response.pop("usage", None)
    return response


def _count(usage: Json, name: str, other: str) -> int:
    for value in (usage.get(name), usage.get(other)):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0
