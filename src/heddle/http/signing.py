"""Signed addresses: what they name can be loaded for a while without a key.

An address carries its end and a signature; the secret behind it lies in the data folder, so that any server that shares
it can check what another one has signed.
"""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from heddle.auth import public_address
from heddle.errors import Forbidden, InvalidRequest, RangeNotSatisfiable
from heddle.settings import Settings
from heddle.store.data_folder import secret
from heddle.wire import times

LASTS = 900 * times.SECOND


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes addresses of this server that end together."""

    base: str
    key: bytes
    expires: int
    """Microseconds."""

    @classmethod
    async def make(cls, settings: Settings, base_url: str) -> "Signer":
        """For a request that came to `base_url`."""
        key = await asyncio.to_thread(secret, Path(settings.data))
        return cls(public_address(settings, base_url), key, times.now() + LASTS)

    def address(self, path: str, /, **said: str) -> str:
        """The address of a route below the server's own, with what the route needs to know."""
        signature = _sign(self.key, self.expires, path, *said.values())
        return f"{self.base}{path}?{urlencode({**said, 'expires': self.expires, 'signature': signature})}"


async def check_address(settings: Settings, signature: str, expires: int, path: str, *said: str) -> None:
    """Raise Forbidden for an address that was not made here, or has ended."""
    check_signature(await asyncio.to_thread(secret, Path(settings.data)), signature, times.now(), expires, path, *said)


def check_signature(key: bytes, signature: str, now: int, expires: int, path: str, *said: str) -> None:
    """The same at an instant, with a secret."""
    if not hmac.compare_digest(_sign(key, expires, path, *said).encode(), signature.encode("utf-8", "replace")):
        raise Forbidden("The URL was not signed by this server; request a new one")
    if now >= expires:
        raise Forbidden(f"The URL expired at {times.to_iso(expires)}; request a new one")


def _sign(key: bytes, expires: int, *said: str) -> str:
    return hmac.new(key, "\n".join((*said, str(expires))).encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Download(FileResponse):
    """A file, or ranges of it; a range that cannot be is refused in the form of all other refusals."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; raises InvalidRequest or RangeNotSatisfiable."""

        async def check(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == InvalidRequest.status:
                raise InvalidRequest("The header Range must be bytes=FIRST-LAST", param="Range")
            if message["type"] == "http.response.start" and message["status"] == RangeNotSatisfiable.status:
                told = {name.decode(): value.decode() for name, value in message["headers"] if name == b"content-range"}
                raise RangeNotSatisfiable("The range starts after the end of the file", told, "Range")
            await send(message)

        await super().__call__(scope, receive, check)
