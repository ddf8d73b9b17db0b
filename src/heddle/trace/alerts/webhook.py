"""Signed messages to webhooks (Standard Webhooks 1.0: headers `webhook-id`, `webhook-timestamp`, `webhook-signature`).

The signature is HMAC-SHA256 over `id.timestamp.body`; the secret is shown once, when the rule is made.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from urllib.parse import unquote

import httpx

from heddle.errors import InvalidRequest

PREFIX = "whsec_"
_SECRET_BYTES = 24
_SECONDS = 10.0
_WHOLE_SECONDS = 20.0


def new_secret() -> str:
    """A random signing secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature` of a message; `timestamp` in seconds."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def check_address(url: str, allowed: str) -> None:
    """Raise InvalidRequest for an address outside the setting `alert_webhooks`."""
    prefixes = [item.strip() for item in allowed.split(",") if item.strip()] if allowed != "none" else []
    if not any(_lies_below(url, prefix) for prefix in prefixes):
        known = ", ".join(prefixes) or "none"
        raise InvalidRequest(
            f"webhook_url {url[:200]!r} is not allowed: the setting alert_webhooks says where messages may go ({known})"
        )


def _lies_below(url: str, prefix: str) -> bool:
    """True when the address is the prefix or continues it behind a slash; user names and dot segments never pass."""
    authority, plain = url.partition("://")[2].partition("/")[0], unquote(url)
    if "@" in authority or "\\" in plain or "/.." in plain:
        return False
    if any(character.isspace() or not character.isprintable() for character in url):
        return False
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else prefix + "/")


async def send(url: str, secret: str, message_id: str, timestamp: int, body: str) -> str | None:
    """Send a message once; None when it was taken, else what went wrong. Redirects are not followed."""
    content = body.encode()
    headers = {
        "content-type": "application/json",
        "user-agent": "heddle",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, message_id, timestamp, content),
    }
    try:
        # The client's own limit is one of each step: a receiver that drips would hold up everybody's messages.
        async with (
            asyncio.timeout(_WHOLE_SECONDS),
            httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False) as session,
            session.stream("POST", url, content=content, headers=headers) as response,
        ):
            return None if 200 <= response.status_code < 300 else f"answered {response.status_code}"
    except TimeoutError:
        return f"gave no answer within {_WHOLE_SECONDS:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"cannot be reached: {type(error).__name__}"
