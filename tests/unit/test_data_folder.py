"""The data folder of a server: made where it is missing, refused in a line where it cannot be."""

from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.store.data_folder import make_folder


def test_a_folder_that_cannot_be_made_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "data", Path("/proc")):
        with pytest.raises(HeddleError, match=f"The data folder {place} cannot be used: "):
            make_folder(place)
    make_folder(tmp_path / "new" / "data")
    assert list((tmp_path / "new" / "data").iterdir()) == []
