"""What the page of settings shows of the server: providers, storage, and what differs from the defaults."""

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Response

import heddle
from heddle.http.routing import (
    Admin,
    AuthenticatorDep,
    Reader,
    Service,
    SettingsDep,
    StoreDep,
    answer,
    group,
)
from heddle.inference.providers import read_providers
from heddle.settings import ADDRESSES, PLACES, TABLE, Settings
from heddle.store.data_folder import BackupState, Measured
from heddle.wire import times

router = group("Pages")

_SIZES_SECONDS = 15.0
DiskDep = Annotated[Measured, Depends(Service("disk"))]


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
