"""Objects: versioned values under a name, with tags and aliases; their routes and rules."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, TypeAdapter

from heddle.auth import Caller
from heddle.errors import Conflict, InvalidField, InvalidRequest, ValidationFailed
from heddle.http.description import body_schema
from heddle.http.parameters import not_negative, page_limit
from heddle.http.routing import (
    Deleter,
    Empty,
    ProjectReq,
    Reader,
    RequestModel,
    ResponseModel,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    describe_row,
    group,
    hot,
    local,
    off_loop,
    parse_body,
    validate,
)
from heddle.ipc import json_schemas
from heddle.store.control.objects import NewVersion, ObjectFilter, ObjectVersion, require_live
from heddle.trace.builtin_classes import ANNOTATION_SPEC, kind_of, normalise
from heddle.trace.calls.models import PageReq
from heddle.trace.rows import answer_slices
from heddle.wire import jsontext, query, refs
from heddle.wire.call_fields import resolve_field
from heddle.wire.jsontypes import Json

MAX_NAME, MAX_ALIAS, MAX_TAG = 128, 128, 256
MAX_LABELS = 1000
_SORTABLE = ("object_id", "created_at")
"""Other fields of an order do not count."""
_BAD_IN_NAME = re.compile(r"[^\w.-]")
_TAG = re.compile(r"[-\w]+( [-\w]+)*")
_RESERVED_ALIAS = re.compile(r"v\d+")
_MONITORS = frozenset(("Monitor", "ClassifierMonitor"))
_AGENT_SPAN_OPS = frozenset(("weave.genai.turn_ended",))


def check_name(name: str) -> None:
    """Raise InvalidField for characters that a name cannot have, InvalidRequest for one that is too long."""
    if bad := sorted(set(_BAD_IN_NAME.findall(name))):
        raise InvalidField(
            f"Invalid object name: {name[:200]}. Contains invalid characters: {bad[:20]}. "
            "Letters, digits, '_', '.' and '-' are allowed."
        )
    if not name or name in refs.DOTS:
        raise InvalidField(f"Object name cannot be {repr(name) if name else 'empty'}")
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"Object name is longer than {MAX_NAME} characters: {name[:200]}")


def check_count(labels: list[str]) -> list[str]:
    """The labels, each once; raises ValueError for too many."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"at most {MAX_LABELS} names are allowed")
    return list(dict.fromkeys(labels))


def check_tags(tags: list[str]) -> list[str]:
    """The tags, each once; raises ValueError for a bad one."""
    for tag in tags:
        if not tag:
            raise ValueError("tag name must not be empty")
        if len(tag) > MAX_TAG:
            raise ValueError(f"tag name must be at most {MAX_TAG} characters")
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"tag name {tag!r} is invalid: only alphanumeric characters, hyphens, underscores, "
                "and single spaces between words are allowed"
            )
    return check_count(tags)


def check_aliases(aliases: list[str]) -> list[str]:
    """The aliases, each once; raises ValueError for a bad one."""
    for alias in aliases:
        if not alias.strip():
            raise ValueError("alias name must not be empty or blank")
        if len(alias) > MAX_ALIAS:
            raise ValueError(f"alias name must be at most {MAX_ALIAS} characters")
        if bad := [character for character in "/:" if character in alias]:
            raise ValueError(f"alias name cannot contain character {bad[0]!r}")
        if alias == "latest" or _RESERVED_ALIAS.fullmatch(alias):
            raise ValueError(f"alias name {alias!r} is reserved")
        if refs.looks_like_digest(alias):
            raise ValueError(f"alias name {alias!r} looks like a digest; choose another name")
    return check_count(aliases)


def check_monitor(base_class: str | None, leaf_class: str | None, value: Any) -> None:
    """Raise InvalidField or InvalidRequest when a monitor's query uses fields that calls do not have.

    A query that is none is left alone, as is the one of a monitor of agent spans.
    """
    if not _MONITORS.intersection((base_class, leaf_class)) or not isinstance(value, dict):
        return
    ops = value.get("op_names")
    if isinstance(ops, list) and any(op in _AGENT_SPAN_OPS for op in ops if isinstance(op, str)):
        return
    try:
        parsed = query.parse_stored(value.get("query"))
    except ValidationFailed:
        return
    for field in query.fields(parsed):
        resolve_field(field)


Aliases = Annotated[list[str], AfterValidator(check_aliases)]
Tags = Annotated[list[str], AfterValidator(check_tags)]


class ObjSchemaForInsert(ProjectReq):
    """A version to create; `set_base_object_class` is the old name of `builtin_object_class`.

    Beyond the published interface, `after` is the digest that `latest` must name until then (empty: none).
    """

    object_id: str
    val: Any
    builtin_object_class: str | None = None
    set_base_object_class: str | None = None
    expected_digest: str | None = None
    after: str | None = None
    wb_user_id: str | None = None


class ObjCreateReq(RequestModel):
    """Body of /obj/create."""

    obj: ObjSchemaForInsert


class ObjCreateRes(ResponseModel):
    """Where the version is found."""

    digest: str
    object_id: str | None = None


class ObjReadReq(ProjectReq):
    """Body of /obj/read; `digest` may also be `latest`, `v<N>` or an alias."""

    object_id: str
    digest: str
    metadata_only: bool | None = False
    include_tags_and_aliases: bool | None = False


class ObjSchema(ResponseModel):
    """A version."""

    project_id: str
    object_id: str
    created_at: datetime
    deleted_at: datetime | None = None
    digest: str
    version_index: int
    is_latest: int
    kind: str
    base_object_class: str | None
    leaf_object_class: str | None = None
    val: Any
    wb_user_id: str | None = None
    size_bytes: int | None = None
    tags: list[str] | None = None
    aliases: list[str] | None = None


class ObjReadRes(ResponseModel):
    """The version."""

    obj: ObjSchema


class ObjectVersionFilter(RequestModel):
    """Which versions: all conditions together, any entry of a list."""

    base_object_classes: list[str] | None = None
    exclude_base_object_classes: list[str] | None = None
    leaf_object_classes: list[str] | None = None
    object_ids: list[str] | None = None
    is_op: bool | None = None
    latest_only: bool | None = None
    tags: list[str] | None = None
    aliases: list[str] | None = None


class ObjQueryReq(PageReq):
    """Body of /objs/query."""

    filter: ObjectVersionFilter | None = None
    metadata_only: bool | None = False
    include_storage_size: bool | None = False
    include_tags_and_aliases: bool | None = False


class ObjQueryRes(ResponseModel):
    """The versions."""

    objs: list[ObjSchema]


class ObjDeleteReq(ProjectReq, extra="forbid"):
    """Body of /obj/delete; without digests all versions."""

    object_id: str
    digests: list[str] | None = None


class DeletedVersion(ResponseModel):
    """A version that was deleted."""

    digest: str
    base_object_class: str | None = None
    leaf_object_class: str | None = None


class ObjDeleteRes(ResponseModel):
    """What was deleted."""

    num_deleted: int
    deleted_versions: list[DeletedVersion] | None = None


class ObjAddTagsReq(ProjectReq):
    """Body of PUT .../tags."""

    tags: Tags


class ObjRemoveTagsReq(ProjectReq):
    """Body of .../tags/remove; names are not checked, so that anything that is there can be removed."""

    tags: Annotated[list[str], AfterValidator(check_count)]


class ObjSetAliasesReq(ProjectReq):
    """Body of PUT .../aliases."""

    digest: str
    aliases: Aliases


class ObjRemoveAliasesReq(ProjectReq):
    """Body of .../aliases/remove."""

    aliases: Aliases


class TagsListRes(ResponseModel):
    """Every tag of the project."""

    tags: list[str]


class AliasesListRes(ResponseModel):
    """Every alias of the project."""

    aliases: list[str]


MAX_DELETED = 100
MAX_FILTER_LIST = 5000
_CREATE: TypeAdapter[ObjCreateReq] = TypeAdapter(ObjCreateReq)
router: APIRouter = group("Objects")
ProjectParameter = Annotated[str, Query()]


@router.post("/obj/create", response_model=ObjCreateRes, openapi_extra=body_schema(ObjCreateReq))
@hot
async def obj_create(request: Request, caller: Writer, store: StoreDep) -> Response:
    """Store a version of an object; the same value again is the same version, and becomes the latest.

    Answers 409 where `after` is no longer the latest.
    """
    body = await request.body()
    obj = await off_loop(len(body), lambda: _parse_object(body, caller))
    if ANNOTATION_SPEC in (obj.builtin_object_class, obj.set_base_object_class):
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
    return answer({"obj": _describe(body.project_id, require_live(found, name), with_size=False)})


@router.post("/objs/query", response_model=ObjQueryRes)
@local
async def objs_query(body: ObjQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """Live versions of objects."""
    pages = store.objects.pages(
        caller.open(body.project_id),
        _filter(body.filter or ObjectVersionFilter()),
        sort=[(term.field, term.direction == "desc") for term in body.sort_by or () if term.field in _SORTABLE],
        limit=page_limit(settings, not_negative(body.limit, "limit")),
        offset=not_negative(body.offset, "offset") or 0,
        with_values=not body.metadata_only,
        with_labels=bool(body.include_tags_and_aliases),
    )
    with_size = bool(body.include_storage_size)
    shown = ([_describe(body.project_id, version, with_size) for version in page] async for page in pages)
    return await answer_slices("objs", shown)


@router.post("/obj/delete", response_model=ObjDeleteRes)
async def obj_delete(body: ObjDeleteReq, caller: Deleter, store: StoreDep) -> Response:
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


def _parse_object(body: bytes, caller: Caller) -> ObjSchemaForInsert:
    return validate(_CREATE, parse_body(body, caller, keep_non_finite=True)).obj


def prepare(obj: ObjSchemaForInsert, open_project: Callable[[str], str], user: str) -> NewVersion:
    """The version to store; raises Conflict when the client expected another digest.

    The schema of an AnnotationSpec is looked at by a process, which blocks.
    """
    project = open_project(obj.project_id)
    value, base_class, leaf_class = normalise(obj.val, obj.builtin_object_class or obj.set_base_object_class)
    canonical = refs.large_canonical_json(value)
    digest = refs.bytes_digest(canonical.encode())
    if obj.expected_digest and obj.expected_digest != digest:
        raise Conflict(
            f"Digest mismatch for obj {obj.object_id[:200]!r}: expected {obj.expected_digest[:100]}, got {digest}"
        )
    check_monitor(base_class, leaf_class, value)
    check_name(obj.object_id)
    val = _stored_text(value, canonical)
    kind, size = kind_of(value), len(canonical)
    return NewVersion(project, kind, obj.object_id, digest, val, size, base_class, leaf_class, user, obj.after)


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


def _describe(project_id: str, version: ObjectVersion, with_size: bool) -> Json:
    return describe_row(
        ObjSchema,
        version,
        project_id=project_id,
        val={} if version.val is None else orjson.Fragment(version.val),
        wb_user_id=version.user,
        size_bytes=version.size if with_size else None,
    )
