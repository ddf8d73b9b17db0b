"""What a server is given to run on a ClickHouse look-alike and a real PostgreSQL instead of its own folder."""

import os
from functools import cache
from pathlib import Path

import pytest

from tests.support import clickhouse, postgres

KINDS = ("sqlite", "clickhouse")
"""The stores on which the tests of the interface run."""
EVERYWHERE = os.environ.get("HEDDLE_TEST_STORE", "sqlite")
"""The store of every server that does not say on which it runs."""
on_sqlite = pytest.mark.skipif(EVERYWHERE != "sqlite", reason="of the embedded store, such as its file")
"""Marks tests of what only the embedded store has."""


def missing() -> str | None:
    """Why there is nothing to test with, None where there is."""
    if clickhouse.MISSING is not None:
        return f"{clickhouse.MISSING} is not installed: make test installs it"
    if postgres.programs() is None:
        return "no PostgreSQL is installed: apt-get install postgresql"
    return None


@cache
def settings_of(kind: str, data: Path) -> dict[str, str]:
    """The settings that put a server onto a kind of store; the same databases for the same data folder."""
    return {} if kind == "sqlite" else new_databases()


def new_databases() -> dict[str, str]:
    """The settings of a server on two databases of its own."""
    return {
        "store": clickhouse.clickhouse_process().new_database(),
        "control": postgres.postgres_server().new_database(),
    }
