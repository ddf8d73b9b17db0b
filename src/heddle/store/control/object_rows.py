"""Object versions as rows: the table, what is read from it, and the conditions that select from it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.store.control import labels
from heddle.store.control.schema import metadata
from heddle.wire import digests
from heddle.wire.batched import batched

LATEST = "latest"
PAGE = 100
"""How many values are held at a time where versions are listed."""

object_versions = sa.Table(
    "object_versions",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("object_id", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("ref", sa.Text, nullable=False),
    sa.Column("version_index", sa.Integer, nullable=False),
    sa.Column("is_latest", sa.Integer, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("deleted_at", sa.BigInteger, nullable=True),
    sa.Column("base_object_class", sa.Text, nullable=True),
    sa.Column("leaf_object_class", sa.Text, nullable=True),
    sa.Column("user", sa.Text, nullable=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("val", sa.Text, nullable=False),
    sa.UniqueConstraint("project", "object_id", "digest", name="object_versions_identity"),
    sa.Index("object_versions_ref", "project", "ref"),
    sa.Index("object_versions_digest", "project", "digest"),
    sa.Index("object_versions_time", "project", "created_at"),
)
versions = object_versions.c
_METADATA = [column for column in versions if column.name != "val"]
_SORTABLE = {"object_id": versions.object_id, "created_at": versions.created_at}


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to create; `val` is its JSON text as it is to be returned, refs internal."""

    project: str
    kind: str
    object_id: str
    digest: str
    val: str
    base_object_class: str | None
    leaf_object_class: str | None
    user: str


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """Which live versions a query wants: all conditions together, any entry of a list; empty lists do not count."""

    object_ids: Sequence[str] = ()
    base_object_classes: Sequence[str] = ()
    exclude_base_object_classes: Sequence[str] = ()
    leaf_object_classes: Sequence[str] = ()
    is_op: bool | None = None
    latest_only: bool = False
    tags: Sequence[str] = ()
    aliases: Sequence[str] = ()


@dataclass(slots=True)
class ObjectVersion:
    """A stored version; `val` is None where only the metadata was asked for; labels are filled on request."""

    kind: str
    object_id: str
    digest: str
    version_index: int
    is_latest: int
    created_at: int
    deleted_at: int | None
    base_object_class: str | None
    leaf_object_class: str | None
    user: str | None
    size: int
    val: str | None = None
    tags: list[str] | None = None
    aliases: list[str] | None = None


def select(with_value: bool) -> sa.Select[Any]:
    return sa.select(*_METADATA, *([versions.val] if with_value else []))


def version_of(row: Any) -> ObjectVersion:
    names = [name for name in ObjectVersion.__slots__ if name in row._fields]
    return ObjectVersion(**{name: getattr(row, name) for name in names})


def of_object(project: str, object_id: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return versions.project == project, versions.object_id == object_id


def named(name: str) -> sa.ColumnElement[bool]:
    """The condition for a digest, `latest` or `v<N>`."""
    if name == LATEST:
        return versions.is_latest == 1
    number = digests.version_number(name)
    return versions.digest == name if number is None else versions.version_index == number


def conditions(project: str, wanted: ObjectFilter) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.is_op is not None:
        yield (versions.kind == "op") == wanted.is_op
    if wanted.object_ids:
        yield versions.object_id.in_(wanted.object_ids)
    if wanted.latest_only:
        yield versions.is_latest == 1
    if wanted.base_object_classes:
        yield versions.base_object_class.in_(wanted.base_object_classes)
    if wanted.exclude_base_object_classes:
        excluded = versions.base_object_class.in_(wanted.exclude_base_object_classes)
        yield sa.or_(versions.base_object_class.is_(None), ~excluded)
    if wanted.leaf_object_classes:
        yield versions.leaf_object_class.in_(wanted.leaf_object_classes)
    if wanted.tags:
        yield labels.has_tag(project, versions.object_id, versions.digest, wanted.tags)
    if wanted.aliases:
        others = [alias for alias in wanted.aliases if alias != LATEST]
        matches = [labels.has_alias(project, versions.object_id, versions.digest, others)] if others else []
        yield sa.or_(*matches, *([versions.is_latest == 1] if LATEST in wanted.aliases else []))


def order(sort: Sequence[tuple[str, bool]]) -> list[sa.ColumnElement[Any]]:
    terms = [(_SORTABLE[field], is_descending) for field, is_descending in sort if field in _SORTABLE]
    ordered = [column.desc() if is_descending else column.asc() for column, is_descending in terms]
    return [*(ordered or [versions.created_at.asc()]), versions.version_index.asc(), versions.number.asc()]


def contents_of(
    connection: sa.Connection, project: str, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], str | None]:
    """JSON text by (object_id, digest): None for a deleted version, no entry for an unknown one."""
    found: dict[tuple[str, str], str | None] = {}
    for part in batched(sorted({digest for _, digest in wanted})):
        query = sa.select(versions.object_id, versions.digest, versions.deleted_at, versions.val)
        for row in connection.execute(query.where(versions.project == project, versions.digest.in_(part))):
            if (row.object_id, row.digest) in wanted:
                found[row.object_id, row.digest] = None if row.deleted_at is not None else row.val
    return found


def numbered(connection: sa.Connection, numbers: Sequence[int]) -> list[ObjectVersion]:
    """The live ones of some rows with their values, in the order of the numbers."""
    live = sa.and_(versions.number.in_(numbers), versions.deleted_at.is_(None))
    found = {row.number: version_of(row) for row in connection.execute(select(True).where(live))}
    return [found[number] for number in numbers if number in found]


_LATEST_DIGESTS = sa.select(versions.object_id, versions.digest).where(
    versions.project == sa.bindparam("of_project"),
    versions.kind == sa.bindparam("of_kind"),
    versions.object_id.in_(sa.bindparam("names", expanding=True)),
    versions.is_latest == 1,
    versions.deleted_at.is_(None),
)


def latest_digests(connection: sa.Connection, project: str, kind: str, names: Sequence[str]) -> dict[str, str]:
    """By object_id the digest of the latest live version; what has none is left out."""
    found: dict[str, str] = {}
    for part in batched(names):
        values = {"of_project": project, "of_kind": kind, "names": part}
        found.update({row[0]: row[1] for row in connection.execute(_LATEST_DIGESTS, values)})
    return found
