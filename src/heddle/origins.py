"""Where a request comes from: by which name and which proxy it reached the server, and from a page of which origin."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from heddle.errors import Forbidden
from heddle.settings import Settings

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]", "host.docker.internal", "host.containers.internal"))
"""Names that lead to this machine and cannot be given to another: `.internal` is nobody's domain."""
_FORWARDED = frozenset((
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip",
))  # fmt: skip
_ELSEWHERE = frozenset((b"cross-site", b"same-site"))


def check_origin(method: str, headers: Mapping[bytes, bytes], settings: Settings) -> None:
    """Raise Forbidden when a stranger may be behind a request although nobody is asked for a key, or a web page of
    another origin behind one whose credentials the browser adds by itself.

    Without keys a page in a browser on this machine could otherwise write here, read by a host name of its own that
    leads to this machine, and everybody whom a proxy lets through would be its user.
    """
    if not settings.needs_key:
        _check_host(headers, settings)
        _check_proxy(headers, settings)
    is_ambient = not settings.needs_key or headers.get(b"authorization", b"")[:6].lower() == b"basic "
    if is_ambient and method not in SAFE_METHODS and is_of_another_page(headers):
        remedy = (
            "send the key as a Bearer token" if settings.needs_key else "start the server with --auth on and use a key"
        )
        raise Forbidden(f"A page of another origin may not write here; {remedy}")


def is_of_another_page(headers: Mapping[bytes, bytes]) -> bool:
    """True when a browser sends this for a page of another origin."""
    if headers.get(b"sec-fetch-site") in _ELSEWHERE:
        return True
    origin = headers.get(b"origin")
    return origin is not None and not is_own_origin(origin, headers)


def is_own_origin(origin: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """True for the origin of this server itself."""
    host = origin.lower().partition(b"://")[2]
    # A proxy may send its own idea of the host; no page of another origin can set either header.
    return bool(host) and host in (headers.get(b"host", b"").lower(), headers.get(b"x-forwarded-host", b"").lower())


def is_by_a_browser(headers: Mapping[bytes, bytes]) -> bool:
    """True when a browser sends this, whatever for."""
    # What a page reads under a name of its own has neither of the first two, as plain HTTP is sent no `Sec-Fetch-…`.
    if b"origin" in headers or b"sec-fetch-site" in headers or b"x-heddle-ui" in headers:
        return True
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/")


def public_address(settings: Settings, base_url: str) -> str:
    """Where clients reach this server, ending in /: the setting, or else as the request did."""
    return f"{settings.public_url}/" if settings.public_url != "none" else base_url


def _check_host(headers: Mapping[bytes, bytes], settings: Settings) -> None:
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    public = urlsplit(settings.public_url).netloc.rsplit(":", 1)[0].lower() if settings.public_url != "none" else None
    if name in _LOOPBACK_NAMES or name.endswith(".localhost") or name in (settings.host.lower(), public):
        return
    raise Forbidden(
        f"This server was reached as {name[:100]!r}; without keys only loopback names and that of public_url are served"
    )


def _check_proxy(headers: Mapping[bytes, bytes], settings: Settings) -> None:
    if settings.auth != "off" and not _FORWARDED.isdisjoint(headers):
        raise Forbidden(
            "A proxy sent this, and everybody behind it would be the local user: start the server with --auth on and "
            "use keys, or with --auth off where the proxy itself lets only users through"
        )
