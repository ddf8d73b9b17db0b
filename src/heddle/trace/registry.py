"""The registry: versions of objects that were linked into portfolios, listed and read like objects of their own.

A registry is a project (`wandb-registry-<name>` as SDKs call it), a portfolio an object in it, and a linked version a
version of that object: /obj/read, refs, aliases and tags work as everywhere. Contract: trace-evals, section 9.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import Field

from heddle.auth import Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.http.routing import Reader, RequestModel, ResponseModel, StoreDep, Writer, answer, describe_row, group
from heddle.store.base import Store
from heddle.store.control.links import LinkRow
from heddle.store.control.objects import NewVersion, ObjectFilter, ObjectVersion, require_live
from heddle.trace.objects import Aliases, check_name
from heddle.wire import refs, times
from heddle.wire.batched import group_pairs
from heddle.wire.jsontypes import Json

router: APIRouter = group("Registry")
ProjectParameter = Annotated[str, Query(description="The registry: entity/project")]


class LinkTarget(RequestModel):
    """A portfolio of a registry."""

    portfolio_name: str = Field(min_length=1)
    entity_name: str = Field(min_length=1)
    project_name: str = Field(min_length=1)


class LinkReq(RequestModel):
    """Body of /link_to_registry; `ref` names a version of an object or op."""

    ref: str = Field(min_length=1)
    target: LinkTarget
    aliases: Aliases = Field(default_factory=list)


class LinkRes(ResponseModel):
    """Which version of the portfolio it is, from 0."""

    version_index: int | None = None


class Portfolio(ResponseModel):
    """A portfolio and its newest version."""

    portfolio_name: str
    version_count: int
    latest_version_index: int
    base_object_class: str | None
    created_at: datetime
    updated_at: datetime


class PortfoliosRes(ResponseModel):
    """The portfolios of a registry by name."""

    portfolios: list[Portfolio]


class RegistryVersion(ResponseModel):
    """A linked version: `ref` is its own in the registry, `source_refs` are what was linked."""

    version_index: int
    digest: str
    ref: str
    source_refs: list[str]
    aliases: list[str]
    tags: list[str]
    created_at: datetime
    created_by: str


class RegistryVersionsRes(ResponseModel):
    """The versions of a portfolio, the oldest first."""

    versions: list[RegistryVersion]


@router.post("/link_to_registry", response_model=LinkRes)
async def link_to_registry(body: LinkReq, caller: Writer, store: StoreDep) -> Response:
    """Link a version into a portfolio; the same one again keeps its index and takes further aliases.

    What is linked is copied with its files, so that whoever reads the registry needs no access to where it came from.
    """
    caller = caller.require(Scope.READ)
    target = body.target
    project = caller.open(f"{target.entity_name}/{target.project_name}")
    check_name(target.portfolio_name)
    source = refs.parse(body.ref)
    if source.kind not in ("object", "op") or source.edges:
        raise InvalidRequest(
            f"{refs.to_external(body.ref)[:500]} is not a version of an object; only versions of objects can be linked"
        )
    caller.open(refs.external_project(source.project) or source.project)
    version = await _source(store, source)
    await _copy(store, source.project, project, target.portfolio_name, version, caller.user)
    if body.aliases:
        objects = store.objects
        await objects.set_aliases(project, target.portfolio_name, version.digest, body.aliases, caller.user)
    ref = refs.object_ref(source.project, version.kind, version.object_id, version.digest)
    row = LinkRow(project, target.portfolio_name, ref, version.digest, times.now(), caller.user)
    await store.registry.link(row)
    linked = await store.objects.read(project, target.portfolio_name, version.digest, with_value=False)
    assert linked is not None, "it was stored a moment ago, and deletion keeps rows"
    return answer({"version_index": linked.version_index})


@router.get("/registry/portfolios", response_model=PortfoliosRes)
async def portfolios(project_id: ProjectParameter, caller: Reader, store: StoreDep) -> Response:
    """The portfolios of a registry."""
    project = caller.open(project_id)
    names = {row.portfolio for row in await store.registry.links(project)}
    found = await _versions(store, project, sorted(names))
    by_name = group_pairs((version.object_id, version) for version in found)
    return answer({"portfolios": [_portfolio(name, by_name[name]) for name in sorted(by_name)]})


@router.get("/registry/versions", response_model=RegistryVersionsRes)
async def versions(project_id: ProjectParameter, portfolio_name: str, caller: Reader, store: StoreDep) -> Response:
    """The live versions of a portfolio, with where they came from; 404 for an unknown portfolio."""
    project = caller.open(project_id)
    links = await store.registry.links(project, portfolio_name)
    sources = group_pairs((row.digest, row.source_ref) for row in links)
    if not sources:
        raise NotFound(f"Portfolio {portfolio_name[:200]} not found in registry {project_id}")
    found = await _versions(store, project, [portfolio_name])
    found.sort(key=lambda version: version.version_index)
    return answer({"versions": [_describe(project, version, sources.get(version.digest, [])) for version in found]})


async def _source(store: Store, source: refs.Ref) -> ObjectVersion:
    found = await store.objects.read(source.project, source.name, source.version)
    same_kind = found if found is not None and found.kind == source.kind else None
    return require_live(same_kind, f"{source.name}:{source.version}"[:500])


async def _copy(store: Store, origin: str, project: str, portfolio: str, version: ObjectVersion, user: str) -> None:
    """Make the version one of the portfolio, its files first; one that lives there already stays as it is."""
    there = await store.objects.read(project, portfolio, version.digest, with_value=False)
    if there is not None and there.deleted_at is None:
        return
    names = ObjectFilter(object_ids=[portfolio], is_op=version.kind != "op")
    if await store.objects.query(project, names, limit=1):
        raise InvalidRequest(f"Portfolio {portfolio} holds versions of another kind; objects and ops cannot be mixed")
    val = version.val or "null"
    for digest in sorted(set(_files(orjson.loads(val)))):
        file = await store.files.find(origin, digest)
        if file is not None:
            await store.files.create(project, file.name, digest, file.size, file.blob)
    classes = (version.base_object_class, version.leaf_object_class)
    new = NewVersion(project, version.kind, portfolio, version.digest, val, version.size, *classes, user)
    await store.objects.create(new)


def _files(value: Any) -> Iterator[str]:
    """The digests of the files that a stored value names, at any depth."""
    children: list[Any] = []
    if isinstance(value, dict):
        files = value.get("files")
        if isinstance(files, dict):
            yield from (digest for digest in files.values() if isinstance(digest, str))
        children = list(value.values())
    elif isinstance(value, list):
        children = value
    for child in children:
        yield from _files(child)


async def _versions(store: Store, project: str, names: list[str]) -> list[ObjectVersion]:
    """The live versions of portfolios, with their labels; none for no name."""
    if not names:
        return []
    wanted = ObjectFilter(object_ids=names)
    return await store.objects.query(project, wanted, with_labels=True)


def _portfolio(name: str, found: list[ObjectVersion]) -> Json:
    latest = max(found, key=lambda version: (version.is_latest, version.version_index))
    return {
        "portfolio_name": name,
        "version_count": len(found),
        "latest_version_index": latest.version_index,
        "base_object_class": latest.base_object_class,
        "created_at": times.to_iso(min(version.created_at for version in found)),
        "updated_at": times.to_iso(max(version.created_at for version in found)),
    }


def _describe(project: str, version: ObjectVersion, sources: list[str]) -> Json:
    return describe_row(
        RegistryVersion,
        version,
        ref=refs.object_ref(project, version.kind, version.object_id, version.digest),
        source_refs=sources,
        aliases=version.aliases or [],
        tags=version.tags or [],
        created_by=version.user or "",
    )
