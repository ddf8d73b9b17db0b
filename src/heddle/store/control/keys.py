"""Keys and people, the secrets of keys as SHA-256 (256 random bits need no slow hash), and the sessions of browsers."""

import contextlib
import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import sqlalchemy as sa

from heddle.errors import HeddleError, InvalidRequest, NotFound
from heddle.store.control.audit import audit
from heddle.store.control.repository import Indexed, Key, Mapped, Repository, Unique, begins_with, writes
from heddle.wire import jsontext, refs, times
from heddle.wire.keys import Authority, Grant, hash_key, merge_grants, read_scopes

PREFIX = "heddle-"
MOST_GRANTS = 100
_PERSON = "person "
"""What the hash of somebody begins with who signs in elsewhere: no secret has such a hash."""


class _Grants(sa.TypeDecorator[tuple[Grant, ...]]):
    """Grants as a JSON list of their texts."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Iterable[Grant] | None, dialect: sa.Dialect) -> str:  # noqa: ARG002
        """What is stored."""
        return jsontext.dumps(list(map(str, value or ())))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> tuple[Grant, ...]:  # noqa: ARG002
        """The grants that were stored."""
        return tuple(map(Grant.parse, json.loads(value or "[]")))


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key without its secret, or somebody who signs in; times in microseconds."""

    id: Key[str]
    hash: Unique[str] = field(repr=False)
    user: str
    grants: Annotated[tuple[Grant, ...], _Grants()]
    created_at: int
    created_by: str
    last_used_at: int | None = None
    revoked_at: int | None = None
    last_used_from: str | None = None
    """The address that the last request came from."""
    expires_at: int | None = None
    rotated_at: int | None = None
    previous_hash: Indexed[str | None] = field(default=None, repr=False)
    """Of the secret before the last rotation, which can be used until `previous_until`."""
    previous_until: int | None = None

    @property
    def is_person(self) -> bool:
        """True for somebody who signs in, and has no secret here."""
        return self.hash.startswith(_PERSON)

    def problem(self, at: int, hashed: str | None = None) -> str | None:
        """What keeps this from being used at an instant, with a secret of that hash: `was revoked`; None if nothing."""
        if self.revoked_at is not None:
            return "was revoked"
        if not self.grants:
            return "has no role any more"
        if self.expires_at is not None and self.expires_at <= at:
            return f"expired on {times.to_iso(self.expires_at)[:16]}Z"
        if hashed is not None and hashed == self.previous_hash and (self.previous_until or 0) <= at:
            return "was rotated; this secret is no longer valid"
        return None


def grants_of_scopes(scopes: str, entity: str | None, project: str | None) -> str:
    """The grants of a key that was made before there were roles, as they are stored: writing included deletion."""
    words = ["delete", *scopes.split()] if "write" in scopes.split() else scopes.split()
    return json.dumps([str(Grant(project or entity or "", read_scopes(words)))])


KEYS = Mapped(KeyRow, "api_keys")
api_keys = KEYS.table


class Keys(Repository):
    """The table of keys and people."""

    async def create(
        self, user: str, grants: Sequence[Grant], by: str, expires_in: float | None = None
    ) -> tuple[str, KeyRow]:
        """Make a key that ends after so many seconds; returns its secret (kept nowhere) and its row.

        Raises InvalidRequest for a bad name, no grant and a bad time.
        """
        _check(user, grants, expires_in)
        key, at = _make_secret(), times.now()
        made = KeyRow(
            times.uuid7(), hash_key(key), user, merge_grants(grants), at, by, expires_at=_after(at, expires_in)
        )
        await self._executor.write(lambda connection: _insert(connection, made))
        return key, made

    @writes
    def ensure(self, connection: sa.Connection, key: str, user: str, grants: tuple[Grant, ...], by: str) -> None:
        """Make a key of a given secret, unless it was made before, be it revoked or not."""
        made = KeyRow(times.uuid7(), hash_key(key), user, grants, times.now(), by)
        if KEYS.first(connection, KEYS.select(_of_secret(made.hash))) is None:
            _insert(connection, made)

    async def rotate(self, key_id: str, overlap: float, expires_in: float | None, by: str) -> tuple[str, KeyRow]:
        """Give a key a new secret; the old one counts for `overlap` more seconds. Raises NotFound, InvalidRequest.

        It ends after `expires_in` seconds; None gives it as long a life again as it had before, if any.
        """
        _check_end(expires_in)
        key, at = _make_secret(), times.now()

        def work(connection: sa.Connection) -> KeyRow:
            row = _find_one(connection, key_id)
            problem = "belongs to a sign-in and has no secret" if row.is_person else row.problem(at)
            if problem:
                raise InvalidRequest(f"The key of {row.user} cannot be rotated: it {problem}")
            life = None if row.expires_at is None else row.expires_at - (row.rotated_at or row.created_at)
            ends = _after(at, expires_in) if expires_in is not None or life is None else at + life
            until = at + round(overlap * times.SECOND)
            # An old secret does not outlive the end that it was given with.
            until = until if row.expires_at is None else min(until, row.expires_at)
            changes: dict[str, Any] = {"hash": hash_key(key), "previous_hash": row.hash, "previous_until": until}
            changes |= {"rotated_at": at, "expires_at": ends}
            told = {"key": row.id, "user": row.user, "overlap_seconds": round((until - at) / times.SECOND)}
            _change(connection, row, changes, at, by, "key.rotate", told)
            return replace(row, **changes)

        return key, await self._executor.write(work)

    @writes
    def sign_in(self, connection: sa.Connection, identity: str, user: str, grants: tuple[Grant, ...]) -> KeyRow:
        """Somebody whom a provider knows as `identity`, with what their groups allow now.

        Who comes without any grant for the first time is not stored; from others all grants are taken.
        """
        hashed, at = _PERSON + hash_key(identity), times.now()
        row = KEYS.first(connection, KEYS.select(api_keys.c.hash == hashed))
        if row is None:
            row = KeyRow(times.uuid7(), hashed, user, grants, at, "sign-in")
            if grants:
                _insert(connection, row)
        elif (row.user, row.grants) != (user, grants):
            told = {"key": row.id, "user": user, "roles": list(map(str, grants))}
            _change(connection, row, {"user": user, "grants": grants}, at, user, "person.change", told)
            row = replace(row, user=user, grants=grants)
        return row

    @writes
    def revoke(self, connection: sa.Connection, key_id: str, by: str) -> KeyRow:
        """Make a key useless from now on; a unique beginning of its id is enough. Raises NotFound."""
        row = _find_one(connection, key_id)
        if row.revoked_at is None:
            at = times.now()
            told = {"key": row.id, "user": row.user}
            _change(connection, row, {"revoked_at": at}, at, by, "key.revoke", told)
        return row

    @writes
    def restore(self, connection: sa.Connection, key_id: str, by: str) -> KeyRow:
        """Let somebody sign in again whose sign-in was revoked; raises NotFound, InvalidRequest for a key."""
        row = _find_one(connection, key_id)
        if not row.is_person:
            raise InvalidRequest("A revoked key cannot be restored; create a new one")
        told = {"key": row.id, "user": row.user}
        _change(connection, row, {"revoked_at": None}, times.now(), by, "person.restore", told)
        return row

    async def find(self, hashed: str) -> KeyRow | None:
        """The key with a secret of this hash, be it usable or not."""
        return await self._first(KEYS, _of_secret(hashed))

    async def read(self, key_id: str) -> KeyRow | None:
        """The key with this id."""
        return await self._first(KEYS, api_keys.c.id == key_id)

    async def all(self) -> list[KeyRow]:
        """Every key and everybody who has signed in, oldest first."""
        return await self._all(KEYS, KEYS.select().order_by(api_keys.c.created_at, api_keys.c.id))

    async def problems(self, started_with: Collection[Authority]) -> dict[Authority, str]:
        """Why work that was started with these must not go on; those that can be used are left out."""
        now, ids = times.now(), {authority.key_id for authority in started_with}
        rows = {row.id: row for row in await self._all(KEYS, KEYS.select(api_keys.c.id.in_(ids)))}
        found: dict[Authority, str] = {}
        for authority in started_with:
            if (row := rows.get(authority.key_id)) is None:
                continue
            said = row.problem(now) or ("" if authority.is_within(row.grants) else "has lost roles since")
            if said:
                what = "sign-in" if row.is_person else "key"
                found[authority] = f"The {what} of user '{row.user}', which started this, {said}"
        return found

    async def any_usable(self) -> bool:
        """True when at least one key can be used."""
        lasts = sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > times.now())
        return await self._first(KEYS, api_keys.c.revoked_at.is_(None), lasts) is not None

    @writes
    def used(self, connection: sa.Connection, uses: Mapping[str, tuple[int, str]]) -> None:
        """Note when keys (by id) were last used, and from which address."""
        change = api_keys.update().where(api_keys.c.id == sa.bindparam("key"))
        change = change.values(last_used_at=sa.bindparam("at"), last_used_from=sa.bindparam("address"))
        connection.execute(change, [{"key": key, "at": at, "address": address} for key, (at, address) in uses.items()])


def _make_secret() -> str:
    return PREFIX + secrets.token_hex(32)


def _of_secret(hashed: str) -> sa.ColumnElement[bool]:
    return sa.or_(api_keys.c.hash == hashed, api_keys.c.previous_hash == hashed)


def _after(at: int, seconds: float | None) -> int | None:
    return None if seconds is None else at + round(seconds * times.SECOND)


def _find_one(connection: sa.Connection, key_id: str) -> KeyRow:
    rows = KEYS.all(connection, KEYS.select(begins_with(api_keys.c.id, key_id)))
    if not key_id or len(rows) != 1:
        named = f": {', '.join(row.id for row in rows[:10])}" if key_id and rows else ""
        found = f"{len(rows)} keys have" if key_id and rows else "No key has"
        raise NotFound(f"{found} an id that starts with {key_id!r}{named}")
    return rows[0]


def _change(
    connection: sa.Connection, row: KeyRow, changes: dict[str, Any], at: int, by: str, action: str, told: dict[str, Any]
) -> None:
    connection.execute(api_keys.update().where(api_keys.c.id == row.id).values(changes))
    audit(connection, at, by, action, _internal(row), told)


def _insert(connection: sa.Connection, key: KeyRow) -> None:
    KEYS.insert(connection, key)
    details: dict[str, Any] = {"key": key.id, "user": key.user, "roles": list(map(str, key.grants))}
    if key.expires_at is not None:
        details["expires_at"] = times.to_iso(key.expires_at)
    action = "person.create" if key.is_person else "key.create"
    audit(connection, key.created_at, key.created_by, action, _internal(key), details)


def _check(user: str, grants: Sequence[Grant], expires_in: float | None) -> None:
    if not user.strip() or len(user) > 256 or not user.isprintable():
        raise InvalidRequest("The user of a key must have 1 to 256 printable characters")
    if not 1 <= len(grants) <= MOST_GRANTS:
        raise InvalidRequest(f"A key must have 1 to {MOST_GRANTS} roles")
    _check_end(expires_in)


def _check_end(expires_in: float | None) -> None:
    if expires_in == 0:
        raise InvalidRequest("The expiry of a key must be in the future")


def _internal(row: KeyRow) -> str | None:
    """The project of a key that is bound to one."""
    reach = row.grants[0].reach if len(row.grants) == 1 else ""
    return refs.internal_project(reach) if "/" in reach else None


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
    def begin(self, connection: sa.Connection, key: KeyRow, at: int, life: int = _LIFE) -> str:
        """A new session of a key, by its secret, which is kept nowhere; those that are over are removed."""
        token = secrets.token_urlsafe(32)
        connection.execute(sessions.delete().where(sessions.c.expires_at <= at))
        _sessions.insert(connection, SessionRow(hash_key(token), key.id, at, at + life))
        audit(connection, at, key.user, "login", None, {"key": key.id, "with": "sign-in" if key.is_person else "key"})
        return token

    async def find(self, hashed: str, at: int) -> KeyRow | None:
        """The key behind a session, revoked or not, and the session lasts longer from now on; None when it is over."""
        session = await self._first(_sessions, sessions.c.hash == hashed, sessions.c.expires_at > at)
        if session is None:
            return None
        row = await self._first(KEYS, api_keys.c.id == session.key)
        # Who signs in does so again after a while: groups may have changed.
        if row is not None and not row.is_person and session.expires_at < at + _LIFE - _SLACK:
            change = sessions.update().where(sessions.c.hash == hashed).values(expires_at=at + _LIFE)
            # A full disk ends no session.
            with contextlib.suppress(HeddleError):
                await self._execute(change)
        return row

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
