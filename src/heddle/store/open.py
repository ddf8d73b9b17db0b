"""Which store the settings ask for: the embedded one, or calls on ClickHouse beside control tables elsewhere."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from heddle import modes
from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store import direct
from heddle.store.base import Store
from heddle.store.lock import DataLock
from heddle.store.sqlite import store as sqlite

logger = logging.getLogger("heddle.store")
_EMBEDDED = "sqlite"


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """The store of one server until it stops; raises HeddleError when it cannot be used.

    With control tables in the data folder the folder is this server's alone; else servers share it.
    """
    check(settings)
    if settings.control != _EMBEDDED:
        Path(settings.data).mkdir(modes.FOLDER, parents=True, exist_ok=True)
        async with _opened(settings) as store:
            yield store
        return
    with DataLock(Path(settings.data)):
        direct.schema_version(Path(settings.data) / sqlite.DATABASE)
        async with _opened(settings) as store:
            yield store


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    _warn_of_readers(Path(settings.data))
    store: Store
    if settings.store == _EMBEDDED:
        store = await sqlite.open_store(settings)
    else:
        # The packages of ClickHouse are an extra.
        from heddle.store.clickhouse.store import open_store

        store = await open_store(settings)
    try:
        yield store
    finally:
        await store.close()


def _warn_of_readers(folder: Path) -> None:
    if found := modes.open_to_others(folder):
        logger.warning("other users of this machine can read what is stored: %s; %s", found, modes.remedy(folder))


def check(settings: Settings) -> None:
    """Raise HeddleError for settings of stores that do not go together."""
    is_embedded = settings.store == _EMBEDDED
    if is_embedded and settings.control != _EMBEDDED:
        raise HeddleError(
            "control = postgresql://... needs store = clickhouse://...: SQLite keeps calls and all else in one file"
        )
    if is_embedded and settings.store_cluster != "none":
        raise HeddleError("store_cluster names a cluster of ClickHouse: it needs store = clickhouse://...")
    if settings.control != _EMBEDDED and settings.max_database_bytes:
        raise HeddleError("max_database_bytes bounds SQLite; databases elsewhere have limits of their own")
    if not is_embedded and settings.workers > 1:
        raise HeddleError("workers is for SQLite on one machine; with store = clickhouse://... start more servers")
