"""Loading an image from the address that a provider answered, and from no address that only this machine can reach."""

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
from urllib.parse import SplitResult, urlsplit, urlunsplit

import httpx

from heddle.wire.inference import ProviderFailed

MOST_BYTES = 64 << 20
_SECONDS = 60.0
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_PORTS = {"http": 80, "https": 443}
_INNER = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "fec0::/10", "192.0.0.0/24")))
"""Called global by the standard library, and yet the way to an inner address: NAT64, IPv4-compatible, site-local."""


async def fetch(url: str, provider_url: str) -> bytes:
    """The bytes behind an address; raises ProviderFailed.

    Only public addresses are loaded, and those at the provider's own origin, which the settings name; the connection
    goes to the address that was checked, and redirects are not followed.
    """
    if match := _DATA_URL.match(url, 0, 300):
        return decoded(url[match.end() :])
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
        allowed = origin == _origin(urlsplit(provider_url))
    except ValueError:
        raise ProviderFailed(f"The provider answered an image address that is none: {url[:200]}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ProviderFailed(f"The provider answered an image address that is not http or https: {url[:200]}")
    address = parts.hostname if allowed else await _public_address(parts.hostname, origin[2])
    return await _load(parts, address)


def decoded(text: str) -> bytes:
    """The bytes of base64 text; raises ProviderFailed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProviderFailed("The provider answered an image that is no base64") from None


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


async def _public_address(host: str, port: int) -> str:
    """An address of the host; raises ProviderFailed unless all of them are public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ProviderFailed(f"The host of the image address is not known: {host[:200]}") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(_is_public, addresses)):
        raise ProviderFailed(f"The image address leads to a non-public address and is not loaded: {host[:200]}")
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None and not inner.is_global:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _INNER)


async def _load(parts: SplitResult, address: str) -> bytes:
    shown = f"[{address}]" if ":" in address else address
    place = urlunsplit((parts.scheme, f"{shown}:{_origin(parts)[2]}", parts.path or "/", parts.query, ""))
    headers = {"host": parts.netloc.rpartition("@")[2], "accept": "image/*"}
    extensions = {"sni_hostname": parts.hostname} if parts.scheme == "https" else {}
    content = bytearray()
    try:
        # No proxy of the environment: it would resolve the name anew.
        async with (
            httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False, trust_env=False) as client,
            client.stream("GET", place, headers=headers, extensions=extensions) as response,
        ):
            if response.status_code != 200:
                raise ProviderFailed(f"The image address answered {response.status_code}")
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MOST_BYTES:
                    raise ProviderFailed(f"The image has more than {MOST_BYTES >> 20} MiB")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProviderFailed(f"The image could not be loaded: {type(error).__name__}") from None
    return bytes(content)
