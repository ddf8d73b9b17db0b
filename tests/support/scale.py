"""What a server is given to run on a ClickHouse look-alike and a real PostgreSQL instead of its own folder."""

import atexit
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import clickhouse, postgres

KINDS = ("sqlite", "clickhouse")
"""The stores on which the tests of the interface run."""
EVERYWHERE = os.environ.get("HEDDLE_TEST_STORE", "sqlite")
"""The store of every server that does not say on which it runs."""


@dataclass(frozen=True)
class Databases:
    """The two databases of one test process, made when first asked for and ended with it."""

    clickhouse: clickhouse.ClickhouseProcess
    postgres: postgres.PostgresServer

    def settings(self) -> dict[str, str]:
        """The settings of a server on databases of its own."""
        return {"store": self.clickhouse.new_database(), "control": self.postgres.new_database()}


def missing() -> str | None:
    """Why there is nothing to test with, None where there is."""
    if clickhouse.MISSING is not None:
        return f"{clickhouse.MISSING} is not installed: make test installs it"
    if postgres.programs() is None:
        return "no PostgreSQL is installed: apt-get install postgresql"
    return None


@cache
def databases() -> Databases:
    """The databases of this test process."""
    folder = tempfile.TemporaryDirectory(prefix="heddle-scale-")
    started = Databases(
        clickhouse.ClickhouseProcess(Path(folder.name) / "clickhouse").start(), postgres.PostgresServer().start()
    )

    def end() -> None:
        started.clickhouse.kill()
        started.postgres.__exit__()
        folder.cleanup()

    atexit.register(end)
    return started


@cache
def settings_of(kind: str, data: Path) -> dict[str, str]:
    """The settings that put a server onto a kind of store; the same databases for the same data folder."""
    return {} if kind == "sqlite" else databases().settings()
