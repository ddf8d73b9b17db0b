"""Exports passed on to the HTTP routes of the server, and what they answer."""

import hashlib
import time
from collections.abc import Mapping

import httpx

from heddle.errors import HeddleError, Unavailable
from heddle.otlp_grpc.supervisor import Configuration
from heddle.wire.otlp import PROTOBUF, decode_status

PASSED_ON = ("authorization", "wandb-api-key", "project_id", "x-request-id")
"""Metadata that become headers."""
OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Those by which a server without keys knows, and refuses, what a proxy sends."""
_CONNECTIONS = 32
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 120.0
_BELIEVED_SECONDS = 5.0
_MOST_BELIEVED = 10_000
_ENCODINGS = ((b"\x1f\x8b", "gzip"), (b"\x78", "deflate"))
"""How compressed messages begin; a message that is not begins with its first field."""
Headers = Mapping[str, str]


class Refused(HeddleError):
    """What the server answered instead of 200."""

    def __init__(self, reason: str, status: int, headers: dict[str, str]) -> None:
        super().__init__(reason, headers)
        self.status = status


class Forwarder:
    """Sends exports to the server; callers whose key it took are believed for some seconds."""

    def __init__(self, configuration: Configuration) -> None:
        limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
        self._http = httpx.AsyncClient(
            base_url=configuration.server, limits=limits, timeout=timeout, trust_env=False, follow_redirects=False
        )
        self._needs_key = configuration.needs_key
        self._believed: dict[bytes, float] = {}

    async def check(self, path: str, headers: Headers) -> None:
        """Raise Refused for a caller that may not send, found out with an empty export, before anything is read."""
        if not self._needs_key:
            return
        caller = hashlib.blake2b(repr([path, *sorted(headers.items())]).encode(), digest_size=16).digest()
        if self._believed.get(caller, 0.0) > time.monotonic():
            return
        await self.send(path, headers, b"")
        if len(self._believed) >= _MOST_BELIEVED:
            self._believed.clear()
        self._believed[caller] = time.monotonic() + _BELIEVED_SECONDS

    async def send(self, path: str, headers: Headers, message: bytes) -> bytes:
        """The answer of the server to an export; raises Refused, Unavailable where it cannot be reached."""
        sent = {**headers, "content-type": PROTOBUF}
        for beginning, encoding in _ENCODINGS:
            if message.startswith(beginning):
                sent["content-encoding"] = encoding
        try:
            answer = await self._http.post(path, content=message, headers=sent)
        except httpx.HTTPError as error:
            raise Unavailable(f"The server does not answer: {type(error).__name__}", retry_after=2) from None
        if answer.status_code == 200:
            return answer.content
        kept = {"Retry-After": seconds} if (seconds := answer.headers.get("retry-after")) else {}
        raise Refused(_reason(answer), answer.status_code, kept)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _reason(answer: httpx.Response) -> str:
    if answer.headers.get("content-type", "").startswith(PROTOBUF):
        return decode_status(answer.content)
    try:
        found = answer.json()
    except ValueError:
        found = None
    reason = found.get("reason") if isinstance(found, dict) else None
    return reason if isinstance(reason, str) else f"The server answered {answer.status_code}"
