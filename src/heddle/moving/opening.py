"""Opening what is moved: for an export a copy of one instant where there is one file, for an import the store."""

import asyncio
import contextlib
import dataclasses
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from heddle.errors import HeddleError
from heddle.moving.lent import LentBlobs
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.blobs.open import open_blobs
from heddle.store.lock import DataLock
from heddle.store.open import opened_store
from heddle.store.sqlite.store import DATABASE

EMBEDDED = "sqlite"
_NO_HURRY = 86_400.0


@contextlib.asynccontextmanager
async def opened_for_export(settings: Settings, scratch: Path) -> AsyncIterator[Store]:
    """The store to be read; raises HeddleError when there is none.

    An embedded database is copied into a folder under `scratch` first: what is read is one instant, also beside a
    running server, and nothing of the original is touched. Other stores are read as they are.
    """
    patient = dataclasses.replace(settings, query_timeout=_NO_HURRY)
    if settings.store != EMBEDDED:
        async with opened_store(patient) as store:
            yield store
        return
    source = Path(settings.data) / DATABASE
    if not source.exists():
        raise HeddleError(f"There is nothing to export: {source} does not exist")
    with tempfile.TemporaryDirectory(prefix=".export.", dir=scratch) as folder:
        await asyncio.to_thread(_copy, source, Path(folder) / DATABASE)
        async with opened_store(dataclasses.replace(patient, data=folder, files="folder")) as store:
            store.blobs = LentBlobs(open_blobs(settings))
            yield store


def check_free(settings: Settings) -> None:
    """Raise HeddleError while a server has the store for itself, before much is read that could not be stored."""
    if settings.control == EMBEDDED:
        with DataLock(Path(settings.data)):
            return


def _copy(source: Path, target: Path) -> None:
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as live,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise HeddleError(f"{source} cannot be copied: {error}") from None
