"""The control tables as PostgreSQL keeps them, and the way of a database to them, once however many servers start."""

import logging
import time
from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from heddle.errors import HeddleError
from heddle.store.base import BLOB_COLUMNS, Looked  # all tables belong to the metadata with it and the next
from heddle.store.control import pending_calls  # noqa: F401
from heddle.store.control.repository import metadata, stored_type
from heddle.store.postgres.connection import opened

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import Script, ScriptDirectory


def control_tables() -> sa.MetaData:
    """A copy of the definitions with the types and the partial indexes of PostgreSQL."""
    made = sa.MetaData()
    for table in metadata.sorted_tables:
        copied = table.to_metadata(made)
        for index in copied.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
        for column in copied.columns:
            kept = stored_type(column)
            if isinstance(kept, sa.Text):
                column.type = postgresql.TEXT(collation="C")
            elif isinstance(kept, sa.Integer):
                column.type = sa.BigInteger()
    return made


def statements() -> list[str]:
    """What makes every table and index from nothing."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    found: list[sa.schema.ExecutableDDLElement] = []
    for table in control_tables().sorted_tables:
        found += [
            CreateTable(table),
            *(CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))),
        ]
    texts = (str(statement.compile(dialect=dialect)) for statement in found)
    return ["\n".join(line.rstrip().expandtabs(4) for line in text.strip().splitlines()) for text in texts]


logger = logging.getLogger("heddle.store")
logging.getLogger("alembic").setLevel(logging.WARNING)

_PACKAGE = "heddle.store.postgres:migrations"
_LOCK = 0x686564646C65
"""The number of the advisory lock that one migrating process holds."""
_STATEMENT_SECONDS = 60.0


def current() -> int:
    """The number of the newest revision that this heddle knows."""
    return int(_revisions()[-1].revision)


def migrate(address: str) -> list[str]:
    """Run the revisions that a database lacks; returns their titles.

    Raises HeddleError for a database of a newer heddle, and Unavailable when PostgreSQL does not answer.
    """
    with opened(address, _STATEMENT_SECONDS) as engine, engine.begin() as connection:
        return _migrate(connection)


def read_version(address: str) -> int:
    """The number of the last revision of a database; 0 for an empty one. Raises Unavailable."""
    with opened(address, _STATEMENT_SECONDS) as engine, engine.connect() as connection:
        return version(connection)


def version(connection: sa.Connection) -> int:
    """The number of the last revision that a database went through; 0 for an empty one."""
    from alembic.migration import MigrationContext

    return int(MigrationContext.configure(connection).get_current_revision() or 0)


def _migrate(connection: sa.Connection) -> list[str]:
    found = version(connection)
    if found < current():
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        found = version(connection)
    if found > current():
        raise HeddleError(
            f"The control database was written by a newer heddle (schema {found}; this version supports {current()}); "
            "upgrade heddle"
        )
    pending = [script for script in _revisions() if int(script.revision) > found]
    if pending:
        _upgrade(connection)
    titles = [f"step {int(script.revision)}: {script.doc.rstrip('.')}" for script in pending]
    for title in titles:
        logger.info("PostgreSQL schema: %s", title)
    return titles


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command

    command.upgrade(_config(connection=connection), "head")


def _config(**attributes: object) -> "Config":
    from alembic.config import Config

    config = Config(attributes=attributes)
    config.set_main_option("script_location", _PACKAGE)
    config.set_main_option("path_separator", "os")
    return config


@cache
def _scripts() -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def _revisions() -> "list[Script]":
    """Every revision, oldest first."""
    return list(reversed(list(_scripts().walk_revisions())))


_INVALID = """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND NOT i.indisvalid"""


def check_control(address: str, seconds: float) -> tuple[Looked, list[str]]:
    """Every table, read to its end, and every index; and the keys of the blobs that rows name. Raises Unavailable."""
    ends, looked, problems = time.monotonic() + seconds, 0, list[str]()
    with opened(address, min(seconds, 86_400.0)) as engine, engine.connect() as connection:
        there = sa.inspect(connection)
        tables = control_tables().sorted_tables
        for table in tables:
            if time.monotonic() > ends:
                break
            looked += 1
            if not there.has_table(table.name):
                problems.append(f"the table {table.name} is missing")
                continue
            indexes = {index["name"] for index in there.get_indexes(table.name)}
            problems += [f"the index {index.name} is missing" for index in table.indexes if index.name not in indexes]
            connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        problems += [f"the index {name} is not valid" for name in connection.execute(sa.text(_INVALID)).scalars()]
        named = sa.union(*(sa.select(column).where(column != "") for column in BLOB_COLUMNS))
        return Looked(looked, len(tables), problems), list(connection.execute(named).scalars())
