"""API keys, kept as SHA-256 (256 random bits need no slow hash), and the sessions of browsers that stand for them."""

import contextlib
import secrets
from dataclasses import dataclass, field
from typing import Annotated

import sqlalchemy as sa

from heddle.errors import HeddleError, InvalidRequest, NotFound
from heddle.store.control.projects import audit
from heddle.store.control.repository import Indexed, Key, Mapped, Repository, Unique, writes
from heddle.wire import refs, times
from heddle.wire.keys import Scope, hash_key

PREFIX = "heddle-"


class _Scopes(sa.TypeDecorator[frozenset[Scope]]):
    """Scopes as their words, sorted."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: frozenset[Scope] | None, dialect: sa.Dialect) -> str:  # noqa: ARG002
        """The text that is stored."""
        return " ".join(sorted(value or ()))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> frozenset[Scope]:  # noqa: ARG002
        """The scopes that were stored."""
        return frozenset(Scope(word) for word in (value or "").split())


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key without its secret; times in microseconds."""

    id: Key[str]
    hash: Unique[str] = field(repr=False)
    user: str
    scopes: Annotated[frozenset[Scope], _Scopes()]
    entity: str | None
    project: str | None
    created_at: int
    created_by: str
    last_used_at: int | None = None
    revoked_at: int | None = None


KEYS = Mapped(KeyRow, "api_keys")
api_keys = KEYS.table


class Keys(Repository):
    """The table of keys."""

    async def create(
        self, user: str, scopes: frozenset[Scope], entity: str | None, project: str | None, by: str
    ) -> tuple[str, KeyRow]:
        """Make a key; returns its secret (kept nowhere) and its row. Raises InvalidRequest for a bad binding."""
        _check(user, scopes, entity, project)
        key = PREFIX + secrets.token_hex(32)
        made = KeyRow(times.uuid7(), hash_key(key), user, scopes, entity, project, times.now(), by)

        await self._executor.write(lambda connection: _insert(connection, made))
        return key, made

    @writes
    def ensure(self, connection: sa.Connection, key: str, user: str, scopes: frozenset[Scope], by: str) -> None:
        """Make a key of a given secret that reaches everything, unless it was made before, be it revoked or not."""
        made = KeyRow(times.uuid7(), hash_key(key), user, scopes, None, None, times.now(), by)
        if KEYS.first(connection, KEYS.select(api_keys.c.hash == made.hash)) is None:
            _insert(connection, made)

    @writes
    def revoke(self, connection: sa.Connection, key_id: str, by: str) -> KeyRow:
        """Make a key useless from now on; a unique beginning of its id is enough. Raises NotFound."""
        rows = KEYS.all(connection, KEYS.select(api_keys.c.id.startswith(key_id, autoescape=True)))
        if not key_id or len(rows) != 1:
            named = f": {', '.join(row.id for row in rows[:10])}" if key_id and rows else ""
            raise NotFound(f"{len(rows) if key_id else 'No'} keys have an id that starts with {key_id!r}{named}")
        row = rows[0]
        if row.revoked_at is None:
            at = times.now()
            connection.execute(api_keys.update().where(api_keys.c.id == row.id).values(revoked_at=at))
            audit(connection, at, by, "key.revoke", _internal(row.project), {"key": row.id, "user": row.user})
        return row

    async def find(self, hashed: str) -> KeyRow | None:
        """The key with this hash, revoked or not."""
        return await self._first(KEYS, api_keys.c.hash == hashed)

    async def all(self) -> list[KeyRow]:
        """Every key, oldest first."""
        return await self._all(KEYS, KEYS.select().order_by(api_keys.c.created_at, api_keys.c.id))

    async def any_usable(self) -> bool:
        """True when at least one key is not revoked."""
        return await self._first(KEYS, api_keys.c.revoked_at.is_(None)) is not None

    async def used(self, key_ids: list[str], at: int) -> None:
        """Note when keys were last used."""
        await self._execute(api_keys.update().where(api_keys.c.id.in_(key_ids)).values(last_used_at=at))


def _insert(connection: sa.Connection, key: KeyRow) -> None:
    KEYS.insert(connection, key)
    details: dict[str, str | None] = {"key": key.id, "user": key.user, "scopes": " ".join(sorted(key.scopes))}
    details |= {"entity": key.entity, "project": key.project}
    audit(connection, key.created_at, key.created_by, "key.create", _internal(key.project), details)


def _check(user: str, scopes: frozenset[Scope], entity: str | None, project: str | None) -> None:
    if not user.strip() or len(user) > 256 or not user.isprintable():
        raise InvalidRequest("A key needs a user name of 1 to 256 printable characters")
    if not scopes:
        raise InvalidRequest(f"A key needs at least one scope of {', '.join(Scope)}")
    if entity is not None and project is not None:
        raise InvalidRequest("A key is bound to an entity or to a project, not to both")
    if project is not None:
        refs.internal_project(project)
    if entity is not None:
        refs.internal_project(f"{entity}/project")


def _internal(project: str | None) -> str | None:
    return None if project is None else refs.internal_project(project)


SESSION_SECONDS = 14 * 86_400
"""How long a session lasts that is not used."""

_LIFE = SESSION_SECONDS * 1_000_000
_SLACK = 86_400 * 1_000_000
"""Its end is moved at most once a day, so that reading does not write."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session: the hash of its token, and the id of the key that it stands for."""

    hash: Key[str]
    key: Indexed[str]
    created_at: int
    expires_at: int


_sessions = Mapped(SessionRow, "sessions")
sessions = _sessions.table


class Sessions(Repository):
    """The table of sessions; instants in microseconds."""

    @writes
    def begin(self, connection: sa.Connection, key_id: str, at: int) -> str:
        """A new session of a key, by its secret, which is kept nowhere; those that are over are removed."""
        token = secrets.token_urlsafe(32)
        connection.execute(sessions.delete().where(sessions.c.expires_at <= at))
        _sessions.insert(connection, SessionRow(hash_key(token), key_id, at, at + _LIFE))
        return token

    async def find(self, hashed: str, at: int) -> KeyRow | None:
        """The key behind a session, revoked or not, and the session lasts longer from now on; None when it is over."""
        session = await self._first(_sessions, sessions.c.hash == hashed, sessions.c.expires_at > at)
        if session is None:
            return None
        if session.expires_at < at + _LIFE - _SLACK:
            change = sessions.update().where(sessions.c.hash == hashed).values(expires_at=at + _LIFE)
            # A full disk ends no session.
            with contextlib.suppress(HeddleError):
                await self._execute(change)
        return await self._first(KEYS, api_keys.c.id == session.key)

    async def end(self, token: str) -> None:
        """End one session; an unknown one has ended before."""
        await self._execute(sessions.delete().where(sessions.c.hash == hash_key(token)))

    async def end_of_key(self, key_id: str) -> int:
        """End every session of a key; returns how many."""
        return await self._execute(sessions.delete().where(sessions.c.key == key_id))

    async def counts(self, at: int) -> dict[str, int]:
        """How many sessions each key has that are not over."""
        query = sa.select(sessions.c.key, sa.func.count()).where(sessions.c.expires_at > at).group_by(sessions.c.key)
        return {row[0]: row[1] for row in await self._tuples(query)}
