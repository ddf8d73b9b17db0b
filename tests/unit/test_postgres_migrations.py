"""The schema of the control tables on PostgreSQL: made once, never older than the definitions."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from heddle.auth import Grant
from heddle.errors import ExtraMissing, HeddleError, Unavailable
from heddle.settings import Settings
from heddle.store.control.keys import Keys
from heddle.store.open import migrate as migrate_control
from heddle.store.open import open_direct, usable_keys
from heddle.store.postgres.connection import connect
from heddle.store.postgres.migrate import _config, check_control, current, migrate, statements, version
from tests.support import planted
from tests.support.postgres import PostgresServer
from tests.support.server import free_port

_DESCRIPTION = sa.text(
    "SELECT 'column', table_name, column_name, data_type, is_nullable, column_default, collation_name "
    "FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version' "
    "UNION ALL SELECT 'index', tablename, indexname, indexdef, NULL, NULL, NULL "
    "FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY 1, 2, 3"
)


@contextmanager
def connected(address: str) -> Iterator[sa.Connection]:
    """A connection on which every statement is committed by itself."""
    engine = connect(address, 1, "READ COMMITTED", 30)
    with engine.connect() as connection:
        yield connection
        connection.commit()
    engine.dispose()


def described(address: str) -> list[Any]:
    """Every column and index of a database."""
    with connected(address) as connection:
        return [tuple(row) for row in connection.execute(_DESCRIPTION)]


def test_servers_that_start_at_once_migrate_once(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(migrate, [address] * 8))
    assert sorted(map(len, done)) == [0] * 7 + [current()]
    assert migrate(address) == []
    with connected(address) as connection:
        assert version(connection) == current()


def test_the_revisions_make_what_is_defined(postgres: PostgresServer) -> None:
    """A definition that changes without a revision fails here; `definitions.statements` says what to write into it."""
    migrated, defined = postgres.new_database(), postgres.new_database()
    migrate(migrated)
    with connected(defined) as connection:
        for statement in statements():
            connection.exec_driver_sql(statement)
    assert described(migrated) == described(defined)
    assert len(described(migrated)) > 300


def test_keys_of_an_earlier_database_keep_what_they_could_do(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    settings = Settings(control=address)
    scopes = [("read write", "team", None), ("admin", None, None), ("read", None, "team/p")]
    with connected(address) as connection:
        command.upgrade(_config(connection=connection), "0007")
        for number, (words, entity, project) in enumerate(scopes):
            connection.execute(
                sa.text(
                    'INSERT INTO api_keys (id, hash, "user", created_at, created_by, scopes, entity, project)'
                    " VALUES (:id, :id, 'ada', 1, 'ada', :scopes, :entity, :project)"
                ),
                {"id": f"k{number}", "scopes": words, "entity": entity, "project": project},
            )
    assert len(migrate(address)) == current() - 7
    rows = asyncio.run(Keys(open_direct(settings)).all())
    shown = {row.id: [str(grant) for grant in row.grants] for row in rows}
    assert shown == {"k0": ["editor+delete:team"], "k1": ["admin"], "k2": ["viewer:team/p"]}


def test_rows_whose_owner_is_gone_are_removed(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    migrate(address)
    with connected(address) as connection:
        planted.orphan(connection)
        connection.exec_driver_sql("ALTER TABLE train_jobs DROP COLUMN former_project")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0012'")
    with ThreadPoolExecutor(3) as threads:
        assert sorted(map(len, threads.map(migrate, [address] * 3))) == [0, 0, current() - 12]
    with connected(address) as connection:
        assert planted.left_of_orphans(connection) == dict.fromkeys(planted.ORPHANS, 1)


def test_a_table_or_an_index_that_is_missing_is_named(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    migrate(address)
    [(sound, named), (none, _)] = [check_control(address, seconds) for seconds in (60.0, 0.0)]
    assert (sound.looked_at, sound.problems, named) == (sound.of, [], [])
    assert (none.looked_at, none.of, none.problems) == (0, sound.of, [])
    with connected(address) as connection:
        connection.exec_driver_sql("DROP TABLE leases")
        connection.exec_driver_sql("DROP INDEX ix_api_keys_previous_hash")
        connection.exec_driver_sql(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'responses_status'::regclass"
        )
    assert check_control(address, 60.0)[0].problems == [
        "the index ix_api_keys_previous_hash is missing",
        "the table leases is missing",
        "the index responses_status is not valid",
    ]


def test_a_database_of_a_newer_heddle_is_refused(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    migrate(address)
    with connected(address) as connection:
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{current() + 1:04}'"))
    before = described(address)
    with pytest.raises(HeddleError, match=f"newer heddle .schema {current() + 1}; this version supports {current()}"):
        migrate(address)
    assert described(address) == before


def test_a_revision_that_fails_leaves_nothing(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    with connected(address) as connection:
        connection.execute(sa.text("CREATE TABLE train_models (something int)"))
    with pytest.raises(sa.exc.ProgrammingError, match="already exists"):
        migrate(address)
    assert {row[1] for row in described(address)} == {"train_models"}


def test_keys_without_a_server(postgres: PostgresServer) -> None:
    """What `heddle keys` works with; it migrates where that is needed."""
    settings = Settings(control=postgres.new_database())
    assert usable_keys(settings) == 0

    async def work() -> None:
        _, row = await Keys(open_direct(settings)).create("ada", [Grant.parse("viewer")], "me")
        assert [found.id for found in await Keys(open_direct(settings)).all()] == [row.id]
        await Keys(open_direct(settings)).create("bob", [Grant.parse("viewer")], "me")
        await Keys(open_direct(settings)).revoke(row.id, "me")

    asyncio.run(work())
    assert migrate_control(settings) == []
    assert usable_keys(settings) == 1


def test_no_server_answers() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        migrate(f"postgresql://heddle@127.0.0.1:{free_port()}/heddle")


def test_an_unknown_user_is_told_what_postgresql_says(postgres: PostgresServer) -> None:
    with pytest.raises(Unavailable, match='"nobody-known" does not exist'):
        migrate(postgres.new_database().replace("heddle@", "nobody-known@"))


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "heddle.store.postgres.values", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraMissing, match=r"pip install .*\[postgres\]'"):
        connect("postgresql://heddle@127.0.0.1/heddle", 1, "READ COMMITTED", 1)


@pytest.mark.thorough
def test_the_commands(postgres: PostgresServer) -> None:
    address = postgres.new_database()

    def heddle(*arguments: str) -> str:
        command = [sys.executable, "-m", "heddle", *arguments, "--control", address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    assert heddle("migrate").startswith("step 1: ")
    assert heddle("keys", "create", "--user", "ada", "--quiet").startswith("heddle-")
    assert "ada" in heddle("keys", "list")
