"""Whether the control tables on PostgreSQL are whole."""

import time

import sqlalchemy as sa

from heddle.store.base import BLOB_COLUMNS, Looked
from heddle.store.postgres.connection import connect, explain
from heddle.store.postgres.migrate import control_tables

_INVALID = """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND NOT i.indisvalid"""


def check_control(address: str, seconds: float) -> tuple[Looked, list[str]]:
    """Every table, read to its end, and every index; and the keys of the blobs that rows name. Raises Unavailable."""
    ends, looked, problems = time.monotonic() + seconds, 0, list[str]()
    engine = connect(address, 1, "READ COMMITTED", min(seconds, 86_400.0))
    try:
        with engine.connect() as connection:
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
                problems += [
                    f"the index {index.name} is missing" for index in table.indexes if index.name not in indexes
                ]
                connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            problems += [f"the index {name} is not valid" for name in connection.execute(sa.text(_INVALID)).scalars()]
            named = sa.union(*(sa.select(column) for column in BLOB_COLUMNS))
            return Looked(looked, len(tables), problems), list(connection.execute(named).scalars())
    except sa.exc.SQLAlchemyError as error:
        raise explain(error) or error from error
    finally:
        engine.dispose()
