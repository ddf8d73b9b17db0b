"""Versions of objects and ops, with their tags and aliases."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidRequest, NotFound
from heddle.store.control import labels
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, metadata
from heddle.wire import digests, refpath, refs, times

LATEST = "latest"
_CHUNK = 500
T = TypeVar("T")

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
_versions = object_versions.c
_METADATA = [column for column in _versions if column.name != "val"]
_SORTABLE = {"object_id": _versions.object_id, "created_at": _versions.created_at}


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


class Objects:
    """The verbs of object versions. Project ids are internal, instants microseconds."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def create(self, new: NewVersion) -> None:
        """Store a version, or revive or keep the one with its digest, and make it the latest.

        Raises InvalidRequest when live versions of that name and kind have another base class.
        """
        await self._executor.write(lambda connection: _create(connection, new, times.now()), len(new.val) + 500)

    async def read(
        self, project: str, object_id: str, digest: str, with_value: bool = True, with_labels: bool = False
    ) -> ObjectVersion | None:
        """The version that a digest, `latest`, `v<N>` or an alias names, a deleted one included."""

        def work(connection: sa.Connection) -> ObjectVersion | None:
            condition = sa.and_(
                *_of(project, object_id), _named(_resolve_alias(connection, project, object_id, digest))
            )
            query = (
                _select(with_value).where(condition).order_by(_versions.created_at, _versions.version_index).limit(1)
            )
            found = [_version(row) for row in connection.execute(query)]
            if with_labels:
                _add_labels(connection, project, found)
            return found[0] if found else None

        return await self._executor.read(work)

    async def query(
        self,
        project: str,
        wanted: ObjectFilter,
        *,
        sort: Sequence[tuple[str, bool]] = (),
        limit: int | None = None,
        offset: int = 0,
        with_values: bool = True,
        with_labels: bool = False,
    ) -> list[ObjectVersion]:
        """Live versions; `sort` is pairs of field and descending, of which only object_id and created_at count."""
        query = _select(with_values).where(_versions.project == project, _versions.deleted_at.is_(None))
        query = query.where(*_conditions(project, wanted)).order_by(*_order(sort))
        if limit is not None or offset:
            query = query.limit(-1 if limit is None else limit).offset(offset)

        def work(connection: sa.Connection) -> list[ObjectVersion]:
            found = [_version(row) for row in connection.execute(query)]
            if with_labels:
                _add_labels(connection, project, found)
            return found

        return await self._executor.read(work)

    async def delete(self, project: str, object_id: str, names: Sequence[str], user: str) -> list[ObjectVersion]:
        """Delete the versions that digests, `latest` or `v<N>` name, all live ones without names; returns them.

        Raises NotFound when a name has no live version or two names mean the same one; then nothing is deleted.
        """
        return await self._executor.write(
            lambda connection: _delete(connection, project, object_id, names, user, times.now()), 500
        )

    async def add_tags(self, project: str, object_id: str, digest: str, tags: Collection[str], user: str) -> None:
        """Tag a live version; raises NotFound when there is none."""

        def work(connection: sa.Connection) -> None:
            _require_live(connection, project, object_id, digest)
            labels.add_tags(connection, project, object_id, digest, tags, user)

        await self._executor.write(work)

    async def remove_tags(self, project: str, object_id: str, digest: str, tags: Collection[str]) -> None:
        """Take tags off a version; what is not there is passed over."""
        await self._executor.write(lambda connection: labels.remove_tags(connection, project, object_id, digest, tags))

    async def set_aliases(self, project: str, object_id: str, digest: str, aliases: Collection[str], user: str) -> None:
        """Point aliases to a live version, from wherever they pointed; raises NotFound when there is none."""

        def work(connection: sa.Connection) -> None:
            _require_live(connection, project, object_id, digest)
            for alias in aliases:
                labels.set_alias(connection, project, object_id, digest, alias, user)

        await self._executor.write(work)

    async def remove_aliases(self, project: str, object_id: str, aliases: Collection[str]) -> None:
        """Remove aliases of an object; what is not there is passed over."""
        await self._executor.write(lambda connection: labels.remove_aliases(connection, project, object_id, aliases))

    async def tags(self, project: str) -> list[str]:
        """Every tag in use, sorted."""
        return await self._executor.read(lambda connection: labels.all_tags(connection, project))

    async def aliases(self, project: str) -> list[str]:
        """Every alias in use, sorted."""
        return await self._executor.read(lambda connection: labels.all_aliases(connection, project))

    async def total_size(self, project: str) -> int:
        """The bytes of all live values of the project."""
        live = sa.and_(_versions.project == project, _versions.deleted_at.is_(None))
        query = sa.select(sa.func.coalesce(sa.func.sum(_versions.size), 0)).where(live)
        return await self._executor.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def contents(self, project: str, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
        """JSON text by (object_id, digest): None for a deleted version, no entry for an unknown one."""
        return await self._executor.read(lambda connection: _contents(connection, project, wanted))

    async def values(self, project: str, wanted: Collection[str]) -> dict[str, str | None]:
        """JSON text by internal ref, the ref's path inside the value included; None for what is missing or deleted."""
        parsed = {ref: target for ref in wanted if (target := _parse(ref)) is not None and target.project == project}
        found = await self.contents(project, {(target.name, target.version) for target in parsed.values()})
        values: dict[str, str | None] = dict.fromkeys(wanted)
        for ref, target in parsed.items():
            text = found.get((target.name, target.version))
            values[ref] = text if text is None or not target.edges else _inside(text, target.edges)
        return values


def _select(with_value: bool) -> sa.Select[Any]:
    return sa.select(*_METADATA, *([_versions.val] if with_value else []))


def _version(row: Any) -> ObjectVersion:
    names = [name for name in ObjectVersion.__slots__ if name in row._fields]
    return ObjectVersion(**{name: getattr(row, name) for name in names})


def _of(project: str, object_id: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return _versions.project == project, _versions.object_id == object_id


def _named(name: str) -> sa.ColumnElement[bool]:
    """The condition for a digest, `latest` or `v<N>`."""
    if name == LATEST:
        return _versions.is_latest == 1
    number = digests.version_number(name)
    return _versions.digest == name if number is None else _versions.version_index == number


def _resolve_alias(connection: sa.Connection, project: str, object_id: str, name: str) -> str:
    if name == LATEST or digests.version_number(name) is not None or digests.looks_like_digest(name):
        return name
    return labels.target(connection, project, object_id, name) or name


def _conditions(project: str, wanted: ObjectFilter) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.is_op is not None:
        yield (_versions.kind == "op") == wanted.is_op
    if wanted.object_ids:
        yield _versions.object_id.in_(wanted.object_ids)
    if wanted.latest_only:
        yield _versions.is_latest == 1
    if wanted.base_object_classes:
        yield _versions.base_object_class.in_(wanted.base_object_classes)
    if wanted.exclude_base_object_classes:
        excluded = _versions.base_object_class.in_(wanted.exclude_base_object_classes)
        yield sa.or_(_versions.base_object_class.is_(None), ~excluded)
    if wanted.leaf_object_classes:
        yield _versions.leaf_object_class.in_(wanted.leaf_object_classes)
    if wanted.tags:
        yield labels.has_tag(project, _versions.object_id, _versions.digest, wanted.tags)
    if wanted.aliases:
        others = [alias for alias in wanted.aliases if alias != LATEST]
        matches = [labels.has_alias(project, _versions.object_id, _versions.digest, others)] if others else []
        yield sa.or_(*matches, *([_versions.is_latest == 1] if LATEST in wanted.aliases else []))


def _order(sort: Sequence[tuple[str, bool]]) -> list[sa.ColumnElement[Any]]:
    terms = [(_SORTABLE[field], is_descending) for field, is_descending in sort if field in _SORTABLE]
    ordered = [column.desc() if is_descending else column.asc() for column, is_descending in terms]
    return [*(ordered or [_versions.created_at.asc()]), _versions.version_index.asc(), _versions.number.asc()]


def _create(connection: sa.Connection, new: NewVersion, at: int) -> None:
    mine = sa.and_(*_of(new.project, new.object_id), _versions.digest == new.digest)
    known = connection.execute(sa.select(_versions.number, _versions.deleted_at).where(mine)).first()
    if known is None or known.deleted_at is not None:
        _refuse_other_class(connection, new)
        fields = {"created_at": at, "deleted_at": None, "val": new.val, "size": len(new.val.encode()), "is_latest": 0}
        fields |= {"base_object_class": new.base_object_class, "leaf_object_class": new.leaf_object_class}
        if known is None:
            connection.execute(object_versions.insert().values(**fields, **_identity(connection, new)))
        else:
            connection.execute(object_versions.update().where(mine).values(**fields))
    labels.set_alias(connection, new.project, new.object_id, new.digest, LATEST, new.user)
    _mark_latest(connection, new.project, new.object_id, new.digest)


def _identity(connection: sa.Connection, new: NewVersion) -> dict[str, Any]:
    same_kind = sa.and_(*_of(new.project, new.object_id), _versions.kind == new.kind)
    index = connection.execute(sa.select(sa.func.count()).select_from(object_versions).where(same_kind)).scalar_one()
    ref = refs.object_ref(new.project, new.kind, new.object_id, new.digest)
    names = ("project", "kind", "object_id", "digest", "user")
    return {"version_index": index, "ref": ref, **{name: getattr(new, name) for name in names}}


def _refuse_other_class(connection: sa.Connection, new: NewVersion) -> None:
    live = sa.and_(*_of(new.project, new.object_id), _versions.kind == new.kind, _versions.deleted_at.is_(None))
    classes = connection.execute(sa.select(_versions.base_object_class).where(live).distinct()).scalars()
    others = sorted(str(name) for name in classes if name != new.base_object_class)
    if others:
        raise InvalidRequest(
            f"Object name {new.object_id!r} is already used by another type: its versions are {', '.join(others)}, "
            f"the new one is {new.base_object_class}. Publish it under another name."
        )


def _mark_latest(connection: sa.Connection, project: str, object_id: str, digest: str | None) -> None:
    others = sa.and_(*_of(project, object_id), _versions.is_latest == 1)
    connection.execute(object_versions.update().where(others).values(is_latest=0))
    if digest is not None:
        one = sa.and_(*_of(project, object_id), _versions.digest == digest)
        connection.execute(object_versions.update().where(one).values(is_latest=1))


def _delete(
    connection: sa.Connection, project: str, object_id: str, names: Sequence[str], user: str, at: int
) -> list[ObjectVersion]:
    live = sa.and_(*_of(project, object_id), _versions.deleted_at.is_(None))
    query = _select(False).where(live).order_by(_versions.created_at.desc(), _versions.version_index.desc())
    if names:
        query = query.where(sa.or_(*(_named(name) for name in names)))
    found = [_version(row) for row in connection.execute(query)]
    if not found:
        raise NotFound(f"Object {object_id} ({list(names)}) not found when deleting.")
    chosen = {version.digest for version in found}
    if names and len(set(names)) != len(chosen):
        missing = sorted(set(names) - chosen)
        raise NotFound(
            f"{len(set(names))} versions were to be deleted, {len(chosen)} were found; not matched: {missing}"
        )
    for part in _chunks(sorted(chosen)):
        dead = sa.and_(*_of(project, object_id), _versions.digest.in_(part))
        connection.execute(object_versions.update().where(dead).values(deleted_at=at))
        labels.drop(connection, project, object_id, part)
    if labels.target(connection, project, object_id, LATEST) is None:
        newest = sa.select(_versions.digest).where(live)
        newest = newest.order_by(_versions.created_at.desc(), _versions.version_index.desc()).limit(1)
        _mark_latest(connection, project, object_id, connection.execute(newest).scalar_one_or_none())
    audit(connection, at, user, "object.delete", project, {"object_id": object_id, "digests": sorted(chosen)})
    return found


def _require_live(connection: sa.Connection, project: str, object_id: str, digest: str) -> None:
    condition = sa.and_(*_of(project, object_id), _versions.digest == digest, _versions.deleted_at.is_(None))
    if connection.execute(sa.select(_versions.number).where(condition)).first() is None:
        raise NotFound(f"Object version {object_id}:{digest} not found")


def _add_labels(connection: sa.Connection, project: str, versions: Sequence[ObjectVersion]) -> None:
    for part in _chunks(versions):
        names = {version.object_id for version in part}
        tags, aliases = labels.of_objects(connection, project, names)
        explicit = {object_id for (object_id, _), held in aliases.items() if LATEST in held}
        for version in part:
            key = (version.object_id, version.digest)
            is_derived = version.is_latest and version.object_id not in explicit
            version.tags = sorted(tags.get(key, ()))
            version.aliases = [*([LATEST] if is_derived else []), *aliases.get(key, ())]


def _contents(
    connection: sa.Connection, project: str, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], str | None]:
    found: dict[tuple[str, str], str | None] = {}
    for part in _chunks(sorted({digest for _, digest in wanted})):
        query = sa.select(_versions.object_id, _versions.digest, _versions.deleted_at, _versions.val)
        for row in connection.execute(query.where(_versions.project == project, _versions.digest.in_(part))):
            if (row.object_id, row.digest) in wanted:
                found[row.object_id, row.digest] = None if row.deleted_at is not None else row.val
    return found


def _parse(ref: str) -> refs.Ref | None:
    try:
        target = refs.parse(ref)
    except InvalidRequest:
        return None
    return target if target.kind in ("object", "op") else None


def _inside(text: str, edges: Sequence[refs.Edge]) -> str | None:
    value = orjson.loads(text)
    for edge, part in edges:
        value = refpath.step(value, edge, part)
    return None if value is None else orjson.dumps(value).decode()


def _chunks(items: Sequence[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, _CHUNK)):
        yield part
