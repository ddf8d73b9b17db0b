"""Which store the settings ask for; and its control tables without a server, as `heddle keys` works on them."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from heddle import paths
from heddle.errors import HeddleError
from heddle.paths import TRAINING
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.inference import adapters
from heddle.store.control.keys import api_keys
from heddle.store.control.repository import Executor
from heddle.store.control.training_models import train_checkpoints
from heddle.store.data_folder import FILES, DataLock, make_folder
from heddle.store.sqlite import migrations, row_checksums
from heddle.store.sqlite.call_bodies import add_functions
from heddle.store.sqlite.connection import connect
from heddle.store.sqlite.database import DATABASE, open_writer
from heddle.store.sqlite.store import open_store as open_sqlite

T = TypeVar("T")

logger = logging.getLogger("heddle.store")
_EMBEDDED = "sqlite"
_BUSY_SECONDS = 15


class DirectExecutor:
    """An Executor (see control/repository.py) that opens the file for each piece of work."""

    def __init__(self, database: Path, *, is_read_only: bool = False) -> None:
        opened = partial(_open, database, is_read_only)
        self._engine = sa.create_engine("sqlite://", creator=opened, poolclass=sa.pool.NullPool)

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:  # noqa: ARG002
        with self._engine.begin() as connection:
            return work(connection)

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:  # noqa: ARG002
        with self._engine.connect() as connection:
            return work(connection)


def _open(database: Path, is_read_only: bool) -> sqlite3.Connection:
    raw = connect(database, is_read_only=is_read_only, timeout=_BUSY_SECONDS)
    add_functions(raw)
    if not is_read_only:
        row_checksums.watch(raw)
    return raw


def schema_version(database: Path) -> int:
    """The number of the last migration of a database file; 0 where there is none. Raises HeddleError if unreadable."""
    if not database.exists():
        return 0
    with _reading(database) as connection:
        return int(connection.execute(sa.text("PRAGMA user_version")).scalar_one())


def without_database(folder: Path) -> str | None:
    """That the database is gone from a folder that holds what its rows name, as text, or None."""
    database = folder / DATABASE
    named = next(
        (path for name in (f"{DATABASE}-wal", FILES, "adapters", TRAINING) for path in _files(folder / name)), None
    )
    return None if database.exists() or named is None else f"{database} is missing, and {named} is there"


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    yield from (path for path in place.rglob("*") if path.is_file())


def usable_keys(settings: Settings) -> int:
    """How many keys are not revoked; 0 before the first migration. Raises HeddleError where they cannot be read."""
    query = sa.select(sa.func.count()).select_from(api_keys).where(api_keys.c.revoked_at.is_(None))
    if settings.control != _EMBEDDED:
        if control_version(settings)[0] == 0:
            return 0
        from heddle.store.postgres.control import DirectPostgres

        reading = DirectPostgres(settings).read(lambda connection: int(connection.execute(query).scalar_one()))
        return asyncio.run(reading)
    database = Path(settings.data) / DATABASE
    if schema_version(database) == 0:
        return 0
    with _reading(database) as connection:
        return int(connection.execute(query).scalar_one())


def control_version(settings: Settings) -> tuple[int, int]:
    """The last revision of the control tables on PostgreSQL, 0 in an empty database, and the newest that is known.

    Raises Unavailable when it does not answer, ExtraMissing without the driver.
    """
    # The packages of PostgreSQL are an extra.
    from heddle.store.postgres import migrate

    return migrate.read_version(settings.control), migrate.current()


@contextmanager
def _reading(database: Path) -> Iterator[sa.Connection]:
    opened = partial(connect, database, is_read_only=True)
    engine = sa.create_engine("sqlite://", creator=opened, poolclass=sa.pool.NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    except sa.exc.DatabaseError as error:
        raise HeddleError(f"{database} cannot be read: {error.orig}") from None


def migrate(settings: Settings) -> list[str]:
    """Bring the database to the current schema; returns the titles of the steps. Raises HeddleError while in use."""
    if settings.control != _EMBEDDED:
        # The packages of PostgreSQL are an extra.
        from heddle.store.postgres.migrate import migrate

        return migrate(settings.control)
    return _migrate_file(settings)


def _migrate_file(settings: Settings) -> list[str]:
    with DataLock(Path(settings.data)):
        path = Path(settings.data) / DATABASE
        schema_version(path)
        session = open_writer(path, settings.durability, settings.max_database_bytes)
        try:
            return [f"step {step.number}: {step.title}" for step in migrations.migrate(session, path)]
        finally:
            session.close()


def open_direct(settings: Settings) -> Executor:
    """Work on the control tables; makes or migrates their database where that is needed."""
    if settings.control != _EMBEDDED:
        migrate(settings)
        from heddle.store.postgres.control import DirectPostgres

        return DirectPostgres(settings)
    database = Path(settings.data) / DATABASE
    found = schema_version(database)
    if found > migrations.CURRENT:
        raise HeddleError(f"{database} was written by a newer heddle (schema {found}); upgrade heddle")
    if found < migrations.CURRENT:
        _migrate_file(settings)
    return DirectExecutor(database)


def policy_folders(database: Path) -> list[str]:
    """The folders, relative to the data folder, of adapter versions and checkpoints; none under another schema."""
    if schema_version(database) != migrations.CURRENT:
        return []
    query = sa.select(adapters.c.folder).union(sa.select(train_checkpoints.c.folder))
    with _reading(database) as connection:
        return sorted(connection.execute(query).scalars())


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[Store]:
    """The store of one server until it stops; raises HeddleError when it cannot be used.

    With control tables in the data folder the folder is this server's alone; else servers share it.
    """
    check(settings)
    if settings.control != _EMBEDDED:
        make_folder(Path(settings.data))
        async with _opened(settings) as store:
            yield store
        return
    with DataLock(Path(settings.data)):
        schema_version(Path(settings.data) / DATABASE)
        if lost := without_database(Path(settings.data)):
            raise HeddleError(f"{lost}: restore the last backup (heddle restore), or start in an empty folder")
        async with _opened(settings) as store:
            yield store


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    if found := paths.open_to_others(Path(settings.data)):
        remedy = paths.remedy(Path(settings.data))
        logger.warning("other users of this machine can read the data folder: %s; %s", found, remedy)
    store: Store
    if settings.store == _EMBEDDED:
        store = await open_sqlite(settings)
    else:
        # The packages of ClickHouse are an extra.
        from heddle.store.clickhouse.store import open_store

        store = await open_store(settings)
    try:
        yield store
    finally:
        await store.close()


def check(settings: Settings) -> None:
    """Raise HeddleError for settings of stores that do not go together."""
    is_embedded = settings.store == _EMBEDDED
    if is_embedded and settings.control != _EMBEDDED:
        raise HeddleError(
            "control = postgresql://... requires store = clickhouse://...: SQLite keeps everything in one file"
        )
    if is_embedded and settings.store_cluster != "none":
        raise HeddleError("store_cluster requires store = clickhouse://...")
    if settings.control != _EMBEDDED and settings.max_database_bytes:
        raise HeddleError("max_database_bytes only applies to SQLite; other databases have their own limits")
    if not is_embedded and settings.workers > 1:
        raise HeddleError(
            "workers only applies to SQLite on one machine; with store = clickhouse://... start more servers"
        )
