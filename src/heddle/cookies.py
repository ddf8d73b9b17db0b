"""The cookie of a browser's session: when it counts, and how it is set."""

import re
from collections.abc import Iterable, Mapping

from heddle.origins import is_own_origin

NAME = "heddle_session"
SECONDS = 14 * 86_400
"""How long a session lasts that is not used."""

_SAFE_METHODS = frozenset(("GET", "HEAD"))
_OWN_HEADER = b"x-heddle-ui"
_ELSEWHERE = frozenset((b"cross-site", b"same-site"))
_NAME = NAME.encode()
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{1,100}")


def token_of(headers: Mapping[bytes, bytes], method: str) -> str | None:
    """The session that a request may act for, or None: a page of another origin gains nothing from the cookie.

    What only reads must not come from another site; what writes needs a header that no form can send, and the word of
    the browser that the page is ours.
    """
    token = _cookie(headers.get(b"cookie", b""))
    if token is None or headers.get(b"sec-fetch-site") in _ELSEWHERE:
        return None
    return token if method in _SAFE_METHODS or is_own_write(headers) else None


def is_own_write(headers: Mapping[bytes, bytes]) -> bool:
    """True when a page of this very server sends this."""
    if _OWN_HEADER not in headers:
        return False
    origin = headers.get(b"origin")
    return headers.get(b"sec-fetch-site") == b"same-origin" if origin is None else is_own_origin(origin, headers)


def is_own_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True when a page of the web interface asks, which could say so only from this origin."""
    return any(pair[0] == _OWN_HEADER or pair == (b"sec-fetch-site", b"same-origin") for pair in headers)


def set_cookie(token: str, root: str, is_secure: bool, seconds: int = SECONDS) -> str:
    """The value of a `Set-Cookie` header; with 0 seconds it takes the cookie away."""
    secure = "; Secure" if is_secure else ""
    return f"{NAME}={token}; Path={root or '/'}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _cookie(header: bytes) -> str | None:
    """The first cookie of our name; cookies of others, which may hold anything, are never read."""
    for part in header.split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == _NAME:
            return value.decode() if _TOKEN.fullmatch(value) else None
    return None
