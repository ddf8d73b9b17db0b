"""Who is calling, what their key allows, and which projects it reaches."""

import base64
import binascii
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from heddle import cookies
from heddle.errors import Forbidden, NotAuthenticated
from heddle.wire import refs
from heddle.wire.keys import Scope as Scope
from heddle.wire.keys import hash_key as hash_key


@dataclass(frozen=True, slots=True)
class Caller:
    """A recognised user, the scopes of the key, and the entity or project that the key is bound to (None: all)."""

    user: str
    scopes: frozenset[Scope]
    entity: str | None = None
    project: str | None = None
    key_id: str | None = None

    def has(self, scope: Scope) -> bool:
        """True when the key carries the scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise Forbidden when the key does not carry the scope."""
        if not self.has(scope):
            held = ", ".join(sorted(self.scopes))
            raise Forbidden(f"This needs a key with scope '{scope}'; the key of user '{self.user}' has: {held}")

    def reaches(self, project_id: str) -> bool:
        """True when `entity/project` lies within the key's binding."""
        if self.project is not None:
            return project_id == self.project
        return self.entity is None or project_id.partition("/")[0] == self.entity

    def reaches_entity(self, entity: str) -> bool:
        """True when some project of the entity lies within the key's binding."""
        bound = self.project.partition("/")[0] if self.project is not None else self.entity
        return bound is None or bound == entity

    @property
    def default_entity(self) -> str:
        """The entity that is meant where the caller names none."""
        if self.project is not None:
            return self.project.partition("/")[0]
        return self.entity or self.user

    def may_read(self, project_id: str) -> bool:
        """True when the caller can read `entity/project`."""
        return self.has(Scope.READ) and self.reaches(project_id)

    @property
    def reach(self) -> str:
        """What the key is bound to, `entity/project` or `entity`; empty for a key that reaches everything."""
        return self.project or self.entity or ""

    def open(self, project_id: str) -> str:
        """The internal id of `entity/project`; raises InvalidRequest for a bad form, Forbidden outside the binding."""
        internal = refs.internal_project(project_id)
        if not self.reaches(project_id):
            bound = self.project or f"entity '{self.entity}'"
            raise Forbidden(f"The key of user '{self.user}' is bound to {bound} and does not reach '{project_id}'")
        return internal


LOCAL = Caller(user="local", scopes=frozenset(Scope))


_HOW = (
    "send it as the password of Basic (any user name), as 'Authorization: Bearer <key>', or as 'wandb-api-key: <key>'"
)


def key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The key that a request carries, or None without one; raises NotAuthenticated for an unreadable header."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        alone = headers.get(b"wandb-api-key")
        return alone.decode("latin-1").strip() if alone else None
    scheme, _, rest = authorization.decode("latin-1").strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip() or None
    if scheme.lower() != "basic":
        raise NotAuthenticated(f"The Authorization scheme is not known here; {_HOW}")
    try:
        pair = base64.b64decode(rest.strip(), validate=True).decode("utf-8", "replace")
    except binascii.Error:
        raise NotAuthenticated(f"The Basic credentials are no base64; {_HOW}") from None
    return pair.partition(":")[2].strip() or None


_SESSION = "session "


def _now() -> int:
    return time.time_ns() // 1000


class KnownKey(Protocol):
    """A stored key; `revoked_at` is None while it can be used."""

    @property
    def id(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def scopes(self) -> frozenset[Scope]: ...

    @property
    def entity(self) -> str | None: ...

    @property
    def project(self) -> str | None: ...

    @property
    def revoked_at(self) -> int | None: ...


def caller_with(key: KnownKey) -> Caller:
    """Who calls with a key."""
    return Caller(key.user, key.scopes, key.entity, key.project, key.id)


class KeyStore(Protocol):
    """Where keys are found."""

    async def find(self, hashed: str) -> KnownKey | None:
        """The key with this hash, revoked or not."""
        ...

    async def used(self, key_ids: list[str], at: int) -> None:
        """Note when keys were last used, in microseconds."""
        ...


class SessionStore(Protocol):
    """Where the sessions of browsers are found."""

    async def find(self, hashed: str, at: int) -> KnownKey | None:
        """The key behind the session with this hash, revoked or not; None for a session that is over by then."""
        ...


class Authenticator:
    """Recognises callers; when no key is needed everybody is the local user.

    An answer of the key store is believed for half a second, so a key that another process revokes is refused within
    a second.
    """

    BELIEVED_SECONDS = 0.5
    MOST_ENTRIES = 10_000

    def __init__(self, keys: KeyStore, needs_key: bool, sessions: SessionStore | None = None) -> None:
        self._keys = keys
        self._sessions = sessions
        self.needs_key = needs_key
        self._known: dict[str, tuple[float, Caller | NotAuthenticated]] = {}
        self._used: dict[str, int] = {}

    async def recognise(self, headers: Mapping[bytes, bytes], method: str = "GET") -> Caller:
        """Who sends this; raises NotAuthenticated saying why nobody was recognised. A key wins over a cookie."""
        if not self.needs_key:
            return LOCAL
        key = key_of(headers)
        token = None if key or self._sessions is None else cookies.token_of(headers, method)
        if key is None and token is None:
            raise NotAuthenticated(f"This server needs an API key; {_HOW}")
        entry = hash_key(key) if key is not None else _SESSION + hash_key(token or "")
        known = self._known.get(entry)
        if known is None or known[0] < time.monotonic():
            known = await self._look_up(entry)
        if isinstance(known[1], NotAuthenticated):
            raise NotAuthenticated(known[1].reason)
        return known[1]

    def forget(self) -> None:
        """Believe nothing any more that the stores said before, as a session or a key has just ended here."""
        self._known.clear()

    async def _look_up(self, entry: str) -> tuple[float, Caller | NotAuthenticated]:
        of_session = entry.startswith(_SESSION)
        if of_session and self._sessions is not None:
            row = await self._sessions.find(entry.removeprefix(_SESSION), _now())
        else:
            row = await self._keys.find(entry)
        found: Caller | NotAuthenticated
        if row is None:
            unknown = "The session has ended; log in again" if of_session else "The API key is not known to this server"
            found = NotAuthenticated(unknown)
        elif row.revoked_at is not None:
            found = NotAuthenticated("The API key was revoked")
        else:
            found = caller_with(row)
            self._used[row.id] = _now()
        if len(self._known) >= self.MOST_ENTRIES:
            self._known.clear()
        kept = self._known[entry] = (time.monotonic() + self.BELIEVED_SECONDS, found)
        return kept

    async def note_use(self) -> None:
        """Store when the keys of the last while were used."""
        used, self._used = self._used, {}
        if used:
            await self._keys.used(list(used), max(used.values()))
