"""Schema steps: run once, in order, all or nothing; a backup before tables that hold data are changed."""

import sqlite3
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.store.sqlite import migrations
from heddle.store.sqlite.database import Session, open_writer
from heddle.store.sqlite.migrations import Migration, migrate, version
from heddle.wire.call_summary import read_error
from heddle.wire.calls import ERROR, SUCCESS


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
