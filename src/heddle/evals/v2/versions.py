"""Kinds of objects as resources: an entry per kind makes the routes that create, list, read and delete versions."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, TypeAdapter, create_model

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound
from heddle.http.description import body_schema
from heddle.http.parameters import KNOWN_PARAMETERS, not_negative
from heddle.http.routing import (
    Deleter,
    NdLines,
    Reader,
    RecordsDep,
    ResponseModel,
    StoreDep,
    Writer,
    answer,
    describe_row,
    json_lines,
    lines,
    off_loop,
    validate,
)
from heddle.store.base import Store
from heddle.store.control.objects import ObjectFilter, ObjectVersion, require_live
from heddle.wire import jsontext, refs
from heddle.wire.jsontypes import Json
from heddle.wire.records import Published, Records

B = TypeVar("B", bound=BaseModel)

_NO_LETTER = re.compile(r"[^\w.-]")

Entity = Annotated[str, Path()]
Project = Annotated[str, Path()]
Limit = Annotated[int | None, Query()]
Offset = Annotated[int | None, Query()]
Names = Annotated[list[str] | None, Query()]


def object_id(name: str | None, default: str) -> str:
    """The object that a name means: blanks and slashes as `_`, other signs dropped, in lower case."""
    return _NO_LETTER.sub("", re.sub(r"[ /]", "_", name)).lower() if name else default


async def read_body(request: Request, model: type[B], keep_non_finite: bool = False) -> B:
    """The typed body with its refs as they were sent; no body is an empty one. Raises ValidationFailed."""
    body = await request.body()
    return await off_loop(
        len(body), lambda: validate(TypeAdapter(model), jsontext.loads(body or b"{}", keep_non_finite))
    )


def to_external(value: Any) -> Any:
    """A stored value with its refs in external form, to be written again."""
    return jsontext.loads(refs.convert_out(jsontext.dumps_bytes(value)))


def parse_ref(text: str) -> refs.Ref | None:
    """The ref that a text in either form is, None for any other text; raises InvalidRequest for a malformed ref."""
    if not text.startswith((refs.EXTERNAL, refs.INTERNAL)):
        return None
    return refs.parse(refs.to_internal(text) if text.startswith(refs.EXTERNAL) else text)


def internal_ref(text: str, field: str, kinds: tuple[str, ...] = ("object",)) -> refs.Ref:
    """The ref behind a text in either form; raises InvalidRequest when it is none of those kinds."""
    ref = parse_ref(text)
    if ref is None or ref.kind not in kinds or ref.edges:
        raise InvalidRequest(f"{field} must be a ref of {' or '.join(f'an {kind}' for kind in kinds)}: {text[:300]!r}")
    return ref


def check_page(limit: int | None, offset: int | None) -> tuple[int | None, int]:
    """Limit and offset of a list; raises InvalidRequest for negative ones."""
    return not_negative(limit, "limit"), not_negative(offset, "offset") or 0


async def fetch_first(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same stream with its first chunk fetched already, so that a failure is answered as one."""
    first = await anext(chunks, b"")

    async def stream() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return stream()


MAX_NAMED = 100
"""How many versions are deleted by name at once, as /obj/delete allows."""
_BY_NAME = (("object_id", False), ("version_index", True))


class CreateRes(ResponseModel):
    """Where the version is found."""

    digest: str
    object_id: str
    version_index: int


class ReadRes(ResponseModel):
    """A version."""

    object_id: str
    digest: str
    version_index: int
    created_at: datetime


class NamedReadRes(ReadRes):
    """A version with a name."""

    name: str
    description: str | None = None


class DeleteRes(ResponseModel):
    """How many versions were deleted."""

    num_deleted: int


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
        return value if value is None or isinstance(value, str) else f"{self.ref}/attr/{key}"

    def head(self) -> Json:
        """What every record of a version begins with."""
        return describe_row(ReadRes, self.row)

    def named(self) -> Json:
        """`head` with name and description; SDKs leave names away, and then the object's own is shown."""
        return {**self.head(), "name": self.text("name") or self.row.object_id, "description": self.text("description")}


class Versions:
    """The versions of one kind in one project, for one caller."""

    def __init__(self, store: Store, caller: Caller, project_id: str, chosen: ObjectFilter) -> None:
        self._objects = store.objects
        self._project = caller.open(project_id)
        self._user = caller.user
        self._chosen = chosen

    async def read(self, object_id: str, digest: str) -> Version:
        """The version that a digest, `latest`, `v<N>` or an alias names; raises NotFound."""
        found = await self._objects.read(self._project, object_id, digest)
        mine = found if found is not None and self._belongs(found) else None
        return self._version(require_live(mine, f"{object_id}:{digest}"[:600]))

    async def stream(self, limit: int | None, offset: int | None) -> AsyncIterator[Version]:
        """All live versions; with a limit or offset by name, the newest first."""
        most, skipped = check_page(limit, offset)
        sort = () if limit is None and offset is None else _BY_NAME
        async for page in self._objects.pages(self._project, self._chosen, sort=sort, limit=most, offset=skipped):
            for row in page:
                yield self._version(row)

    async def delete(self, object_id: str, names: list[str] | None) -> int:
        """Delete the named versions of an object, all without names; returns how many. Raises NotFound."""
        if names and len(names) > MAX_NAMED:
            raise InvalidRequest(
                f"Delete request contains {len(names)} versions. Please delete {MAX_NAMED} or fewer at a time."
            )
        every = await self._objects.query(self._project, ObjectFilter(object_ids=[object_id]))
        mine = [version for version in every if self._belongs(version)]
        if not mine:
            raise NotFound(f"Object {object_id} ({names or None}) not found when deleting."[:600])
        # An op and an object can have one name; only those of this kind go.
        mixed = len(mine) < len(every)
        chosen = names or ([version.digest for version in mine] if mixed else [])
        return len(await self._objects.delete(self._project, object_id, chosen, self._user))

    def _belongs(self, version: ObjectVersion) -> bool:
        if self._chosen.is_op:
            return version.kind == "op"
        return version.kind == "object" and version.base_object_class in self._chosen.base_object_classes

    def _version(self, row: ObjectVersion) -> Version:
        ref = refs.object_ref(self._project, row.kind, row.object_id, row.digest)
        return Version(replace(row, val=None), orjson.loads(row.val or "null"), ref)


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """One kind of object: its word in paths and texts, which objects are of it, and what makes them."""

    router: APIRouter
    one: str
    chosen: ObjectFilter
    body: type[BaseModel]
    """What creating takes."""
    shown: type[BaseModel]
    """What reading answers."""
    create: Callable[[Records, Caller, str, Any], Awaitable[Published]]
    """Stores a version from the body, in a project (`entity/project`)."""
    create_text: str
    """What the description says of creating."""
    record: Callable[[Records, Caller, str, Version], Awaitable[Json]]
    """The record of a version; it may read more of the project."""
    ref_field: str | None = None
    """Under what the answer to creating gives the ref."""
    keep_non_finite: bool = False

    def make_model(self, base: type[ResponseModel], verb: str, text: str, **fields: Any) -> type[BaseModel]:
        """An answer under the name that it has for this kind."""
        return create_model(f"{self.one.capitalize()}{verb}Res", __base__=base, __doc__=text, **fields)


def serve(kind: ObjectKind) -> None:
    """Add the routes of a kind; reading one version unless its router has that route already."""
    router, path = kind.router, f"/v2/{{entity}}/{{project}}/{kind.one}s"
    one = path + "/{object_id}"
    created, also = "Where the version is found", {}
    if kind.ref_field:
        created, also = f"{created}; `{kind.ref_field}` is its ref", {kind.ref_field: (str, ...)}

    async def create(
        entity: Entity, project: Project, request: Request, caller: Writer, records: RecordsDep
    ) -> Response:
        body = await read_body(request, kind.body, kind.keep_non_finite)
        made = await kind.create(records, caller, f"{entity}/{project}", body)
        more = {kind.ref_field: made.ref} if kind.ref_field else {}
        return answer({"digest": made.digest, "object_id": made.object_id, "version_index": made.version_index, **more})

    async def every(
        entity: Entity,
        project: Project,
        caller: Reader,
        store: StoreDep,
        records: RecordsDep,
        limit: Limit = None,
        offset: Offset = None,
    ) -> Response:
        project_id = f"{entity}/{project}"
        versions = Versions(store, caller, project_id, kind.chosen).stream(limit, offset)

        async def chunks() -> AsyncIterator[bytes]:
            async for version in versions:
                yield json_lines([await kind.record(records, caller, project_id, version)])

        return lines(await fetch_first(chunks()), NdLines)

    async def read(
        entity: Entity,
        project: Project,
        object_id: str,
        digest: str,
        caller: Reader,
        store: StoreDep,
        records: RecordsDep,
    ) -> Response:
        project_id = f"{entity}/{project}"
        version = await Versions(store, caller, project_id, kind.chosen).read(object_id, digest)
        return answer(await kind.record(records, caller, project_id, version))

    async def delete(
        entity: Entity, project: Project, object_id: str, caller: Deleter, store: StoreDep, digests: Names = None
    ) -> Response:
        versions = Versions(store, caller, f"{entity}/{project}", kind.chosen)
        return answer({"num_deleted": await versions.delete(object_id, digests)})

    router.add_api_route(
        path,
        create,
        methods=["POST"],
        name=f"{kind.one}_create",
        description=kind.create_text,
        response_model=kind.make_model(CreateRes, "Create", f"{created}.", **also),
        openapi_extra=body_schema(kind.body),
    )
    router.add_api_route(
        path,
        every,
        methods=["GET"],
        name=f"{kind.one}_list",
        description=f"All versions of all {kind.one}s, those of SDKs included.",
        response_model=kind.shown,
        response_class=NdLines,
        response_description="One version per line",
    )
    if not any(getattr(route, "path", None) == one + "/versions/{digest}" for route in router.routes):
        router.add_api_route(
            one + "/versions/{digest}",
            read,
            methods=["GET"],
            name=f"{kind.one}_read",
            description=f"One version of the {kind.one}s.",
            response_model=kind.shown,
        )
    router.add_api_route(
        one,
        delete,
        methods=["DELETE"],
        name=f"{kind.one}_delete",
        description="Delete the named versions, all of them when none is named; what they refer to stays.",
        response_model=kind.make_model(DeleteRes, "Delete", "How many versions were deleted."),
        dependencies=KNOWN_PARAMETERS,
    )
