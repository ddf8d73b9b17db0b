"""Pages of other origins (CORS): what a browser is told when the setting `cors_origins` lets them use this server.

Cookies and other credentials that a browser adds by itself are never allowed: such a page sends its key.
"""

import re
from collections.abc import Mapping

from fastapi import Response

from heddle.setting_kinds import ANY_ORIGIN
from heddle.settings import Settings

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_SECONDS = "600"
"""How long a browser remembers the answer of a preflight."""
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")


def cors_headers(headers: Mapping[bytes, bytes], settings: Settings) -> list[tuple[bytes, bytes]]:
    """What each answer to a page of an allowed origin carries; nothing for all others."""
    origin = headers.get(b"origin")
    if origin is None or settings.cors_origins == "none":
        return []
    if settings.cors_origins == ANY_ORIGIN:
        return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
    if origin not in settings.named_origins:
        return []
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"Origin"),
    ]


def answer_preflight(method: str, headers: Mapping[bytes, bytes], settings: Settings) -> Response | None:
    """The answer to a browser that asks before a page's request; None for what is none, or of an origin not allowed."""
    if method != "OPTIONS" or b"access-control-request-method" not in headers:
        return None
    if not cors_headers(headers, settings):
        return None
    allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": _SECONDS}
    names = headers.get(b"access-control-request-headers", b"")
    if names and _NAMES.fullmatch(names):
        allowed["Access-Control-Allow-Headers"] = names.decode("latin-1")
    if headers.get(b"access-control-request-private-network") == b"true":
        allowed["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=allowed)
