"""Versions of objects and ops, with their tags and aliases."""

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidRequest, NotFound
from heddle.store.control import labels
from heddle.store.control.latest import LatestVersions
from heddle.store.control.mapping import Repository
from heddle.store.control.object_rows import (
    LATEST,
    PAGE,
    NewVersion,
    ObjectFilter,
    ObjectVersion,
    conditions,
    contents_of,
    named,
    numbered,
    object_versions,
    of_object,
    order,
    select,
    version_of,
    versions,
)
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, Instance
from heddle.wire import digests, refpath, refs, times
from heddle.wire.batched import batched


class Objects(Repository):
    """The verbs of object versions. Project ids are internal, instants microseconds."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        super().__init__(executor, instance)
        self.latest = LatestVersions(executor, instance)
        self.observers: dict[str, Callable[[], Awaitable[None]]] = {}
        """By base class: what is awaited, before the writer is told, when versions of that class came or went."""

    async def create(self, new: NewVersion) -> None:
        """Store a version, or revive or keep the one with its digest, and make it the latest.

        Raises InvalidRequest when live versions of that name and kind have another base class.
        """
        work = self.latest.changing(lambda connection: _create(connection, new, times.now()))
        await self._executor.write(work, len(new.val) + 500)
        await self._tell(new.base_object_class)

    async def read(
        self, project: str, object_id: str, digest: str, with_value: bool = True, with_labels: bool = False
    ) -> ObjectVersion | None:
        """The version that a digest, `latest`, `v<N>` or an alias names, a deleted one included."""

        def work(connection: sa.Connection) -> ObjectVersion | None:
            condition = sa.and_(
                *of_object(project, object_id), named(_resolve_alias(connection, project, object_id, digest))
            )
            query = select(with_value).where(condition).order_by(versions.created_at, versions.version_index).limit(1)
            found = [version_of(row) for row in connection.execute(query)]
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
        query = select(with_values).where(versions.project == project, versions.deleted_at.is_(None))
        query = query.where(*conditions(project, wanted)).order_by(*order(sort))
        query = query.limit(limit).offset(offset or None)

        def work(connection: sa.Connection) -> list[ObjectVersion]:
            found = [version_of(row) for row in connection.execute(query)]
            if with_labels:
                _add_labels(connection, project, found)
            return found

        return await self._executor.read(work)

    async def pages(
        self, project: str, wanted: ObjectFilter, *, by_name: bool = False, limit: int | None = None, offset: int = 0
    ) -> AsyncIterator[list[ObjectVersion]]:
        """Live versions with their values in slices: those that are there when the first slice is taken.

        `by_name` is by object_id and then the newest first; otherwise they come as they were created.
        """
        query = sa.select(versions.number).where(versions.project == project, versions.deleted_at.is_(None))
        query = query.where(*conditions(project, wanted)).limit(limit).offset(offset or None)
        named = [versions.object_id.asc(), versions.version_index.desc(), versions.number.asc()]
        query = query.order_by(*(named if by_name else order(())))
        numbers = await self._executor.read(lambda connection: array("q", connection.execute(query).scalars()))
        for first in range(0, len(numbers), PAGE):
            part = numbers[first : first + PAGE].tolist()
            yield await self._executor.read(lambda connection, part=part: numbered(connection, part))  # type: ignore[misc]

    async def delete(self, project: str, object_id: str, names: Sequence[str], user: str) -> list[ObjectVersion]:
        """Delete the versions that digests, `latest` or `v<N>` name, all live ones without names; returns them.

        Raises NotFound when a name has no live version or two names mean the same one; then nothing is deleted.
        """
        work = self.latest.changing(lambda c: _delete(c, project, object_id, names, user, times.now()))
        deleted = await self._executor.write(work, 500)
        await self._tell(deleted[0].base_object_class)
        return deleted

    async def latest_of_class(self, base_class: str) -> list[tuple[str, ObjectVersion]]:
        """The latest live version of every object of a base class, with its project, in all projects."""
        query = select(True).where(versions.base_object_class == base_class, versions.is_latest == 1)
        query = query.where(versions.deleted_at.is_(None)).order_by(versions.number)
        return [(row.project, version_of(row)) for row in await self._tuples(query)]

    async def _tell(self, base_class: str | None) -> None:
        observer = self.observers.get(base_class or "")
        if observer is not None:
            await observer()

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
        query = sa.select(sa.func.sum(versions.size)).where(versions.project == project, versions.deleted_at.is_(None))
        return int(await self._scalar(query) or 0)

    async def contents(self, project: str, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
        """JSON text by (object_id, digest): None for a deleted version, no entry for an unknown one."""
        return await self._executor.read(lambda connection: contents_of(connection, project, wanted))

    async def values(self, project: str, wanted: Collection[str]) -> dict[str, str | None]:
        """JSON text by internal ref, the ref's path inside the value included; None for what is missing or deleted."""
        parsed = {ref: target for ref in wanted if (target := _parse(ref)) is not None and target.project == project}
        found = await self.contents(project, {(target.name, target.version) for target in parsed.values()})
        values: dict[str, str | None] = dict.fromkeys(wanted)
        for ref, target in parsed.items():
            text = found.get((target.name, target.version))
            values[ref] = text if text is None or not target.edges else _inside(text, target.edges)
        return values


def _resolve_alias(connection: sa.Connection, project: str, object_id: str, name: str) -> str:
    if name == LATEST or digests.version_number(name) is not None or digests.looks_like_digest(name):
        return name
    return labels.target(connection, project, object_id, name) or name


def _create(connection: sa.Connection, new: NewVersion, at: int) -> None:
    mine = sa.and_(*of_object(new.project, new.object_id), versions.digest == new.digest)
    known = connection.execute(sa.select(versions.number, versions.deleted_at).where(mine)).first()
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
    same_kind = sa.and_(*of_object(new.project, new.object_id), versions.kind == new.kind)
    index = connection.execute(sa.select(sa.func.count()).select_from(object_versions).where(same_kind)).scalar_one()
    ref = refs.object_ref(new.project, new.kind, new.object_id, new.digest)
    names = ("project", "kind", "object_id", "digest", "user")
    return {"version_index": index, "ref": ref, **{name: getattr(new, name) for name in names}}


def _refuse_other_class(connection: sa.Connection, new: NewVersion) -> None:
    live = sa.and_(*of_object(new.project, new.object_id), versions.kind == new.kind, versions.deleted_at.is_(None))
    classes = connection.execute(sa.select(versions.base_object_class).where(live).distinct()).scalars()
    others = sorted(str(name) for name in classes if name != new.base_object_class)
    if others:
        raise InvalidRequest(
            f"Object name {new.object_id!r} is already used by another type: its versions are {', '.join(others)}, "
            f"the new one is {new.base_object_class}. Publish it under another name."
        )


def _mark_latest(connection: sa.Connection, project: str, object_id: str, digest: str | None) -> None:
    others = sa.and_(*of_object(project, object_id), versions.is_latest == 1)
    connection.execute(object_versions.update().where(others).values(is_latest=0))
    if digest is not None:
        one = sa.and_(*of_object(project, object_id), versions.digest == digest)
        connection.execute(object_versions.update().where(one).values(is_latest=1))


def _delete(
    connection: sa.Connection, project: str, object_id: str, names: Sequence[str], user: str, at: int
) -> list[ObjectVersion]:
    live = sa.and_(*of_object(project, object_id), versions.deleted_at.is_(None))
    query = select(False).where(live).order_by(versions.created_at.desc(), versions.version_index.desc())
    if names:
        query = query.where(sa.or_(*(named(name) for name in names)))
    found = [version_of(row) for row in connection.execute(query)]
    if not found:
        raise NotFound(f"Object {object_id} ({list(names)}) not found when deleting.")
    chosen = {version.digest for version in found}
    if names and len(set(names)) != len(chosen):
        missing = sorted(set(names) - chosen)
        raise NotFound(
            f"{len(set(names))} versions were to be deleted, {len(chosen)} were found; not matched: {missing}"
        )
    for part in batched(sorted(chosen)):
        dead = sa.and_(*of_object(project, object_id), versions.digest.in_(part))
        connection.execute(object_versions.update().where(dead).values(deleted_at=at))
        labels.drop(connection, project, object_id, part)
    if labels.target(connection, project, object_id, LATEST) is None:
        newest = sa.select(versions.digest).where(live)
        newest = newest.order_by(versions.created_at.desc(), versions.version_index.desc()).limit(1)
        _mark_latest(connection, project, object_id, connection.execute(newest).scalar_one_or_none())
    audit(connection, at, user, "object.delete", project, {"object_id": object_id, "digests": sorted(chosen)})
    return found


def _require_live(connection: sa.Connection, project: str, object_id: str, digest: str) -> None:
    condition = sa.and_(*of_object(project, object_id), versions.digest == digest, versions.deleted_at.is_(None))
    if connection.execute(sa.select(versions.number).where(condition)).first() is None:
        raise NotFound(f"Object version {object_id}:{digest} not found")


def _add_labels(connection: sa.Connection, project: str, found: Sequence[ObjectVersion]) -> None:
    for part in batched(found):
        names = {version.object_id for version in part}
        tags, aliases = labels.of_objects(connection, project, names)
        explicit = {object_id for (object_id, _), held in aliases.items() if LATEST in held}
        for version in part:
            key = (version.object_id, version.digest)
            is_derived = version.is_latest and version.object_id not in explicit
            version.tags = sorted(tags.get(key, ()))
            version.aliases = [*([LATEST] if is_derived else []), *aliases.get(key, ())]


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
