"""API keys as they are stored: what they allow and where, and the hash that they are found by."""

import hashlib
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, NamedTuple

from heddle.errors import InvalidRequest
from heddle.wire import refs

ADDRESS: ContextVar[str] = ContextVar("address", default="")
"""The address of the client whose request is at work, for the audit log; empty for what the server does by itself."""


class Scope(StrEnum):
    """What a route asks of its caller; `admin` includes the others."""

    READ = "read"
    ANNOTATE = "annotate"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"


ROLES = {
    "viewer": frozenset((Scope.READ,)),
    "annotator": frozenset((Scope.READ, Scope.ANNOTATE)),
    "editor": frozenset((Scope.READ, Scope.ANNOTATE, Scope.WRITE)),
    "admin": frozenset(Scope),
}
"""The scopes of each role, from the least to the most."""

_WORDS = ROLES | {
    "read": frozenset((Scope.READ,)),
    "annotate": frozenset((Scope.ANNOTATE,)),
    "write": frozenset((Scope.ANNOTATE, Scope.WRITE)),
    "delete": frozenset((Scope.DELETE,)),
}
"""What the words mean that a key can be given."""


def read_scopes(words: Iterable[str]) -> frozenset[Scope]:
    """The scopes of words (roles or scopes); raises InvalidRequest for none and for an unknown one."""
    given = list(words)
    unknown = next((word for word in given if word not in _WORDS), None)
    if unknown is not None or not given:
        raise InvalidRequest(f"Invalid role {(unknown or '')[:100]!r}; expected one of {', '.join(_WORDS)}")
    return frozenset[Scope]().union(*(_WORDS[word] for word in given))


def show_scopes(scopes: frozenset[Scope]) -> str:
    """Scopes as the highest role and what they have beyond it: `editor+delete`; empty for none."""
    words, left = list[str](), scopes
    for word in ("admin", "editor", "annotator", "viewer", "write", "annotate", "delete"):
        if left and _WORDS[word] & left and _WORDS[word] <= scopes:
            words.append(word)
            left -= _WORDS[word]
    return "+".join(words)


class Grant(NamedTuple):
    """What a key may do, and where: in `entity/project`, in all projects of `entity`, or everywhere (empty)."""

    reach: str
    scopes: frozenset[Scope]

    @classmethod
    def parse(cls, text: str) -> "Grant":
        """A grant of its text: `editor`, `viewer:team`, `editor+delete:team/website`; raises InvalidRequest."""
        words, _, reach = text.partition(":")
        if reach:
            refs.internal_project(reach if "/" in reach else f"{reach}/project")
        return cls(reach, read_scopes(words.split("+")))

    def __str__(self) -> str:
        role = show_scopes(self.scopes)
        return f"{role}:{self.reach}" if self.reach else role

    def contains(self, other: "Grant") -> bool:
        """True when it allows all that the other one does, wherever that does."""
        return self.is_around(other.reach) and (Scope.ADMIN in self.scopes or other.scopes <= self.scopes)

    def is_around(self, reach: str) -> bool:
        """True when it counts wherever another one does that has this reach."""
        return self.reach in ("", reach.partition("/")[0], reach)


def merge_grants(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """One grant for each place, in order of the places."""
    found = dict[str, frozenset[Scope]]()
    for reach, scopes in grants:
        found[reach] = found.get(reach, frozenset[Scope]()) | scopes
    return tuple(Grant(*item) for item in sorted(found.items()))


def read_grants(told: Iterable[Sequence[Any]]) -> tuple[Grant, ...]:
    """The grants of what a job keeps of its caller: pairs of a reach and the scopes there."""
    return tuple(Grant(reach, frozenset(map(Scope, words))) for reach, words in told)


class Authority(NamedTuple):
    """What work in the background was started with: a key, by its id, and what that allowed then."""

    key_id: str
    grants: tuple[Grant, ...] = ()

    def is_within(self, grants: Iterable[Grant]) -> bool:
        """True when all that the key allowed then is allowed by these grants."""
        return all(
            Grant(reach, frozenset[Scope]().union(*(now.scopes for now in grants if now.is_around(reach)))).contains(
                Grant(reach, scopes)
            )
            for reach, scopes in self.grants
        )


def hash_key(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
