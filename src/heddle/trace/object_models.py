"""Bodies of the objects group."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator

from heddle.http import RequestModel, ResponseModel
from heddle.trace.calls.models import SortBy
from heddle.trace.object_rules import checked_aliases, checked_tags, not_too_many

Aliases = Annotated[list[str], AfterValidator(checked_aliases)]
Tags = Annotated[list[str], AfterValidator(checked_tags)]


class ObjSchemaForInsert(RequestModel):
    """A version to create; `set_base_object_class` is the old name of `builtin_object_class`."""

    project_id: str
    object_id: str
    val: Any
    builtin_object_class: str | None = None
    set_base_object_class: str | None = None
    expected_digest: str | None = None
    wb_user_id: str | None = None


class ObjCreateReq(RequestModel):
    """Body of /obj/create."""

    obj: ObjSchemaForInsert


class ObjCreateRes(ResponseModel):
    """Where the version is found."""

    digest: str
    object_id: str | None = None


class ObjReadReq(RequestModel):
    """Body of /obj/read; `digest` may also be `latest`, `v<N>` or an alias."""

    project_id: str
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


class ObjQueryReq(RequestModel):
    """Body of /objs/query."""

    project_id: str
    filter: ObjectVersionFilter | None = None
    limit: int | None = None
    offset: int | None = None
    sort_by: list[SortBy] | None = None
    metadata_only: bool | None = False
    include_storage_size: bool | None = False
    include_tags_and_aliases: bool | None = False


class ObjQueryRes(ResponseModel):
    """The versions."""

    objs: list[ObjSchema]


class ObjDeleteReq(RequestModel):
    """Body of /obj/delete; without digests all versions."""

    project_id: str
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


class ObjAddTagsReq(RequestModel):
    """Body of PUT .../tags."""

    project_id: str
    tags: Tags


class ObjRemoveTagsReq(RequestModel):
    """Body of .../tags/remove; names are not checked, so that anything that is there can be removed."""

    project_id: str
    tags: Annotated[list[str], AfterValidator(not_too_many)]


class ObjSetAliasesReq(RequestModel):
    """Body of PUT .../aliases."""

    project_id: str
    digest: str
    aliases: Aliases


class ObjRemoveAliasesReq(RequestModel):
    """Body of .../aliases/remove."""

    project_id: str
    aliases: Aliases


class TagsListRes(ResponseModel):
    """Every tag of the project."""

    tags: list[str]


class AliasesListRes(ResponseModel):
    """Every alias of the project."""

    aliases: list[str]
