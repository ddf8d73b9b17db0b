"""Objects: versioned values under a name, with tags and aliases."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter

from heddle import json_schemas
from heddle.auth import Caller
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.http import (
    Empty,
    Reader,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
    hot,
    inlined_body,
    local,
    not_negative,
    page_limit,
)
from heddle.request_body import off_loop, parse_body, validated
from heddle.store.control.object_rows import NewVersion, ObjectFilter, ObjectVersion
from heddle.trace.builtin_classes import kind_of, normalise
from heddle.trace.builtin_classes.specs import AnnotationSpec
from heddle.trace.object_models import (
    AliasesListRes,
    ObjAddTagsReq,
    ObjCreateReq,
    ObjCreateRes,
    ObjDeleteReq,
    ObjDeleteRes,
    ObjectVersionFilter,
    ObjQueryReq,
    ObjQueryRes,
    ObjReadReq,
    ObjReadRes,
    ObjRemoveAliasesReq,
    ObjRemoveTagsReq,
    ObjSchemaForInsert,
    ObjSetAliasesReq,
    TagsListRes,
)
from heddle.trace.object_rules import check_monitor, check_name
from heddle.wire import digests, jsontext, times

MAX_DELETED = 100
MAX_FILTER_LIST = 5000
_CREATE: TypeAdapter[ObjCreateReq] = TypeAdapter(ObjCreateReq)
router: APIRouter = group("Objects")
ProjectParameter = Annotated[str, Query()]


@router.post("/obj/create", response_model=ObjCreateRes, openapi_extra=inlined_body(ObjCreateReq))
@hot
async def obj_create(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Store a version of an object; the same value again is the same version, and becomes the latest."""
    body = await request.body()
    obj = await off_loop(len(body), lambda: _read(body, caller))
    if AnnotationSpec.__name__ in (obj.builtin_object_class, obj.set_base_object_class):
        new = await json_schemas.processes.run(prepare, obj, caller.open, caller.user)
    else:
        new = await off_loop(len(body), lambda: prepare(obj, caller.open, caller.user))
    await store.objects.create(new)
    return answer({"digest": new.digest, "object_id": new.object_id})


@router.post("/obj/read", response_model=ObjReadRes)
@local
async def obj_read(body: ObjReadReq, caller: Reader, store: StoreDep) -> Response:
    """One version, named by digest, `latest`, `v<N>` or an alias."""
    project = caller.open(body.project_id)
    wants_value, wants_labels = not body.metadata_only, bool(body.include_tags_and_aliases)
    found = await store.objects.read(project, body.object_id, body.digest, wants_value, wants_labels)
    name = f"{body.object_id}:{body.digest}"[:500]
    if found is None:
        raise NotFound(f"Obj {name} not found")
    if found.deleted_at is not None:
        deleted_at = times.to_iso(found.deleted_at)
        reason = f"{found.object_id}:v{found.version_index} was deleted at {deleted_at}"
        raise NotFound(reason, deleted_at=deleted_at)
    return answer({"obj": _shown(body.project_id, found, with_size=False)})


@router.post("/objs/query", response_model=ObjQueryRes)
@local
async def objs_query(body: ObjQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """Live versions of objects."""
    found = await store.objects.query(
        caller.open(body.project_id),
        _filter(body.filter or ObjectVersionFilter()),
        sort=[(term.field, term.direction == "desc") for term in body.sort_by or ()],
        limit=page_limit(settings, not_negative(body.limit, "limit")),
        offset=not_negative(body.offset, "offset") or 0,
        with_values=not body.metadata_only,
        with_labels=bool(body.include_tags_and_aliases),
    )
    with_size = bool(body.include_storage_size)
    return answer({"objs": [_shown(body.project_id, version, with_size) for version in found]})


@router.post("/obj/delete", response_model=ObjDeleteRes)
async def obj_delete(body: ObjDeleteReq, caller: Writer, store: StoreDep) -> Response:
    """Delete versions of an object, all of them when none is named."""
    project = caller.open(body.project_id)
    names = body.digests or []
    if len(names) > MAX_DELETED:
        raise InvalidRequest(
            f"Object delete request contains {len(names)} objects. "
            f"Please delete {MAX_DELETED} or fewer objects at a time."
        )
    deleted = await store.objects.delete(project, body.object_id, names, caller.user)
    keys = ("digest", "base_object_class", "leaf_object_class")
    versions = [{key: getattr(version, key) for key in keys} for version in deleted]
    return answer({"num_deleted": len(deleted), "deleted_versions": versions})


@router.put("/objs/{object_id}/versions/{digest}/tags", response_model=Empty)
async def add_tags(object_id: str, digest: str, body: ObjAddTagsReq, caller: Writer, store: StoreDep) -> Response:
    """Tag a version."""
    await store.objects.add_tags(caller.open(body.project_id), object_id, digest, body.tags, caller.user)
    return answer({})


@router.post("/objs/{object_id}/versions/{digest}/tags/remove", response_model=Empty)
async def remove_tags(object_id: str, digest: str, body: ObjRemoveTagsReq, caller: Writer, store: StoreDep) -> Response:
    """Take tags off a version."""
    await store.objects.remove_tags(caller.open(body.project_id), object_id, digest, body.tags)
    return answer({})


@router.put("/objs/{object_id}/aliases", response_model=Empty)
async def set_aliases(object_id: str, body: ObjSetAliasesReq, caller: Writer, store: StoreDep) -> Response:
    """Point aliases to a version, from wherever they pointed before."""
    project = caller.open(body.project_id)
    await store.objects.set_aliases(project, object_id, body.digest, body.aliases, caller.user)
    return answer({})


@router.post("/objs/{object_id}/aliases/remove", response_model=Empty)
async def remove_aliases(object_id: str, body: ObjRemoveAliasesReq, caller: Writer, store: StoreDep) -> Response:
    """Remove aliases of an object."""
    await store.objects.remove_aliases(caller.open(body.project_id), object_id, body.aliases)
    return answer({})


@router.get("/tags", response_model=TagsListRes)
async def tags(project_id: ProjectParameter, caller: Reader, store: StoreDep) -> Response:
    """Every tag of the project."""
    return answer({"tags": await store.objects.tags(caller.open(project_id))})


@router.get("/aliases", response_model=AliasesListRes)
async def aliases(project_id: ProjectParameter, caller: Reader, store: StoreDep) -> Response:
    """Every alias of the project."""
    return answer({"aliases": await store.objects.aliases(caller.open(project_id))})


def _read(body: bytes, caller: Caller) -> ObjSchemaForInsert:
    return validated(_CREATE, parse_body(body, caller, keep_non_finite=True)).obj


def prepare(obj: ObjSchemaForInsert, open_project: Callable[[str], str], user: str) -> NewVersion:
    """The version to store; raises Conflict when the client expected another digest.

    The schema of an AnnotationSpec is looked at by a process, which blocks.
    """
    project = open_project(obj.project_id)
    value, base_class, leaf_class = normalise(obj.val, obj.builtin_object_class or obj.set_base_object_class)
    canonical = digests.large_canonical_json(value)
    digest = digests.bytes_digest(canonical.encode())
    if obj.expected_digest and obj.expected_digest != digest:
        raise Conflict(
            f"Digest mismatch for obj {obj.object_id[:200]!r}: expected {obj.expected_digest[:100]}, got {digest}"
        )
    check_monitor(base_class, leaf_class, value)
    check_name(obj.object_id)
    val = _stored_text(value, canonical)
    return NewVersion(project, kind_of(value), obj.object_id, digest, val, base_class, leaf_class, user)


def _stored_text(value: Any, canonical: str) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # an integer beyond 64 bits
        return jsontext.dumps(json.loads(canonical))


def _filter(asked: ObjectVersionFilter) -> ObjectFilter:
    lists = {name: _bounded(name, getattr(asked, name) or ()) for name in _LISTS}
    return ObjectFilter(is_op=asked.is_op, latest_only=bool(asked.latest_only), **lists)


def _bounded(name: str, entries: Sequence[str]) -> Sequence[str]:
    if len(entries) > MAX_FILTER_LIST:
        raise InvalidRequest(f"filter.{name} has {len(entries)} entries, at most {MAX_FILTER_LIST} are allowed")
    return entries


_LISTS = ("object_ids", "base_object_classes", "exclude_base_object_classes", "leaf_object_classes", "tags", "aliases")


def _shown(project_id: str, version: ObjectVersion, with_size: bool) -> dict[str, Any]:
    return {
        "project_id": project_id,
        "object_id": version.object_id,
        "created_at": times.to_iso(version.created_at),
        "deleted_at": times.optional_iso(version.deleted_at),
        "digest": version.digest,
        "version_index": version.version_index,
        "is_latest": version.is_latest,
        "kind": version.kind,
        "base_object_class": version.base_object_class,
        "leaf_object_class": version.leaf_object_class,
        "val": {} if version.val is None else orjson.Fragment(version.val),
        "wb_user_id": version.user,
        "size_bytes": version.size if with_size else None,
        "tags": version.tags,
        "aliases": version.aliases,
    }
