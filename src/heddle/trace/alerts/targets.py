"""Where messages of alerts go: signed webhooks, Slack's incoming webhooks, mail; each tried once per call."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import smtplib
import socket
import ssl
import time
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from heddle.certificates import ssl_context
from heddle.errors import InvalidRequest
from heddle.setting_kinds import MAIL_ADDRESS
from heddle.settings import Settings
from heddle.store.control.monitors import AlertRow, DeliveryRow
from heddle.store.secrets import Secrets
from heddle.wire import jsontext, refs, times

SECRET_PREFIX = "whsec_"
_SECRET_BYTES = 24
_SEND_SECONDS = 10.0
_MOST_SEND_SECONDS = 20.0
_MOST_REPLIES = 64 << 10
"""The most bytes that a mail server may say about one mail."""
_SHOWN = 4
_WORDS = {"alert.firing": "is firing", "alert.resolved": "is quiet again", "alert.test": "sends a test"}
Target = Mapping[str, Any]


def create_secret() -> str:
    """A random signing secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def sign_message(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature` of a message; `timestamp` in seconds."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def check_webhook_address(url: str, allowed: str, field: str = "The address") -> None:
    """Raise InvalidRequest for an address outside the setting `alert_webhooks`, naming the field that it is in."""
    prefixes = [item.strip() for item in allowed.split(",") if item.strip()] if allowed != "none" else []
    if not any(_lies_below(url, prefix) for prefix in prefixes):
        known = ", ".join(prefixes) or "none"
        raise InvalidRequest(f"{field} {url[:200]!r} is not allowed; the setting alert_webhooks allows ({known})")


def _lies_below(url: str, prefix: str) -> bool:
    """True when the address is the prefix or continues it behind a slash; user names and dot segments never pass."""
    authority, plain = url.partition("://")[2].partition("/")[0], unquote(url)
    if "@" in authority or "\\" in plain or "/.." in plain:
        return False
    if any(character.isspace() or not character.isprintable() for character in url):
        return False
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else prefix + "/")


def check_receivers(receivers: list[str], settings: Settings) -> None:
    """Raise InvalidRequest for what is no address or not allowed by the settings, and where no mail can be sent."""
    if settings.smtp == "none":
        raise InvalidRequest("Mail cannot be sent: the setting smtp is not set")
    allowed = settings.alert_emails.lower().split(",")
    for receiver in receivers:
        if not re.fullmatch(MAIL_ADDRESS, receiver):
            raise InvalidRequest(f"to: {receiver[:200]!r} is not an email address", param="to")
        name = receiver.lower()
        if name not in allowed and "@" + name.rpartition("@")[2] not in allowed:
            raise InvalidRequest(
                f"{receiver[:200]!r} is not allowed; the setting alert_emails allows ({settings.alert_emails})"
            )


def targets_of(rule: Mapping[str, Any]) -> dict[str, Target]:
    """The targets of a stored rule by id; that of `webhook_url` is empty."""
    found: dict[str, Target] = {}
    if rule.get("webhook_url"):
        found[""] = {"kind": "webhook", "url": rule["webhook_url"]}
    return found | {target["id"]: target for target in rule.get("targets") or ()}


def find_problem(rule: Mapping[str, Any], settings: Settings) -> str | None:
    """Why messages of a stored rule cannot be sent to all of its targets, None where nothing is known of that."""
    try:
        for target in targets_of(rule).values():
            if target["kind"] == "email":
                check_receivers(target["to"], settings)
            elif target["kind"] == "webhook":
                check_webhook_address(target["url"], settings.alert_webhooks)
    except InvalidRequest as error:
        return error.reason
    return None


def seal_url(url: str, settings: Settings, alert_id: str, target_id: str) -> dict[str, str]:
    """The address of Slack, which is a secret itself, as it is stored and as it is shown."""
    stored = Secrets(settings).encrypt(url, f"alert {alert_id} {target_id}")
    return {"url": stored, "url_hint": f"{url.partition('://')[0]}://{urlsplit(url).hostname}/…{url[-_SHOWN:]}"}


async def send(settings: Settings, row: AlertRow, target: Target, delivery: DeliveryRow) -> str | None:
    """Send a message once; None when it was taken, else what went wrong. Raises HeddleError."""
    if target["kind"] == "email":
        check_receivers(target["to"], settings)
        waiting = orjson.loads(delivery.body).get("to", target["to"])
        receivers = [one for one in target["to"] if one in waiting]
        return await _send_mail(settings, receivers, delivery) if receivers else None
    place = f"alert {row.id} {target.get('id', '')}"
    url = Secrets(settings).decrypt(target["url"], place)
    check_webhook_address(url, settings.alert_webhooks)
    if target["kind"] == "slack":
        text = _text(settings, delivery, _escaped)
        return await _post(url, jsontext.dumps_bytes({"text": text}), {})
    secret = Secrets(settings).decrypt(row.secret, f"alert {row.id}")
    return await send_webhook(url, secret, delivery.id, times.now() // times.SECOND, delivery.body)


async def send_webhook(url: str, secret: str, message_id: str, timestamp: int, body: str) -> str | None:
    """Send a signed message once; None when it was taken, else what went wrong."""
    content = body.encode()
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign_message(secret, message_id, timestamp, content),
    }
    return await _post(url, content, headers)


async def _post(url: str, content: bytes, headers: dict[str, str]) -> str | None:
    """Redirects are not followed: they could lead to an address that nobody allowed."""
    import httpx

    headers = {"content-type": "application/json", "user-agent": "heddle", **headers}
    try:
        # The client's own limit is one of each step: a receiver that drips would hold up everybody's messages.
        async with (
            asyncio.timeout(_MOST_SEND_SECONDS),
            httpx.AsyncClient(timeout=_SEND_SECONDS, follow_redirects=False, verify=await ssl_context()) as session,
            session.stream("POST", url, content=content, headers=headers) as response,
        ):
            return None if 200 <= response.status_code < 300 else f"returned {response.status_code}"
    except TimeoutError:
        return f"gave no answer within {_MOST_SEND_SECONDS:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"cannot be reached: {type(error).__name__}"


async def _send_mail(settings: Settings, receivers: list[str], delivery: DeliveryRow) -> str | None:
    mail = EmailMessage()
    text = _text(settings, delivery, str)
    mail["Subject"], mail["From"], mail["To"] = text.partition("\n")[0][:200], settings.smtp_from, ", ".join(receivers)
    mail["Message-ID"] = f"<{delivery.id}@{settings.smtp_from.rpartition('@')[2]}>"
    mail.set_content(text)
    try:
        # The thread ends by the limits of `_Timed`, soon after.
        async with asyncio.timeout(_MOST_SEND_SECONDS):
            refused = await asyncio.to_thread(_hand_over, settings, receivers, mail)
    except TimeoutError:
        return f"gave no answer within {_MOST_SEND_SECONDS:g} s"
    except UnicodeEncodeError:
        return "the setting smtp has a user or a password that is not ASCII"
    except OSError as error:
        if isinstance(error, smtplib.SMTPException):
            return f"the mail server refused: {type(error).__name__} {error!s:.200}"
        return f"cannot be reached: {type(error).__name__}"
    except ValueError as error:  # a host that is no name, a challenge that is not Base64
        return f"the mail server cannot be used: {error!s:.200}"
    if not refused:
        return None
    delivery.body = jsontext.dumps({**orjson.loads(delivery.body), "to": list(refused)})
    return f"the mail server refused some receivers: {refused!s:.200}"


class _Replies:
    """What a mail server says, up to a time and a size; raises OSError beyond."""

    def __init__(self, connection: socket.socket, ends: float) -> None:
        self._socket, self._ends, self._left = connection, ends, _MOST_REPLIES

    def readline(self, most: int) -> bytes:
        """The next line, or as much of one."""
        line = bytearray()
        while len(line) < most and not line.endswith(b"\n"):
            remaining = self._ends - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"not finished within {_MOST_SEND_SECONDS:g} s")
            if not self._left:
                raise OSError(f"the server sent more than {_MOST_REPLIES} bytes")
            self._socket.settimeout(min(_SEND_SECONDS, remaining))
            found = self._socket.recv(1)
            if not found:
                break
            line += found
            self._left -= 1
        return bytes(line)

    def close(self) -> None:
        """Nothing: the socket is closed by itself."""


class _Timed(smtplib.SMTP):
    """Ends in time, whatever the server says: the library's own limit is one of each read."""

    def __init__(self, host: str, port: int, **named: Any) -> None:
        self._ends = time.monotonic() + _MOST_SEND_SECONDS
        super().__init__(host, port, timeout=_SEND_SECONDS, **named)

    def getreply(self) -> tuple[int, bytes]:
        """The next reply; raises SMTPException."""
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock, self._ends)
        return super().getreply()


class _TimedTls(_Timed, smtplib.SMTP_SSL):
    """The same, encrypted from the beginning."""


def _hand_over(settings: Settings, receivers: list[str], mail: EmailMessage) -> dict[str, tuple[int, bytes]]:
    """Give a mail to the server; returns the receivers it refused, where it took any. Runs in a thread."""
    parts = urlsplit(settings.smtp)
    host, context = parts.hostname or "", ssl.create_default_context()
    connection: smtplib.SMTP
    if parts.scheme == "smtps":
        connection = _TimedTls(host, parts.port or 465, context=context)
    else:
        connection = _Timed(host, parts.port or 587)
    with contextlib.closing(connection):
        connection.ehlo()
        if parts.scheme == "smtp" and (parts.password or connection.has_extn("starttls")):
            connection.starttls(context=context)
            connection.ehlo()
        if parts.username:
            connection.login(unquote(parts.username), unquote(parts.password or ""))
        # Named once more: the library would take from the head of the mail whom that seems to name.
        refused = connection.send_message(mail, settings.smtp_from, receivers)
        # The mail is taken, whatever the server answers to this.
        with contextlib.suppress(OSError):
            connection.putcmd("QUIT")
    return refused


def _text(settings: Settings, delivery: DeliveryRow, escape: Any) -> str:
    """A message to read: what happened first, then the figures, then where more is."""
    data = orjson.loads(delivery.body)["data"]
    rule, project = data["rule"], refs.external_project(delivery.project) or ""
    value = "none" if data["value"] is None else f"{data['value']:.6g}"
    lines = [
        f"{escape(_one_line(data['name']))} {_WORDS[delivery.event]} in {escape(project)}",
        f"{rule['metric']} is {value}; the line is {rule['operator']} {rule['threshold']:g} "
        f"over {rule['window_seconds']} s".replace("<", escape("<")).replace(">", escape(">")),
    ]
    if data["calls"] is not None:
        lines.append(f"Calls: {data['calls']}")
    if settings.public_url != "none":
        lines.append(f"{settings.public_url.rstrip('/')}/{project}/weave/alerts")
    return "\n".join(lines)


def _one_line(name: str) -> str:
    """A name as a subject may hold it: ends of lines, of which Unicode has ten, and other controls are spaces."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def _escaped(text: str) -> str:
    """A text for Slack, in which it names nobody and links nowhere."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
