"""Stored objects as an evaluation reads them: with one caller's rights, their versions as digests."""

from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class Found:
    """An object that was read."""

    target: refs.Ref
    """Its version is a digest."""
    value: Json

    @property
    def ref(self) -> str:
        """Internal."""
        return refs.object_ref(self.target.project, "object", self.target.name, self.target.version)

    @property
    def class_name(self) -> str:
        """As the SDKs name it; empty for a plain object."""
        return str(self.value.get("_class_name") or self.value.get("_type") or "")

    def is_a(self, class_name: str) -> bool:
        """True for an object of this very class: what a derived one does is in its code, which is not run."""
        return class_name in (self.value.get("_class_name"), self.value.get("_type"))


class ObjectReader:
    """Reads objects with one caller's rights."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self.store = store
        self._caller = caller

    async def read(self, ref: str, what: str) -> Found:
        """The object behind a ref in either form; `what` names it in texts. Raises HeddleError."""
        target = self.target(ref, what)
        if target.kind != "object" or target.edges:
            raise InvalidRequest(f"{what} {shown(ref)!r} is no ref of an object")
        found = await self.store.objects.read(target.project, target.name, target.version)
        if found is None or found.deleted_at is not None:
            raise NotFound(f"{what} {shown(ref)} is not found")
        value = orjson.loads(found.val or "null")
        if not isinstance(value, dict):
            raise InvalidRequest(f"{what} {target.name} is no object with fields")
        return Found(refs.Ref(target.project, target.kind, target.name, found.digest), value)

    def target(self, ref: str, what: str) -> refs.Ref:
        """The parts of a ref in either form; raises InvalidRequest for none, Forbidden beyond the caller's reach."""
        target = refs.parse(refs.to_internal(ref) if ref.startswith(refs.EXTERNAL) else ref)
        project = refs.external_project(target.project)
        if project is None:
            raise InvalidRequest(f"{what} {shown(ref)!r} is no ref of an object")
        if not self._caller.may_read(project):
            raise Forbidden(f"The key of user '{self._caller.user}' may not read objects of '{project}'")
        return target

    async def followed(self, value: Any, what: str) -> Any:
        """The object that a value refers to, or the value itself."""
        return (await self.read(value, what)).value if is_ref(value) else value


def is_ref(value: Any) -> TypeGuard[str]:
    """True for a text that begins as a ref does, in either form."""
    return isinstance(value, str) and value.startswith((refs.INTERNAL, refs.EXTERNAL))


def shown(ref: str) -> str:
    """The ref as people write it."""
    return (refs.to_external(ref) if ref.startswith(refs.INTERNAL) else ref)[:300]
