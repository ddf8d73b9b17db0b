"""Repeated texts of calls have one number each, also when they were erased and come again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.settings import Settings
from heddle.store.sqlite import names
from heddle.store.sqlite.database import DATABASE, Session
from heddle.store.sqlite.names import NameReader, Names
from heddle.store.sqlite.store import open_file


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    opened = open_file(Settings(data=str(tmp_path)), tmp_path / DATABASE)
    yield opened
    opened.close()


def test_an_erased_text_leaves_no_byte_and_has_its_number_again(session: Session) -> None:
    known = Names()
    secret, other = known.number(session.raw, "op of ada"), known.number(session.raw, "op of bob")
    known.committed()
    known.watch()
    assert known.number(session.raw, "op of bob") == other, "in use again"
    for _ in range(2):
        known.erase(session.raw, [secret, other])
    texts = dict(session.raw.execute("SELECT k, v FROM names").fetchall())
    assert texts[other] == "op of bob" and "ada" not in texts[secret] and texts[secret].startswith("erased:")
    assert known.number(session.raw, "op of ada") == secret
    (row,) = session.raw.execute("SELECT v, label FROM names WHERE k = ?", (secret,)).fetchall()
    assert row == ("op of ada", "op of ada")


def test_what_is_remembered_is_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_MAX_CACHED", 3)
    known, reader = Names(), NameReader()
    numbers = [known.number(session.raw, f"name {n}") for n in range(10)]
    assert [known.number(session.raw, f"name {n}") for n in range(10)] == numbers and len(set(numbers)) == 10
    assert [reader.text(session.raw, number) for number in numbers] == [f"name {n}" for n in range(10)]
    assert reader.text(session.raw, None) is None
    assert reader.number(session.raw, "name 4") == numbers[4]
