"""Sessions of browsers: a random token, kept as its SHA-256, that stands for a key until it is not used any more."""

import contextlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.cookies import SECONDS
from heddle.errors import HeddleError
from heddle.store.control.keys import KEYS, KeyRow, api_keys
from heddle.store.control.mapping import Indexed, Key, Mapped, Repository
from heddle.wire.keys import hash_key

_LIFE = SECONDS * 1_000_000
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

    async def begin(self, key_id: str, at: int) -> str:
        """A new session of a key, by its secret, which is kept nowhere; those that are over are removed."""
        token = secrets.token_urlsafe(32)
        row = SessionRow(hash_key(token), key_id, at, at + _LIFE)

        def work(connection: sa.Connection) -> None:
            connection.execute(sessions.delete().where(sessions.c.expires_at <= at))
            _sessions.insert(connection, row)

        await self._executor.write(work)
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
