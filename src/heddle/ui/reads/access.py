"""Who may do what: keys and people within the caller's own reach, made, rotated and revoked."""

from typing import Any

from fastapi import Response
from pydantic import Field

from heddle.auth import Caller, Grant, Scope
from heddle.errors import Forbidden, NotFound
from heddle.http.routing import Admin, AuthenticatorDep, RequestModel, StoreDep, answer, group
from heddle.store.control.keys import KeyRow
from heddle.wire import times
from heddle.wire.keys import ROLES, read_scopes

router = group("Pages")


class KeyReq(RequestModel):
    """A key to make: `roles` such as `editor:team/website`; or scopes, for one entity, one project, or everywhere."""

    user: str = Field(max_length=256)
    roles: list[str] = Field(default=[], max_length=100)
    scopes: list[str] = Field(default=[], max_length=100)
    entity: str | None = None
    project: str | None = None
    expires: str | None = None
    """After which time, such as 90d; null for never."""

    def grants(self) -> list[Grant]:
        """What the key is to allow; raises InvalidRequest."""
        found = [Grant.parse(role) for role in self.roles]
        if self.scopes or not found:
            place = Grant.parse(f"viewer:{self.project or self.entity}").reach if self.project or self.entity else ""
            found.append(Grant(place, read_scopes(self.scopes)))
        return found


class RotateReq(RequestModel):
    """How long the old secret counts, and how long the new one (null: as long as the old one did)."""

    overlap: str = "0s"
    expires: str | None = None


@router.get("/_ui/api/keys", include_in_schema=False)
async def keys(caller: Admin, store: StoreDep) -> Response:
    """Keys and people that reach what the caller administers, newest first; what the words of roles mean."""
    now = times.now()
    used = await store.sessions.counts(now)
    shown = [_describe(row, used.get(row.id, 0), caller, now) for row in reversed(await store.keys.all())]
    roles = {role: sorted(scopes) for role, scopes in ROLES.items()}
    return answer({"keys": [row for row in shown if row["roles"]], "roles": roles})


@router.post("/_ui/api/keys", include_in_schema=False)
async def create_key(body: KeyReq, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """Make a key within the caller's own reach; its secret is answered this once."""
    if not authenticator.needs_key:
        # Whoever is on this machine would otherwise keep a key for the time when one is needed.
        raise Forbidden("Nobody is asked for a key here, so keys are made on the command line: heddle keys create")
    grants = body.grants()
    beyond = next((grant for grant in grants if not _administers(caller, grant)), None)
    if beyond is not None:
        raise Forbidden(f"Your key administers {_administered(caller)}; '{beyond}' goes beyond that")
    expires = None if body.expires is None else times.read_period(body.expires)
    key, row = await store.keys.create(body.user.strip(), grants, caller.user, expires)
    return answer({"key": key, **_describe(row, 0, caller, times.now())})


@router.post("/_ui/api/keys/{key_id}/rotate", include_in_schema=False)
async def rotate_key(
    key_id: str, body: RotateReq, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep
) -> Response:
    """Give a key a new secret, which is answered this once."""
    row = await _find(key_id, caller, store)
    expires = None if body.expires is None else times.read_period(body.expires)
    key, row = await store.keys.rotate(row.id, times.read_period(body.overlap), expires, caller.user)
    authenticator.forget()
    return answer({"key": key, **_describe(row, 0, caller, times.now())})


@router.post("/_ui/api/keys/{key_id}/restore", include_in_schema=False)
async def restore_person(key_id: str, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """Let somebody sign in again."""
    await store.keys.restore((await _find(key_id, caller, store)).id, caller.user)
    authenticator.forget()
    return answer({})


@router.delete("/_ui/api/keys/{key_id}", include_in_schema=False)
async def revoke_key(key_id: str, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """Make a key useless from now on, or keep somebody out; sessions end."""
    row = await _find(key_id, caller, store)
    await store.keys.revoke(row.id, caller.user)
    await store.sessions.end_of_key(row.id)
    authenticator.forget()
    return answer({})


async def _find(key_id: str, caller: Caller, store: StoreDep) -> KeyRow:
    """A key all of which the caller administers; raises NotFound for others."""
    row = await store.keys.read(key_id)
    if row is None or not all(_administers(caller, grant) for grant in row.grants):
        raise NotFound(f"There is no key {key_id[:100]!r} within reach of yours")
    return row


def _administers(caller: Caller, grant: Grant) -> bool:
    """True when what a grant allows is within what the caller administers."""
    return any(Scope.ADMIN in own.scopes and own.contains(grant) for own in caller.grants)


def _administered(caller: Caller) -> str:
    return ", ".join(own.reach or "everything" for own in caller.grants if Scope.ADMIN in own.scopes)


def _describe(row: KeyRow, sessions: int, caller: Caller, now: int) -> dict[str, Any]:
    """A key; its roles are those in what the caller administers."""
    roles = [str(grant) for grant in row.grants if _administers(caller, grant)]
    instants = ("created_at", "last_used_at", "revoked_at", "expires_at", "rotated_at")
    told = {name: times.optional_iso(getattr(row, name)) for name in instants}
    overlaps = row.previous_until is not None and row.previous_until > now
    return told | {
        "id": row.id,
        "user": row.user,
        "is_person": row.is_person,
        "roles": roles,
        "is_whole": len(roles) == len(row.grants),
        "created_by": row.created_by,
        "last_used_from": row.last_used_from,
        "previous_until": times.optional_iso(row.previous_until) if overlaps else None,
        "problem": row.problem(now),
        "sessions": sessions,
        "is_own": row.id == caller.key_id,
    }
