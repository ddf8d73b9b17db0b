"""The data folder of a server: made where it is missing, refused in a line where it cannot be."""

from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.paths import SUMS, damaged_files, write_sums
from heddle.store.data_folder import make_folder
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
