"""Bringing ClickHouse to the current schema when a server starts, also when many start at once."""

from typing import TYPE_CHECKING

import sqlalchemy as sa

from heddle.errors import HeddleError
from heddle.store.clickhouse.client import Clickhouse, rows_of
from heddle.store.clickhouse.schema import CURRENT, MIGRATIONS, STEPS, TYPES, Place, steps_table
from heddle.store.control.schema import Executor

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_LOCK = 0x686564646C65
"""The number by which servers that share PostgreSQL agree on who changes the tables."""
_LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


async def migrate(clickhouse: Clickhouse, place: Place, control: Executor) -> list[str]:
    """Make the database where it is missing and take the pending steps; returns what they are about.

    Raises HeddleError where a newer heddle has been, and Unavailable while ClickHouse does not answer.
    """

    def work(connection: sa.Connection) -> list[str]:
        if connection.dialect.name == "postgresql":
            # The first server may take long, as every node of a cluster makes its tables; the others wait for it.
            for limit in _LIMITS:
                connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        clickhouse.make_database()
        return clickhouse.run(lambda client: _take_steps(client, place))

    return await control.write(work)


def _take_steps(client: "Client", place: Place) -> list[str]:
    for statement in steps_table(place):
        client.command(statement)
    found = int(rows_of(client, f"SELECT max(number) FROM {STEPS}")[0][0])
    if found > CURRENT:
        raise HeddleError(
            f"The database {place.database} was written by a newer heddle"
            f" (schema {found}, this one knows {CURRENT}); upgrade heddle"
        )
    taken: list[str] = []
    for number, title, statements in MIGRATIONS:
        if number > found:
            for statement in statements(place):
                client.command(statement)
            client.insert(STEPS, [(number, title)], list(TYPES[STEPS]), column_type_names=list(TYPES[STEPS].values()))
            taken.append(title)
    return taken
