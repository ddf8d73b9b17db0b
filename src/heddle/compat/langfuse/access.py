"""Who asks through a client of Langfuse, and about which project: its pair of keys says both.

The secret key is an API key of heddle. The public key is a project (`entity/project`), or any text: then the project is
that of the API key, else the default of the server, else one that is named like the public key.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest
from heddle.http.routing import Needs, body_schema
from heddle.http.state import ServerState
from heddle.settings import Settings
from heddle.trace.otel.projects import HEADER, ProjectResolver

MISSING = (
    "No project: the public key of the Langfuse client is the project (entity/project); or use a secret key that is "
    "bound to one project, or give the server --default-project"
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
    except binascii.Error:
        return ""


class OfProject(Needs):
    """A dependency on something of the project that a client's keys mean, for callers with one scope."""

    def __init__(self, scope: Scope, make: Callable[[ServerState, KeyedProject], Any]) -> None:
        super().__init__(scope)
        self._make = make

    async def __call__(self, request: Request) -> Any:
        """What was made; raises Forbidden without the scope, InvalidRequest where no project is named."""
        caller = await super().__call__(request)
        state: ServerState = request.app.state.services
        return self._make(state, KeyedProject.of(request, caller, state.settings))


ReadProject = Annotated[KeyedProject, Depends(OfProject(Scope.READ, lambda _, project: project))]


async def refuse_others(request: Request) -> None:
    """Raise InvalidRequest for a query parameter that the route lacks: ignored, it would change the answer."""
    known = list(dict.fromkeys(_query_names(request.scope["route"].dependant)))
    for name in request.query_params:
        if name not in known:
            raise InvalidRequest(
                f"The query parameter {name[:100]!r} is not offered here; offered are {', '.join(known)}", param=name
            )


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


REFUSING: Mapping[str, Any] = {**API, "dependencies": [Depends(refuse_others)]}
"""What routes have that offer some query parameters and no others."""
