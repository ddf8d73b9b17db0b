"""Who is calling, what their key allows, and which projects it reaches."""

from dataclasses import dataclass
from enum import StrEnum

from heddle.errors import Forbidden
from heddle.wire import refs


class Scope(StrEnum):
    """What a key may do; `admin` includes `write`, `write` does not include `read`."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """A recognised user, the scopes of the key, and the entity or project that the key is bound to (None: all)."""

    user: str
    scopes: frozenset[Scope]
    entity: str | None = None
    project: str | None = None
    key_id: str | None = None

    def has(self, scope: Scope) -> bool:
        """True when the key carries the scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise Forbidden when the key does not carry the scope."""
        if not self.has(scope):
            held = ", ".join(sorted(self.scopes))
            raise Forbidden(f"This needs a key with scope '{scope}'; the key of user '{self.user}' has: {held}")

    def reaches(self, project_id: str) -> bool:
        """True when `entity/project` lies within the key's binding."""
        if self.project is not None:
            return project_id == self.project
        return self.entity is None or project_id.partition("/")[0] == self.entity

    def may_read(self, project_id: str) -> bool:
        """True when the caller can read `entity/project`."""
        return self.has(Scope.READ) and self.reaches(project_id)

    def open(self, project_id: str) -> str:
        """The internal id of `entity/project`; raises InvalidRequest for a bad form, Forbidden outside the binding."""
        internal = refs.internal_project(project_id)
        if not self.reaches(project_id):
            bound = self.project or f"entity '{self.entity}'"
            raise Forbidden(f"The key of user '{self.user}' is bound to {bound} and does not reach '{project_id}'")
        return internal


LOCAL = Caller(user="local", scopes=frozenset(Scope))
