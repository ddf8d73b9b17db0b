"""/api/public/v2/prompts: prompts that an application reads by name, version or label."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from heddle.auth import Scope
from heddle.compat.langfuse.access import API, REFUSING
from heddle.compat.langfuse.pages import Limit, Page, answer_with, cut, meta
from heddle.compat.langfuse.stored_prompts import PLACEHOLDER, DeletePrompts, Prompt, ReadPrompts, WritePrompts
from heddle.errors import InvalidRequest
from heddle.http.routing import RequestModel, answer, group
from heddle.store.control.objects import ObjectVersion
from heddle.wire import times
from heddle.wire.jsontypes import Json

router: APIRouter = group("Langfuse")
Version = Annotated[int | None, Query(ge=1, le=2**31)]
Label = Annotated[str | None, Query()]


class Message(RequestModel):
    """A message of a chat prompt, or a placeholder for messages (`type: placeholder` and a name)."""

    role: str | None = None
    content: Any = None
    type: str | None = None
    name: str | None = None


class CreatePrompt(RequestModel):
    """A version of a prompt; text without a type."""

    name: str = Field(min_length=1, max_length=1000)
    prompt: str | list[Message]
    type: Literal["text", "chat"] | None = None
    config: Any = None
    labels: list[str] = Field(default_factory=list)
    tags: list[str] | None = None
    commit_message: str | None = Field(default=None, alias="commitMessage", max_length=500)


class UpdatePrompt(RequestModel):
    """Labels that a version gets."""

    new_labels: list[str] = Field(alias="newLabels")


@router.get("/api/public/v2/prompts", **REFUSING)
async def list_prompts(
    prompts: ReadPrompts,
    name: str | None = None,
    label: str | None = None,
    tag: str | None = None,
    page: Page = 1,
    limit: Limit = 50,
    from_updated_at: Annotated[datetime | None, Query(alias="fromUpdatedAt")] = None,
    to_updated_at: Annotated[datetime | None, Query(alias="toUpdatedAt")] = None,
) -> Response:
    """Prompts by name, with those of their versions that match."""
    first = times.to_micros(from_updated_at) if from_updated_at else None
    last = times.to_micros(to_updated_at) if to_updated_at else None

    def matches(row: ObjectVersion) -> bool:
        if label is not None and label not in (row.aliases or ()):
            return False
        if tag is not None and tag not in (row.tags or ()):
            return False
        return (first is None or row.created_at >= first) and (last is None or row.created_at < last)

    found: dict[str, list[ObjectVersion]] = {}
    for row in await prompts.versions(name):
        if matches(row):
            found.setdefault(row.object_id, []).append(row)
    chosen = [found[key] for key in sorted(found)]
    data = [
        _meta(versions, last_one)
        for versions in cut(chosen, page, limit)
        if (last_one := await prompts.load(max(versions, key=lambda row: row.version_index))) is not None
    ]
    return answer({"data": data, "meta": meta(page, limit, len(chosen))})


@router.post("/api/public/v2/prompts", status_code=201, **API)
async def create_prompt(body: CreatePrompt, prompts: WritePrompts) -> Response:
    """Store a version of a prompt."""
    made = await prompts.create(body.name, _content(body), body.config, body.labels, body.tags, body.commit_message)
    return answer_with(201, made.describe(prompts.project.id))


@router.patch("/api/public/v2/prompts/{name:path}/versions/{version}", **API)
async def update_prompt(name: str, version: int, body: UpdatePrompt, prompts: WritePrompts) -> Response:
    """Give a version labels, which other versions lose."""
    prompts.project.caller.require(Scope.READ).open(prompts.project.id)
    changed = await prompts.add_labels(name, version, body.new_labels)
    return answer(changed.describe(prompts.project.id))


@router.get("/api/public/v2/prompts/{name:path}", **REFUSING)
async def read_prompt(
    name: str, prompts: ReadPrompts, version: Version = None, label: Label = None, resolve: bool = True
) -> Response:
    """One version: by number or label, else the one in production; with `resolve` other prompts' texts are put in."""
    _refuse_both(version, label)
    found = await prompts.find(name, version, label)
    content, graph = await prompts.resolve(found) if resolve else (found.content, None)
    return answer(found.describe(prompts.project.id, content, graph))


@router.delete("/api/public/v2/prompts/{name:path}", status_code=204, **REFUSING)
async def delete_prompt(name: str, prompts: DeletePrompts, version: Version = None, label: Label = None) -> Response:
    """Delete one version, that of a label, or all versions."""
    _refuse_both(version, label)
    await prompts.delete(name, version, label)
    return Response(status_code=204)


def _refuse_both(version: int | None, label: str | None) -> None:
    if version is not None and label is not None:
        raise InvalidRequest("Cannot specify both version and label", param="label")


def _content(body: CreatePrompt) -> str | list[Any]:
    """The content as it is stored; raises InvalidRequest where type and content do not fit."""
    if isinstance(body.prompt, str):
        if body.type == "chat":
            raise InvalidRequest("prompt: a chat prompt is a list of messages", param="prompt")
        return body.prompt
    if body.type == "text":
        raise InvalidRequest("prompt: a text prompt is a text", param="prompt")
    for place, message in enumerate(body.prompt):
        is_placeholder = message.type == PLACEHOLDER
        if not (message.name if is_placeholder else message.role):
            needed = "a name" if is_placeholder else "a role"
            raise InvalidRequest(f"prompt.{place}: the message has no {needed[2:]}", param="prompt")
    return [message.model_dump(exclude_none=True) for message in body.prompt]


def _meta(versions: Sequence[ObjectVersion], last: Prompt) -> Json:
    labels = {label for row in versions for label in row.aliases or ()}
    return {
        "name": last.name,
        "type": last.kind,
        "versions": sorted(row.version_index + 1 for row in versions),
        "labels": sorted(labels),
        "tags": last.row.tags or [],
        "lastUpdatedAt": times.to_iso(max(row.created_at for row in versions)),
        "lastConfig": last.config,
    }
