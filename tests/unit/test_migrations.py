"""Schema steps: run once, in order, all or nothing; a backup before tables that hold data are changed."""

import json
import sqlite3
from pathlib import Path

import pytest

from heddle.auth import Grant
from heddle.errors import HeddleError
from heddle.store.sqlite import migrations
from heddle.store.sqlite.call_bodies import COLUMN
from heddle.store.sqlite.database import Session, open_writer
from heddle.store.sqlite.migrations import Migration, migrate, version
from heddle.wire.call_summary import read_error
from heddle.wire.calls import ERROR, SUCCESS
from tests.support import planted


def opened(path: Path) -> Session:
    return open_writer(path, "normal", 0)


def add_column(session: Session) -> None:
    session.raw.execute("ALTER TABLE names ADD COLUMN extra TEXT")


def with_step(monkeypatch: pytest.MonkeyPatch, step: Migration) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, step))
    monkeypatch.setattr(migrations, "CURRENT", step.number)


def columns(raw: sqlite3.Connection) -> list[str]:
    return [row[1] for row in raw.execute("PRAGMA table_info(names)")]


def test_steps_run_once(tmp_path: Path) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    assert [step.number for step in migrate(session, path)] == [step.number for step in migrations.MIGRATIONS]
    assert version(session.raw) == migrations.CURRENT
    assert migrate(session, path) == []
    session.close()


def test_a_step_that_changes_data_leaves_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)
    session.raw.execute("DELETE FROM names")
    session.raw.execute("INSERT INTO names (v, label) VALUES ('kept', 'kept')")
    number = migrations.CURRENT + 1
    with_step(monkeypatch, Migration(number, "one more column", add_column, changes_data=True))
    assert [step.number for step in migrate(session, path)] == [number]
    assert "extra" in columns(session.raw)
    session.close()
    with sqlite3.connect(tmp_path / f"heddle.db.before-{number}") as backup:
        assert "extra" not in columns(backup)
        assert backup.execute("SELECT v FROM names").fetchall() == [("kept",)]


def test_failed_calls_of_an_earlier_file_get_their_groups(tmp_path: Path) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)
    problems = [None, "ValueError: order 1", "ValueError: order 2", "KeyError: 'x'"]
    for rid, problem in enumerate(problems, 1):
        status = ERROR if problem else SUCCESS
        session.raw.execute("INSERT INTO calls (rid, project, id, status) VALUES (?, 1, ?, ?)", (rid, str(rid), status))
        session.raw.execute("INSERT INTO body_out (rid, summary, exception) VALUES (?, '{}', ?)", (rid, problem))
    [step] = [step for step in migrations.MIGRATIONS if step.title == "which failed calls have the same error"]
    step.apply(session)
    found = [group for (group,) in session.raw.execute("SELECT error_group FROM calls ORDER BY rid")]
    assert found == [None if problem is None else read_error(problem).group for problem in problems]
    session.close()


def test_an_earlier_file_keeps_what_its_keys_could_do_and_drops_indexes_over_dumps(tmp_path: Path) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)
    raw = session.raw
    raw.execute("DROP INDEX ix_api_keys_previous_hash")
    for column in ("grants", "last_used_from", "expires_at", "rotated_at", "previous_hash", "previous_until"):
        raw.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
    for column in ("scopes TEXT", "entity TEXT", "project TEXT"):
        raw.execute(f"ALTER TABLE api_keys ADD COLUMN {column}")
    later = {"audit_log": "address", "projects": "redaction", "inference_limits": "quotas", "body_out": COLUMN}
    for table, column in later.items():
        raw.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    keys = [("k1", "read write", "team", None), ("k2", "admin", None, None), ("k3", "read", None, "team/p")]
    raw.executemany(
        "INSERT INTO api_keys (id, hash, user, created_at, created_by, scopes, entity, project)"
        " VALUES (?1, ?1, 'ada', 1, 'ada', ?2, ?3, ?4)",
        keys,
    )
    for name, expression in (("path_1", "json_extract(otel_dump, '$.a')"), ("path_2", "json_extract(inputs, '$.a')")):
        raw.execute("INSERT INTO path_indexes VALUES (?, 'body_in', ?, 3, 1, 1)", (name, expression))
        raw.execute(f"CREATE INDEX {name} ON body_in (rid)")
    raw.execute("PRAGMA user_version = 20")
    assert [step.number for step in migrate(session, path)] == list(range(21, migrations.CURRENT + 1))
    session.close()
    with sqlite3.connect(path) as after:
        found = {row[0]: row[1:] for row in after.execute("SELECT id, grants, expires_at FROM api_keys")}
        shown = {key: [str(Grant.parse(text)) for text in json.loads(grants)] for key, (grants, _) in found.items()}
        assert shown == {"k1": ["editor+delete:team"], "k2": ["admin"], "k3": ["viewer:team/p"]}
        assert {row[1] for row in found.values()} == {None}
        names = {row[1] for row in after.execute("PRAGMA table_info(api_keys)")}
        assert names.isdisjoint(("scopes", "entity", "project"))
        for table, column in later.items():
            assert column in {row[1] for row in after.execute(f"PRAGMA table_info({table})")}
        assert after.execute("SELECT name FROM path_indexes").fetchall() == [("path_2",)]
        there = {row[0] for row in after.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert there & {"path_1", "path_2", "ix_api_keys_previous_hash"} == {"path_2", "ix_api_keys_previous_hash"}
    with sqlite3.connect(tmp_path / f"heddle.db.before-{migrations.CURRENT}") as before:
        assert before.execute("SELECT id, scopes, entity, project FROM api_keys ORDER BY id").fetchall() == keys


def test_a_step_whose_transaction_the_database_has_undone_says_what_was_the_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SQLite does by itself when the disk is full or fails."""
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)

    def undone(inner: Session) -> None:
        add_column(inner)
        inner.raw.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    with_step(monkeypatch, Migration(migrations.CURRENT + 1, "undone", undone))
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        migrate(session, path)
    assert "extra" not in columns(session.raw)
    assert version(session.raw) == migrations.CURRENT - 1
    session.close()


def test_a_step_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)

    def broken(inner: Session) -> None:
        add_column(inner)
        raise ZeroDivisionError

    before = version(session.raw)
    with_step(monkeypatch, Migration(before + 1, "broken", broken))
    with pytest.raises(ZeroDivisionError):
        migrate(session, path)
    assert version(session.raw) == before
    assert "extra" not in columns(session.raw)
    session.close()


def test_rows_whose_owner_is_gone_are_removed(tmp_path: Path) -> None:
    """Earlier versions left some behind a purge, which no later one found."""
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)
    session.raw.execute("BEGIN IMMEDIATE")
    planted.orphan(session.control)
    session.raw.execute("PRAGMA user_version = 28")
    session.raw.execute("COMMIT")
    assert [step.number for step in migrate(session, path)] == [29, 30]
    assert planted.left_of_orphans(session.control) == dict.fromkeys(planted.ORPHANS, 1)
    session.close()


def test_a_file_of_a_newer_heddle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)
    session.raw.execute(f"PRAGMA user_version = {migrations.CURRENT + 1}")
    with pytest.raises(HeddleError, match="newer heddle"):
        migrate(session, path)
    session.close()


def test_step_2_gives_an_older_file_the_tables_of_inference(tmp_path: Path) -> None:
    path = tmp_path / "heddle.db"
    session = opened(path)
    migrate(session, path)
    made = ("inference_usage", "inference_limits", "adapters")
    for table in made:
        session.raw.execute(f"DROP TABLE {table}")
    session.raw.execute("PRAGMA user_version = 1")
    assert [step.number for step in migrate(session, path)][:1] == [2]
    there = {row[0] for row in session.raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert there.issuperset(made)
    session.close()
