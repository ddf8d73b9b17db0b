"""/api/public/v2/prompts: prompts that an application reads by name, version or label.

In heddle a name is an object, version n its version v(n-1), a label an alias. Texts are stored as templates of heddle
and Weave (`{name}` for `{{name}}`), so that either side reads what the other wrote.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from heddle.auth import Scope
from heddle.compat.langfuse.access import (
    API,
    REFUSING,
    Limit,
    OfProject,
    OfProjectStore,
    Page,
    answer_with,
    cut,
    from_template,
    meta,
    object_id,
    to_template,
)
from heddle.errors import InvalidRequest, NotFound
from heddle.http.routing import RequestModel, answer, group, off_loop
from heddle.store.control.object_labels import LATEST
from heddle.store.control.objects import ObjectFilter, ObjectVersion
from heddle.trace.objects import check_aliases, check_tags
from heddle.wire import times
from heddle.wire.batched import group_pairs
from heddle.wire.jsontypes import Json
from heddle.wire.records import VersionLabels, object_value

CLASSES = ("Prompt", "MessagesPrompt", "StringPrompt")
PRODUCTION = "production"
PLACEHOLDER = "placeholder"
_NUMBERED = re.compile(r"v\d+")
_DEPENDENCY = re.compile(r"@@@langfusePrompt:name=([^|@]+)\|(version|label)=([^|@]+)@@@")
_DEEPEST, _MOST_DEPENDENCIES, _MOST_CHARS = 5, 200, 4 << 20
"""Bounds of what a prompt refers to; the characters are those of all texts that are put into others."""


@dataclass(slots=True)
class _Resolution:
    """What is known of the prompts that one refers to, each of which is read once."""

    graph: Json
    used: dict[str, "Prompt"] = field(default_factory=dict)
    """By the text of the reference."""
    heights: dict[str, int] = field(default_factory=dict)
    """How deep they nest, by id."""
    chars: int = 0

    def count(self, chars: int) -> None:
        """Note a text that is put in; raises InvalidRequest."""
        self.chars += chars
        if self.chars > _MOST_CHARS:
            raise InvalidRequest(f"The prompts that this one refers to exceed {_MOST_CHARS} characters in total")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A version of a prompt as Langfuse knows it; `content` is a text or a list of messages."""

    row: ObjectVersion
    name: str
    content: str | list[Any]
    config: Any
    commit_message: str | None
    id: str

    @property
    def kind(self) -> str:
        """`text` or `chat`."""
        return "text" if isinstance(self.content, str) else "chat"

    @property
    def version(self) -> int:
        """Counted from 1."""
        return self.row.version_index + 1

    def describe(self, project_id: str, content: Any = None, graph: Json | None = None) -> Json:
        """The answer; `content` is what its dependencies made of it."""
        at = times.to_iso(self.row.created_at)
        return {
            "id": self.id,
            "projectId": project_id,
            "name": self.name,
            "version": self.version,
            "type": self.kind,
            "prompt": self.content if content is None else content,
            "config": self.config,
            "labels": sorted(self.row.aliases or ()),
            "tags": self.row.tags or [],
            "commitMessage": self.commit_message,
            "createdBy": self.row.user or "API",
            "createdAt": at,
            "updatedAt": at,
            "resolutionGraph": graph,
        }


def to_prompt(row: ObjectVersion) -> Prompt | None:
    """The prompt of a stored version; None for an object that is none."""
    value = orjson.loads(row.val or "null")
    if row.kind != "object" or not isinstance(value, dict):
        return None
    if not {row.base_object_class, row.leaf_object_class} & set(CLASSES):
        return None
    own = value.get("langfuse")
    own = own if isinstance(own, dict) else {}
    given: Any = value.get("content") if value.get("messages") is None else value["messages"]
    content: Any = own.get("prompt")
    if content is None:
        content = _map_texts(given, from_template)
    if not isinstance(content, (str, list)):
        return None
    name = value.get("name")
    shown = name if isinstance(name, str) and object_id(name) == row.object_id else row.object_id
    config = value.get("config")
    message = own.get("commitMessage")
    return Prompt(
        row, shown, content, {} if config is None else config, message, str(own.get("id") or f"{row.digest[:32]}")
    )


def _map_texts(content: Any, convert: Any) -> Any:
    """A text, or the messages of a chat, with every text converted."""
    if isinstance(content, str):
        return convert(content)
    if not isinstance(content, list):
        return content
    return [_map_message(message, convert) for message in content]


def _map_message(message: Any, convert: Any) -> Any:
    if not isinstance(message, dict) or message.get("type") == PLACEHOLDER:
        return message
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            {**part, "text": convert(part["text"])} if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]  # fmt: skip
        return {**message, "content": parts}
    return {**message, "content": convert(content)} if isinstance(content, str) else message


class StoredPrompts(OfProjectStore):
    """The prompts of one project, for one caller."""

    async def find(self, name: str, version: int | None = None, label: str | None = None) -> Prompt:
        """One version: by its number, else by a label, else the one in production; raises NotFound."""
        wanted = f"v{version - 1}" if version is not None else label or PRODUCTION
        said = f"with version {version}" if version is not None else f"with label '{wanted[:100]}'"
        found = None
        if version is not None or not _NUMBERED.fullmatch(wanted):
            found = await self._store.objects.read(self.project.internal, object_id(name), wanted, with_labels=True)
        if found is not None and found.deleted_at is None and (version is not None or wanted in (found.aliases or ())):
            prompt = to_prompt(found)
            if prompt is not None:
                return prompt
        raise NotFound(f"Prompt not found: '{name[:200]}' {said}")

    async def create(
        self,
        name: str,
        content: str | list[Any],
        config: Any,
        labels: Sequence[str],
        tags: Sequence[str] | None,
        commit_message: str | None,
    ) -> Prompt:
        """Store a version, which becomes the latest; raises InvalidRequest, and then nothing is stored."""
        place, project = object_id(name), self.project
        aliases = _checked(check_aliases, [label for label in labels if label != LATEST], "labels")
        wanted_tags = None if tags is None else _checked(check_tags, list(tags), "tags")
        before = await self._store.objects.read(project.internal, place, LATEST)
        if before is not None and before.deleted_at is None:
            prompt = to_prompt(before)
            if prompt is None:
                raise InvalidRequest(f"The name '{name[:200]}' is already used by an object that is not a prompt")
            if isinstance(prompt.content, str) != isinstance(content, str):
                raise InvalidRequest(
                    "Previous versions have different prompt type. Create a new prompt with a different name."
                )
        value = _value(name, content, config, commit_message)
        labelled = VersionLabels(aliases, wanted_tags)
        made = await self._records.publish(project.caller, project.id, place, value, labels=labelled)
        return await self.find(name, version=made.version_index + 1)

    async def add_labels(self, name: str, version: int, labels: Sequence[str]) -> Prompt:
        """Point labels to a version, from wherever they pointed; raises NotFound, InvalidRequest for a bad label."""
        if LATEST in labels:
            raise InvalidRequest("The label 'latest' always points to the newest version", param="newLabels")
        aliases = _checked(check_aliases, list(labels), "newLabels")
        found = (await self.find(name, version)).row
        project = self.project
        await self._store.objects.set_aliases(
            project.internal, found.object_id, found.digest, aliases, project.caller.user
        )
        return await self.find(name, version)

    async def delete(self, name: str, version: int | None, label: str | None) -> None:
        """Delete a version, that of a label, or all; raises NotFound."""
        found = (await self.find(name, version, label or (None if version is not None else LATEST))).row
        names = [found.digest] if version is not None or label else []
        await self._store.objects.delete(self.project.internal, found.object_id, names, self.project.caller.user)

    async def versions(self, name: str | None = None) -> list[ObjectVersion]:
        """All live versions with their labels, without their values."""
        wanted = ObjectFilter(
            base_object_classes=CLASSES, object_ids=() if name is None else (object_id(name),), is_op=False
        )
        return await self._store.objects.query(self.project.internal, wanted, with_labels=True)

    async def load(self, row: ObjectVersion) -> Prompt | None:
        """The prompt of a version without its value; None for one that is gone meanwhile."""
        found = await self._store.objects.read(self.project.internal, row.object_id, row.digest, with_labels=True)
        return None if found is None else to_prompt(found)

    async def resolve(self, prompt: Prompt) -> tuple[Any, Json | None]:
        """The content with the texts of the prompts that it refers to, and the graph of these; raises InvalidRequest.

        A reference is `@@@langfusePrompt:name=<name>|version=<n>@@@`, or `|label=<label>@@@`.
        """
        graph: Json = {"root": _node(prompt), "dependencies": {}, "resolvedPrompts": {}}
        content = await self._resolve(prompt, _Resolution(graph), (prompt.row.object_id,))
        return (content, graph) if graph["dependencies"] else (prompt.content, None)

    async def _resolve(self, prompt: Prompt, known: _Resolution, above: tuple[str, ...]) -> Any:
        size = len(prompt.row.val or "")
        matches = await off_loop(size, lambda: _dependencies(prompt.content))
        texts: dict[str, str] = {}
        for found in matches:
            if found[0] in texts:
                continue
            used = known.used.get(found[0]) or await self._used(found, known)
            if used.row.object_id in above or len(above) + known.heights.get(used.id, 0) > _DEEPEST:
                raise InvalidRequest(
                    f"Prompt '{used.name[:200]}' refers to itself, or is nested deeper than {_DEEPEST}"
                )
            known.graph["dependencies"].setdefault(prompt.id, []).append(_node(used))
            if used.id not in known.heights:
                text = await self._resolve(used, known, (*above, used.row.object_id))
                known.graph["resolvedPrompts"][used.id] = {**_node(used), "prompt": text, "resolvedPrompt": text}
            texts[found[0]] = known.graph["resolvedPrompts"][used.id]["prompt"]
        heights = (known.heights[used.id] for used in map(known.used.__getitem__, texts))
        known.heights[prompt.id] = 1 + max(heights, default=-1)
        if not texts:
            return prompt.content
        known.count(sum(len(texts[found[0]]) for found in matches))
        return await off_loop(
            size, lambda: _map_texts(prompt.content, lambda text: _DEPENDENCY.sub(lambda match: texts[match[0]], text))
        )

    async def _used(self, found: re.Match[str], known: _Resolution) -> Prompt:
        if len(known.used) >= _MOST_DEPENDENCIES:
            raise InvalidRequest(f"The prompt refers to more than {_MOST_DEPENDENCIES} others")
        name, by, value = found.groups()
        if by == "version" and not (value.isdecimal() and len(value) < 10):
            raise InvalidRequest(f"Prompt dependency {found[0][:300]} does not specify a version")
        try:
            used = await (self.find(name, version=int(value)) if by == "version" else self.find(name, label=value))
        except NotFound as error:
            raise InvalidRequest(f"Prompt dependency not found: {error.reason}") from None
        if not isinstance(used.content, str):
            raise InvalidRequest(f"Prompt dependency {name[:200]} is not a text prompt")
        known.count(len(used.content))
        known.used[found[0]] = used
        return used


def _dependencies(content: str | list[Any]) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []

    def note(text: str) -> str:
        found.extend(_DEPENDENCY.finditer(text))
        return text

    _map_texts(content, note)
    return found


def _node(prompt: Prompt) -> Json:
    return {"id": prompt.id, "name": prompt.name, "version": prompt.version}


def _value(name: str, content: str | list[Any], config: Any, commit_message: str | None) -> Json:
    """The object of a version. Its id makes each a version of its own, whatever came before."""
    kind, field = ("StringPrompt", "content") if isinstance(content, str) else ("MessagesPrompt", "messages")
    template = _map_texts(content, to_template)
    own: Json = {"id": times.uuid7()}
    if commit_message is not None:
        own["commitMessage"] = commit_message
    if _map_texts(template, from_template) != content:
        own["prompt"] = content
    shown = {"name": name, "description": None, field: template, "config": config, "langfuse": own}
    return object_value(kind, "Prompt", **shown)


def _checked(check: Any, values: list[str], field: str) -> list[str]:
    try:
        return list(check(values))
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}", param=field) from None


ReadPrompts = Annotated[StoredPrompts, Depends(OfProject(Scope.READ, StoredPrompts))]
WritePrompts = Annotated[StoredPrompts, Depends(OfProject(Scope.WRITE, StoredPrompts))]
DeletePrompts = Annotated[StoredPrompts, Depends(OfProject(Scope.DELETE, StoredPrompts))]


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

    found = group_pairs((row.object_id, row) for row in await prompts.versions(name) if matches(row))
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
            raise InvalidRequest("prompt: must be a list of messages for a chat prompt", param="prompt")
        return body.prompt
    if body.type == "text":
        raise InvalidRequest("prompt: must be a string for a text prompt", param="prompt")
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
