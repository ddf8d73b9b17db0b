"""Tags of versions of objects, and aliases of objects."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from heddle.store.control.repository import Key, Mapped, Serial, upsert
from heddle.wire import times
from heddle.wire.batched import group_pairs

LATEST = "latest"


class Labelled(Protocol):
    """A version whose labels may be filled in."""

    object_id: str
    digest: str
    is_latest: int
    tags: list[str] | None
    aliases: list[str] | None


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


_ALIAS_IDENTITY = ("project", "object_id", "alias")
TAGS = Mapped(TagRow, "object_tags")
object_tags = TAGS.table
object_aliases = Mapped(
    AliasRow,
    "object_aliases",
    sa.UniqueConstraint(*_ALIAS_IDENTITY, name="object_aliases_identity"),
    sa.Index("object_aliases_digest", "project", "object_id", "digest"),
).table
tags, aliases = object_tags.c, object_aliases.c


def set_alias(connection: sa.Connection, project: str, object_id: str, digest: str, alias: str, user: str) -> None:
    """Point the alias to a version, from wherever it pointed."""
    row = {"project": project, "object_id": object_id, "alias": alias, "digest": digest, "user": user}
    upsert(connection, object_aliases, _ALIAS_IDENTITY, row | {"updated_at": times.now()})


def set_tags(
    connection: sa.Connection,
    project: str,
    object_id: str,
    digests: Sequence[str],
    wanted: Collection[str] | None,
    user: str,
) -> None:
    """Give versions the same tags and no others; None stands for all that any of them has."""
    mine = sa.and_(tags.project == project, tags.object_id == object_id)
    held = {(row.digest, row.tag) for row in connection.execute(sa.select(tags.digest, tags.tag).where(mine))}
    if wanted is None:
        wanted = {tag for digest, tag in held if digest in digests}
    connection.execute(object_tags.delete().where(mine, tags.tag.not_in(wanted)))
    for digest, tag in sorted({(digest, tag) for digest in digests for tag in wanted} - held):
        TAGS.insert_new(connection, TagRow(project, object_id, digest, tag, user, times.now()))


def alias_target(connection: sa.Connection, project: str, object_id: str, alias: str) -> str | None:
    """The digest that an alias points to."""
    mine = sa.and_(*aliased_to(project, object_id), aliases.alias == alias)
    found: str | None = connection.execute(sa.select(aliases.digest).where(mine)).scalar_one_or_none()
    return found


def is_tagged(project: str, object_id: Any, digest: Any) -> sa.ColumnElement[bool]:
    """The condition for the tags of a version."""
    return sa.and_(tags.project == project, tags.object_id == object_id, tags.digest == digest)


def aliased_to(project: str, object_id: Any) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """The conditions for the aliases of an object."""
    return aliases.project == project, aliases.object_id == object_id


def in_use(column: "sa.Column[str]", project: str) -> "sa.Select[str]":
    """The different labels of a project."""
    return sa.select(column).where(column.table.c.project == project).distinct()


def remove(connection: sa.Connection, project: str, object_id: str, digests: Sequence[str]) -> None:
    """Remove the tags of some versions, and the aliases that point to them."""
    tagged = sa.and_(tags.project == project, tags.object_id == object_id, tags.digest.in_(digests))
    connection.execute(object_tags.delete().where(tagged))
    connection.execute(object_aliases.delete().where(*aliased_to(project, object_id), aliases.digest.in_(digests)))


def add_to(connection: sa.Connection, project: str, versions: Sequence[Labelled]) -> None:
    """Fill in the tags and the aliases of versions."""
    names, digests = {version.object_id for version in versions}, {version.digest for version in versions}
    tagged = sa.select(tags.object_id, tags.digest, tags.tag)
    tagged = tagged.where(tags.project == project, tags.object_id.in_(names), tags.digest.in_(digests))
    aliased = sa.select(aliases.object_id, aliases.digest, aliases.alias).order_by(aliases.number)
    aliased = aliased.where(aliases.project == project, aliases.object_id.in_(names), aliases.digest.in_(digests))
    their_tags, their_aliases = _by_version(connection, tagged), _by_version(connection, aliased)
    for version in versions:
        key = (version.object_id, version.digest)
        held = their_aliases.get(key, [])
        version.tags = sorted(their_tags.get(key, ()))
        version.aliases = [LATEST, *held] if version.is_latest and LATEST not in held else held


def _by_version(connection: sa.Connection, query: sa.Select[Any]) -> dict[tuple[str, str], list[str]]:
    return group_pairs(((object_id, digest), text) for object_id, digest, text in connection.execute(query))
