"""Tags and aliases of object versions, for the caller's transaction."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.store.control.mapping import Key, Mapped, Serial, upsert
from heddle.wire import times


@dataclass(frozen=True, slots=True)
class TagRow:
    """One tag of a version."""

    project: Key[str]
    object_id: Key[str]
    digest: Key[str]
    tag: Key[str]
    user: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasRow:
    """One alias of an object, and the version that it points to."""

    number: Key[Serial] = 0
    project: str
    object_id: str
    alias: str
    digest: str
    user: str
    updated_at: int


_IDENTITY = ("project", "object_id", "alias")
object_tags = Mapped(TagRow, "object_tags").table
object_aliases = Mapped(
    AliasRow, "object_aliases", sa.UniqueConstraint(*_IDENTITY, name="object_aliases_identity")
).table
_tags, _aliases = object_tags.c, object_aliases.c
_Labels = dict[tuple[str, str], list[str]]


def add_tags(
    connection: sa.Connection, project: str, object_id: str, digest: str, tags: Collection[str], user: str
) -> None:
    """Add what is not there yet."""
    held = set(connection.execute(sa.select(_tags.tag).where(_tagged(project, object_id, digest))).scalars())
    for tag in dict.fromkeys(tags):
        if tag not in held:
            row = {"project": project, "object_id": object_id, "digest": digest, "tag": tag, "user": user}
            connection.execute(object_tags.insert().values(**row, created_at=times.now()))


def remove_tags(connection: sa.Connection, project: str, object_id: str, digest: str, tags: Collection[str]) -> None:
    """Remove what is there."""
    connection.execute(object_tags.delete().where(_tagged(project, object_id, digest), _tags.tag.in_(tags)))


def set_alias(connection: sa.Connection, project: str, object_id: str, digest: str, alias: str, user: str) -> None:
    """Point the alias to a version, from wherever it pointed."""
    row = {"project": project, "object_id": object_id, "alias": alias, "digest": digest, "user": user}
    upsert(connection, object_aliases, _IDENTITY, row | {"updated_at": times.now()})


def remove_aliases(connection: sa.Connection, project: str, object_id: str, aliases: Collection[str]) -> None:
    """Remove what is there."""
    connection.execute(object_aliases.delete().where(*_aliased(project, object_id), _aliases.alias.in_(aliases)))


def target(connection: sa.Connection, project: str, object_id: str, alias: str) -> str | None:
    """The digest that an alias points to."""
    mine = sa.and_(*_aliased(project, object_id), _aliases.alias == alias)
    found: str | None = connection.execute(sa.select(_aliases.digest).where(mine)).scalar_one_or_none()
    return found


def drop(connection: sa.Connection, project: str, object_id: str, digests: Collection[str]) -> None:
    """Remove every tag and alias of versions that are being deleted."""
    tagged = sa.and_(_tags.project == project, _tags.object_id == object_id, _tags.digest.in_(digests))
    connection.execute(object_tags.delete().where(tagged))
    connection.execute(object_aliases.delete().where(*_aliased(project, object_id), _aliases.digest.in_(digests)))


def all_tags(connection: sa.Connection, project: str) -> list[str]:
    """Every tag of the project, sorted."""
    return sorted(connection.execute(sa.select(_tags.tag).where(_tags.project == project).distinct()).scalars())


def all_aliases(connection: sa.Connection, project: str) -> list[str]:
    """Every alias of the project, sorted."""
    query = sa.select(_aliases.alias).where(_aliases.project == project).distinct()
    return sorted(connection.execute(query).scalars())


def of_objects(connection: sa.Connection, project: str, object_ids: Collection[str]) -> tuple[_Labels, _Labels]:
    """Tags, and aliases in the order in which they were first set, by (object_id, digest)."""
    tags: _Labels = {}
    query = sa.select(_tags.object_id, _tags.digest, _tags.tag)
    for row in connection.execute(query.where(_tags.project == project, _tags.object_id.in_(object_ids))):
        tags.setdefault((row.object_id, row.digest), []).append(row.tag)
    aliases: _Labels = {}
    wanted = sa.select(_aliases.object_id, _aliases.digest, _aliases.alias).order_by(_aliases.number)
    for row in connection.execute(wanted.where(_aliases.project == project, _aliases.object_id.in_(object_ids))):
        aliases.setdefault((row.object_id, row.digest), []).append(row.alias)
    return tags, aliases


def has_tag(project: str, object_id: Any, digest: Any, tags: Collection[str]) -> sa.ColumnElement[bool]:
    """The condition that the version of an outer query carries one of the tags."""
    same = sa.and_(_tags.project == project, _tags.object_id == object_id, _tags.digest == digest)
    return sa.exists().where(same, _tags.tag.in_(tags))


def has_alias(project: str, object_id: Any, digest: Any, aliases: Collection[str]) -> sa.ColumnElement[bool]:
    """The condition that one of the aliases points to the version of an outer query."""
    same = sa.and_(*_aliased(project, object_id), _aliases.digest == digest)
    return sa.exists().where(same, _aliases.alias.in_(aliases))


def _tagged(project: str, object_id: str, digest: str) -> sa.ColumnElement[bool]:
    return sa.and_(_tags.project == project, _tags.object_id == object_id, _tags.digest == digest)


def _aliased(project: str, object_id: Any) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return _aliases.project == project, _aliases.object_id == object_id
