"""What the page of settings shows of the server: keys, providers, storage, and what differs from the defaults."""

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Response
from pydantic import Field

import heddle
from heddle.auth import Caller, Scope
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.http.routing import (
    Admin,
    AuthenticatorDep,
    Reader,
    RequestModel,
    Service,
    SettingsDep,
    StoreDep,
    answer,
    group,
)
from heddle.inference.providers import read_providers
from heddle.settings import ADDRESSES, PLACES, TABLE, Settings
from heddle.store.control.keys import KeyRow
from heddle.store.data_folder import BackupState, Measured
from heddle.wire import times

router = group("Pages")

_SIZES_SECONDS = 15.0
DiskDep = Annotated[Measured, Depends(Service("disk"))]


class KeyReq(RequestModel):
    """A key to make."""

    user: str = Field(max_length=256)
    scopes: list[str]
    entity: str | None = None
    project: str | None = None


@router.get("/_ui/api/settings", include_in_schema=False)
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


@router.get("/_ui/api/storage", include_in_schema=False)
async def storage(caller: Admin, settings: SettingsDep, store: StoreDep, disk: DiskDep) -> Response:
    """How much room the data folder takes, and where it is."""
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


@router.get("/_ui/api/keys", include_in_schema=False)
async def keys(caller: Admin, store: StoreDep) -> Response:
    """The keys within the caller's own binding, newest first."""
    used = await store.sessions.counts(times.now())
    rows = [row for row in await store.keys.all() if _is_within(caller, row.entity, row.project)]
    return answer({"keys": [_describe_key(row, used.get(row.id, 0), caller) for row in reversed(rows)]})


@router.post("/_ui/api/keys", include_in_schema=False)
async def create_key(body: KeyReq, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """Make a key within the caller's own binding; its secret is answered this once."""
    if not authenticator.needs_key:
        # Whoever is on this machine would otherwise keep a key for the time when one is needed.
        raise Forbidden("Nobody is asked for a key here, so keys are made on the command line: heddle keys create")
    entity, project = body.entity or None, body.project or None
    if not _is_within(caller, entity, project):
        raise Forbidden(f"Your key is bound to {caller.project or caller.entity}; a new key must be bound within that")
    unknown = [word for word in body.scopes if word not in set(Scope)]
    if unknown:
        raise InvalidRequest(f"scope = {unknown[0][:100]!r} cannot be used: allowed are {', '.join(Scope)}")
    scopes = frozenset(Scope(word) for word in body.scopes)
    key, row = await store.keys.create(body.user.strip(), scopes, entity, project, caller.user)
    return answer({"key": key, **_describe_key(row, 0, caller)})


@router.delete("/_ui/api/keys/{key_id}", include_in_schema=False)
async def revoke_key(key_id: str, caller: Admin, store: StoreDep, authenticator: AuthenticatorDep) -> Response:
    """Make a key useless from now on, and end its sessions."""
    row = next((row for row in await store.keys.all() if row.id == key_id), None)
    if row is None or not _is_within(caller, row.entity, row.project):
        raise NotFound(f"There is no key {key_id[:100]!r} within reach of yours")
    await store.keys.revoke(key_id, caller.user)
    await store.sessions.end_of_key(key_id)
    authenticator.forget()
    return answer({})


def _is_within(caller: Caller, entity: str | None, project: str | None) -> bool:
    """True when a key of that binding reaches nothing that the caller does not reach."""
    if project is not None:
        return caller.reaches(project)
    return caller.project is None and caller.entity in (None, entity)


def _describe_key(row: KeyRow, sessions: int, caller: Caller) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("id", "user", "entity", "project", "created_by")}
    moments = {name: times.optional_iso(getattr(row, name)) for name in ("created_at", "last_used_at", "revoked_at")}
    scopes = [scope for scope in Scope if scope in row.scopes]
    return {**told, **moments, "scopes": scopes, "sessions": sessions, "is_own": row.id == caller.key_id}


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
