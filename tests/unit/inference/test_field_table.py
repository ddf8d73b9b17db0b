"""docs/inference.md has one row for each field of the interface, and each row names a test that exists."""

import json
import re
from pathlib import Path

import pytest

from tests.support.interface import field_paths

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "inference.md"
FIELDS = ROOT / "tests" / "data" / "interface-fields.json"
INTERFACE = ROOT.parent / "shared" / "contract" / "interface.md"


def table() -> list[tuple[str, str, str]]:
    """Field, sentence and test of each row."""
    text = PAGE.read_text(encoding="utf-8").partition("## Fields")[2]
    return re.findall(r"^\| `([\w.]+)` \| (.+) \| `(\S+)` \|$", text, re.MULTILINE)


@pytest.mark.skipif(not INTERFACE.exists(), reason="the shared folder with the interface is not beside this checkout")
def test_the_list_is_what_the_interface_says() -> None:
    assert json.loads(FIELDS.read_text()) == field_paths(INTERFACE.read_text(encoding="utf-8"))


def test_every_field_has_one_row() -> None:
    assert [field for field, _, _ in table()] == json.loads(FIELDS.read_text())


def test_every_row_says_something() -> None:
    assert all(sentence.endswith(".") for _, sentence, _ in table())


def test_every_named_test_exists() -> None:
    named = {test for _, _, test in table()}
    missing = []
    for test in sorted(named):
        path, _, name = test.partition("::")
        file = ROOT / "tests" / path
        if not file.is_file() or f"\ndef {name}(" not in file.read_text(encoding="utf-8"):
            missing.append(test)
    assert not missing
