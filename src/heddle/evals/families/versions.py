"""The object families: versions of one kind of object, listed, read and deleted."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound
from heddle.evals.families.common import bounded, opened
from heddle.http import line
from heddle.store.base import Store
from heddle.store.control.object_rows import ObjectFilter, ObjectVersion
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

MAX_NAMED = 100
"""How many versions are deleted by name at once, as /obj/delete allows."""


@dataclass(frozen=True, slots=True)
class Version:
    """A stored version with its value; `ref` is internal."""

    row: ObjectVersion
    value: Any
    ref: str

    @property
    def fields(self) -> Json:
        """The value as fields, none where it is no object."""
        return self.value if isinstance(self.value, dict) else {}

    def text(self, key: str) -> str | None:
        """A field that is a text, else None."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else None

    def place(self, key: str) -> str | None:
        """A field that is a ref; a ref to the field where something is stored in its place, None where nothing is."""
        value = self.fields.get(key)
        if value is None or isinstance(value, str):
            return value
        return f"{self.ref}/attr/{key}"

    def head(self) -> Json:
        """What every record of a version begins with."""
        row = self.row
        return {
            "object_id": row.object_id,
            "digest": row.digest,
            "version_index": row.version_index,
            "created_at": times.to_iso(row.created_at),
        }

    def named(self) -> Json:
        """`head` with name and description; SDKs leave names away, and then the object's own is shown."""
        return {**self.head(), "name": self.text("name") or self.row.object_id, "description": self.text("description")}


Shown = Callable[[Version], Awaitable[Json]]


class Versions:
    """The versions of one kind in one project, for one caller; `wanted` says which kind."""

    def __init__(self, store: Store, caller: Caller, project_id: str, wanted: ObjectFilter) -> None:
        self._objects = store.objects
        self._project = caller.open(project_id)
        self._user = caller.user
        self._wanted = wanted

    async def read(self, object_id: str, digest: str) -> Version:
        """The version that a digest, `latest`, `v<N>` or an alias names; raises NotFound."""
        found = await self._objects.read(self._project, object_id, digest)
        if found is None or not self._belongs(found):
            raise NotFound(f"Obj {object_id}:{digest} not found"[:600])
        if found.deleted_at is not None:
            deleted_at = times.to_iso(found.deleted_at)
            reason = f"{found.object_id}:v{found.version_index} was deleted at {deleted_at}"
            raise NotFound(reason, deleted_at=deleted_at)
        return self._version(found)

    async def lines(self, shown: Shown, limit: int | None, offset: int | None) -> AsyncIterator[bytes]:
        """All live versions as JSON lines; with a limit or offset by name, the newest first."""
        most, skipped = bounded(limit, offset)
        by_name = limit is not None or offset is not None

        async def chunks() -> AsyncIterator[bytes]:
            pages = self._objects.pages(self._project, self._wanted, by_name=by_name, limit=most, offset=skipped)
            async for page in pages:
                for row in page:
                    yield line(await shown(self._version(row)))

        return await opened(chunks())

    async def delete(self, object_id: str, names: list[str] | None) -> int:
        """Delete the named versions of an object, all without names; returns how many. Raises NotFound."""
        if names and len(names) > MAX_NAMED:
            raise InvalidRequest(
                f"{len(names)} versions are to be deleted; please delete {MAX_NAMED} or fewer at a time"
            )
        every = await self._objects.query(self._project, ObjectFilter(object_ids=[object_id]), with_values=False)
        mine = [version for version in every if self._belongs(version)]
        if not mine:
            raise NotFound(f"Object {object_id} ({names or None}) not found when deleting."[:600])
        # An op and an object can have one name; only those of this kind go.
        mixed = len(mine) < len(every)
        chosen = names or ([version.digest for version in mine] if mixed else [])
        return len(await self._objects.delete(self._project, object_id, chosen, self._user))

    def _belongs(self, version: ObjectVersion) -> bool:
        if self._wanted.is_op:
            return version.kind == "op"
        return version.kind == "object" and version.base_object_class in self._wanted.base_object_classes

    def _version(self, row: ObjectVersion) -> Version:
        ref = refs.object_ref(self._project, row.kind, row.object_id, row.digest)
        value = orjson.loads(row.val or "null")
        return Version(replace(row, val=None), value, ref)


def of_class(name: str) -> ObjectFilter:
    """The objects with that base class, those of its subclasses included."""
    return ObjectFilter(base_object_classes=[name], is_op=False)


OPS = ObjectFilter(is_op=True)
