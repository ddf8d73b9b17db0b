"""What the page of settings shows and does: the server and its storage, and who may do what: keys and people."""

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Response
from pydantic import Field

import heddle
from heddle.auth import Caller, Grant, Scope
from heddle.errors import Forbidden, NotFound
from heddle.http.own_bodies import OwnBody
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import Admin, AuthenticatorDep, Reader, Service, SettingsDep, StoreDep, answer, group
from heddle.inference.providers import read_providers
from heddle.settings import ADDRESSES, PLACES, TABLE, Settings
from heddle.store.control.keys import KeyRow
from heddle.store.data_folder import BackupState, Measured
from heddle.wire import times
from heddle.wire.keys import ROLES, read_scopes

router = group("Pages")
_SIZES_SECONDS = 15.0
DiskDep = Annotated[Measured, Depends(Service("disk"))]


@router.get("/_ui/api/settings", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def settings(caller: Reader, settings: SettingsDep, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """The server's version, and each setting that was given, with where it came from; no secrets."""
    everything = caller.is_operator
    given = [row for row in TABLE if getattr(settings, row.name) != row.default]
    told: dict[str, Any] = {
        "version": heddle.__version__,
        "schema": store.schema,
        "needs_key": authenticator.needs_key,
        "is_operator": everything,
        "given": [
            {
                "name": row.name,
                "value": _value(settings, row.name, row.show(getattr(settings, row.name))),
                "default": row.show(row.default),
                "source": settings.sources.get(row.name, "") if everything else "",
                "sentence": row.sentence,
            }
            for row in given
            if everything or row.name not in PLACES
        ],
        "image_provider": settings.image_provider,
    }
    return answer(told)


@router.get("/_ui/api/storage", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def storage(caller: Admin, settings: SettingsDep, store: StoreDep, disk: DiskDep) -> Response:
    """How many bytes the data folder takes, and where it is."""
    caller.require_operator("Storage")
    sizes = await disk.measure(_SIZES_SECONDS)
    return answer(
        {
            "folder": os.path.abspath(settings.data),
            "schema": store.schema,
            "limit": settings.max_database_bytes,
            "parts": [{"name": name, "bytes": size} for name, size in sizes.parts.items()],
            "disk_free": sizes.disk_free,
            "disk": sizes.disk,
            "backup": _describe_backup(BackupState.read(Path(settings.data))),
        }
    )


def _describe_backup(state: BackupState) -> dict[str, Any]:
    """How the last `heddle backup` went; instants are texts, null for never."""
    told = {name: getattr(state, name) for name in ("target", "bytes", "seconds", "notes", "error")}
    moments = ("made_at", "restored_at", "failed_at")
    return told | {name: times.to_iso(at) if (at := getattr(state, name)) else None for name in moments}


def _value(settings: Settings, name: str, value: str) -> str:
    if name not in ADDRESSES or "://" not in value:
        return value
    if name == "providers":
        return ", ".join(f"{name} ({_host(found.base_url)})" for name, found in read_providers(settings).items())
    return ", ".join(_host(address) for address in value.split(","))


def _host(address: str) -> str:
    """An address without what may be secret in it: who logs in, and the path."""
    parts = urlsplit(address.strip())
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"


class KeyReq(OwnBody):
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


class RotateReq(OwnBody):
    """How long the old secret counts, and how long the new one (null: as long as the old one did)."""

    overlap: str = "0s"
    expires: str | None = None


@router.get("/_ui/api/keys", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def keys(caller: Admin, store: StoreDep) -> Response:
    """Keys and people that reach what the caller administers, newest first; what the words of roles mean."""
    now = times.now()
    used = await store.sessions.counts(now)
    shown = [_describe(row, used.get(row.id, 0), caller, now) for row in reversed(await store.keys.all())]
    roles = {role: sorted(scopes) for role, scopes in ROLES.items()}
    return answer({"keys": [row for row in shown if row["roles"] or caller.is_operator], "roles": roles})


@router.post("/_ui/api/keys", include_in_schema=False)
async def create_key(body: KeyReq, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """Make a key within the caller's own reach; its secret is answered this once."""
    if not authenticator.needs_key:
        # Whoever is on this machine would otherwise keep a key for the time when one is needed.
        raise Forbidden("This server does not require keys; create them on the command line: heddle keys create")
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
    is_ours = caller.is_operator or (row is not None and row.grants)
    if row is None or not is_ours or not all(_administers(caller, grant) for grant in row.grants):
        raise NotFound(f"Key {key_id[:100]!r} not found among those that your key administers")
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
