"""API keys: random, kept as SHA-256 (256 random bits need no slow hash), found by their hash."""

import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.auth import Caller, Scope, hash_key
from heddle.errors import InvalidRequest, NotFound
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, metadata
from heddle.wire import ids, refs, times

PREFIX = "heddle-"

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("entity", sa.Text, nullable=True),
    sa.Column("project", sa.Text, nullable=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("last_used_at", sa.BigInteger, nullable=True),
    sa.Column("revoked_at", sa.BigInteger, nullable=True),
)

_SHOWN = tuple(column.name for column in api_keys.columns if column.name not in ("hash", "scopes"))


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as it can be shown: all but the secret; times in microseconds."""

    id: str
    user: str
    scopes: frozenset[Scope]
    entity: str | None
    project: str | None
    created_at: int
    created_by: str
    last_used_at: int | None
    revoked_at: int | None

    def caller(self) -> Caller:
        """Who calls with this key."""
        return Caller(self.user, self.scopes, self.entity, self.project, self.id)


class Keys:
    """The table of keys."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def create(
        self, user: str, scopes: frozenset[Scope], entity: str | None, project: str | None, by: str
    ) -> tuple[str, KeyRow]:
        """Make a key; returns its secret (kept nowhere) and its row. Raises InvalidRequest for a bad binding."""
        _check(user, scopes, entity, project)
        key = PREFIX + secrets.token_hex(32)
        made = KeyRow(ids.uuid7(), user, scopes, entity, project, times.now(), by, None, None)

        def work(connection: sa.Connection) -> None:
            words = " ".join(sorted(scopes))
            binding = {"entity": entity, "project": project}
            row: dict[str, Any] = {"id": made.id, "hash": hash_key(key), "user": user, "scopes": words, **binding}
            row |= {"created_at": made.created_at, "created_by": by}
            connection.execute(api_keys.insert().values(row))
            details = {"key": made.id, "user": user, "scopes": words, **binding}
            audit(connection, made.created_at, by, "key.create", _internal(project), details)

        await self._executor.write(work)
        return key, made

    async def revoke(self, key_id: str, by: str) -> KeyRow:
        """Make a key useless from now on; a unique beginning of its id is enough. Raises NotFound."""

        def work(connection: sa.Connection) -> KeyRow:
            rows = connection.execute(
                sa.select(api_keys).where(api_keys.c.id.startswith(key_id, autoescape=True))
            ).all()
            if not key_id or len(rows) != 1:
                raise NotFound(f"{len(rows) if key_id else 'No'} keys have an id that starts with {key_id!r}")
            row = shown(rows[0])
            if row.revoked_at is None:
                at = times.now()
                connection.execute(api_keys.update().where(api_keys.c.id == row.id).values(revoked_at=at))
                audit(connection, at, by, "key.revoke", _internal(row.project), {"key": row.id, "user": row.user})
            return row

        return await self._executor.write(work)

    async def find(self, hashed: str) -> KeyRow | None:
        """The key with this hash, revoked or not."""
        query = sa.select(api_keys).where(api_keys.c.hash == hashed)
        row = await self._executor.read(lambda connection: connection.execute(query).first())
        return None if row is None else shown(row)

    async def all(self) -> list[KeyRow]:
        """Every key, oldest first."""
        query = sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        return await self._executor.read(lambda connection: [shown(row) for row in connection.execute(query)])

    async def any_usable(self) -> bool:
        """True when at least one key is not revoked."""
        query = sa.select(api_keys.c.id).where(api_keys.c.revoked_at.is_(None)).limit(1)
        return await self._executor.read(lambda connection: connection.execute(query).first() is not None)

    async def used(self, key_ids: list[str], at: int) -> None:
        """Note when keys were last used."""
        change = api_keys.update().where(api_keys.c.id.in_(key_ids)).values(last_used_at=at)
        await self._executor.write(lambda connection: connection.execute(change).rowcount)


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


def shown(row: Any) -> KeyRow:
    """A row of the table, perhaps among other columns, without its secret."""
    values = {name: row._mapping[name] for name in _SHOWN}
    return KeyRow(scopes=frozenset(Scope(word) for word in row.scopes.split()), **values)
