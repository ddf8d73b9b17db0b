"""What the routes of Langfuse share: who asks about which project, conditions, pages counted from 1, names, templates.

A pair of keys says both. The secret key is an API key of heddle. The public key is a project (`entity/project`), or any
text: then the project is that of the API key, else the default of the server, else one that is named like the public
key.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest
from heddle.http.description import body_schema
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import Needs, answer
from heddle.http.state import ServerState
from heddle.settings import Settings
from heddle.trace.objects import MAX_NAME
from heddle.trace.otel.export import HEADER, ProjectResolver
from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.refs import DOTS

MISSING = (
    "No project: set the public key of the Langfuse client to the project (entity/project), use a secret key "
    "that is bound to one project, or start the server with --default-project"
)
_HEADER: Mapping[str, Any] = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "entity/project, where the public key does not name it",
    "schema": {"type": "string"},
}
API: Mapping[str, Any] = {"openapi_extra": {"parameters": [_HEADER]}}
"""What the description tells of every route here."""


def body_api(model: type[BaseModel]) -> Any:
    """The same for a route that decodes its body itself."""
    return lambda: {**API["openapi_extra"], **body_schema(model)()}


@dataclass(frozen=True, slots=True)
class KeyedProject:
    """The project that the keys of a client mean."""

    caller: Caller
    id: str
    """`entity/project`."""
    internal: str

    @classmethod
    def of(cls, request: Request, caller: Caller, settings: Settings) -> "KeyedProject":
        """The project of a request; raises InvalidRequest where none is named, Forbidden outside the key's binding."""
        found = resolver(request.headers, caller, settings).resolve({})
        if found is None:
            raise InvalidRequest(MISSING)
        return cls(caller, found, caller.open(found))


def resolver(headers: Mapping[str, str], caller: Caller, settings: Settings) -> ProjectResolver:
    """Finds the project of a request, and of the resources of spans that come with it."""
    given = ProjectResolver.of(headers, caller, settings)
    public = _public_key(headers)
    if given.header or public.count("/") == 1:
        return ProjectResolver(caller, given.header or public, given.default)
    of_key = caller.project or given.default or (given.of_entity(public) if public else "")
    # As the header: the name of a service must not lead its spans away from the scores about them.
    return ProjectResolver(caller, of_key, given.default)


def _public_key(headers: Mapping[str, str]) -> str:
    """The name of the Basic credentials; empty for a client that sends none."""
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "basic":
        return headers.get("x-langfuse-public-key", "").strip()
    try:
        return base64.b64decode(rest.strip(), validate=True).decode("utf-8", "replace").partition(":")[0].strip()
    except ValueError:
        return ""


class OfProject(Needs):
    """A dependency on something of the project that a client's keys mean, for callers with one scope.

    Which project that is, is asked for later: a body that is wrong is told first, as by all other routes.
    """

    def __init__(self, scope: Scope, make: Callable[[ServerState, Callable[[], KeyedProject]], Any]) -> None:
        super().__init__(scope)
        self._make = make

    async def __call__(self, request: Request) -> Any:
        """What was made; raises Forbidden without the scope."""
        caller = await super().__call__(request)
        state: ServerState = request.app.state.services
        return self._make(state, lambda: KeyedProject.of(request, caller, state.settings))


class OfProjectStore:
    """What is stored of one project, for one caller."""

    def __init__(self, state: ServerState, find_project: Callable[[], KeyedProject]) -> None:
        self._store = state.store
        self._records = state.records
        self._find_project = find_project

    @cached_property
    def project(self) -> KeyedProject:
        """The project; raises InvalidRequest where none is named, Forbidden outside the key's binding."""
        return self._find_project()


ReadProject = Annotated[KeyedProject, Depends(OfProject(Scope.READ, lambda _, find_project: find_project()))]


REFUSING: Mapping[str, Any] = {**API, "dependencies": KNOWN_PARAMETERS}
"""What routes have that offer some query parameters and no others."""


T = TypeVar("T")
Page = Annotated[int, Query(ge=1, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=100)]


@dataclass(slots=True)
class Conditions:
    """What is chosen: conditions of a query that all hold; None is no condition."""

    conditions: list[Json] = field(default_factory=list)

    def path(self, name: str) -> str:
        """Where the field of a name lies."""
        return name

    def compare(self, operator: str, name: str, value: Any) -> None:
        """A field compares so with a value."""
        if value is not None:
            self.conditions.append({operator: [{"$getField": self.path(name)}, {"$literal": value}]})

    def equals(self, name: str, value: Any) -> None:
        """A field has a value."""
        self.compare("$eq", name, value)

    def among(self, name: str, values: Sequence[Any] | None) -> None:
        """A field has one of some values."""
        if values is not None:
            literals = [{"$literal": value} for value in values]
            self.conditions.append({"$in": [{"$getField": self.path(name)}, literals]})

    def within(self, name: str, first: datetime | None, end: datetime | None) -> None:
        """An instant lies in `[first, end)`."""
        for operator, moment in (("$gte", first), ("$lt", end)):
            self.compare(operator, name, None if moment is None else times.to_iso(times.to_micros(moment)))

    def behind(self, name: str, cursor: str | None) -> None:
        """A row comes after that of a cursor, by an instant and then its id; raises InvalidRequest for no cursor."""
        if cursor is None:
            return
        try:
            at, _, row_id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(" ")
        except ValueError:
            at, row_id = "", ""
        instant = times.parse(at)
        if instant is None:
            raise InvalidRequest("cursor: not a cursor of this API", param="cursor")
        at = times.to_iso(instant)
        self.compare("$lte", name, at)
        same = {"$eq": [{"$getField": self.path(name)}, {"$literal": at}]}
        before = {"$gte": [{"$getField": self.path("id")}, {"$literal": row_id}]}
        self.conditions.append({"$not": [{"$and": [same, before]}]})


def meta(page: int, limit: int, total: int) -> Json:
    """What is said of a page."""
    return {"page": page, "limit": limit, "totalItems": total, "totalPages": -(-total // limit)}


def cut(items: Sequence[T], page: int, limit: int) -> Sequence[T]:
    """The items of a page."""
    return items[(page - 1) * limit : page * limit]


def to_cursor(at: str, row_id: str) -> str:
    """The cursor of the page behind a row, in a list by an instant and an id, the newest first."""
    return base64.urlsafe_b64encode(f"{at} {row_id}".encode()).decode().rstrip("=")


def answer_with(status: int, value: Json) -> Response:
    """An answer of a status of its own."""
    made = answer(value)
    made.status_code = status
    return made


_NO_OBJECT_NAME = re.compile(r"[^\w.-]")
_HASHED = 12
_VARIABLE = re.compile(r"\{\{(\w+)\}\}|[{}]")
_FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def object_id(name: str) -> str:
    """The object that a name means; names that no object can have (`folder/prompt`) get a suffix of their own."""
    safe = _NO_OBJECT_NAME.sub("-", name)
    if safe == name and 0 < len(name) <= MAX_NAME and name not in DOTS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASHED]
    return f"{safe[: MAX_NAME - _HASHED - 1]}-{digest}"


def to_template(text: str) -> str:
    """A text with `{{variable}}` as one with `{variable}`, in which single braces are doubled."""
    return _VARIABLE.sub(lambda match: f"{{{match[1]}}}" if match[1] else match[0] * 2, text)


def from_template(text: str) -> str:
    """The same backwards."""
    return _FIELD.sub(lambda match: f"{{{{{match[1]}}}}}" if match[1] else match[0][0], text)
