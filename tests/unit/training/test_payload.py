"""Stored bodies come back as they were, equal ones are one blob, and what is no such file is told."""

import math
from pathlib import Path

import pytest
import zstandard

from heddle.training import files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"rows": [{"text": "é" * 1000, "number": 1.5, "big": 2**63, "none": None, "flag": True}] * 500}
    path = tmp_path / "blob"
    path.write_bytes(files.write_payload(value))
    assert files.read_payload(path) == value
    assert path.stat().st_size < 2000
    with path.open("rb") as stream:
        text = b"".join(files.read_chunks(stream))
    assert text.startswith(b'{"rows":[{"text":"')


def test_equal_values_give_equal_bytes() -> None:
    assert files.write_payload({"a": [1, 2]}) == files.write_payload({"a": [1, 2]})
    assert files.write_payload({"a": [1, 2]}) != files.write_payload({"a": [2, 1]})


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(files.write_payload({"a": math.nan, "b": -math.inf}))
    assert files.read_payload(tmp_path / "blob") == {"a": None, "b": None}


@pytest.mark.parametrize("damage", [b"", b"plain text", b"\x28\xb5\x2f\xfd\x00"])
def test_another_file_is_told(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(damage)
    with pytest.raises(ValueError):
        files.read_payload(tmp_path / "blob")


def test_a_cut_file_is_told(tmp_path: Path) -> None:
    whole = zstandard.ZstdCompressor().compress(b'{"a": "' + bytes(range(97, 123)) * 2000 + b'"}')
    (tmp_path / "blob").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError):
        files.read_payload(tmp_path / "blob")
