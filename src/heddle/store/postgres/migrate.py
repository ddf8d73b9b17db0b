"""The control tables as PostgreSQL keeps them, and the way of a database to them, once however many servers start."""

import logging
from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from heddle.errors import HeddleError
from heddle.store import base  # noqa: F401 - all tables belong to the metadata with it and the next
from heddle.store.control import pending_calls  # noqa: F401
from heddle.store.control.repository import metadata, stored_type
from heddle.store.postgres.connection import connect, explain

if TYPE_CHECKING:
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
    engine = connect(address, 1, "READ COMMITTED", _STATEMENT_SECONDS)
    try:
        with engine.begin() as connection:
            return _migrate(connection)
    except sa.exc.SQLAlchemyError as error:
        raise explain(error) or error from error
    finally:
        engine.dispose()


def read_version(address: str) -> int:
    """The number of the last revision of a database; 0 for an empty one. Raises Unavailable."""
    engine = connect(address, 1, "READ COMMITTED", _STATEMENT_SECONDS)
    try:
        with engine.connect() as connection:
            return version(connection)
    except sa.exc.SQLAlchemyError as error:
        raise explain(error) or error from error
    finally:
        engine.dispose()


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
            f"The control database was written by a newer heddle (schema {found}, this one knows {current()}); "
            "upgrade heddle"
        )
    pending = [script for script in _revisions() if int(script.revision) > found]
    if pending:
        _upgrade(connection)
    titles = [f"step {int(script.revision)}: {script.doc.rstrip('.')}" for script in pending]
    for title in titles:
        logger.info("schema of PostgreSQL, %s", title)
    return titles


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", _PACKAGE)
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "head")


@cache
def _scripts() -> "ScriptDirectory":
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", _PACKAGE)
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _revisions() -> "list[Script]":
    """Every revision, oldest first."""
    return list(reversed(list(_scripts().walk_revisions())))
