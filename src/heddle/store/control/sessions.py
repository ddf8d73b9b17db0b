"""Sessions of browsers: a random token, kept as its SHA-256, that stands for a key until it is not used any more."""

import contextlib
import secrets

import sqlalchemy as sa

from heddle.auth import hash_key
from heddle.cookies import SECONDS
from heddle.errors import HeddleError
from heddle.store.control.keys import KeyRow, api_keys, shown
from heddle.store.control.schema import Executor, metadata

_LIFE = SECONDS * 1_000_000
_SLACK = 86_400 * 1_000_000
"""Its end is moved at most once a day, so that reading does not write."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, index=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
)


class Sessions:
    """The table of sessions; instants in microseconds."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def begin(self, key_id: str, at: int) -> str:
        """A new session of a key, by its secret, which is kept nowhere; those that are over are removed."""
        token = secrets.token_urlsafe(32)
        row = {"hash": hash_key(token), "key": key_id, "created_at": at, "expires_at": at + _LIFE}

        def work(connection: sa.Connection) -> None:
            connection.execute(sessions.delete().where(sessions.c.expires_at <= at))
            connection.execute(sessions.insert().values(row))

        await self._executor.write(work)
        return token

    async def find(self, hashed: str, at: int) -> KeyRow | None:
        """The key behind a session, revoked or not, and the session lasts longer from now on; None when it is over."""
        query = sa.select(sessions.c.expires_at, api_keys).join(api_keys, api_keys.c.id == sessions.c.key)
        query = query.where(sessions.c.hash == hashed, sessions.c.expires_at > at)
        row = await self._executor.read(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        if row.expires_at < at + _LIFE - _SLACK:
            change = sessions.update().where(sessions.c.hash == hashed).values(expires_at=at + _LIFE)
            # A full disk ends no session.
            with contextlib.suppress(HeddleError):
                await self._executor.write(lambda connection: connection.execute(change).rowcount)
        return shown(row)

    async def end(self, token: str) -> None:
        """End one session; an unknown one has ended before."""
        change = sessions.delete().where(sessions.c.hash == hash_key(token))
        await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def end_of_key(self, key_id: str) -> int:
        """End every session of a key; returns how many."""
        change = sessions.delete().where(sessions.c.key == key_id)
        return await self._executor.write(lambda connection: int(connection.execute(change).rowcount))

    async def counts(self, at: int) -> dict[str, int]:
        """How many sessions each key has that are not over."""
        query = sa.select(sessions.c.key, sa.func.count()).where(sessions.c.expires_at > at).group_by(sessions.c.key)
        return await self._executor.read(lambda connection: {row[0]: row[1] for row in connection.execute(query)})
