"""Versions of objects and ops, with their tags and aliases."""

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.store.control import object_labels as labels
from heddle.store.control.audit import audit
from heddle.store.control.coordination import count_class_change
from heddle.store.control.object_labels import LATEST
from heddle.store.control.redaction import RedactedRepository, Redaction
from heddle.store.control.repository import Executor, Instance, Integer, columns_of, metadata, reads, writes
from heddle.wire import refs, times
from heddle.wire.batched import batched
from heddle.wire.records import VersionLabels

PAGE, PAGE_BYTES = 100, 4 * 1024 * 1024
"""How many values are held at a time where versions are listed, and from how many bytes on fewer."""


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to create; `val` is its JSON text as it is to be returned, refs internal.

    `size` is the length in bytes of the text that its digest is of: what Weave stores and counts. `after` is the digest
    of the version that must be the latest until then, empty where there must be none.
    """

    project: str
    kind: str
    object_id: str
    digest: str
    val: str
    size: int
    base_object_class: str | None
    leaf_object_class: str | None
    user: str
    after: str | None = None
    labels: VersionLabels | None = None


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
    version_index: Integer
    is_latest: Integer
    created_at: int
    deleted_at: int | None
    base_object_class: str | None
    leaf_object_class: str | None
    user: str | None
    size: int
    val: str | None = None
    tags: list[str] | None = None
    aliases: list[str] | None = None


_ON_REQUEST = ("val", "tags", "aliases")
object_versions = sa.Table(
    "object_versions",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("ref", sa.Text, nullable=False),
    *columns_of(ObjectVersion, [name for name in ObjectVersion.__slots__ if name not in _ON_REQUEST]),
    sa.Column("val", sa.Text, nullable=False),
    sa.UniqueConstraint("project", "object_id", "digest", name="object_versions_identity"),
    sa.Index("object_versions_ref", "project", "ref"),
    sa.Index("object_versions_digest", "project", "digest"),
    sa.Index("object_versions_time", "project", "created_at"),
    sa.Index("object_versions_order", "project", "object_id", "version_index"),
    sa.Index("object_versions_latest", "project", "object_id", "is_latest", sqlite_where=sa.text("is_latest = 1")),
)
_v = object_versions.c
_IS_LATEST = _v.is_latest == sa.literal_column("1")
"""Written like this so that the index over the latest versions serves."""
_METADATA = [column for column in _v if column.name != "val"]
_SORTABLE = {name: _v[name] for name in ("object_id", "created_at", "version_index")}


def require_live(found: ObjectVersion | None, name: str) -> ObjectVersion:
    """The version that was looked for under a name; raises NotFound where there is none, or none any more."""
    if found is None:
        raise NotFound(f"Obj {name} not found")
    if found.deleted_at is not None:
        at, name = times.to_iso(found.deleted_at), f"{found.object_id}:v{found.version_index}"
        raise NotFound(f"{name} was deleted at {at}", deleted_at=at)
    return found


def _select(with_value: bool) -> sa.Select[Any]:
    return sa.select(*_METADATA, *([_v.val] if with_value else []))


def _version(row: Any) -> ObjectVersion:
    return ObjectVersion(**{name: getattr(row, name) for name in ObjectVersion.__slots__ if name in row._fields})


def _of_object(project: str, object_id: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return _v.project == project, _v.object_id == object_id


def _named(name: str) -> sa.ColumnElement[bool]:
    """The condition for a digest, `latest` or `v<N>`."""
    if name == LATEST:
        return _IS_LATEST
    number = refs.version_number(name)
    return _v.digest == name if number is None else _v.version_index == number


def _live(project: str, wanted: ObjectFilter) -> Iterator[sa.ColumnElement[bool]]:
    yield from (_v.project == project, _v.deleted_at.is_(None))
    if wanted.is_op is not None:
        yield (_v.kind == "op") == wanted.is_op
    if wanted.object_ids:
        yield _v.object_id.in_(wanted.object_ids)
    if wanted.latest_only:
        yield _IS_LATEST
    if wanted.base_object_classes:
        yield _v.base_object_class.in_(wanted.base_object_classes)
    if wanted.exclude_base_object_classes:
        excluded = _v.base_object_class.in_(wanted.exclude_base_object_classes)
        yield sa.or_(_v.base_object_class.is_(None), ~excluded)
    if wanted.leaf_object_classes:
        yield _v.leaf_object_class.in_(wanted.leaf_object_classes)
    if wanted.tags:
        yield sa.exists().where(labels.is_tagged(project, _v.object_id, _v.digest), labels.tags.tag.in_(wanted.tags))
    if wanted.aliases:
        others = [alias for alias in wanted.aliases if alias != LATEST]
        same = sa.and_(*labels.aliased_to(project, _v.object_id), labels.aliases.digest == _v.digest)
        matches = [sa.exists().where(same, labels.aliases.alias.in_(others))] if others else []
        yield sa.or_(*matches, *([_IS_LATEST] if LATEST in wanted.aliases else []))


def _order(sort: Sequence[tuple[str, bool]]) -> list[sa.ColumnElement[Any]]:
    ordered = [_SORTABLE[field].desc() if is_descending else _SORTABLE[field].asc() for field, is_descending in sort]
    return [*(ordered or [_v.created_at.asc()]), _v.version_index.asc(), _v.number.asc()]


def _slices(rows: Iterable[Any], most: int | None) -> Iterator["array[int]"]:
    """The numbers of rows of number and size, a few at a time: beyond `most` bytes each alone."""
    part, left = array("q"), most
    for number, size in rows:
        left = None if left is None else left - size
        if part and (len(part) == PAGE or (left is not None and left < 0)):
            yield part
            part, left = array("q"), None if most is None else most - size
        part.append(number)
    if part:
        yield part


_LATEST_DIGESTS = sa.select(_v.object_id, _v.digest).where(
    _v.project == sa.bindparam("of_project"),
    _v.kind == sa.bindparam("of_kind"),
    _v.object_id.in_(sa.bindparam("names", expanding=True)),
    _IS_LATEST,
    _v.deleted_at.is_(None),
)


def _latest_digests(connection: sa.Connection, project: str, kind: str, names: Sequence[str]) -> dict[str, str]:
    """By object_id the digest of the latest live version; what has none is left out."""
    found: dict[str, str] = {}
    for part in batched(names):
        values = {"of_project": project, "of_kind": kind, "names": part}
        found.update({row[0]: row[1] for row in connection.execute(_LATEST_DIGESTS, values)})
    return found


_MOST_KNOWN = 5_000
T = TypeVar("T")


class LatestVersions:
    """Digests of latest versions, as the one writer sees them; where several servers write, nothing is remembered.

    Changes are counted in the writer, ahead of their commit, and what is remembered was read there too: so nothing that
    was read before a change is taken for what holds after it.
    """

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self._is_shared = (instance or Instance()).is_shared
        self._changes = 0
        self._read_at = 0
        self._known: dict[tuple[str, str, str], str] = {}

    def count_change(self, work: Callable[[sa.Connection], T]) -> Callable[[sa.Connection], T]:
        """The same work for the writer, counted as a change."""

        def run(connection: sa.Connection) -> T:
            self._changes += 1
            return work(connection)

        return run

    async def digests(self, project: str, kind: str, names: Sequence[str]) -> dict[str, str]:
        """By object_id the digest of the latest live version; what has none is left out."""
        if self._is_shared:
            return await self._executor.read(lambda connection: _latest_digests(connection, project, kind, names))
        known = self._known if self._read_at == self._changes else {}
        found = {name: digest for name in names if (digest := known.get((project, kind, name))) is not None}
        if len(found) == len(names):
            return found
        changes, found = await self._executor.write(
            lambda connection: (self._changes, _latest_digests(connection, project, kind, names))
        )
        if changes != self._read_at or len(self._known) > _MOST_KNOWN:
            self._known, self._read_at = {}, changes
        self._known.update({(project, kind, name): digest for name, digest in found.items()})
        return found


class Objects(RedactedRepository):
    """The verbs of object versions. Project ids are internal, instants microseconds."""

    def __init__(
        self, executor: Executor, instance: Instance | None = None, redaction: Redaction | None = None
    ) -> None:
        super().__init__(executor, instance, redaction)
        self.latest = LatestVersions(executor, instance)
        self.observers: dict[str, Callable[[], Awaitable[None]]] = {}
        """By base class: what is awaited, before the writer is told, when versions of that class came or went."""

    async def create(self, new: NewVersion) -> None:
        """Store a version, or revive or keep the one with its digest, and make it the latest.

        Raises InvalidRequest when live versions of that name and kind have another base class, and Conflict.
        """
        (val,) = await self._redaction.texts(new.project, "val", [new.val])
        work = self.latest.count_change(lambda c: _create(c, replace(new, val=val), times.now()))
        await self._executor.write(work, len(new.val) + 500)
        await self._tell(new.base_object_class)

    async def forget(self) -> None:
        """Believe nothing any more that was known of versions, as some were removed."""
        await self._executor.write(self.latest.count_change(lambda _: None))
        for observe in list(self.observers.values()):
            await observe()

    @reads
    def read(
        self,
        connection: sa.Connection,
        project: str,
        object_id: str,
        digest: str,
        with_value: bool = True,
        with_labels: bool = False,
    ) -> ObjectVersion | None:
        """The version that a digest, `latest`, `v<N>` or an alias names, a deleted one included."""
        named = _named(_resolve_alias(connection, project, object_id, digest))
        query = _select(with_value).where(*_of_object(project, object_id), named)
        # Ordered here: SQLite would take an index for the order, and read every version.
        found = _found(connection, project, query, with_labels)
        return min(found, key=lambda version: (version.created_at, version.version_index), default=None)

    @reads
    def query(
        self,
        connection: sa.Connection,
        project: str,
        wanted: ObjectFilter,
        limit: int | None = None,
        with_labels: bool = False,
    ) -> list[ObjectVersion]:
        """Live versions without their values."""
        query = _select(False).where(*_live(project, wanted)).order_by(*_order(())).limit(limit)
        return _found(connection, project, query, with_labels)

    async def pages(
        self,
        project: str,
        wanted: ObjectFilter,
        *,
        sort: Sequence[tuple[str, bool]] = (),
        limit: int | None = None,
        offset: int = 0,
        with_values: bool = True,
        with_labels: bool = False,
    ) -> AsyncIterator[list[ObjectVersion]]:
        """Live versions in slices, those that are there when the first is taken; `sort`: fields, and if descending."""
        query = sa.select(_v.number, _v.size).where(*_live(project, wanted)).order_by(*_order(sort)).limit(limit)
        query, most = query.offset(offset or None), PAGE_BYTES if with_values else None
        for part in await self._executor.read(lambda connection: [*_slices(connection.execute(query), most)]):
            chosen = _select(with_values).where(_v.number.in_(part), _v.deleted_at.is_(None)).order_by(*_order(sort))
            yield await self._executor.read(partial(_found, project=project, query=chosen, with_labels=with_labels))

    async def delete(self, project: str, object_id: str, names: Sequence[str], user: str) -> list[ObjectVersion]:
        """Delete the versions that digests, `latest` or `v<N>` name, all live ones without names; returns them.

        Raises NotFound when a name has no live version or two names mean the same one; then nothing is deleted.
        """
        work = self.latest.count_change(lambda c: _delete(c, project, object_id, names, user, times.now()))
        deleted = await self._executor.write(work, 500)
        await self._tell(deleted[0].base_object_class)
        return deleted

    async def latest_of_class(self, base_class: str) -> list[tuple[str, ObjectVersion]]:
        """The latest live version of every object of a base class, with its project, in all projects."""
        query = _select(True).where(_v.base_object_class == base_class, _IS_LATEST, _v.deleted_at.is_(None))
        return [(row.project, _version(row)) for row in await self._tuples(query.order_by(_v.number))]

    async def _tell(self, base_class: str | None) -> None:
        if (observer := self.observers.get(base_class or "")) is not None:
            await observer()

    @writes
    def add_tags(
        self, connection: sa.Connection, project: str, object_id: str, digest: str, tags: Collection[str], user: str
    ) -> None:
        """Tag a live version; raises NotFound when there is none."""
        _require_live(connection, project, object_id, digest)
        for tag in sorted(set(tags)):
            labels.TAGS.insert_new(connection, labels.TagRow(project, object_id, digest, tag, user, times.now()))

    async def remove_tags(self, project: str, object_id: str, digest: str, tags: Collection[str]) -> None:
        """Take tags off a version; what is not there is passed over."""
        mine = labels.is_tagged(project, object_id, digest)
        await self._execute(labels.object_tags.delete().where(mine, labels.tags.tag.in_(tags)))

    @writes
    def set_aliases(
        self, connection: sa.Connection, project: str, object_id: str, digest: str, aliases: Collection[str], user: str
    ) -> None:
        """Point aliases to a live version, from wherever they pointed; raises NotFound when there is none."""
        _require_live(connection, project, object_id, digest)
        for alias in aliases:
            labels.set_alias(connection, project, object_id, digest, alias, user)

    async def remove_aliases(self, project: str, object_id: str, aliases: Collection[str]) -> None:
        """Remove aliases of an object; what is not there is passed over."""
        mine = sa.and_(*labels.aliased_to(project, object_id), labels.aliases.alias.in_(aliases))
        await self._execute(labels.object_aliases.delete().where(mine))

    async def tags(self, project: str) -> list[str]:
        """Every tag in use, sorted."""
        return sorted(await self._scalars(labels.in_use(labels.tags.tag, project)))

    async def aliases(self, project: str) -> list[str]:
        """Every alias in use, sorted."""
        return sorted(await self._scalars(labels.in_use(labels.aliases.alias, project)))

    async def total_size(self, project: str) -> int:
        """The bytes of all live values of the project."""
        query = sa.select(sa.func.sum(_v.size)).where(_v.project == project, _v.deleted_at.is_(None))
        return int(await self._scalar(query) or 0)

    @reads
    def contents(
        self, connection: sa.Connection, project: str, wanted: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], str | None]:
        """JSON text by (object_id, digest): None for a deleted version, no entry for an unknown one."""
        found: dict[tuple[str, str], str | None] = {}
        for part in batched(sorted({digest for _, digest in wanted})):
            query = sa.select(_v.object_id, _v.digest, _v.deleted_at, _v.val)
            for row in connection.execute(query.where(_v.project == project, _v.digest.in_(part))):
                if (row.object_id, row.digest) in wanted:
                    found[row.object_id, row.digest] = None if row.deleted_at is not None else row.val
        return found

    async def values(self, project: str, wanted: Collection[str]) -> dict[str, str | None]:
        """JSON text by internal ref, the ref's path inside the value included; None for what is missing or deleted."""
        parsed = {ref: target for ref in wanted if (target := refs.try_parse(ref)) and target.project == project}
        found = await self.contents(project, {(target.name, target.version) for target in parsed.values()})
        values: dict[str, str | None] = dict.fromkeys(wanted)
        for ref, target in parsed.items():
            text = found.get((target.name, target.version))
            values[ref] = text if text is None or not target.edges else refs.follow_in_text(text, target.edges)
        return values


def _resolve_alias(connection: sa.Connection, project: str, object_id: str, name: str) -> str:
    if name == LATEST or refs.version_number(name) is not None or refs.looks_like_digest(name):
        return name
    return labels.alias_target(connection, project, object_id, name) or name


def _create(connection: sa.Connection, new: NewVersion, at: int) -> None:
    name = new.object_id
    mine = sa.and_(*_of_object(new.project, name), _v.digest == new.digest)
    known = connection.execute(sa.select(_v.number, _v.deleted_at).where(mine)).first()
    is_new = known is None or known.deleted_at is not None
    if is_new:
        _refuse_other_class(connection, new)
    if new.after is not None and new.after != _latest_digests(connection, new.project, new.kind, [name]).get(name, ""):
        raise Conflict(f"{name} has been changed or deleted since" if new.after else f"{name} already exists")
    if is_new:
        fields = {"created_at": at, "deleted_at": None, "val": new.val, "size": new.size, "is_latest": 0}
        fields |= {"base_object_class": new.base_object_class, "leaf_object_class": new.leaf_object_class}
        if known is None:
            connection.execute(object_versions.insert().values(**fields, **_identity(connection, new)))
        else:
            connection.execute(object_versions.update().where(mine).values(**fields))
    for alias in (LATEST, *(new.labels.aliases if new.labels else ())):
        labels.set_alias(connection, new.project, name, new.digest, alias, new.user)
    if new.labels:
        live = sa.select(_v.digest).where(*_of_object(new.project, name), _v.deleted_at.is_(None))
        digests = connection.execute(live).scalars().all()
        labels.set_tags(connection, new.project, name, digests, new.labels.tags, new.user)
    _mark_latest(connection, new.project, name, new.digest)
    count_class_change(connection, new.base_object_class)


def next_index(connection: sa.Connection, project: str, kind: str, object_id: str) -> int:
    """The index of the next version of an object or op."""
    index = sa.select(sa.func.coalesce(sa.func.max(_v.version_index) + 1, 0))
    return int(connection.execute(index.where(*_of_object(project, object_id), _v.kind == kind)).scalar_one())


def _identity(connection: sa.Connection, new: NewVersion) -> dict[str, Any]:
    index = next_index(connection, new.project, new.kind, new.object_id)
    ref = refs.object_ref(new.project, new.kind, new.object_id, new.digest)
    names = ("project", "kind", "object_id", "digest", "user")
    return {"version_index": index, "ref": ref, **{name: getattr(new, name) for name in names}}


def _refuse_other_class(connection: sa.Connection, new: NewVersion) -> None:
    live = sa.and_(*_of_object(new.project, new.object_id), _v.kind == new.kind, _v.deleted_at.is_(None))
    last = sa.select(_v.base_object_class).where(live).order_by(_v.version_index.desc()).limit(1)
    found = connection.execute(last).scalars().all()
    if found and found != [new.base_object_class]:
        theirs, its = (name or "without a class" for name in (*found, new.base_object_class))
        raise InvalidRequest(
            f"Object name {new.object_id!r} is already used by another type: its versions are {theirs}, "
            f"the new one is {its}. Publish it under another name."
        )


def _mark_latest(connection: sa.Connection, project: str, object_id: str, digest: str | None) -> None:
    mine = object_versions.update().where(*_of_object(project, object_id))
    connection.execute(mine.where(_IS_LATEST).values(is_latest=0))
    if digest is not None:
        connection.execute(mine.where(_v.digest == digest).values(is_latest=1))


def _delete(
    connection: sa.Connection, project: str, object_id: str, names: Sequence[str], user: str, at: int
) -> list[ObjectVersion]:
    live = sa.and_(*_of_object(project, object_id), _v.deleted_at.is_(None))
    named = [sa.or_(*(_named(name) for name in names))] if names else []
    query = _select(False).where(live, *named).order_by(_v.created_at.desc(), _v.version_index.desc())
    found = [_version(row) for row in connection.execute(query)]
    if not found:
        raise NotFound(f"Object {object_id} ({list(names)}) not found when deleting.")
    chosen = {version.digest for version in found}
    if names and len(set(names)) != len(chosen):
        missing = ", ".join(map(repr, sorted(set(names) - chosen)))
        raise NotFound(
            f"Delete request contains {len(names)} digests, but found {len(chosen)} objects to delete. "
            f"Diff digests: {{{missing}}}"
        )
    for part in batched(sorted(chosen)):
        dead = sa.and_(*_of_object(project, object_id), _v.digest.in_(part))
        connection.execute(object_versions.update().where(dead).values(deleted_at=at))
        labels.remove(connection, project, object_id, part)
    if labels.alias_target(connection, project, object_id, LATEST) is None:
        newest = sa.select(_v.digest).where(live).order_by(_v.created_at.desc(), _v.version_index.desc()).limit(1)
        _mark_latest(connection, project, object_id, connection.execute(newest).scalar_one_or_none())
    count_class_change(connection, found[0].base_object_class)
    audit(connection, at, user, "object.delete", project, {"object_id": object_id, "digests": sorted(chosen)})
    return found


def _require_live(connection: sa.Connection, project: str, object_id: str, digest: str) -> None:
    condition = sa.and_(*_of_object(project, object_id), _v.digest == digest, _v.deleted_at.is_(None))
    if connection.execute(sa.select(_v.number).where(condition)).first() is None:
        raise NotFound(f"Object version {object_id}:{digest} not found")


def _found(connection: sa.Connection, project: str, query: sa.Select[Any], with_labels: bool) -> list[ObjectVersion]:
    found = [_version(row) for row in connection.execute(query)]
    for part in batched(found if with_labels else ()):
        labels.add_to(connection, project, part)
    return found
