"""The data folder of a server: made where it is missing, refused in a line where it cannot be."""

import asyncio
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.paths import SUMS, damaged_files, write_sums
from heddle.store.data_folder import BACKUP_STATE, BackupState, Measured, Sizes, make_folder, sizes
from heddle.store.open import without_database


def test_a_folder_that_cannot_be_made_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "data", Path("/proc")):
        with pytest.raises(HeddleError, match=f"The data folder {place} cannot be used: "):
            make_folder(place)
    make_folder(tmp_path / "new" / "data")
    assert list((tmp_path / "new" / "data").iterdir()) == []


def test_files_that_are_not_as_they_were_noted_are_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a", "inner/b", "c"):
        (tmp_path / name).write_text(name)
    assert damaged_files(tmp_path) == []
    write_sums(tmp_path)
    assert damaged_files(tmp_path) == [] and len((tmp_path / SUMS).read_text().splitlines()) == 3
    (tmp_path / "c").unlink()
    (tmp_path / "inner" / "b").write_text("B")
    assert damaged_files(tmp_path) == ["c", "inner/b"]
    (tmp_path / SUMS).write_bytes(b"\xff\n")
    assert damaged_files(tmp_path) == [SUMS]


@pytest.mark.parametrize("name", ["heddle.db-wal", "files/ab/cd", "training/m/checkpoints/0000/x", "adapters/a/x"])
def test_a_database_that_is_gone_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "files").mkdir()
    assert without_database(tmp_path) is None
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("")
    assert without_database(tmp_path) == f"{tmp_path / 'heddle.db'} is missing, and {tmp_path / name} is there"
    (tmp_path / "heddle.db").write_text("")
    assert without_database(tmp_path) is None


def test_sizes_are_those_of_the_files_below(tmp_path: Path) -> None:
    for name, size in (("files/ab/x", 3), ("files/y", 4), ("adapters/a/z", 5), ("heddle.db", 6), ("heddle.db-wal", 7)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    found = sizes(tmp_path / "heddle.db")
    assert found.parts == {"database": 6, "write_ahead_log": 7, "files": 7, "adapters": 5, "training": 0}
    assert 0 < found.disk_free < found.disk
    assert sizes(tmp_path / "none.db").parts["database"] == 0


def test_who_asks_for_sizes_meanwhile_gets_those_of_one_measurement() -> None:
    async def main() -> None:
        asked, answer = 0, asyncio.Event()

        async def measure() -> Sizes:
            nonlocal asked
            asked += 1
            await answer.wait()
            return Sizes(asked, 0, 0, 0, 0, 1, 1)

        measured = Measured(measure)
        waiting = [asyncio.create_task(measured.measure(3600)) for _ in range(3)]
        waiting[0].cancel()
        answer.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert [found[1], found[2], await measured.measure(3600), measured.sizes] == [found[1]] * 4 and asked == 1
        assert (await measured.measure(-1)).database == 2
        await measured.refresh()
        assert asked == 2, "they are young"

    asyncio.run(main())


def test_what_came_of_a_backup_is_noted_and_damage_to_the_note_is_none(tmp_path: Path) -> None:
    state = BackupState(5, "target", 6, 1.5, notes=("a note",), error="full")
    assert BackupState.read(tmp_path) == BackupState()
    state.write(tmp_path)
    assert BackupState.read(tmp_path) == state
    for text in ("", "{}", "[]", '{"notes": 5}', '{"notes": [], "unknown": 1}'):
        (tmp_path / BACKUP_STATE).write_text(text)
        assert BackupState.read(tmp_path) == BackupState()
    with pytest.raises(HeddleError, match="cannot be written"):
        state.write(tmp_path / "gone")
