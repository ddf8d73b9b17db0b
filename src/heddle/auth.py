"""Who is calling: what a key or the session of a browser allows, and from where a request may come."""

import base64
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from heddle.errors import Forbidden, NotAuthenticated
from heddle.settings import Settings
from heddle.store.control.keys import KeyRow, Keys, Sessions
from heddle.wire import refs, times
from heddle.wire.keys import ADDRESS as ADDRESS
from heddle.wire.keys import ROLES as ROLES
from heddle.wire.keys import Authority, read_grants, show_scopes
from heddle.wire.keys import Grant as Grant
from heddle.wire.keys import Scope as Scope
from heddle.wire.keys import hash_key as hash_key

_HOW = (
    "send it as the password of Basic (any user name), as 'Authorization: Bearer <key>', as 'x-api-key: <key>' or as "
    "'wandb-api-key: <key>'"
)
_FIRST_KEY = (
    "It has no keys yet: create the first with `heddle keys create --user NAME --role admin`, or start the "
    "server with HEDDLE_BOOTSTRAP_KEY"
)
KEY_HEADERS = (b"wandb-api-key", b"x-api-key")
"""Headers that hold a key and nothing else; those of clients of Anthropic have the second."""
API_KEY_HEADERS = frozenset((b"authorization", *KEY_HEADERS))
OPENED: ContextVar[Callable[[str, bool], None] | None] = ContextVar("opened", default=None)
"""Is told each project that the request at work opens, and whether to store something; raises beyond a quota."""
_EVERYTHING = frozenset(Scope)
_STORING = frozenset((Scope.WRITE, Scope.ANNOTATE))
SESSION_COOKIE = "heddle_session"
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{1,100}")
_OWN_HEADER = b"x-heddle-ui"
_ELSEWHERE = frozenset((b"cross-site", b"same-site"))
_LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]", "host.docker.internal", "host.containers.internal"))
"""Names that lead to this machine and cannot be given to another: `.internal` is nobody's domain."""
_FORWARDED = frozenset((
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caller:
    """A recognised user, what the key allows in which projects, and the scopes that the request needs there."""

    user: str
    grants: tuple[Grant, ...]
    key_id: str | None = None
    needed: frozenset[Scope] = frozenset()

    @classmethod
    def of(cls, key: KeyRow) -> "Caller":
        """Who calls with a key."""
        return cls(key.user, key.grants, key.id)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Caller":
        """What `to_json` made, or an earlier version, whose `write` included deletion."""
        if "grants" in told:
            return cls(told["user"], read_grants(told["grants"]), told["key_id"])
        scopes = frozenset(map(Scope, told["scopes"]))
        scopes |= {Scope.ANNOTATE, Scope.DELETE} if Scope.WRITE in scopes else frozenset()
        return cls(told["user"], (Grant(told["project"] or told["entity"] or "", scopes),), told["key_id"])

    @property
    def abilities(self) -> dict[str, Any]:
        """What pages know of who looks at them: `grants` are pairs of a reach and the scopes there."""
        grants = [[reach, sorted(_EVERYTHING if Scope.ADMIN in scopes else scopes)] for reach, scopes in self.grants]
        return {"user": self.user, "admin": self.has(Scope.ADMIN), "grants": grants}

    @property
    def authority(self) -> Authority | None:
        """What work in the background is started with; None without a key."""
        return None if self.key_id is None else Authority(self.key_id, self.grants)

    def to_json(self) -> dict[str, Any]:
        """What a job keeps of who asked for it."""
        return {"user": self.user, "grants": [[g.reach, sorted(g.scopes)] for g in self.grants], "key_id": self.key_id}

    def has(self, scope: Scope) -> bool:
        """True when the key carries the scope in some project."""
        return any(scope in grant.scopes or Scope.ADMIN in grant.scopes for grant in self.grants)

    def require(self, scope: Scope) -> "Caller":
        """The caller as one who reaches only where the key carries the scope, too; raises Forbidden for nowhere."""
        if not self.has(scope):
            held = ", ".join(map(str, self.grants))
            raise Forbidden(f"This requires a key with scope '{scope}'; the key of user '{self.user}' has: {held}")
        return self if scope in self.needed else replace(self, needed=self.needed | {scope})

    def with_scope(self, scope: Scope) -> "Caller":
        """The caller as one who may more wherever the key may anything: of what that reads nothing may be answered."""
        return replace(self, grants=tuple(Grant(reach, scopes | {scope}) for reach, scopes in self.grants))

    def scopes_in(self, project_id: str) -> frozenset[Scope]:
        """What the caller may do in `entity/project`; nothing outside the key's binding."""
        places = ("", project_id.partition("/")[0], project_id)
        scopes = frozenset[Scope]().union(*(scopes for reach, scopes in self.grants if reach in places))
        return _EVERYTHING if Scope.ADMIN in scopes else scopes

    @property
    def is_operator(self) -> bool:
        """True for an admin of the whole server."""
        return any(not reach and Scope.ADMIN in scopes for reach, scopes in self.grants)

    def require_operator(self, what: str) -> None:
        """Raise Forbidden for who is no admin of the whole server."""
        if not self.is_operator:
            raise Forbidden(f"{what}: this requires an admin key that is not bound to a project")

    def reaches(self, project_id: str) -> bool:
        """True when `entity/project` lies within the key's binding, with all that the request needs."""
        scopes = self.scopes_in(project_id)
        return bool(scopes) and self.needed <= scopes

    @property
    def is_bound(self) -> bool:
        """False for a key that does everywhere what the request needs."""
        return not any(not reach and (self.needed <= scopes or Scope.ADMIN in scopes) for reach, scopes in self.grants)

    def reaches_entity(self, entity: str) -> bool:
        """True when some project of the entity lies within the key's binding."""
        return any(not reach or reach.partition("/")[0] == entity for reach, _ in self.grants)

    @property
    def project(self) -> str | None:
        """The one project that the key is bound to; None for one that reaches several."""
        return self.reach if len(self.grants) == 1 and "/" in self.reach else None

    @property
    def default_entity(self) -> str:
        """The entity that is meant where the caller names none."""
        entities = {reach.partition("/")[0] for reach, _ in self.grants}
        return entities.pop() or self.user if len(entities) == 1 else self.user

    def may_read(self, project_id: str) -> bool:
        """True when the caller can read `entity/project`."""
        return Scope.READ in self.scopes_in(project_id)

    @property
    def reach(self) -> str:
        """What the key is bound to, `entity/project` or `entity`, in order; empty for a key that reaches everything."""
        reaches = sorted(grant.reach for grant in self.grants)
        return ", ".join(reaches) if all(reaches) else ""

    @property
    def owner(self) -> str:
        """Whose work the caller's is: that of everybody whose key is bound to the same projects or entities."""
        return self.reach or self.user

    def open(self, project_id: str) -> str:
        """The internal id of `entity/project`.

        Raises InvalidRequest for a bad form, Forbidden outside the binding and where the key lacks a needed scope.
        """
        internal = refs.internal_project(project_id)
        scopes = self.scopes_in(project_id)
        if not scopes:
            raise Forbidden(f"The key of user '{self.user}' is bound to {self.reach} and cannot access '{project_id}'")
        if not self.needed <= scopes:
            missing = min(self.needed - scopes)
            raise Forbidden(
                f"This requires the scope '{missing}' in '{project_id}'; the key of user '{self.user}' has: "
                f"{show_scopes(scopes)}"
            )
        if (opened := OPENED.get()) is not None:
            opened(project_id, not self.needed.isdisjoint(_STORING))
        return internal


LOCAL = Caller("local", (Grant("", _EVERYTHING),))
NOBODY: dict[str, Any] = {"user": None, "admin": False, "grants": []}
"""The `abilities` of a browser that nobody has signed in with."""


def api_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key that a request carries, or None without one; raises NotAuthenticated for an unreadable header."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        alone = next((value for name in KEY_HEADERS if (value := headers.get(name))), None)
        # Tinker's client sends no key that does not begin so.
        return alone.decode("latin-1").strip().removeprefix("tml-") or None if alone else None
    scheme, space, rest = authorization.decode("latin-1").strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip() or None
    if scheme and not space and scheme.lower() != "basic":
        # Logfire sends the key alone.
        return scheme
    if scheme.lower() != "basic":
        raise NotAuthenticated(f"The Authorization scheme is not supported; {_HOW}")
    try:
        pair = base64.b64decode(rest.strip(), validate=True).decode("utf-8", "replace")
    except ValueError:
        raise NotAuthenticated(f"The Basic credentials are not valid base64; {_HOW}") from None
    return pair.partition(":")[2].strip() or None


class Authenticator:
    """Recognises callers; when no key is needed everybody is the local user.

    An answer of the key store is believed for half a second, so a key that another process revokes is refused within
    a second.
    """

    BELIEVED_SECONDS = 0.5
    MOST_ENTRIES = 10_000

    def __init__(self, keys: Keys, needs_key: bool, sessions: Sessions) -> None:
        self._keys = keys
        self._sessions = sessions
        self.needs_key = needs_key
        self._known: dict[str, tuple[float, Caller | NotAuthenticated]] = {}
        self._changes = 0
        self._used: dict[str, tuple[int, str]] = {}
        self._has_keys = False
        self._asked = 0.0

    async def authenticate(self, headers: Mapping[bytes, bytes], method: str = "GET") -> Caller:
        """Who sends this; raises NotAuthenticated saying why nobody was recognised. A key wins over a cookie."""
        if not self.needs_key:
            return LOCAL
        key = api_key(headers)
        token = None if key else session_token(headers, method)
        if key is None and token is None:
            raise NotAuthenticated(await self._explain(f"This server requires an API key; {_HOW}"))
        entry = hash_key(key) if key is not None else "session " + hash_key(token or "")
        known = self._known.get(entry)
        if known is None or known[0] < time.monotonic():
            known = await self._look_up(entry)
        if isinstance(known[1], NotAuthenticated):
            raise NotAuthenticated(known[1].reason)
        return known[1]

    def forget(self) -> None:
        """Believe nothing any more that the stores said before, as a session or a key has just ended here."""
        # What was asked before must not be believed, either.
        self._changes += 1
        self._known.clear()

    async def _look_up(self, entry: str) -> tuple[float, Caller | NotAuthenticated]:
        is_session, now, changes = entry.startswith("session "), times.now(), self._changes
        if is_session:
            row = await self._sessions.find(entry.removeprefix("session "), now)
        else:
            row = await self._keys.find(entry)
        found: Caller | NotAuthenticated
        if row is None:
            ended, unknown = "The session has ended; log in again", "The API key is not known to this server"
            found = NotAuthenticated(ended if is_session else await self._explain(unknown))
        elif problem := row.problem(now, entry):
            found = NotAuthenticated(f"{'The sign-in' if row.is_person else 'The API key'} {problem}")
        else:
            found = Caller.of(row)
            self._used[row.id] = (now, ADDRESS.get())
        if len(self._known) >= self.MOST_ENTRIES:
            self._known.clear()
        kept = (time.monotonic() + self.BELIEVED_SECONDS, found)
        if changes == self._changes:
            self._known[entry] = kept
        return kept

    async def _explain(self, reason: str) -> str:
        """Why nobody was recognised, and how the first key is made where there is none."""
        if not self._has_keys and self._asked < time.monotonic():
            self._has_keys = await self._keys.any_usable()
            self._asked = time.monotonic() + self.BELIEVED_SECONDS
        return reason if self._has_keys else f"{reason}. {_FIRST_KEY}"

    async def note_use(self) -> None:
        """Store when and from where the keys of the last while were used."""
        used, self._used = self._used, {}
        if used:
            await self._keys.used(used)


def session_token(headers: Mapping[bytes, bytes], method: str) -> str | None:
    """The session that a request may act for, or None: a page of another origin gains nothing from the cookie.

    What only reads must not come from another site; what writes needs a header that no form can send, and the word of
    the browser that the page is ours.
    """
    token = read_cookie(headers.get(b"cookie", b""), SESSION_COOKIE, _TOKEN)
    if token is None or headers.get(b"sec-fetch-site") in _ELSEWHERE:
        return None
    return token if method in ("GET", "HEAD") or is_own_write(headers) else None


def is_own_write(headers: Mapping[bytes, bytes]) -> bool:
    """True when a page of this very server sends this."""
    if _OWN_HEADER not in headers:
        return False
    origin = headers.get(b"origin")
    return headers.get(b"sec-fetch-site") == b"same-origin" if origin is None else is_own_origin(origin, headers)


def is_own_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True when a page of the web interface asks, which could say so only from this origin."""
    return any(pair[0] == _OWN_HEADER or pair == (b"sec-fetch-site", b"same-origin") for pair in headers)


def set_cookie(name: str, value: str, path: str, is_secure: bool, seconds: int, same_site: str = "Strict") -> str:
    """The value of a `Set-Cookie` header; with 0 seconds it takes the cookie away."""
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Path={path or '/'}; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"


def read_cookie(header: bytes, name: str, form: re.Pattern[bytes]) -> str | None:
    """The first cookie of a name and form of ours; cookies of others, which may hold anything, are never read."""
    for part in header.split(b";"):
        found, _, value = part.strip().partition(b"=")
        if found == name.encode():
            return value.decode() if form.fullmatch(value) else None
    return None


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
    is_allowed = headers.get(b"origin") in settings.named_origins
    if is_ambient and method not in ("GET", "HEAD", "OPTIONS") and is_of_another_page(headers) and not is_allowed:
        remedy = (
            "send the key as a Bearer token"
            if settings.needs_key
            else "name its origin in --cors-origins, or start the server with --auth on and use a key"
        )
        raise Forbidden(f"A page of another origin is not allowed to write here; {remedy}")


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
    root = settings.root_path.rstrip("/")
    return f"{settings.public_url}/" if settings.public_url != "none" else f"{base_url.rstrip('/')}{root}/"


def _check_host(headers: Mapping[bytes, bytes], settings: Settings) -> None:
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    public = urlsplit(settings.public_url).netloc.rsplit(":", 1)[0].lower() if settings.public_url != "none" else None
    if name in _LOOPBACK_NAMES or name.endswith(".localhost") or name in (settings.host.lower(), public):
        return
    raise Forbidden(
        f"This server was reached as {name[:100]!r}; without keys, only loopback names and the name of "
        "public_url are allowed"
    )


def _check_proxy(headers: Mapping[bytes, bytes], settings: Settings) -> None:
    if settings.auth != "off" and not _FORWARDED.isdisjoint(headers):
        raise Forbidden(
            "The request came through a proxy, which would make everybody behind it the local user: start "
            "the server with --auth on and use keys, or with --auth off if the proxy authenticates its users"
        )
