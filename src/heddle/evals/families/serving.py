"""The routes that every object family has: list, read and delete versions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter, Response
from pydantic import BaseModel

from heddle.auth import Caller
from heddle.evals.families.common import Entity, Limit, Names, Offset, Project
from heddle.evals.families.versions import Version, Versions
from heddle.http import NdLines, Reader, RecordsDep, StoreDep, Writer, answer, lines
from heddle.store.base import Store
from heddle.store.control.object_rows import ObjectFilter
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

Record = Callable[[Records, Caller, str, Version], Awaitable[Json]]
"""The record of a version; it may read more of the project (`entity/project`) for the caller."""


@dataclass(frozen=True, slots=True)
class Family:
    """One object family: its words in paths and texts, which objects are of it, and how a version is shown."""

    one: str
    many: str
    wanted: ObjectFilter
    record: Record
    read_model: type[BaseModel]
    delete_model: type[BaseModel]

    @property
    def path(self) -> str:
        """The path of the list."""
        return f"/v2/{{entity}}/{{project}}/{self.many}"

    def versions(self, store: Store, caller: Caller, project_id: str) -> Versions:
        """The versions of a project, for one caller."""
        return Versions(store, caller, project_id, self.wanted)


def serve_list(router: APIRouter, family: Family) -> None:
    """GET of all versions as JSON lines."""

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

        async def shown(version: Version) -> Json:
            return await family.record(records, caller, project_id, version)

        return lines(await family.versions(store, caller, project_id).lines(shown, limit, offset), NdLines)

    router.add_api_route(
        family.path,
        every,
        methods=["GET"],
        name=f"{family.one}_list",
        description=f"All versions of all {family.many}, those of SDKs included.",
        response_model=family.read_model,
        response_class=NdLines,
        response_description="One version per line",
    )


def serve_read(router: APIRouter, family: Family) -> None:
    """GET of one version."""

    async def one(
        entity: Entity,
        project: Project,
        object_id: str,
        digest: str,
        caller: Reader,
        store: StoreDep,
        records: RecordsDep,
    ) -> Response:
        project_id = f"{entity}/{project}"
        version = await family.versions(store, caller, project_id).read(object_id, digest)
        return answer(await family.record(records, caller, project_id, version))

    router.add_api_route(
        family.path + "/{object_id}/versions/{digest}",
        one,
        methods=["GET"],
        name=f"{family.one}_read",
        description=f"One version of the {family.many}.",
        response_model=family.read_model,
    )


def serve_delete(router: APIRouter, family: Family) -> None:
    """DELETE of the named versions of an object, of all when none is named; what they refer to stays."""

    async def some(
        entity: Entity, project: Project, object_id: str, caller: Writer, store: StoreDep, digests: Names = None
    ) -> Response:
        deleted = await family.versions(store, caller, f"{entity}/{project}").delete(object_id, digests)
        return answer({"num_deleted": deleted})

    router.add_api_route(
        family.path + "/{object_id}",
        some,
        methods=["DELETE"],
        name=f"{family.one}_delete",
        description="Delete the named versions, all of them when none is named; what they refer to stays.",
        response_model=family.delete_model,
    )


def serve(router: APIRouter, family: Family) -> None:
    """All three."""
    serve_list(router, family)
    serve_read(router, family)
    serve_delete(router, family)
