"""The project that telemetry belongs to: one answer for traces, logs and metrics, over HTTP and gRPC."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.settings import Settings
from heddle.trace.otel.signals import ResourceItems
from heddle.wire.jsontypes import Json

HEADER = "project_id"
ENTITY, PROJECT = "wandb.entity", "wandb.project"
"""Attributes of a resource that name its project together."""
PROJECT_NAMES = (PROJECT, "openinference.project.name")
"""Attributes of a resource that name a project of the caller's entity, or `entity/project`."""
SERVICE_NAME = "service.name"
UNNAMED_SERVICE = "unknown_service"
"""What SDKs call a service that was given no name; some add `:` and the program."""
MISSING = (
    f"No project: send the header '{HEADER}: entity/project' or the resource attributes {ENTITY} and {PROJECT}, "
    "use a key that is bound to one project, set OTEL_SERVICE_NAME, or give the server --default-project"
)
T = TypeVar("T")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f:/]+")
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class ProjectResolver:
    """Finds the projects of one export's resources; `header` and `default` are `entity/project`, or empty."""

    caller: Caller
    header: str = ""
    default: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str], caller: Caller, settings: Settings) -> "ProjectResolver":
        """The resolver of a request."""
        default = "" if settings.default_project == "none" else settings.default_project
        return cls(caller, headers.get(HEADER, "").strip(), default)

    def resolve(self, resource: Json) -> str | None:
        """The `entity/project` of a resource; None where nothing names one.

        The first of: the pair of attributes that names it wholly, the header of the request, an attribute that names a
        project alone, the project of the key, the name of the service, the default of the server, and the name that an
        SDK gives to a service without one.
        """
        entity, project = _text(resource, ENTITY), _text(resource, PROJECT)
        if entity and project:
            return f"{entity}/{project}"
        if self.header:
            return self.header
        for key in PROJECT_NAMES:
            if name := _text(resource, key):
                return name if name.count("/") == 1 else self.of_entity(name)
        if self.caller.project is not None:
            return self.caller.project
        service = _text(resource, SERVICE_NAME)
        is_named = bool(service) and service.partition(":")[0] != UNNAMED_SERVICE
        if is_named:
            return self.of_entity(service)
        if self.default:
            return self.default
        return self.of_entity(UNNAMED_SERVICE) if service else None

    def route(self, groups: Iterable[ResourceItems[T]]) -> Iterator[tuple[ResourceItems[T], str | None]]:
        """What resources report, with the internal ids of their projects; None where nothing names one.

        Raises Forbidden first, for a project that the key does not reach, and InvalidRequest last, where none has one.
        """
        named = [(group, self.resolve(group.resource.attributes)) for group in groups]
        opened = [(group, self.caller.open(project_id) if project_id else None) for group, project_id in named]
        yield from opened
        if opened and not any(project for _, project in opened):
            raise InvalidRequest(MISSING)

    def of_entity(self, name: str) -> str:
        """A project of the caller's entity; what an id cannot hold is replaced."""
        safe = _UNSAFE.sub("-", name)[:_MAX_NAME].strip("- ") or UNNAMED_SERVICE
        return f"{self.caller.default_entity}/{safe}"


def _text(resource: Json, key: str) -> str:
    value: Any = resource.get(key)
    return value.strip() if isinstance(value, str) else ""
