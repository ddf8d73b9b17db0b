"""API keys: random, kept as SHA-256 (256 random bits need no slow hash), found by their hash."""

import secrets
from dataclasses import dataclass, field
from typing import Annotated

import sqlalchemy as sa

from heddle.errors import InvalidRequest, NotFound
from heddle.store.control.mapping import Key, Mapped, Repository, Unique
from heddle.store.control.projects import audit
from heddle.wire import ids, refs, times
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
        made = KeyRow(ids.uuid7(), hash_key(key), user, scopes, entity, project, times.now(), by)

        def work(connection: sa.Connection) -> None:
            KEYS.insert(connection, made)
            details = {"key": made.id, "user": user, "scopes": " ".join(sorted(scopes)), "entity": entity}
            audit(connection, made.created_at, by, "key.create", _internal(project), details | {"project": project})

        await self._executor.write(work)
        return key, made

    async def revoke(self, key_id: str, by: str) -> KeyRow:
        """Make a key useless from now on; a unique beginning of its id is enough. Raises NotFound."""

        def work(connection: sa.Connection) -> KeyRow:
            rows = KEYS.all(connection, KEYS.select(api_keys.c.id.startswith(key_id, autoescape=True)))
            if not key_id or len(rows) != 1:
                raise NotFound(f"{len(rows) if key_id else 'No'} keys have an id that starts with {key_id!r}")
            row = rows[0]
            if row.revoked_at is None:
                at = times.now()
                connection.execute(api_keys.update().where(api_keys.c.id == row.id).values(revoked_at=at))
                audit(connection, at, by, "key.revoke", _internal(row.project), {"key": row.id, "user": row.user})
            return row

        return await self._executor.write(work)

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
